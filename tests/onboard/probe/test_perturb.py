"""Each flip changes the logits of the families that have what it flips, and leaves the others as they were."""

from __future__ import annotations

import copy

import pytest
import torch

from onboard.probe.perturb import PERTURBATIONS, flipped
from onboard.probe.reference import Reference
from onboard.probe.tiny import variants

HAVE = {
    "llama": {"norm eps", "plus one", "activation", "rotary style", "rotary base", "scale"},
    "gemma2": {"norm eps", "plus one", "activation", "rotary style", "rotary base", "scale", "window", "soft cap"},
    "gpt2": {"norm eps", "activation", "scale", "bias"},
    "qwen3_moe": {"norm eps", "plus one", "activation", "rotary style", "rotary base", "scale", "router"},
}


@pytest.mark.parametrize("model_type", sorted(HAVE))
def test_flips_change_the_logits_of_models_that_have_the_part(model_type: str) -> None:
    config = variants(model_type)[0].config
    ids = torch.randint(3, 160, (64,), generator=torch.Generator().manual_seed(1))
    before = Reference(copy.deepcopy(config)).logits(ids)
    applied = set()
    for name, flip in PERTURBATIONS.items():
        reference = Reference(copy.deepcopy(config))
        has = flip(reference)
        after = reference.logits(ids)
        if not has:
            assert torch.equal(after, before), name
            continue
        applied.add(name)
        error = ((after - before).norm(dim=-1) / before.norm(dim=-1)).max()
        assert error > 1e-4, (name, float(error))
    assert applied == HAVE[model_type]


def test_a_flipped_reference_saves_what_it_was(tmp_path) -> None:
    config = variants("gpt2")[0].config
    plain, maker = Reference(config), flipped(PERTURBATIONS["bias"])
    other = maker(config)
    assert torch.equal(plain.logits([5, 6, 7]), other.logits([5, 6, 7])) and not maker.applied
    other.save(tmp_path)
    assert maker.applied
    assert not torch.equal(plain.logits([5, 6, 7]), other.logits([5, 6, 7]))
    from safetensors.torch import load_file

    saved = load_file(next(tmp_path.glob("*.safetensors")))
    assert all(value.abs().max() > 0 for key, value in saved.items() if key.endswith("bias"))
