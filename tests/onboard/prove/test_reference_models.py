"""The reference models are proved on every variant of their families; what they refuse, they refuse by name."""

from __future__ import annotations

import pytest

from onboard.prove import BAR, Package, Verdict, prove_package
from onboard.prove.run import KINDS, default_variants
from vllm_neuron.errors import ConfigError


@pytest.mark.parametrize(
    ("name", "refused"),
    [("reference_models.llama3", "partial_rotary_factor"), ("reference_models.gemma3", "attn_logit_softcapping")],
)
def test_proved_on_all_variants(name: str, refused: str) -> None:
    proof = prove_package(name)
    assert proof.verdict is Verdict.PROVED, [(c.name, c.message) for c in proof.failures]
    assert proof.worst is not None and 0 < proof.worst <= BAR
    assert {c.variant for c in proof.checks} == {v.name for v in default_variants(Package.load(name))}
    for check in proof.refused:
        assert refused in check.message and check.variant != "base"
    base = {check.what: check for check in proof.checks if check.variant == "base"}
    for what in (
        "block embed",
        "block layers.*",
        "block layers.*.attn",
        "block layers.*.mlp",
        "block norm",
        "block head",
    ):
        assert base[what].rel_err is not None
    ranks = [what for what in base if what.startswith("loaded from the checkpoint on")]
    cached = [what for what in base if what.startswith("cache, ")]
    assert len(ranks) == 3 and len(cached) == 3


def test_only_some_checks_are_partial_and_an_unknown_one_is_named() -> None:
    proof = prove_package("reference_models.llama3", only=["whole"])
    assert {check.kind for check in proof.checks} <= {"whole", "config"} and proof.partial == ("whole",)
    with pytest.raises(ConfigError, match=r"--only.*'blocks'"):
        prove_package("reference_models.llama3", only=["block"])
    assert len(KINDS) == 6


def test_seeds_change_the_numbers_and_not_the_verdict() -> None:
    first, again, other = (prove_package("reference_models.gemma3", only=["whole"], seed=seed) for seed in (1, 1, 2))
    errors = [[check.rel_err for check in proof.checks] for proof in (first, again, other)]
    assert errors[0] == errors[1] != errors[2]
    assert other.verdict is Verdict.PROVED


def test_progress_counts_to_the_end() -> None:
    seen: list[tuple[str, int, int]] = []
    prove_package("reference_models.gemma3", only=["whole"], progress=lambda *step: seen.append(step))
    done = [step[1] for step in seen]
    assert done == sorted(done) and seen[-1] == ("done", seen[-1][2], seen[-1][2])
