"""Filling a model's parameters, one at a time, from a checkpoint folder."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn
from tqdm import tqdm

from vllm_neuron.errors import CheckpointError
from vllm_neuron.model.loading.checkpoint import Checkpoint
from vllm_neuron.model.loading.plan import Plan, Source, make_plan
from vllm_neuron.model.loading.table import Table
from vllm_neuron.utils.weight_loader import LazySlice, SliceView, get_weight_loader

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class LoadReport:
    """What a load did.

    Attributes:
        parameters: parameters filled.
        bytes: their size on this rank.
        seconds: wall clock.
        redundant: keys in the file that repeat a tied parameter.
        dropped: key -> why it is not needed.
        remapped: (prefix in the file, prefix in the table), or None.
    """

    parameters: int
    bytes: int
    seconds: float
    redundant: tuple[str, ...] = ()
    dropped: Mapping[str, str] = field(default_factory=dict)
    remapped: tuple[str, str] | None = None


def load_model(
    model: nn.Module,
    table: Table,
    folder: Path,
    *,
    rank: int,
    world_size: int,
    dtype: torch.dtype,
    flags: Mapping[str, bool],
    progress: bool = True,
) -> LoadReport:
    """Replace the model's meta parameters by this rank's shards on the CPU.

    The whole table is resolved, and every file checked, before the first parameter changes.

    Args:
        model: built on the meta device; each parameter knows its loader.
        table: its checkpoint table.
        folder: the checkpoint.
        rank, world_size: this rank, of how many.
        dtype: of the parameters; floats in the file are cast to it.
        flags: what the table's Tie rows ask about.
        progress: a bar on a terminal; a line in the log either way.

    Raises:
        CheckpointError: naming files, keys, parameters and shapes.
        UnsupportedError: a quantised checkpoint.
    """
    begin = time.perf_counter()
    checkpoint = Checkpoint(folder)
    parameters = dict(model.named_parameters())
    plan = make_plan(table, parameters, checkpoint.tensors, flags)
    plan.check(flags, table)
    _compare_redundant(plan, checkpoint)
    total = 0
    bar = tqdm(plan.sources.items(), desc="Loading weights", disable=not (progress and sys.stderr.isatty()))
    for name, source in bar:
        tensor = _load_one(name, parameters[name], source, checkpoint, rank).to(dtype)
        total += tensor.nbytes
        _replace(model, name, tensor)
    checkpoint.close()
    report = LoadReport(
        len(plan.sources), total, time.perf_counter() - begin, tuple(plan.redundant), plan.dropped, plan.remapped
    )
    if progress:
        _say(report, rank, world_size)
    return report


def _load_one(name: str, parameter: Tensor, source: Source, checkpoint: Checkpoint, rank: int) -> Tensor:
    slices = [_part(checkpoint.slice(key), source, key) for key in source.keys]
    try:
        tensor = get_weight_loader(parameter).load(slices, rank)
    except CheckpointError as error:
        keys = ", ".join(source.keys)
        raise CheckpointError(f"{name} from {keys}: {error.field}", error.value, error.expected, error.action) from None
    if tensor.shape != parameter.shape:
        raise CheckpointError(
            f"{name} from {', '.join(source.keys)}: shape", list(tensor.shape), f"{list(parameter.shape)}",
            "The config and the checkpoint belong to different models.",
        )
    return tensor


def _part(whole: LazySlice, source: Source, key: str) -> LazySlice:
    if source.parts == 1:
        return whole
    size = whole.get_shape()[source.dim]
    if size % source.parts:
        raise CheckpointError(f"{key}: size", size, f"a multiple of {source.parts} along dimension {source.dim}")
    each = size // source.parts
    return SliceView(whole, source.dim, source.part * each, (source.part + 1) * each)


def _replace(model: nn.Module, name: str, tensor: Tensor) -> None:
    path, _, leaf = name.rpartition(".")
    owner = model.get_submodule(path)
    # A loaded shard is its own storage: a view would keep the whole tensor that was read alive.
    owned = tensor if tensor.is_contiguous() and tensor.untyped_storage().nbytes() == tensor.nbytes else tensor.clone()
    setattr(owner, leaf, nn.Parameter(owned.contiguous(), requires_grad=False))


def _compare_redundant(plan: Plan, checkpoint: Checkpoint) -> None:
    """A tied parameter that the file holds too must be the same, bit for bit."""
    for key, parameter in plan.redundant.items():
        keys = plan.sources[parameter].keys
        ours, shared = checkpoint.tensors[key], checkpoint.tensors[keys[0]]
        same = ours.shape == shared.shape and ours.dtype == shared.dtype
        if same:
            a, b = checkpoint.slice(key), checkpoint.slice(keys[0])
            rows = ours.shape[0]
            step = max(1, 2**22 // max(1, ours.shape[-1]))
            same = all(torch.equal(a[i : i + step], b[i : i + step]) for i in range(0, rows, step))
        if not same:
            raise CheckpointError(
                key,
                f"a tensor unlike {keys[0]}",
                f"the same numbers, since the config ties {parameter}",
                "Set tie_word_embeddings to false to use both, or remove one from the file.",
            )


def _say(report: LoadReport, rank: int, world_size: int) -> None:
    notes = [f"{report.redundant} repeat a tied tensor"] if report.redundant else []
    notes += [f"names shifted from {report.remapped[0]!r} to {report.remapped[1]!r}"] if report.remapped else []
    notes += [f"{len(report.dropped)} keys dropped: {sorted(set(report.dropped.values()))}"] if report.dropped else []
    logger.info(
        "Loaded %d parameters, %.1f MB, in %.1f s (rank %d of %d)%s",
        report.parameters, report.bytes / 1e6, report.seconds, rank, world_size,
        "; " + "; ".join(notes) if notes else "",
    )
