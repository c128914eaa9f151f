"""wrap_nki: tensors in and out, in place, in graphs, and each wrong call by name."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from vllm_neuron.errors import KernelError
from vllm_neuron.nki.api import nisa, nki, nl
from vllm_neuron.utils.nki_utils import WrappedKernel, wrap_nki

DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2]


def _copied(x: Any, factor: float) -> Any:
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=factor)
    return tile


@nki.jit
def scale_kernel(x: Any, factor: float = 2.0, dtype: Any = None) -> Any:
    out = nl.ndarray(x.shape, dtype=x.dtype if dtype is None else dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=_copied(x, factor))
    return out


@nki.jit
def store_kernel(cache: Any, x: Any) -> Any:
    nisa.dma_copy(dst=cache, src=_copied(x, 1.0))
    return cache


@nki.jit
def both_kernel(x: Any, cache: Any) -> Any:
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=_copied(x, 2.0))
    nisa.dma_copy(dst=cache, src=_copied(x, 3.0))
    return out, cache


@nki.jit
def broken_kernel(x: Any) -> Any:
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    return out + {}["missing"]


@nki.jit
def silent_kernel(x: Any) -> None:
    _copied(x, 1.0)


@nki.jit
def part_kernel(cache: Any, x: Any) -> Any:
    nisa.dma_copy(dst=cache, src=x)
    return cache[0:1, :]


@nki.jit
def private_kernel(x: Any) -> Any:
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.hbm)
    nisa.dma_copy(dst=out, src=x)
    return out


class Odd(Exception):
    """Of no class that Python has."""


@nki.jit
def odd_kernel(x: Any) -> Any:
    raise Odd("no")


def like_x(x: Tensor, factor: float, dtype: torch.dtype | None) -> Any:
    return x.shape, dtype or x.dtype


scale = wrap_nki(scale_kernel, outputs=like_x)
store = wrap_nki(store_kernel, outputs=lambda cache, x: "cache", mutates=("cache",))
both = wrap_nki(both_kernel, outputs=lambda x, cache: [(x.shape, x.dtype), "cache"], mutates=("cache",))


@pytest.mark.parametrize("grid", [1, 2])
@pytest.mark.parametrize("dtype", DTYPES)
def test_tensors_in_and_out(dtype: torch.dtype, grid: int) -> None:
    x = torch.arange(12.0).view(3, 4).to(dtype)
    y = scale[grid](x, factor=2.0)
    assert y.dtype is dtype and torch.equal(y.float(), x.float() * 2)


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8, torch.int16, torch.uint32])
def test_integers_pass_unchanged(dtype: torch.dtype) -> None:
    x = torch.arange(12).view(3, 4).to(dtype)
    cache = torch.zeros_like(x)
    assert wrap_nki(move_kernel, mutates=("cache",))(cache, x) is cache and torch.equal(cache, x)


@nki.jit
def move_kernel(cache: Any, x: Any) -> Any:
    nisa.dma_copy(dst=cache, src=x)
    return cache


def test_a_torch_dtype_becomes_the_kernels() -> None:
    assert scale(torch.ones(2, 4), dtype=torch.bfloat16).dtype is torch.bfloat16


def test_no_copy_of_what_is_written() -> None:
    whole = torch.zeros(5, 2, 4, dtype=torch.bfloat16)
    x = torch.rand(2, 4).bfloat16()
    part = whole[3]
    assert store(part, x) is part
    assert torch.equal(whole[3], x) and whole.float().abs().sum() == x.float().abs().sum()


def test_new_and_written_results_together() -> None:
    x, cache = torch.ones(2, 4), torch.zeros(2, 4)
    out, same = both[2](x, cache)
    assert same is cache and out.eq(2).all() and cache.eq(3).all()


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_in_a_compiled_graph(backend: str) -> None:
    def step(x: Tensor, cache: Tensor) -> Tensor:
        y = scale[2](x + 1, factor=3.0, dtype=torch.float32)
        out, written = both[1](y, cache[1])
        return out + written + cache[1]

    compiled = torch.compile(step, fullgraph=True, backend=backend)
    for value in (1.0, 2.0):
        x = torch.full((2, 4), value)
        cache, expected = torch.zeros(2, 2, 4), torch.zeros(2, 2, 4)
        assert torch.equal(compiled(x, cache), step(x, expected))
        assert torch.equal(cache, expected) and cache[1].eq(9 * (value + 1)).all()


def test_shapes_are_inferred_without_running_the_kernel() -> None:
    wrapped = wrap_nki(broken_kernel, outputs=lambda x: [((7, *x.shape), torch.int32)])
    assert wrapped(torch.empty(2, 3, device="meta")).shape == (7, 2, 3)
    with FakeTensorMode():
        made = wrapped[2](torch.empty(2, 3))
    assert made.shape == (7, 2, 3) and made.dtype is torch.int32


def test_a_graph_names_the_kernel_and_its_source() -> None:
    seen: list[str] = []

    def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
        seen.extend(str(node.args[0]) for node in graph.graph.nodes if "nki_call" in str(node.target))
        return graph.forward

    torch.compile(lambda x: scale(x), fullgraph=True, backend=backend)(torch.ones(2, 4))
    assert len(seen) == 1 and seen[0] == scale.key and ".scale_kernel:" in scale.key
    assert wrap_nki(scale_kernel).key != scale.key


def call(wrapped: WrappedKernel, *args: Any, grid: Any = 1, **kwargs: Any) -> Any:
    return lambda: wrapped[grid](*args, **kwargs)


X = torch.ones(2, 4)
ROWS = torch.ones(3, 4)
WRONG: dict[str, tuple[Any, type[Exception], str]] = {
    "unknown argument": (call(scale, X, fctor=1.0), TypeError, "kernel scale_kernel: .*'fctor'.*'factor'"),
    "missing argument": (call(store, X), TypeError, "kernel store_kernel: argument 'x' is missing"),
    "argument twice": (call(scale, X, x=X), TypeError, "'x' is given twice"),
    "too many": (call(scale, X, 1.0, None, 3), TypeError, "got 4 positional"),
    "grid": (call(scale, X, grid=3), KernelError, "scale_kernel: grid: got 3, expected 1 or 2.*test_wrap.py:"),
    "grid of another type": (call(scale, X, grid=True), KernelError, "grid: got True"),
    "grid of a float": (call(scale, X, grid=1.0), KernelError, "grid: got 1.0"),
    "array of NumPy": (call(scale, X.numpy()), KernelError, "scale_kernel: x: got 'an array of NumPy'.*from_numpy"),
    "negated on reading": (call(scale, torch._neg_view(X)), KernelError, "scale_kernel: x: .*resolve_neg"),
    "dtype in a dry run": (call(scale, X.long().to("meta")), KernelError, "scale_kernel: x: got 'torch.int64'"),
    "memory of another": (call(store, ROWS[:2], ROWS[1:]), KernelError, "store_kernel: cache: got 'memory that x has"),
    "view of an argument returned": (
        call(wrap_nki(part_kernel, mutates=("cache",)), torch.zeros(2, 4), X),
        KernelError,
        r"part_kernel: return\[0\]: got 'a view of cache, of shape \(1, 4\)', expected cache whole",
    ),
    "private memory returned": (call(wrap_nki(private_kernel), X), KernelError, "private_kernel: .*nl.shared_hbm"),
    "an exception of its own": (
        call(wrap_nki(odd_kernel), X, grid=2),
        KernelError,
        r"odd_kernel: body: got 'Odd: no', .*test_wrap.py:\d+",
    ),
    "promise of no pair": (
        call(wrap_nki(scale_kernel, outputs=lambda x, factor, dtype: x.shape), X),
        KernelError,
        r"scale_kernel: outputs: got 'Size', expected \(shape, dtype\)",
    ),
    "dtype": (call(scale, X.long()), KernelError, "scale_kernel: x: got 'torch.int64'.*int32"),
    "strided": (call(scale, X.t()), KernelError, r"x: got 'shape \(4, 2\), stride \(1, 4\)', expected a contiguous"),
    "strided and written": (call(store, X.t(), X), KernelError, r"cache: .*stride \(1, 4\).*would be lost"),
    "not a tensor": (call(store, 3, X), KernelError, "cache: got 'int', expected a tensor"),
    "undeclared write": (
        call(wrap_nki(store_kernel), X.clone(), X),
        KernelError,
        r"store_kernel: write into an argument: got 'nisa.dma_copy\(dst=cache.*test_wrap.py:\d+.*mutates",
    ),
    "nothing returned": (call(wrap_nki(silent_kernel), X), KernelError, "silent_kernel: .*return.*shared_hbm"),
    "error inside": (
        call(wrap_nki(broken_kernel), X),
        KernelError,
        r"broken_kernel: .*KeyError: 'missing'.*test_wrap.py:\d+",
    ),
    "another shape than promised": (
        call(wrap_nki(scale_kernel, outputs=lambda x, factor, dtype: ((9,), x.dtype)), X),
        KernelError,
        r"return\[0\]: got '\(2, 4\) torch.float32', expected \(9,\)",
    ),
    "promise of an undeclared argument": (
        call(wrap_nki(store_kernel, outputs=lambda cache, x: "cache"), X.clone(), X),
        KernelError,
        "write into an argument|outputs: got 'cache'",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_calls_name_kernel_argument_value_and_limit(name: str) -> None:
    run, kind, words = WRONG[name]
    with pytest.raises(kind, match=f"(?s){words}"):
        run()


def test_tensors_of_two_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeTensorMode():
        there = torch.empty(2, 4, device="cuda")
    with pytest.raises(KernelError, match="x: got 'a tensor on cuda:0', expected a tensor on a Neuron device or on"):
        scale.check({"x": there})
    with pytest.raises(KernelError, match="x: got 'a tensor on cuda:0', expected all tensors on one device, here cpu"):
        store.check({"cache": X, "x": there})


def test_the_line_of_an_error_is_the_kernels_own() -> None:
    with pytest.raises(KernelError) as caught:
        wrap_nki(broken_kernel)(X)
    file, line = caught.value.where.rsplit(":", 1)
    with open(file) as source:
        assert "missing" in source.read().splitlines()[int(line) - 1]


def test_errors_reach_through_a_compiled_graph() -> None:
    for run, words in (
        (lambda x: scale[3](x), "grid: got 3"),
        (lambda x: scale[1](x, fctor=2.0), "Did you mean 'factor'"),
        (lambda x: wrap_less(x), "outputs: got None"),
        (lambda x: scale(x, factor=object), "factor: got"),
    ):
        with pytest.raises(Exception, match=words):
            torch.compile(run, fullgraph=True, backend="eager")(X)


wrap_less = wrap_nki(scale_kernel)


@pytest.mark.parametrize("values", [(1.5, 2.5, 0.1, float("inf")), (1, 2, -3)])
def test_numbers_that_change_between_calls_of_a_graph(values: tuple[float, ...]) -> None:
    """torch.compile takes a number for a variable once it has seen two values of it."""
    torch._dynamo.reset()
    compiled = torch.compile(lambda x, factor: scale(x, factor), fullgraph=True, backend="aot_eager")
    for value in values:
        assert torch.equal(compiled(X, value), X * value)


@pytest.mark.parametrize("value", [3, "text", scale, lambda *args: None, lambda **options: None])
def test_what_is_no_kernel_is_refused(value: Any) -> None:
    with pytest.raises(TypeError):
        wrap_nki(value)


def test_mutates_names_an_argument() -> None:
    with pytest.raises(TypeError, match=r"'cash'.*Did you mean 'cache'"):
        wrap_nki(store_kernel, mutates=("cash",))
    with pytest.raises(TypeError, match=r"store_kernel: mutates is 'x', expected a tuple"):
        wrap_nki(store_kernel, mutates="x")


@pytest.mark.parametrize("outputs", [lambda x: x, 3])
def test_outputs_takes_the_kernels_arguments(outputs: Any) -> None:
    with pytest.raises(TypeError, match=r"kernel scale_kernel: outputs is .*x, factor, dtype"):
        wrap_nki(scale_kernel, outputs=outputs)
