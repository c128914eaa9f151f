"""The reference: the same for a seed, well conditioned, saved under the hub's names, matched by value."""

from __future__ import annotations

import json

import pytest
import torch

from onboard.probe.reference import Reference
from onboard.probe.tiny import variants

IDS = list(range(3, 67))


@pytest.mark.parametrize("model_type", ["llama", "gemma3_text", "qwen3_moe"])
def test_float32_noise_is_well_below_the_bar(model_type: str) -> None:
    reference = Reference(variants(model_type)[0].config)
    single = reference.logits(IDS).double()
    reference.model.double()
    with torch.no_grad():
        double = reference.model(input_ids=torch.tensor([IDS]), use_cache=False).logits[0]
    assert ((single - double).norm(dim=-1) / double.norm(dim=-1)).max() < 7e-6


def test_a_seed_decides_all_weights_and_none_is_zero() -> None:
    config = variants("gpt2")[0].config
    one, same, other = Reference(config, 1), Reference(config, 1), Reference(config, 2)
    assert torch.equal(one.logits(IDS), same.logits(IDS)) and not torch.equal(one.logits(IDS), other.logits(IDS))
    assert all(bool((p != 0).all()) for p in one.model.parameters())


def test_the_saved_checkpoint_has_the_hubs_names_and_loads_again(tmp_path) -> None:
    from transformers import AutoModelForCausalLM

    reference = Reference(variants("qwen3_moe")[0].config)
    reference.save(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["architectures"] == ["Qwen3MoeForCausalLM"]
    again = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32, attn_implementation="eager")
    with torch.no_grad():
        logits = again.eval()(input_ids=torch.tensor([IDS]), use_cache=False).logits[0]
    assert torch.allclose(logits, reference.logits(IDS), rtol=1e-4, atol=1e-4)
    split = reference.origin["model.layers.0.mlp.experts.3.down_proj.weight"]
    assert split == ("model.layers.0.mlp.experts.down_proj",)
    assert all(reference.origin.values())
