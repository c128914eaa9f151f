"""Running one recorded step again, without vLLM, and comparing what comes out bit by bit."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import vllm_neuron.functional as NF
from vllm_neuron.errors import ConfigError, UnsupportedError
from vllm_neuron.model.interface import DecoderModel, NeuronModel
from vllm_neuron.model.kv_cache import KVBinding
from vllm_neuron.model.neuron_config import NeuronConfig
from vllm_neuron.model.registry import Factory, resolve
from vllm_neuron.parallel import run_in_threads
from vllm_neuron.snapshot.identity import checkpoint_digest
from vllm_neuron.snapshot.inputs import Snapshot, rank_folders, read_snapshot

# Packages whose version changes numbers. vLLM is not among them: a replay does without it.
COMPUTING = ("neuron-onboard", "torch")


@dataclass(frozen=True)
class Compared:
    """One tensor of the replay beside the recorded one.

    Attributes:
        name: ``hidden`` or ``logits``, of the n-th run of the head.
        rank: of the tensor.
        shape, dtype: of the recorded one.
        bitwise: equal in every bit.
        worst: largest absolute difference; infinity when one of the two is not finite where the other is.
        at: index of it; None when bitwise.
        replayed, recorded: the two values there.
    """

    name: str
    rank: int
    shape: tuple[int, ...]
    dtype: str
    bitwise: bool
    worst: float = 0.0
    at: tuple[int, ...] | None = None
    replayed: float | None = None
    recorded: float | None = None


@dataclass(frozen=True)
class Replayed:
    """A step that was run again.

    Attributes:
        folder, step, phase: which.
        requests: whose tokens it ran.
        tokens: how many.
        tensors: what was compared; empty when the recorded step never ended.
        notes: why bits may differ.
    """

    folder: str
    step: int
    phase: str
    requests: tuple[str, ...]
    tokens: int
    tensors: tuple[Compared, ...]
    notes: tuple[str, ...] = ()

    @property
    def bitwise(self) -> bool:
        """Something was compared, and all of it is equal in every bit."""
        return bool(self.tensors) and all(each.bitwise for each in self.tensors)

    def to_json(self) -> dict[str, Any]:
        """For ``--format json``."""
        return {**asdict(self), "bitwise": self.bitwise}


def machine() -> str:
    """What decides about bits beside the versions: processor kind and torch's instruction set."""
    return f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}"


def versions() -> dict[str, str]:
    """Versions of the packages that compute."""
    found = {}
    for name in COMPUTING:
        try:
            found[name] = torch.__version__ if name == "torch" else version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def replay(folder: str | Path, *, model: str | Path | None = None, factory: type[Factory] | None = None) -> Replayed:
    """Run the step of a snapshot again on all its ranks.

    Args:
        folder: of one step, with ``rank0``, ... in it.
        model: checkpoint folder; by default the one that the snapshot names.
        factory: model package's factory; by default the one registered for the architecture.

    Raises:
        ConfigError: a damaged or incomplete snapshot; other weights, versions or architecture than it was taken with,
            named; no such checkpoint.
        UnsupportedError: a snapshot of a step whose layers were compiled, or taken on another target.
    """
    snapshots = [read_snapshot(path) for path in rank_folders(folder)]
    first = snapshots[0]
    meta = first.meta
    _complete(snapshots)
    _same_versions(meta)
    checkpoint = Path(model if model is not None else str(meta["model"]))
    if not checkpoint.is_dir():
        raise ConfigError("--model", str(checkpoint), "the checkpoint folder that the snapshot was taken with")
    digest = checkpoint_digest(checkpoint)
    if digest != meta["weights"]:
        raise ConfigError(
            "weights", digest, str(meta["weights"]), f"{checkpoint} is not what the snapshot was taken on."
        )
    made = factory or resolve(str(meta["architecture"]))
    with _as_recorded(meta):
        compared = run_in_threads(len(snapshots), lambda group: _run(snapshots[group.rank], made, checkpoint))
    return Replayed(
        folder=str(folder),
        step=first.label.step,
        phase=first.step.phase.value,
        requests=tuple(first.label.requests),
        tokens=first.label.tokens,
        tensors=tuple(each for rank in compared for each in rank),
        notes=tuple(_notes(snapshots)),
    )


def _complete(snapshots: Sequence[Snapshot]) -> None:
    meta = snapshots[0].meta
    try:
        ranks = [int(each.meta["rank"]) for each in snapshots]
        world = int(meta["tensor_parallel_size"])
        fields = ("step", "weights", "architecture", "dtype", "max_model_len", "neuron_config", "versions", "threads")
        odd = [name for name in fields for each in snapshots if each.meta[name] != meta[name]]
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError("meta.json", f"{type(error).__name__}: {error}", "what input_snapshot wrote") from error
    if ranks != list(range(world)):
        raise ConfigError("ranks", ranks, f"all {world} ranks of the run", "Take it without input_snapshot.ranks.")
    if odd:
        raise ConfigError(f"meta.json: {odd[0]}", "unlike on different ranks", "one run's ranks")
    if meta["neuron_config"].get("compile_layers"):
        raise UnsupportedError("compile_layers", True, "a run whose layers are not compiled")
    if meta["kernel_target"] != "cpu":
        raise UnsupportedError("kernel_target", meta["kernel_target"], "cpu: a snapshot taken in CPU mode")


