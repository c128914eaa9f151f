"""Layers that differ within a model: head sizes, values that are keys, caches of other layers, partial biases."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from tests.vllm_neuron.nn.blocks import Blocks, record, run_all_ways
from vllm_neuron.accuracy.session import Session
from vllm_neuron.errors import CheckpointError, ConfigError
from vllm_neuron.model.loading import Fuse, Map, Table, load_model
from vllm_neuron.nn import Attention, QKNorm, QueryGrowth, Rotary, RotaryConfig
from vllm_neuron.step import Step

ROPE = {"rope_type": "default", "rope_theta": 10000.0}
TYPES = ["sliding_attention", "full_attention"] * 2
GEMMA4 = {
    "num_hidden_layers": 4,
    "layer_types": TYPES,
    "num_kv_shared_layers": 2,
    "attention_k_eq_v": True,
    "head_dim": 8,
    "global_head_dim": 16,
    "num_global_key_value_heads": 1,
    "sliding_window": 8,
    "rms_norm_eps": 1e-3,
    "hidden_size_per_layer_input": 0,
    "vocab_size_per_layer_input": 97,
    "rope_parameters": {"sliding_attention": ROPE, "full_attention": ROPE},
}
TABLE = Table(
    Fuse("attn.{i}.qkv", "{i}.{q,k,v}_proj"),
    Map("attn.{i}.{q,k}_norm", "{i}.{q,k}_norm"),
    Map("attn.{i}.o", "{i}.o_proj"),
)


def gemma4() -> nn.Module:
    """Two layers with caches of their own, then two that read those."""
    rotaries = {size: Rotary(RotaryConfig(head_size=size, base=10000.0, max_position=64)) for size in (8, 16)}

    def layer(i: int) -> Attention:
        size, full = (16, True) if i % 2 else (8, False)
        return Attention(
            i,
            32,
            heads=4,
            kv_heads=1 if full else 2,
            head_size=size,
            rotary=rotaries[size],
            qk_norm=QKNorm(1e-3),
            v_norm=QKNorm(1e-3, weight=False),
            k_eq_v=full,
            scale=1.0,
            window=None if full else 8,
            shared_with=i - 2 if i > 1 else None,
        )

    return nn.ModuleList(layer(i) for i in range(4))


def side_by_side(blocks: Any, x_TH: Tensor, step: Step) -> Tensor:
    """Each block on its own part of the inputs."""
    return torch.cat([block(x, step) for block, x in zip(blocks, x_TH.split(32, dim=-1), strict=True)], dim=-1)


def test_two_head_sizes_values_that_are_keys_and_shared_caches(tmp_path: Path) -> None:
    reference = record("gemma4_text", "model.layers.{i}.self_attn", GEMMA4, layers=(0, 1, 2, 3))
    assert "3.k_proj.weight" not in reference.tensors and "1.v_proj.weight" not in reference.tensors
    assert run_all_ways(tmp_path, reference, gemma4, TABLE, apply=side_by_side) < 1e-5


def test_a_layer_that_reads_another_cache_has_none_and_gets_the_other_s() -> None:
    model = Blocks(torch.zeros(4, 128), gemma4(), side_by_side)
    specs = model.get_kv_spec().layers
    assert [(s.name, s.num_kv_heads, s.head_size) for s in specs] == [
        ("layers.0.self_attn", 2, 8),
        ("layers.1.self_attn", 1, 16),
    ]
    Session(model, max_tokens=16)
    caches = [block.cache for block in model.attentions()]
    assert caches[2] is caches[0] and caches[3] is caches[1] and caches[0] is not caches[1]


def test_keys_of_a_shared_layer_in_the_file_need_a_drop_row(tmp_path: Path) -> None:
    """A file may have them from training; they are never taken in silence."""
    reference = record("gemma4_text", "model.layers.{i}.self_attn", GEMMA4, layers=(0, 1, 2, 3))
    save_file({**reference.tensors, "3.k_proj.weight": torch.zeros(16, 32)}, tmp_path / "model.safetensors")
    with torch.device("meta"):
        model = Blocks(torch.zeros(4, 128), gemma4(), side_by_side)
    with pytest.raises(CheckpointError, match=r"3\.k_proj\.weight"):
        load_model(model, TABLE, tmp_path, rank=0, world_size=1, dtype=torch.float32)


def test_a_layer_can_not_read_a_cache_of_another_shape() -> None:
    """The mask is the other layer's: a window of its own would be left out without a word."""
    blocks = nn.ModuleList(
        Attention(i, 32, heads=4, kv_heads=2, head_size=8, window=8 if i else None, shared_with=0 if i else None)
        for i in range(2)
    )
    with pytest.raises(ConfigError, match="shared_with"):
        Session(Blocks(torch.zeros(4, 64), blocks, side_by_side), max_tokens=16)


