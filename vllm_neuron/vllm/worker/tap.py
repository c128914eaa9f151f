"""What a caller of the engine can read while it runs: logits, token ids, module outputs, the cache of a request."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from vllm_neuron.errors import ConfigError
from vllm_neuron.model.kv_cache import KVBinding, LayerSpec
from vllm_neuron.model.neuron_config import NeuronConfig
from vllm_neuron.snapshot.capture import ModuleHooks, Record, call_tensors, copied, output_tensors
from vllm_neuron.step import Step
from vllm_neuron.vllm.worker.kv import GroupShape
from vllm_neuron.vllm.worker.watch import Part, Watcher


@dataclass(frozen=True, eq=False)
class LogitRows:
    """Logits of neighbouring tokens of one request: float32 [R, V], the first of them at ``position``."""

    request: str
    position: int
    rows_RV: Tensor


@dataclass(frozen=True)
class RanIds:
    """Token ids that a step ran for one request, from ``position`` on."""

    request: str
    position: int
    ids: tuple[int, ...]


Tapped = LogitRows | RanIds


class LogitsTap(Watcher):
    """Every row of logits before it is sampled from, and every token id that was run.

    Args:
        sink: gets each piece at once, its rows to be read before it returns; without one, copies are kept for
            :meth:`take`.
        keep: False on ranks whose pieces nobody reads.
    """

    def __init__(self, sink: Callable[[Tapped], None] | None, *, keep: bool) -> None:
        self.sink, self.keep = sink, keep
        self._pieces: list[Tapped] = []

    def begin(self, part: Part, step: Step) -> None:
        """Note the ids."""
        ids = step.token_ids_T.tolist()
        for span in part.label.spans:
            self._give(RanIds(span.request, span.position, tuple(ids[span.start : span.start + span.count])))

    def logits(self, parts: Sequence[Part], hidden_RH: Tensor, logits_RV: Tensor) -> None:
        """Hand on the rows that are tokens."""
        for part in parts:
            for span in part.label.spans:
                first = part.rows[span.start]
                self._give(LogitRows(span.request, span.position, logits_RV[first : first + span.count]))

    def _give(self, piece: Tapped) -> None:
        if not self.keep:
            return
        if self.sink is not None:
            self.sink(piece)
        elif isinstance(piece, LogitRows):
            self._pieces.append(LogitRows(piece.request, piece.position, piece.rows_RV.clone()))
        else:
            self._pieces.append(piece)

    def take(self) -> list[Tapped]:
        """What came since the last call."""
        pieces, self._pieces = self._pieces, []
        return pieces


class ModuleTap(Watcher):
    """Records of the calls of some modules, rows of padding cut off.

    Raises:
        ConfigError: a pattern that fits no module.
    """

    def __init__(self, model: nn.Module, patterns: Sequence[str], rank: int) -> None:
        self.rank, self.records = rank, list[Record]()
        self._parts: Sequence[Part] = ()
        self._rows = 0
        self._positions_T: Tensor | None = None
        self._hooks = ModuleHooks(model, patterns, self._call)
        self.names = self._hooks.names

    def begin(self, part: Part, step: Step) -> None:
        """The step that the next calls belong to."""
        self._parts, self._rows, self._positions_T = (part,), step.tokens, step.positions_T

    def head(self, parts: Sequence[Part], rows: int) -> None:
        """The rows that the next calls are given."""
        self._parts, self._rows, self._positions_T = parts, rows, None

    def flush(self) -> None:
        """Between scheduler steps nothing is recorded."""
        self._parts = ()

    def _call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        given, made = call_tensors(args, kwargs), output_tensors(output)
        for part in self._parts:
            inputs = {key: picked(value, part, self._rows) for key, value in given.items()}
            outputs = tuple(picked(value, part, self._rows) for value in made)
            positions = None if self._positions_T is None else picked(self._positions_T, part, self._rows)
            self.records.append(Record(name, part.label, self.rank, inputs, outputs, positions))

    def take(self) -> list[Record]:
        """What came since the last call."""
        records, self.records = self.records, []
        return records

    def remove(self) -> None:
        """Take the hooks off."""
        self._hooks.remove()


def picked(tensor: Tensor, part: Part, rows: int) -> Tensor:
    """A copy of the rows that belong to a part; a tensor that does not lie in rows of the step is copied whole."""
    if tensor.dim() == 0 or tensor.shape[0] != rows:
        return copied(tensor)
    return copied(tensor[torch.tensor(part.rows, dtype=torch.int64)])


def read_kv(
    spec: LayerSpec, binding: KVBinding, group: GroupShape, blocks: Sequence[int], length: int
) -> tuple[int, Tensor, Tensor]:
    """The cache of one request in one layer on this rank, in the order of positions.

    Args:
        spec, binding, group: of the layer.
        blocks: the request's block table.
        length: tokens of the request that are in the cache.

    Returns:
        ``(start, keys [S, K, D], values [S, K, D of the values])``: from position ``start`` on. A windowed layer keeps
        what its last query sees; blocks before that may belong to someone else by now.
    """
    start = 0
    if spec.sliding_window_size is not None:
        start = max(0, length - spec.sliding_window_size)
    elif spec.chunk_size is not None:
        start = (length - 1) // spec.chunk_size * spec.chunk_size
    positions = torch.arange(start, length)
    table = torch.tensor(blocks, dtype=torch.int64)
    rows = binding.pages[table[positions // group.block_size], positions % group.block_size]
    keys, values = rows.split((spec.num_kv_heads * spec.head_size, spec.num_kv_heads * spec.value_size), dim=-1)
    return (
        start,
        keys.unflatten(-1, (spec.num_kv_heads, -1)),
        values.unflatten(-1, (spec.num_kv_heads, spec.value_size)),
    )


@dataclass(frozen=True, eq=False)
class RankKV:
    """One layer's cache on one rank, see :func:`read_kv`."""

    name: str
    start: int
    keys_SKD: Tensor
    values_SKD: Tensor


