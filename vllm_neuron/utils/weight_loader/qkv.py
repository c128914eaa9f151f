"""Queries, keys and values of a rank, however a checkpoint stores them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vllm_neuron.errors import CheckpointError, ConfigError, nearest
from vllm_neuron.utils.weight_loader.dense import SafetensorsWeightLoader
from vllm_neuron.utils.weight_loader.slices import GatherView, LazySlice, along, expect_size, the_one

Ranges = list[tuple[int, int]]

# How one matrix (or three) holds queries, keys and values; what a Map or Fuse row may say.
LAYOUTS = ("concatenated", "grouped", "per_head", "four_blocks", "query_gate")


@dataclass(frozen=True)
class QKVShape:
    """Heads of a whole layer: N query heads and K KV heads of D channels, values of E channels."""

    heads: int
    kv_heads: int
    head_size: int
    head_size_v: int

    @property
    def rows(self) -> tuple[int, int, int]:
        """Rows of q, k and v."""
        return self.heads * self.head_size, self.kv_heads * self.head_size, self.kv_heads * self.head_size_v

    def ranges(self, layout: str) -> tuple[Ranges, Ranges, Ranges]:
        """Where the rows of q, k and v are in a block of that layout.

        ``concatenated``: all q, all k, all v. ``grouped``: for each KV head its queries, its key, its value.
        ``per_head``: that, with a KV head for every query head. ``four_blocks``: four times a quarter of the queries,
        of the values, of the keys (CodeGen).

        Raises:
            ConfigError: another name, or a layout that these heads can't have.
        """
        q, k, v = self.rows
        if layout == "concatenated":
            return [(0, q)], [(q, q + k)], [(q + k, q + k + v)]
        if layout == "per_head" and self.heads != self.kv_heads:
            raise ConfigError("layout", layout, f"a KV head for each of the {self.heads} heads, or layout grouped")
        if layout in ("grouped", "per_head"):
            return _interleaved((q, k, v), self.kv_heads)
        if layout == "four_blocks":
            if self.heads != self.kv_heads or self.heads % 4:
                raise ConfigError("layout", layout, "a multiple of 4 heads, with a KV head for each")
            at_q, at_v, at_k = _interleaved((q, v, k), 4)
            return at_q, at_k, at_v
        raise ConfigError("layout", layout, f"one of {', '.join(LAYOUTS)}", nearest(layout, LAYOUTS))


def _interleaved(rows: tuple[int, int, int], times: int) -> tuple[Ranges, Ranges, Ranges]:
    """``times`` times an equal piece of each of three."""
    pieces = [count // times for count in rows]
    stride = sum(pieces)
    starts = [sum(pieces[:i]) for i in range(3)]
    first, second, third = (
        [(i * stride + start, i * stride + start + piece) for i in range(times)]
        for start, piece in zip(starts, pieces, strict=True)
    )
    return first, second, third


def qkv_layout_loader(shape: QKVShape, ranks: int, has: Sequence[bool] = (True, True, True)) -> SafetensorsWeightLoader:
    """A rank's query, key and value rows, joined in that order, for any layout of :data:`LAYOUTS`.

    Args:
        shape: the heads of the whole layer.
        ranks: number of ranks. With more ranks than KV heads, neighbours hold the same ones.
        has: for each projection of the parameter, whether a checkpoint has it; rows that it lacks are zeros (a bias on
            some of the three). One entry: queries alone; two: queries and keys.

    Returns:
        A loader of the projections that exist, each a tensor, or of one block of all three.
    """
    names = ("q", "k", "v")[: len(has)]
    totals = shape.rows[: len(has)]
    copies = [1, *[max(1, ranks // shape.kv_heads)] * 2][: len(has)]
    taken = tuple(i for i, there in enumerate(has) if there)

    def arrange(slices: Sequence[LazySlice], layout: str) -> Sequence[LazySlice]:
        if layout == "query_gate":
            return [_query_or_gate(slices[0], shape, gate=False), *slices[1:]]
        if not all(has) or len(has) != 3:
            raise ConfigError("layout", layout, f"none, for a parameter of {', '.join(names[i] for i in taken)} alone")
        block = the_one(slices)
        expect_size(block, 0, sum(totals), f"one block of {' + '.join(map(str, totals))}")
        return [GatherView(block, 0, ranges) for ranges in shape.ranges(layout)]

    def transform(slices: Sequence[LazySlice], rank: int) -> Tensor:
        if not 0 <= rank < ranks:
            raise ConfigError("weight loader: rank", rank, f"0 to {ranks - 1}, one of {ranks} shards")
        if len(slices) == 1 and len(taken) == len(has) == 3:
            slices = arrange(slices, "concatenated")
        if len(slices) != len(taken):
            expected = f"{len(taken)} projections ({', '.join(names[i] for i in taken)})"
            expected += ", or 1 tensor that holds them all" if len(has) == len(taken) == 3 else ""
            raise CheckpointError("checkpoint keys of one parameter", len(slices), expected)
        parts, found = [], iter(slices)
        for there, total, replicas in zip(has, totals, copies, strict=True):
            size = total * replicas // ranks
            if there:
                source = next(found)
                expect_size(source, 0, total, f"a projection for {ranks // replicas} shards of {size}")
                start = rank // replicas * size
                parts.append(source[along(source, 0, start, start + size)])
            else:
                shown = slices[0]
                parts.append(shown[along(shown, 0, 0, 0)].new_zeros([size, *shown.get_shape()[1:]]))
        return torch.cat(parts)

    return SafetensorsWeightLoader(transform, takes=None if len(taken) == 3 else (taken, 3), arrange=arrange)


def gate_layout_loader(loader: SafetensorsWeightLoader, shape: QKVShape) -> SafetensorsWeightLoader:
    """The loader of an output gate of N * D rows, which a checkpoint may keep inside the query projection.

    With the layout ``query_gate`` that projection has for each head the rows of its query, then those of its gate
    (Qwen3-Next).
    """

    def arrange(slices: Sequence[LazySlice], layout: str) -> Sequence[LazySlice]:
        if layout != "query_gate":
            raise ConfigError("layout", layout, "query_gate, or none")
        return [_query_or_gate(the_one(slices), shape, gate=True)]

    return SafetensorsWeightLoader(loader.transform, arrange=arrange)


def _query_or_gate(source: LazySlice, shape: QKVShape, *, gate: bool) -> LazySlice:
    size = shape.head_size
    expect_size(source, 0, 2 * shape.heads * size, "queries and gates")
    starts = [(2 * n + gate) * size for n in range(shape.heads)]
    return GatherView(source, 0, [(start, start + size) for start in starts])
