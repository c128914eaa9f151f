"""The mapping held against the real model: every tensor's name, shape and shard, and no weight read."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from onboard.prove.package import Package
from onboard.prove.proof import Check, Status
from onboard.prove.subject import RAISED, words
from vllm_neuron.errors import ConfigError, NeuronError
from vllm_neuron.model.loading.checkpoint import Checkpoint
from vllm_neuron.model.loading.folder import INDEX, read_index
from vllm_neuron.model.loading.leftovers import check
from vllm_neuron.model.loading.load import try_shapes
from vllm_neuron.model.loading.plan import Plan, make_plan
from vllm_neuron.model.neuron_config import NeuronConfig
from vllm_neuron.parallel import SingleGroup, use_tp_group

SIZES = tuple(range(1, 65))


class PlannedGroup(SingleGroup):
    """One rank of a group that does not exist: enough to build a model on the meta device, which never communicates."""

    def __init__(self, rank: int, world_size: int) -> None:
        self.rank, self.world_size = rank, world_size


def check_checkpoint(package: Package, where: Path, sizes: Sequence[int] = SIZES) -> tuple[list[Check], list[str]]:
    """Account for every tensor of a real checkpoint by its headers, or for every name by its index alone.

    Args:
        package: its config class and table are held against the files.
        where: a folder with ``config.json`` and safetensors files, or with ``config.json`` and the index.
        sizes: tensor-parallel sizes whose shards are cut on shapes alone.

    Returns:
        The checks, and a line on the shard of each size.

    Raises:
        ConfigError: no folder, or no ``config.json`` that transformers reads.
    """
    folder = where.parent if where.name == INDEX else where
    config = _config(folder)
    checks: list[Check] = []
    notes: list[str] = []
    with ExitStack() as stack:
        begin = time.perf_counter()
        try:
            index = read_index(folder)
            headers = None
            if index is None or all((folder / file).is_file() for file in index.values()):
                headers = stack.enter_context(Checkpoint(folder))
            names = list(headers.tensors if headers else index or ())
        except NeuronError as error:
            return [Check("", "checkpoint", "real checkpoint", None, 0.0, Status.FAILED, str(error))], []
        refused = []
        for size in sizes if headers is not None else (1,):
            work = _Sizing(package, config, names, headers, size)
            found = _attempt(f"real checkpoint, TP {size}", work, package, begin)
            begin = time.perf_counter()
            if found.status is Status.REFUSED and size > 1:
                refused.append(size)
                continue
            checks.append(found)
            notes += [work.note] if work.note else []
            if found.status is not Status.PASSED:
                break
        if headers is None:
            notes.append(f"real checkpoint: {INDEX} alone tells no shapes; only its {len(names)} names were checked")
        if refused:
            notes.append(f"real checkpoint: the model can't be divided over {_ranges(refused)} ranks, and says so")
    return checks, notes


def _ranges(sizes: Sequence[int]) -> str:
    """``2, 4-8, 10``."""
    runs: list[list[int]] = []
    for size in sizes:
        if runs and size == runs[-1][-1] + 1:
            runs[-1].append(size)
        else:
            runs.append([size])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


class _Sizing:
    """One tensor-parallel size: plan, leftovers, and the shapes of the first and the last rank's shards."""

    def __init__(self, package: Package, config: Any, names: list[str], headers: Checkpoint | None, size: int) -> None:
        self.package, self.config, self.names, self.headers, self.size = package, config, names, headers, size
        self.note = ""

    def __call__(self) -> None:
        for rank in sorted({0, self.size - 1}):
            with use_tp_group(PlannedGroup(rank, self.size)):
                model = self.package.factory.from_configs(self.config, NeuronConfig())
            tied = bool(getattr(model, "tie_word_embeddings", False))
            if tied:
                # As in a load: a tied head has no table of its own.
                model.head.weight = None
            parameters: dict[str, Tensor] = dict(model.named_parameters())
            flags = {"tie_word_embeddings": tied}
            plan = make_plan(model.CHECKPOINT, parameters, self.names, flags)
            check(plan, flags, model.CHECKPOINT)
            if self.headers is not None:
                try_shapes(plan, parameters, self.headers, rank, torch.get_default_dtype())
        self.note = self._describe(parameters, plan)

    def _describe(self, parameters: dict[str, Tensor], plan: Plan) -> str:
        elements = sum(parameter.numel() for parameter in parameters.values())
        named = f"real checkpoint, TP {self.size}: {len(parameters)} parameters from {len(self.names)} tensors"
        rest = "".join(
            f", {len(some)} {word}" for some, word in ((plan.dropped, "dropped"), (plan.redundant, "redundant")) if some
        )
        return f"{named}{rest}; {elements:,} numbers a rank, {2 * elements / 1e9:.2f} GB in 16 bits"


def _attempt(what: str, work: Callable[[], None], package: Package, begin: float) -> Check:
    status, message = Status.PASSED, ""
    try:
        work()
    except NotImplementedError as error:
        status, message = Status.NOT_RUN, words(error, package)
    except RAISED as error:
        refused = isinstance(error, ConfigError) and "tensor_parallel_size" in str(error)
        status, message = Status.REFUSED if refused else Status.FAILED, words(error, package)
    return Check("", "checkpoint", what, None, time.perf_counter() - begin, status, message)


def _config(folder: Path) -> Any:
    if not (folder / "config.json").is_file():
        raise ConfigError("--checkpoint", str(folder), "a folder with config.json and safetensors files or their index")
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        met = f"{type(error).__name__}: {error}"
        raise ConfigError(f"{folder}/config.json", met, "a config that transformers reads") from error
    # As vLLM does: the decoder's section of a model with several.
    return config.get_text_config()