class Inspection:
    """The calls of :class:`vllm_neuron.vllm.offline.EngineSource` to a worker; a mix-in of the worker.

    They go through vLLM's ``collective_rpc``, so that they reach ranks in other processes as well.
    """

    runner: Any
    rank: int
    config: NeuronConfig

    def tap_logits(self, sink: Callable[[Tapped], None] | None = None) -> None:
        """Start handing logits out; rank 0 has them whole."""
        self._tap = LogitsTap(sink, keep=self.rank == 0)
        self.runner.watch.watchers.append(self._tap)

    def take_logits(self) -> list[Tapped]:
        """What was tapped since the last call."""
        return self._tap.take()

    def tap_modules(self, patterns: Sequence[str]) -> tuple[str, ...]:
        """Start recording modules; their names.

        Raises:
            ConfigError: a pattern that fits no module, or layers that are compiled, whose graphs call no hooks.
        """
        if self.config.compile_layers:
            raise ConfigError("modules", list(patterns), "an engine without compile_layers")
        self._modules = ModuleTap(self.runner.model, patterns, self.rank)
        self.runner.watch.watchers.append(self._modules)
        return self._modules.names

    def take_modules(self) -> list[Record]:
        """What was recorded since the last call."""
        return self._modules.take()

    def untap_modules(self) -> None:
        """Stop recording modules."""
        self._modules.remove()
        self.runner.watch.watchers.remove(self._modules)

    def read_kv(self, request: str, length: int) -> list[RankKV]:
        """The cache of a request, layer by layer; to be read before the next step."""
        runner, found = self.runner, []
        bindings: Mapping[str, KVBinding] = runner.bindings
        for spec in runner.spec.layers:
            group = runner.builder.groups[bindings[spec.name].group]
            blocks = runner.requests.states[request].block_ids[group.table]
            start, keys, values = read_kv(spec, bindings[spec.name], group, blocks, length)
            found.append(RankKV(spec.name, start, keys, values))
        return found
