"""Filling a model's parameters, one at a time, from a checkpoint folder."""

from __future__ import annotations

import logging
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn
from tqdm import tqdm

from vllm_neuron.errors import CheckpointError, ConfigError, NeuronError
from vllm_neuron.model.loading.checkpoint import Checkpoint
from vllm_neuron.model.loading.leftovers import Plain, check
from vllm_neuron.model.loading.plan import Plan, Source, make_plan
from vllm_neuron.model.loading.table import Table
from vllm_neuron.utils.weight_loader import LazySlice, ShapeSlice, SliceView, TransposedView, get_weight_loader

logger = logging.getLogger(__name__)

# Casts that keep every number: (in the file, of the parameter).
_EXACT = {
    (torch.float16, torch.float32),
    (torch.bfloat16, torch.float32),
    (torch.float16, torch.float64),
    (torch.bfloat16, torch.float64),
    (torch.float32, torch.float64),
}
_COMPARED_AT_ONCE = 8 * 2**20


@dataclass(frozen=True)
class LoadReport:
    """What a load did.

    Attributes:
        parameters: parameters filled.
        bytes: their size on this rank.
        seconds: wall clock.
        bytes_read: bytes read from the files by this rank.
        redundant: keys in the file that repeat a tied parameter.
        dropped: key -> why it is not needed.
        remapped: (prefix in the file, prefix in the table), or None.
        casts: ``"float32 to bfloat16, rounded"`` -> number of parameters, where the file has another dtype.
    """

    parameters: int
    bytes: int
    seconds: float
    bytes_read: int = 0
    redundant: tuple[str, ...] = ()
    dropped: Mapping[str, str] = field(default_factory=dict)
    remapped: tuple[str, str] | None = None
    casts: Mapping[str, int] = field(default_factory=dict)

    def notes(self) -> list[str]:
        """What a user may want to know besides the size and the time, one line each."""
        notes = [f"{what} ({count} parameters)" for what, count in self.casts.items()]
        if self.redundant:
            notes.append(f"{len(self.redundant)} redundant: {', '.join(self.redundant)}, equal to what it is tied to")
        if self.remapped:
            found, wanted = self.remapped
            notes.append(f"names mapped from prefix {found!r} to {wanted!r}")
        notes += [f"{count} keys dropped: {why}" for why, count in Counter(self.dropped.values()).items()]
        return notes


def load_model(
    model: nn.Module,
    table: Table,
    folder: Path,
    *,
    rank: int,
    world_size: int,
    dtype: torch.dtype,
    flags: Mapping[str, bool] | None = None,
    progress: bool = True,
) -> LoadReport:
    """Replace the model's meta parameters by this rank's shards on the CPU.

    The files are checked, the table is resolved, and every loader is tried on the tensors' shapes, before the first
    parameter changes. Then parameters are read one at a time, so host memory stays near the rank's own shard. Buffers
    are not touched: they are derived from the config.

    Args:
        model: built on the meta device; each parameter knows its loader (:func:`set_weight_loader`).
        table: its checkpoint table.
        folder: the checkpoint.
        rank, world_size: this rank, of how many.
        dtype: of the parameters; floats in the file are cast to it as they are read.
        flags: what the table's Tie rows ask about.
        progress: a bar on a terminal, a line in the log either way; pass it on one rank only.

    Raises:
        CheckpointError: naming files, keys, parameters and shapes.
        ConfigError: a rank outside the group, or a flag that the table needs and ``flags`` lacks.
        UnsupportedError: a quantised checkpoint.
    """
    begin = time.perf_counter()
    if not 0 <= rank < world_size:
        raise ConfigError("rank", rank, f"0 to {world_size - 1}")
    flags = flags or {}
    with Checkpoint(folder) as checkpoint, torch.no_grad():
        parameters = dict(model.named_parameters())
        takes = {name: some for name, p in parameters.items() if (some := get_weight_loader(p).takes) is not None}
        plan = make_plan(table, parameters, checkpoint.tensors, flags, takes)
        check(plan, flags, table)
        try_shapes(plan, parameters, checkpoint, rank, dtype)
        _compare_redundant(plan, checkpoint, rank, world_size)
        total = _fill(model, plan, checkpoint, rank, dtype, progress)
        report = LoadReport(
            len(plan.sources),
            total,
            time.perf_counter() - begin,
            checkpoint.bytes_read,
            tuple(plan.redundant),
            plan.dropped,
            plan.remapped,
            _casts(plan, checkpoint, dtype),
        )
    if progress:
        _say(report, rank, world_size)
    return report


