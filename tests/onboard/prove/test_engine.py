"""A package that is not installed is served by vLLM in a child process; wrong numbers and a death are told."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from onboard.prove import BAR, Package, Verdict
from onboard.prove.engine import failure
from tests.onboard.prove.conftest import proof_of

BIAS = "            bias=c.attention_bias,\n"
STDERR = """INFO starting
[rank0]: Traceback (most recent call last):
[rank0]:   File "<string>", line 5, in <module>
[rank0]:   File "/somewhere/src/mymodel/model.py", line 38, in forward
[rank0]:     raise ValueError("lost")
[rank0]: ValueError: lost
"""


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (BIAS, BIAS, ""),
        (BIAS, BIAS + "            scale=1.01 * c.head_dim**-0.5,\n", "log-probabilities"),
    ],
    ids=["right", "wrong"],
)
def test_served_once(old: str, new: str, said: str, package: Callable[..., Package]) -> None:
    proof = proof_of(package("llama3", ("model.py", old, new)), "llama", engine=True, only=["engine"])
    (check,) = proof.checks
    assert check.kind == "engine" and said in check.message
    assert proof.verdict is (Verdict.FAILED if said else Verdict.PROVED), check.message
    if not said:
        assert check.rel_err is not None and check.rel_err <= BAR


def test_a_child_that_dies_says_why() -> None:
    assert failure(STDERR, 1) == "vLLM: ValueError: lost (model.py:38)"
    assert failure("", 7) == "vLLM: exit code 7"
