"""No harmless change raises an alarm, neither in float32 nor in bfloat16."""

from __future__ import annotations

import pytest

from tests.vllm_neuron.accuracy.faults.harmless import Harmless, harmless

CHANGES = list(harmless())
QUICK = {
    "2 ranks (llama)",
    "4 ranks (llama)",
    "a cached prefix",
    "experts in reverse",
    "four in a batch",
    "kernels off",
    "prefill in chunks of 16",
    "scores in bf16",
    "softmax in tiles",
    "sums in four parts",
    "two threads",
}


def _parameters() -> list[object]:
    return [pytest.param(c, id=c.name, marks=[] if c.name in QUICK else [pytest.mark.slow]) for c in CHANGES]


@pytest.mark.parametrize("change", _parameters())
def test_no_alarm(change: Harmless) -> None:
    found = change.look()
    assert found.outcome == "pass", f"{found.verdict}: {found.place.evidence if found.place else ''}"
    assert len(found.levels) == 2 and all(way.verdict.startswith("pass") for way in found.ways)
    assert all(len(level.blocks) > 10 for level in found.levels)


def test_the_matrix_is_large_enough() -> None:
    names = [change.name for change in CHANGES]
    assert len(set(names)) == len(names) >= 30
    assert set(names) >= QUICK
