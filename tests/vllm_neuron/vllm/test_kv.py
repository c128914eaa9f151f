"""The KV spec through vLLM's own allocator: shared bytes, windows that give memory back, refusals."""

from __future__ import annotations

import pytest
import torch
from vllm import EngineArgs
from vllm.config import VllmConfig
from vllm.v1.core.kv_cache_utils import get_kv_cache_configs

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


def config_for(vllm_config: VllmConfig, spec: KVSpec, megabytes: int, block_size: int = 16):
    return get_kv_cache_configs(vllm_config, [kv.to_vllm(spec, block_size)], [megabytes * 2**20])[0]


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


def test_a_layer_without_plain_keys_is_refused_by_name() -> None:
    latent = LayerSpec("layers.0.self_attn", 1, 64, torch.float32, latent=True)
    with pytest.raises(UnsupportedError, match=r"layers\.0\.self_attn.*latent"):
        kv.to_vllm(KVSpec((latent,)), 16)


def test_a_layer_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match="each layer name once"):
        KVSpec((layer(0), layer(0)))


def test_window_and_chunk_are_refused_together() -> None:
    with pytest.raises(ConfigError, match="a window or a chunk"):
        LayerSpec("x", 1, 8, torch.float32, sliding_window_size=4, chunk_size=8)
