"""The dispatcher: picks, counts, refuses out loud, and never lets an unknown argument through."""

from __future__ import annotations

import logging

import pytest
import torch

import vllm_neuron.functional as NF
from vllm_neuron.errors import ConfigError, OperationError
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
    with caplog.at_level(logging.INFO, logger="vllm_neuron.functional.dispatch"):
        for _ in range(3):
            op(torch.ones(9))
    lines = [r.getMessage() for r in caplog.records if "double" in r.getMessage()]
    assert lines == ["double: kernel fast not used, no: x.numel() is 9, the kernel takes at most 4"]
    assert NF.refusals()["double", "fast", "no: x.numel() is 9, the kernel takes at most 4"] == 3


def with_nki(compiler: str | None = None) -> Operation:
    def triple(x: torch.Tensor) -> torch.Tensor:
        return x * 3

    made = Operation(triple, compiler)

    def small(x: torch.Tensor) -> Support:
        return NF.YES if x.numel() <= 4 else NF.no("x.numel()", x.numel(), "at most 4")

    def always(x: torch.Tensor) -> Support:
        return NF.YES

    @made.kernel("nki.triple", target="nki", supports=small)
    def nki(x: torch.Tensor) -> torch.Tensor:
        return x + x + x

    @made.kernel("torch.triple", target="cpu", supports=always)
    def cpu(x: torch.Tensor) -> torch.Tensor:
        return x + 2 * x

    return made


def count(kernel: str) -> int:
    return NF.calls().get(("triple", kernel), 0)


@pytest.mark.parametrize(
    ("mode", "size", "kernel"),
    [
        ("auto", 3, "torch.triple"),
        ("off", 3, "reference"),
        ("simulate", 3, "nki.triple"),
        ("simulate", 9, "torch.triple"),
        ("require", 3, "nki.triple"),
    ],
)
def test_modes(mode: str, size: int, kernel: str) -> None:
    op, before = with_nki(), count(kernel)
    with NF.use_kernels(mode):
        assert op(torch.ones(size)).tolist() == [3.0] * size
    assert count(kernel) == before + 1


def test_require_makes_a_refusal_an_error() -> None:
    with NF.use_kernels("require"), pytest.raises(OperationError, match=r"triple.x.numel\(\): got 9.*at most 4.*nki"):
        with_nki()(torch.ones(9))


def test_a_refusal_reaches_through_a_compiled_graph() -> None:
    op = with_nki()
    with NF.use_kernels("require"), pytest.raises(Exception, match=r"triple.x.numel\(\): got 9, expected at most 4"):
        torch.compile(lambda x: op(x), fullgraph=True, backend="eager")(torch.ones(9))


def test_require_refuses_an_operation_without_a_kernel() -> None:
    with NF.use_kernels("require"), pytest.raises(OperationError, match="an NKI kernel"):
        make()(torch.ones(3))


def test_what_is_left_to_the_compiler_is_no_refusal() -> None:
    op, before = with_nki("it does that well"), count("compiler")
    with NF.use_kernels("require"):
        assert op(torch.ones(9)).tolist() == [3.0] * 9
    assert count("compiler") == before + 1


def test_refusals_inside_a_compiled_graph_are_counted_when_traced() -> None:
    op = with_nki()
    key = ("triple", "nki.triple", "no: x.numel() is 6, the kernel takes at most 4")
    before, refused = count("torch.triple"), NF.refusals().get(key, 0)
    with NF.use_kernels("simulate"):
        compiled = torch.compile(lambda x: op(x) + 1, fullgraph=True, backend="eager")
        for _ in range(3):
            assert compiled(torch.ones(6)).tolist() == [4.0] * 6
    assert (count("torch.triple"), NF.refusals()[key]) == (before + 1, refused + 1)


def test_a_kernel_that_is_not_installed_is_passed_over_without_a_refusal() -> None:
    op, refused = with_nki(), NF.refusals()

    def always(x: torch.Tensor) -> Support:
        return NF.YES

    @op.kernel("lib.triple", target="nki", supports=always, installed=lambda: NF.no("lib", None, "2.0"), first=True)
    def lib(x: torch.Tensor) -> torch.Tensor:
        raise AssertionError

    with NF.use_kernels("require"):
        op(torch.ones(2))
        assert list(op.explain(torch.ones(2))) == ["lib.triple", "nki.triple"]
        assert not op.explain(torch.ones(2))["lib.triple"]
    assert NF.refusals() == refused


def test_a_mode_of_another_name_is_an_error() -> None:
    with pytest.raises(ConfigError, match="simulate"), NF.use_kernels("simulat"):
        pass


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


@pytest.mark.parametrize(
    "name, target, words",
    [("other", "nkii", "target: got 'nkii', expected one of cpu, nki.*'nki'"), ("fast", "nki", "kernel: got 'fast'")],
)
def test_a_kernel_that_would_never_run_or_be_told_apart_is_refused(name: str, target: str, words: str) -> None:
    with pytest.raises(OperationError, match=words):
        make().kernel(name, target=target, supports=lambda x, limit=None: Support(True))


def test_explain_says_why_not() -> None:
    answer = make().explain(torch.ones(9))["fast"]
    assert not answer and (answer.field, answer.value, answer.limit) == ("x.numel()", 9, "at most 4")


def test_get_suggests_the_nearest_name() -> None:
    with pytest.raises(OperationError, match="flash_attention"):
        NF.get("flash_atention")
