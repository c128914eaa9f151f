"""The dispatcher: picks, counts, refuses out loud, and never lets an unknown argument through."""

from __future__ import annotations

import logging

import pytest
import torch

import vllm_neuron.functional as NF
from vllm_neuron.errors import OperationError
from vllm_neuron.functional.operation import Operation, Support


def make() -> Operation:
    def double(x: torch.Tensor, *, limit: int = 4) -> torch.Tensor:
        return x * 2

    made = Operation(double)

    def small(x: torch.Tensor, *, limit: int = 4) -> Support:
        return NF.YES if x.numel() <= limit else NF.no("x.numel()", x.numel(), f"at most {limit}")

    @made.kernel("fast", target="cpu", supports=small)
    def fast(x: torch.Tensor, *, limit: int = 4) -> torch.Tensor:
        return x + x

    return made


def test_kernel_runs_where_it_applies_and_is_counted() -> None:
    op = make()
    before = NF.calls().get(("double", "fast"), 0)
    assert op(torch.ones(3)).tolist() == [2, 2, 2]
    assert NF.calls()["double", "fast"] == before + 1


def test_refusal_is_logged_once_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    op = make()
    with caplog.at_level(logging.INFO, logger="vllm_neuron.functional.operation"):
        for _ in range(3):
            op(torch.ones(9))
    lines = [r.getMessage() for r in caplog.records if "double" in r.getMessage()]
    assert lines == ["double: kernel fast not used, no: x.numel() is 9, the kernel takes at most 4"]
    assert NF.refusals()["double", "fast", "no: x.numel() is 9, the kernel takes at most 4"] == 3


def test_require_makes_a_refusal_an_error() -> None:
    op = make()
    with NF.use_kernels("require"), pytest.raises(OperationError, match="at most 4"):
        op(torch.ones(9))


def test_off_runs_the_reference_only() -> None:
    op = make()
    before = NF.calls().get(("double", "fast"), 0)
    with NF.use_kernels("off"):
        op(torch.ones(3))
    assert NF.calls().get(("double", "fast"), 0) == before


def test_unknown_argument_is_an_error() -> None:
    with pytest.raises(TypeError, match="limt"):
        make()(torch.ones(3), limt=2)


def test_kernel_with_other_parameters_is_refused_at_registration() -> None:
    op = make()
    with pytest.raises(OperationError, match="parameters of the reference"):

        @op.kernel("wrong", target="cpu", supports=lambda x, *, limit=4: NF.YES)
        def wrong(x: torch.Tensor) -> torch.Tensor:
            return x


def test_explain_says_why_not() -> None:
    answer = make().explain(torch.ones(9))["fast"]
    assert not answer and (answer.field, answer.value, answer.limit) == ("x.numel()", 9, "at most 4")


def test_get_suggests_the_nearest_name() -> None:
    with pytest.raises(OperationError, match="flash_attention"):
        NF.get("flash_atention")
