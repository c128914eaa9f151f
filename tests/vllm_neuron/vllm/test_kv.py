"""The KV spec through vLLM's own allocator: shared bytes, windows that give memory back, refusals."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from vllm import EngineArgs
from vllm.config import VllmConfig
from vllm.v1.core.kv_cache_utils import get_kv_cache_configs
from vllm.v1.kv_cache_interface import KVCacheConfig

from tests.support.hf import MODELS
from vllm_neuron.errors import ConfigError, UnsupportedError
from vllm_neuron.model.kv_cache import KVSpec, LayerSpec
from vllm_neuron.vllm.worker import kv


def layer(index: int, window: int | None = None, heads: int = 2, size: int = 16) -> LayerSpec:
    return LayerSpec(f"layers.{index}.self_attn", heads, size, torch.float32, sliding_window_size=window)


@pytest.fixture(scope="module")
def vllm_config(tmp_path_factory: pytest.TempPathFactory) -> VllmConfig:
    folder = tmp_path_factory.mktemp("config")
    config = MODELS["llama"].config()
    config.architectures, config.max_position_embeddings = ["LlamaForCausalLM"], 65536
    config.save_pretrained(folder)
    made = EngineArgs(str(folder), skip_tokenizer_init=True, max_num_batched_tokens=2048).create_engine_config()
    made.cache_config.kv_cache_layout = "LBNHC"
    return made


def config_for(
    vllm_config: VllmConfig, spec: KVSpec, megabytes: int, block_size: int = 16, hybrid: bool = True
) -> KVCacheConfig:
    scheduler = vllm_config.scheduler_config
    before, scheduler.disable_hybrid_kv_cache_manager = scheduler.disable_hybrid_kv_cache_manager, not hybrid
    try:
        return get_kv_cache_configs(vllm_config, [kv.to_vllm(spec, block_size)], [megabytes * 2**20])[0]
    finally:
        scheduler.disable_hybrid_kv_cache_manager = before


def test_layers_of_one_kind_have_pages_of_their_own(vllm_config: VllmConfig) -> None:
    spec = KVSpec(tuple(layer(i) for i in range(3)))
    config = config_for(vllm_config, spec, 512)
    bindings = kv.allocate(config, spec, torch.device("cpu"))
    for number, binding in enumerate(bindings.values()):
        assert binding.pages.shape == (config.num_blocks, 16, 64)
        binding.pages[:] = number + 1
    for number, binding in enumerate(bindings.values()):
        assert (binding.pages == number + 1).all()


def test_groups_share_bytes_block_by_block(vllm_config: VllmConfig) -> None:
    """Five windowed layers to one full one (Gemma 3): a block that one group writes is another's only in its turn."""
    spec = KVSpec(tuple(layer(i, window=None if i % 6 == 5 else 32) for i in range(12)))
    config = config_for(vllm_config, spec, 512)
    shapes = kv.group_shapes(config, spec)
    assert {s.window for s in shapes} == {None, 32}
    bindings = kv.allocate(config, spec, torch.device("cpu"))
    assert set(bindings) == {s.name for s in spec.layers}
    owner = {}
    for index in range(len(shapes)):
        block = index + 1
        for name, binding in bindings.items():
            if binding.group == index:
                binding.pages[block] = float(hash(name) % 97)
                owner[name] = block
    for name, binding in bindings.items():
        assert (binding.pages[owner[name]] == float(hash(name) % 97)).all(), name