def _fill(model: nn.Module, plan: Plan, checkpoint: Checkpoint, rank: int, dtype: torch.dtype, progress: bool) -> int:
    """Load and place every parameter; the bytes of all of them."""
    parameters = dict(model.named_parameters())
    owners = _owners(model)
    total = sum(parameter.numel() for parameter in parameters.values()) * dtype.itemsize
    shown = progress and sys.stderr.isatty()
    with tqdm(total=total, desc="Loading weights", unit="B", unit_scale=True, disable=not shown) as bar:
        for name, source in plan.sources.items():
            tensor = _load_one(name, parameters[name], source, checkpoint, rank, dtype)
            _replace(parameters[name], tensor, owners)
            bar.update(tensor.nbytes)
    return total


def _load_one(
    name: str, parameter: Tensor, source: Source, checkpoint: Checkpoint, rank: int, dtype: torch.dtype
) -> Tensor:
    slices = [_part(checkpoint.slice(key, dtype), source, key) for key in source.keys]
    tensor = get_weight_loader(parameter).load(slices, rank, source.layout)
    if tensor.shape != parameter.shape or tensor.dtype != dtype:
        met = f"{list(tensor.shape)} {tensor.dtype}"
        expected = f"{list(parameter.shape)} {dtype}, as its weight loader gave for shapes alone"
        raise CheckpointError(f"{name} from {', '.join(source.keys)}", met, expected)
    narrowed = dtype == torch.float16 and any(checkpoint.dtype(key) != dtype for key in source.keys)
    if narrowed and not torch.isfinite(tensor).all():
        raise CheckpointError(
            f"{name} from {', '.join(source.keys)}",
            "numbers beyond float16's 65504, or not finite",
            "numbers that float16 holds",
            "Load it in bfloat16 or float32.",
        )
    return tensor


def try_shapes(
    plan: Plan, parameters: Mapping[str, Tensor], checkpoint: Checkpoint, rank: int, dtype: torch.dtype
) -> None:
    """Run every loader on shapes alone, and report all that do not fit at once; no tensor is read.

    Raises:
        CheckpointError: the parameters that do not fit.
    """
    wrong = []
    for name, source in plan.sources.items():
        for key in source.keys:
            checkpoint.dtype(key)
        shapes = [ShapeSlice(checkpoint.tensors[key].shape, dtype) for key in source.keys]
        try:
            slices = [_part(s, source, key) for s, key in zip(shapes, source.keys, strict=True)]
            found = get_weight_loader(parameters[name]).load(slices, rank, source.layout)
            if found.shape != parameters[name].shape:
                wrong.append(f"{_keys(source)} gives {list(found.shape)}, {name} is {list(parameters[name].shape)}")
        except NeuronError as error:
            wrong.append(f"{_keys(source)} for {name}: {error}")
        except (RuntimeError, IndexError, TypeError, ValueError) as error:
            wrong.append(f"{_keys(source)} for {name}: {type(error).__name__}: {error}")
    if wrong:
        more = [f"  and {len(wrong) - 10} more"] if len(wrong) > 10 else []
        raise CheckpointError(
            "checkpoint: shapes",
            Plain(f"{len(wrong)} of {len(plan.sources)} parameters that do not fit"),
            "tensors of the sizes that the config says",
            "\n".join(["Is this the config of this checkpoint?", *(f"  {line}" for line in wrong[:10]), *more]),
        )


