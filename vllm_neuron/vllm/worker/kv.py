"""A model's KV spec in vLLM's words, and vLLM's allocation as the pages that layers are bound to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
)

from vllm_neuron.errors import ConfigError, UnsupportedError
from vllm_neuron.model.kv_cache import KVBinding, KVSpec, LayerSpec, begins_with_window, blocks_needed


@dataclass(frozen=True)
class GroupShape:
    """What the runner has to know of a view of a KV group: tokens a block, and which keys a query sees.

    ``table``: index of vLLM's group, whose block table is read. Layers of one group have several views where vLLM was
    told to keep windowed layers with full ones.
    """

    block_size: int
    window: int | None
    chunk: int | None
    table: int = field(default=0, compare=False)

    def blocks_needed(self, context: int, queries: int) -> int:
        """M, blocks of a row's table that a step with that context bucket and Q queries reads."""
        return blocks_needed(context, queries, block_size=self.block_size, window=self.window, chunk=self.chunk)

    def begins_with_window(self, context: int, queries: int) -> bool:
        """Whether the table of an EXTEND of that shape begins in the block where the first query's window does."""
        return begins_with_window(context, queries, block_size=self.block_size, window=self.window, chunk=self.chunk)


def to_vllm(spec: KVSpec, block_size: int) -> dict[str, KVCacheSpec]:
    """vLLM's spec for each layer.

    Raises:
        UnsupportedError: a layer that keeps a state, or a latent layer with a window or a chunk.
    """
    return {layer.name: _layer_to_vllm(layer, block_size) for layer in spec.layers}


def _layer_to_vllm(layer: LayerSpec, block_size: int) -> KVCacheSpec:
    common: dict[str, Any] = {
        "block_size": block_size,
        "num_kv_heads": layer.num_kv_heads,
        "head_size": layer.head_size,
        "dtype": layer.dtype,
    }
    reach = layer.sliding_window_size or layer.chunk_size
    if layer.kind == "latent" and reach is None:
        # vLLM's own spec of one vector a token; no values beside it.
        return MLAAttentionSpec(**common)
    common["head_size_v"] = layer.value_size
    if layer.kind == "full":
        return FullAttentionSpec(**common)
    if layer.sliding_window_size is not None and layer.kind == "sliding":
        return SlidingWindowSpec(**common, sliding_window=layer.sliding_window_size)
    if layer.chunk_size is not None and layer.kind == "chunked":
        return ChunkedLocalAttentionSpec(**common, attention_chunk_size=layer.chunk_size)
    raise UnsupportedError(
        f"KV cache of {layer.name}",
        layer.kind if reach is None else f"{layer.kind}, {reach} tokens",
        "full, sliding or chunked attention, or latent attention over all tokens",
    )


Reach = tuple[int | None, int | None]


def group_shapes(config: KVCacheConfig, spec: KVSpec) -> list[GroupShape]:
    """The views of a step: one for each of vLLM's groups and each window or chunk in it."""
    return [
        GroupShape(_block_size(config.kv_cache_groups[table].kv_cache_spec), *reach, table=table)
        for table, reach in _views(config, spec)
    ]


def _views(config: KVCacheConfig, spec: KVSpec) -> list[tuple[int, Reach]]:
    """``(vLLM's group, (window, chunk))`` of each view, in order."""
    layers = {layer.name: layer for layer in spec.layers}
    found: dict[tuple[int, Reach], None] = {}
    for table, group in enumerate(config.kv_cache_groups):
        found.update(dict.fromkeys((table, _reach(layers[name])) for name in group.layer_names))
    return list(found)


def _reach(layer: LayerSpec) -> Reach:
    return layer.sliding_window_size, layer.chunk_size


def _block_size(spec: KVCacheSpec) -> int:
    if isinstance(spec, UniformTypeKVCacheSpecs):
        return next(iter(spec.kv_cache_specs.values())).block_size
    return spec.block_size


def allocate(config: KVCacheConfig, spec: KVSpec, device: torch.device) -> dict[str, KVBinding]:
    """Each layer's pages, laid over vLLM's allocation; groups may share bytes, a block being one group's at a time."""
    layers = {layer.name: layer for layer in spec.layers}
    table_of = {name: i for i, g in enumerate(config.kv_cache_groups) for name in g.layer_names}
    block_of = {name: _block_size(config.kv_cache_groups[i].kv_cache_spec) for name, i in table_of.items()}
    views = _views(config, spec)
    buffers: dict[int, Tensor] = {}
    bindings: dict[str, KVBinding] = {}
    for placed in config.kv_cache_tensors:
        # Placements of one size lie over each other in one buffer; their address ranges say where.
        if placed.size not in buffers:
            # numpy asks the system for zeroed pages, which cost nothing until they are written.
            buffers[placed.size] = torch.from_numpy(np.zeros(placed.size, np.int8)).to(device)
        buffer = buffers[placed.size]
        for index, name in enumerate(placed.layers):
            layer, block_size = layers[name], block_of[name]
            flat = buffer.view(layer.dtype)
            unit = layer.dtype.itemsize
            pages = torch.as_strided(
                flat,
                (config.num_blocks, block_size, layer.token_width),
                (placed.block_stride // unit, layer.token_width, 1),
                (placed.offset + index * placed.layer_stride) // unit,
            )
            bindings[name] = KVBinding(pages, views.index((table_of[name], _reach(layer))))
    missing = sorted(set(layers) - set(bindings))
    if missing:
        raise ConfigError("kv_cache_tensors", missing, "memory for every layer")
    return bindings