def _same_versions(meta: Mapping[str, Any]) -> None:
    for name, now in versions().items():
        then = dict(meta["versions"]).get(name)
        if then != now:
            raise ConfigError(
                f"versions: {name}", now, f"{then}, which the snapshot was taken with", "Install that one."
            )


@contextmanager
def _as_recorded(meta: Mapping[str, Any]) -> Iterator[None]:
    """Target, kernels, default dtype and threads of the recorded run."""
    before, threads = torch.get_default_dtype(), torch.get_num_threads()
    torch.set_default_dtype(_dtype(meta))
    NF.set_target("cpu")
    try:
        with NF.use_kernels(str(meta["kernels"])):
            yield
    finally:
        torch.set_default_dtype(before)
        torch.set_num_threads(threads)


def _dtype(meta: Mapping[str, Any]) -> torch.dtype:
    found = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}.get(str(meta["dtype"]))
    if found is None:
        raise ConfigError("meta.json: dtype", meta["dtype"], "float32, bfloat16 or float16")
    return found


def _run(snapshot: Snapshot, factory: type[Factory], checkpoint: Path) -> list[Compared]:
    """One rank, in the thread of the rank."""
    from transformers import AutoConfig

    meta = snapshot.meta
    torch.set_num_threads(int(meta["threads"]))
    hf_config = AutoConfig.from_pretrained(checkpoint, trust_remote_code=False).get_text_config()
    model: NeuronModel = factory.from_configs(hf_config, NeuronConfig.from_dict(meta["neuron_config"]))
    model.limit_positions(int(meta["max_model_len"]))
    model.load_weights(checkpoint, _dtype(meta), progress=False)
    if isinstance(model, nn.Module):
        model.eval()
    if isinstance(model, DecoderModel):
        if NF.tries_nki():
            model.lay_out_weights()
        else:
            model.pack_weights()
    names = {layer.name for layer in model.get_kv_spec().layers}
    if names != set(snapshot.pages):
        odd = sorted(names ^ set(snapshot.pages))
        raise ConfigError(
            "cache layers", odd, "those of the snapshot", "The package has other layers than the one recorded."
        )
    model.bind_kv_cache(
        {name: KVBinding(pages.clone(), snapshot.groups[name]) for name, pages in snapshot.pages.items()}
    )
    with torch.no_grad():
        hidden_TH = model.forward(snapshot.step)
        found = []
        if snapshot.hidden_TH is not None:
            found.append(_compare("hidden", snapshot, hidden_TH[: snapshot.label.tokens], snapshot.hidden_TH))
        for i, head in enumerate(snapshot.heads):
            # Rows of other steps and padding are left zero: a row of a product does not depend on its neighbours.
            rows_RH = hidden_TH.new_zeros(head.rows, hidden_TH.shape[1])
            rows_RH[list(head.places)] = hidden_TH[list(head.tokens)]
            logits = model.compute_logits(rows_RH)[list(head.places)]
            name = "logits" if len(snapshot.heads) == 1 else f"logits, {i + 1} of {len(snapshot.heads)}"
            found.append(_compare(name, snapshot, logits, head.logits_RV))
    return found


def _compare(name: str, snapshot: Snapshot, replayed: Tensor, recorded: Tensor) -> Compared:
    rank, shape = int(snapshot.meta["rank"]), tuple(recorded.shape)
    dtype = str(recorded.dtype).removeprefix("torch.")
    if replayed.shape != recorded.shape or replayed.dtype != recorded.dtype:
        raise ConfigError(
            f"{name} of rank {rank}", (tuple(replayed.shape), replayed.dtype), f"{shape}, {dtype}, as recorded"
        )
    bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[recorded.dtype.itemsize]
    same = replayed.contiguous().view(bits) == recorded.contiguous().view(bits)
    if bool(same.all()):
        return Compared(name, rank, shape, dtype, bitwise=True)
    difference = (replayed.float() - recorded.float()).abs().masked_fill(same, 0.0).nan_to_num(nan=float("inf"))
    at = tuple(int(i) for i in torch.unravel_index(difference.argmax(), difference.shape))
    return Compared(
        name, rank, shape, dtype, False, float(difference[at]), at, float(replayed[at]), float(recorded[at])
    )


def _notes(snapshots: Sequence[Snapshot]) -> Iterator[str]:
    meta = snapshots[0].meta
    if snapshots[0].hidden_TH is None:
        yield "the recorded step never ended, so there is nothing to compare with; here it ran"
    if meta.get("machine") != machine():
        yield f"recorded on {meta.get('machine')}, replayed on {machine()}: rounding may differ"
    if len(snapshots) > 2:
        yield "sums over more than two ranks may be taken in another order"