def _keys(source: Source) -> str:
    shown = list(source.keys[:4]) + ([f"{len(source.keys) - 4} more"] if len(source.keys) > 4 else [])
    return " + ".join(shown)


def _part(whole: LazySlice, source: Source, key: str) -> LazySlice:
    if source.transpose:
        whole = TransposedView(whole)
    if source.parts == 1:
        return whole
    shape = whole.get_shape()
    if source.dim >= len(shape) or shape[source.dim] % source.parts:
        raise CheckpointError(f"{key}: shape", shape, f"a multiple of {source.parts} along dimension {source.dim}")
    each = shape[source.dim] // source.parts
    return SliceView(whole, source.dim, source.part * each, (source.part + 1) * each)


def _owners(model: nn.Module) -> dict[int, list[tuple[nn.Module, str]]]:
    """Parameter's id -> the modules that hold it; several when modules share it."""
    owners: dict[int, list[tuple[nn.Module, str]]] = {}
    for module in model.modules():
        for leaf, parameter in module.named_parameters(recurse=False):
            owners.setdefault(id(parameter), []).append((module, leaf))
    return owners


def _replace(parameter: Tensor, tensor: Tensor, owners: Mapping[int, Sequence[tuple[nn.Module, str]]]) -> None:
    # A view would keep the whole tensor that was read alive.
    owned = tensor.is_contiguous() and tensor.untyped_storage().nbytes() == tensor.nbytes
    loaded = nn.Parameter(tensor if owned else tensor.clone(memory_format=torch.contiguous_format), False)
    loaded.__dict__.update(parameter.__dict__)
    for module, leaf in owners[id(parameter)]:
        setattr(module, leaf, loaded)


def _compare_redundant(plan: Plan, checkpoint: Checkpoint, rank: int, world_size: int) -> None:
    """A tensor that repeats a tied one must hold the same bits; each rank compares its share of the rows."""
    for key, shared in plan.redundant.items():
        ours, theirs = checkpoint.tensors[key], checkpoint.tensors[shared]
        same = ours.shape == theirs.shape and ours.dtype == theirs.dtype and len(ours.shape) > 0
        if same:
            rows = ours.shape[0]
            a, b = checkpoint.slice(key), checkpoint.slice(shared)
            step = max(1, _COMPARED_AT_ONCE // max(1, ours.nbytes // max(1, rows)))
            for at in range(rows * rank // world_size, stop := rows * (rank + 1) // world_size, step):
                part = slice(at, min(at + step, stop))
                same = same and torch.equal(a[part].view(torch.uint8), b[part].view(torch.uint8))
        if not same:
            raise CheckpointError(
                key,
                Plain(f"{ours.dtype} {list(ours.shape)} unlike {shared}, {theirs.dtype} {list(theirs.shape)}"),
                "the same numbers, since the config ties the two",
                "Set tie_word_embeddings to false to use both, or take one out of the file.",
            )


def _casts(plan: Plan, checkpoint: Checkpoint, dtype: torch.dtype) -> dict[str, int]:
    casts: Counter[str] = Counter()
    for source in plan.sources.values():
        for stored in {checkpoint.dtype(key) for key in source.keys} - {dtype}:
            how = "exact" if (stored, dtype) in _EXACT else "rounded"
            casts[f"{str(stored)[6:]} to {str(dtype)[6:]}, {how}"] += 1
    return dict(casts)


def _say(report: LoadReport, rank: int, world_size: int) -> None:
    logger.info(
        "Loaded %d parameters, %.1f MB, in %.2f s (rank %d of %d)%s",
        report.parameters,
        report.bytes / 1e6,
        report.seconds,
        rank,
        world_size,
        "".join("; " + note for note in report.notes()),
    )
