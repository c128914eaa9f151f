"""A model's KV spec in vLLM's words, and vLLM's allocation as the pages that layers are bound to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheSpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
)

from vllm_neuron.errors import ConfigError, UnsupportedError
from vllm_neuron.model.kv_cache import KVBinding, KVSpec, LayerSpec


@dataclass(frozen=True)
class GroupShape:
    """What the runner has to know of a KV group: tokens a block, and which keys a query sees."""

    block_size: int
    window: int | None
    chunk: int | None

    def blocks_needed(self, context: int, queries: int) -> int:
        """M, blocks of a row's table that a step with that context bucket and Q queries reads."""
        whole = context // self.block_size
        reach = self.window
        if self.chunk is not None:
            reach = self.chunk
        if reach is None:
            return whole
        return min(whole, -(-(reach - 1 + queries) // self.block_size) + 1)


def to_vllm(spec: KVSpec, block_size: int) -> dict[str, KVCacheSpec]:
    """vLLM's spec for each layer.

    Raises:
        UnsupportedError: a latent or state layer.
    """
    return {layer.name: _layer_to_vllm(layer, block_size) for layer in spec.layers}


def _layer_to_vllm(layer: LayerSpec, block_size: int) -> KVCacheSpec:
    common: dict[str, Any] = {
        "block_size": block_size,
        "num_kv_heads": layer.num_kv_heads,
        "head_size": layer.head_size,
        "dtype": layer.dtype,
    }
    if layer.kind == "full":
        return FullAttentionSpec(**common, head_size_v=layer.value_size)
    if layer.sliding_window_size is not None and layer.value_size == layer.head_size:
        return SlidingWindowSpec(**common, sliding_window=layer.sliding_window_size)
    if layer.chunk_size is not None and layer.value_size == layer.head_size:
        return ChunkedLocalAttentionSpec(**common, attention_chunk_size=layer.chunk_size)
    raise UnsupportedError(
        f"KV cache of {layer.name}",
        f"{layer.kind}, head sizes {layer.head_size} and {layer.value_size}",
        "full attention, or a window or chunk with equal head sizes for keys and values",
    )


def group_shapes(config: KVCacheConfig, spec: KVSpec) -> list[GroupShape]:
    """The shape of each of vLLM's groups; layers of one group must be masked alike.

    Raises:
        ConfigError: a group mixes windows.
    """
    layers = {layer.name: layer for layer in spec.layers}
    shapes = []
    for group in config.kv_cache_groups:
        kinds = {(layers[n].sliding_window_size, layers[n].chunk_size) for n in group.layer_names}
        if len(kinds) != 1:
            raise ConfigError("KV cache group", sorted(map(str, kinds)), "layers with one window or chunk")
        window, chunk = kinds.pop()
        shapes.append(GroupShape(_block_size(group.kv_cache_spec), window, chunk))
    return shapes


def _block_size(spec: KVCacheSpec) -> int:
    if isinstance(spec, UniformTypeKVCacheSpecs):
        return next(iter(spec.kv_cache_specs.values())).block_size
    return spec.block_size


def allocate(config: KVCacheConfig, spec: KVSpec, device: torch.device) -> dict[str, KVBinding]:
    """Each layer's pages, laid over vLLM's allocation; groups may share bytes, a block being one group's at a time."""
    layers = {layer.name: layer for layer in spec.layers}
    group_of = {name: i for i, g in enumerate(config.kv_cache_groups) for name in g.layer_names}
    block_of = {name: _block_size(config.kv_cache_groups[i].kv_cache_spec) for name, i in group_of.items()}
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
            bindings[name] = KVBinding(pages, group_of[name])
    missing = sorted(set(layers) - set(bindings))
    if missing:
        raise ConfigError("kv_cache_tensors", missing, "memory for every layer")
    return bindings
