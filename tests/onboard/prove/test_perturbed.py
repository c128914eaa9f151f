"""The other way round: a right package against a reference with one thing flipped is never proved."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from onboard.probe.reference import Reference
from onboard.prove import Package, Proof, Status, Verdict, prove
from tests.onboard.prove.conftest import tiny


def eps(model: Any) -> None:
    model.model.layers[1].input_layernorm.eps *= 10


def plus_one(model: Any) -> None:
    norm = model.model.norm
    norm.forward = lambda x: norm._norm(x.float()) * norm.weight


def scale(model: Any) -> None:
    model.model.layers[2].self_attn.scaling *= 1.001


def window(model: Any) -> None:
    model.config.sliding_window += 1


def base(model: Any) -> None:
    rotary = model.model.rotary_emb
    for name, buffer in rotary.named_buffers():
        if name.startswith("sliding") and name.endswith("inv_freq") and "original" not in name:
            buffer[1:] *= 1.001


def activation(model: Any) -> None:
    model.model.layers[3].mlp.act_fn = torch.nn.SiLU()


def embedding(model: Any) -> None:
    model.model.embed_tokens.embed_scale *= 1.001


def soft_cap(model: Any) -> None:
    model.config.final_logit_softcapping = None


FLIPS: dict[str, tuple[Callable[[Any], None], str]] = {
    "eps": (eps, "layers.1.attn_norm"),
    "plus one": (plus_one, "norm"),
    "scale": (scale, "layers.2.attn"),
    "window": (window, "layers.0.attn"),
    "base": (base, "layers.0.attn"),
    "activation": (activation, "layers.3.mlp"),
    "embedding": (embedding, "embed"),
    "soft cap": (soft_cap, "head"),
}


def against(flip: Callable[[Any], None], **options: Any) -> Proof:
    """Gemma 3's proof against a reference that was flipped after its config was saved."""

    class Flipped(Reference):
        def save(self, folder: Any) -> None:
            super().save(folder)
            if not hasattr(self, "flipped"):
                self.flipped = True
                flip(self.model)

        @property
        def origin(self) -> Any:
            return {}

    return prove(Package.load("reference_models.gemma3"), tiny("gemma3"), reference=Flipped, **options)


@pytest.mark.parametrize("name", sorted(FLIPS))
def test_a_flipped_reference_is_found(name: str) -> None:
    flip, block = FLIPS[name]
    proof = against(flip, only=["blocks", "whole"])
    assert proof.verdict is Verdict.FAILED
    assert proof.divergence is not None and proof.divergence.block == block


def test_an_unflipped_reference_is_proved() -> None:
    assert against(lambda model: None, only=["blocks", "whole"]).verdict is Verdict.PROVED


def test_a_reference_that_does_not_run_proves_nothing() -> None:
    def broken(model: Any) -> None:
        del model.model.layers[0].mlp.act_fn

    proof = against(broken)
    assert [check.status for check in proof.checks] == [Status.FAILED] and "act_fn" in proof.checks[0].message


def test_a_reference_that_gives_nan_proves_nothing() -> None:
    def broken(model: Any) -> None:
        with torch.no_grad():
            model.model.norm.weight.fill_(float("nan"))

    assert against(broken, only=["whole"]).verdict is Verdict.FAILED
