"""Level 3: which blocks are compared, how, and what is said of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.vllm_neuron.accuracy.faults.models import Planted, subject
from tests.vllm_neuron.accuracy.faults.plant import setting, wrapped
from vllm_neuron.accuracy.modules import check_modules
from vllm_neuron.accuracy.results import LevelResult
from vllm_neuron.accuracy.rig import Rig
from vllm_neuron.errors import ConfigError

PROMPT = [list(range(3, 80))]


def level3(name: str, dtype: torch.dtype = torch.float32, plant: Any = None) -> LevelResult:
    made = subject(name)
    baseline = None if dtype == torch.float32 else made.reference(dtype)
    gold = made.reference(torch.float32)
    return check_modules(Rig(Planted(made, plant), gold, PROMPT, baseline=baseline, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_block_of_every_kind_is_compared(dtype: torch.dtype) -> None:
    found = level3("gemma3", dtype)
    assert found.passed and found.place is None and found.level == 3, found.verdict
    compared = {(block.layer, block.block, block.phase) for block in found.blocks}
    for layer in range(3):
        assert {(layer, "attn", "prefill"), (layer, "attn", "decode"), (layer, "mlp", "prefill")} <= compared
        assert {(layer, name, "prefill") for name in ("attn_norm", "post_mlp_norm", "layer")} <= compared
    assert {(None, name, "prefill") for name in ("embed", "norm", "head")} <= compared
    # One rotary table for each kind of layer.
    assert {(block.layer, block.ours) for block in found.blocks if block.block == "rotary"} == {
        (0, "layers.0.attn.rotary"),
        (1, "layers.1.attn.rotary"),
    }
    assert all((block.comparison is not None) == (dtype == torch.bfloat16) for block in found.blocks)
    assert {block.dtype for block in found.blocks} == {str(dtype).removeprefix("torch.")}


def test_small_and_large_inputs_are_tried_in_float32() -> None:
    norm = next(b for b in level3("llama").blocks if b.ours == "layers.1.mlp_norm")
    assert [note.split(":")[0] for note in norm.notes] == ["input times 0.001", "input times 6"]
    found = level3("llama", plant=setting("layers.1.mlp_norm", eps=3e-6))
    assert found.place is not None and (found.place.block, found.place.part) == ("mlp_norm", "eps")
    assert found.verdict.startswith("fail: layer 1, mlp_norm: eps")


def test_whole_layers_with_a_router_are_left_out_in_bfloat16_by_name() -> None:
    found = level3("qwen3_moe", torch.bfloat16)
    assert found.passed, found.verdict
    assert "layer" not in {b.block for b in found.blocks} and "mlp" in {b.block for b in found.blocks}
    assert any("router" in note for note in found.notes)


def test_a_layer_that_is_wired_wrong_is_named_as_a_layer() -> None:
    halved = wrapped("layers.2", lambda module, forward, x, step: x + (forward(x, step) - x) / 2)
    found = level3("llama", plant=halved)
    assert found.place is not None
    assert (found.place.layer, found.place.block, found.place.part) == (2, "layer", "wiring")
    assert [b.ours for b in found.blocks if not b.passed] == ["layers.2"]


def test_nan_never_agrees() -> None:
    def poisoned(module: Any, forward: Any, x: torch.Tensor) -> torch.Tensor:
        y = forward(x)
        y[-1, 5] = torch.nan
        return y

    for dtype in (torch.float32, torch.bfloat16):
        found = level3("llama", dtype, wrapped("layers.1.mlp", poisoned))
        assert found.place is not None and (found.place.layer, found.place.block) == (1, "mlp"), found.verdict


def test_inputs_that_can_not_be_compared_are_refused() -> None:
    made = subject("llama")
    gold = made.reference(torch.float32)
    with pytest.raises(ConfigError, match="none of them empty"):
        Rig(made.target, gold, [[1, 2], []])
    with pytest.raises(ConfigError, match="baseline"):
        Rig(made.target, gold, PROMPT, dtype=torch.bfloat16)