def test_F3_windowed_layers_save_memory(vllm_config: VllmConfig) -> None:
    """60 layers, 50 sliding at 1024 and 10 full, 65,536 tokens: 706,560 layer-tokens, 18% of an all-full plan."""
    block = 32
    spec = KVSpec(tuple(layer(i, window=None if i % 6 == 5 else 1024, heads=1, size=8) for i in range(60)))
    tokens = 65536
    needed = sum(tokens if s.sliding_window_size is None else min(tokens, s.sliding_window_size) for s in spec.layers)
    assert needed == 706_560 and round(needed / (60 * tokens), 2) == 0.18

    full = KVSpec(tuple(layer(i, heads=1, size=8) for i in range(60)))
    hybrid, plain = (config_for(vllm_config, each, 512, block) for each in (spec, full))
    group_blocks = [
        -(-tokens // block) if s.window is None else -(-(s.window - 1 + 2048) // block) + 1
        for s in kv.group_shapes(hybrid, spec)
    ]
    share = sum(group_blocks) / hybrid.num_blocks / (tokens // block / plain.num_blocks)
    assert share < 0.25, f"a request takes {share:.0%} of what it takes when every layer is full"


def of(index: int, **options: Any) -> LayerSpec:
    sizes = {"num_kv_heads": 2, "head_size": 16, "dtype": torch.float32}
    return LayerSpec(f"layers.{index}.self_attn", **(sizes | options))


MIXED = {
    "head sizes, all full": lambda i: of(i, head_size=16 if i % 3 else 24),
    "KV heads and head sizes by kind (Gemma 4)": lambda i: (
        of(i, num_kv_heads=1, head_size=64)
        if i % 6 == 5
        else of(i, num_kv_heads=4, head_size=32, sliding_window_size=32)
    ),
    "pages that do not divide": lambda i: of(i, head_size=40) if i % 3 == 2 else of(i, sliding_window_size=32),
    "chunks": lambda i: of(i) if i % 4 == 3 else of(i, chunk_size=64),
    "latent": lambda i: of(i, num_kv_heads=1, head_size=72, latent=True),
    "values of another size": lambda i: of(i, head_size_v=24, sliding_window_size=None if i % 2 else 32),
    "two windows": lambda i: of(i, sliding_window_size=32 if i % 2 else 64),
}


@pytest.mark.parametrize("hybrid", [True, False])
@pytest.mark.parametrize("name", MIXED)
def test_layers_that_differ_keep_apart(name: str, hybrid: bool, vllm_config: VllmConfig) -> None:
    """A block of each group is written by all its layers; each finds its own numbers again, and its own mask."""
    spec = KVSpec(tuple(MIXED[name](i) for i in range(12)))
    if name == "two windows" and not hybrid:
        with pytest.raises(ValueError, match="unified type"):
            config_for(vllm_config, spec, 1024, hybrid=False)
        return
    config = config_for(vllm_config, spec, 1024, hybrid=hybrid)
    shapes = kv.group_shapes(config, spec)
    bindings = kv.allocate(config, spec, torch.device("cpu"))
    for layer in spec.layers:
        binding = bindings[layer.name]
        shape = shapes[binding.group]
        assert (shape.window, shape.chunk) == (layer.sliding_window_size, layer.chunk_size)
        assert layer.name in config.kv_cache_groups[shape.table].layer_names
        assert binding.pages.shape == (config.num_blocks, shape.block_size, layer.token_width)
    numbers = {layer.name: float(i + 1) for i, layer in enumerate(spec.layers)}
    for one, binding in bindings.items():
        binding.pages[shapes[binding.group].table + 1] = numbers[one]
    for one, binding in bindings.items():
        assert (binding.pages[shapes[binding.group].table + 1] == numbers[one]).all(), one
    assert len(config.kv_cache_groups) == 1 or hybrid


def test_a_layer_that_vllm_has_no_spec_for_is_refused_by_name() -> None:
    latent = LayerSpec("layers.0.self_attn", 1, 64, torch.float32, latent=True, sliding_window_size=8)
    with pytest.raises(UnsupportedError, match=r"layers\.0\.self_attn.*latent"):
        kv.to_vllm(KVSpec((latent,)), 16)
    state = LayerSpec("layers.1.mixer", 1, 64, torch.float32, state_shapes=((4, 8),))
    with pytest.raises(UnsupportedError, match=r"layers\.1\.mixer.*state"):
        kv.to_vllm(KVSpec((state,)), 16)


def test_a_layer_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match="each layer name once"):
        KVSpec((layer(0), layer(0)))


def test_window_and_chunk_are_refused_together() -> None:
    with pytest.raises(ConfigError, match="a window or a chunk"):
        LayerSpec("x", 1, 8, torch.float32, sliding_window_size=4, chunk_size=8)