def test_a_layer_can_only_read_an_earlier_one() -> None:
    with pytest.raises(ConfigError, match="shared_with"):
        Attention(1, 32, heads=4, kv_heads=2, head_size=8, shared_with=1)


def test_a_shared_layer_without_a_cache_says_so() -> None:
    block = Attention(1, 32, heads=4, kv_heads=2, head_size=8, shared_with=0)
    with pytest.raises(ConfigError, match="bind_kv_cache"):
        block.pages()


class Plain(nn.Module):
    """Causal attention in a few lines, with values of another size and a bias on q and v alone."""

    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.k_proj = nn.Linear(32, 32), nn.Linear(32, 16, bias=False)
        self.v_proj, self.o_proj = nn.Linear(32, 2 * 12), nn.Linear(4 * 12, 32, bias=False)

    def forward(self, x_TH: Tensor) -> Tensor:
        """[T, H] -> [T, H]."""
        q = self.q_proj(x_TH).view(-1, 4, 8).transpose(0, 1)
        k = self.k_proj(x_TH).view(-1, 2, 8).transpose(0, 1).repeat_interleave(2, 0)
        v = self.v_proj(x_TH).view(-1, 2, 12).transpose(0, 1).repeat_interleave(2, 0) * 1.5
        scores = q @ k.transpose(1, 2) * 8**-0.5
        scores = scores.masked_fill(torch.ones_like(scores[0], dtype=torch.bool).triu(1), float("-inf"))
        return self.o_proj((scores.softmax(-1) @ v).transpose(0, 1).flatten(1))


def test_values_of_another_size_and_a_bias_on_some(tmp_path: Path) -> None:
    from tests.vllm_neuron.nn.blocks import TOKENS, Recorded

    torch.manual_seed(3)
    plain, x = Plain(), torch.randn(TOKENS, 32)
    with torch.no_grad():
        reference = Recorded(x, plain(x), dict(plain.state_dict()), None)
    error = run_all_ways(
        tmp_path,
        reference,
        lambda: Attention(
            0, 32, heads=4, kv_heads=2, head_size=8, head_size_v=12, bias=(True, False, True), value_scale=1.5
        ),
        Table(Fuse("attn.qkv", "{q,k,v}_proj"), Map("attn.o", "o_proj")),
    )
    assert error < 1e-5


@pytest.mark.parametrize(
    "wrong",
    [
        {"output_gate": "channels"},
        {"output_gate": "head", "gate_act": "sigmoidal"},
        {"k_eq_v": True, "head_size_v": 12},
    ],
)
def test_options_that_do_not_exist(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Attention(0, 32, heads=4, kv_heads=2, head_size=8, **wrong)


def test_norms_that_do_not_exist() -> None:
    for wrong in ({"kind": "batch"}, {"width": "heads"}, {"kind": "l2"}, {"weight": False, "bias": True}):
        with pytest.raises(ConfigError):
            QKNorm(1e-6, **wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError):
        QueryGrowth(0, 0.1)
