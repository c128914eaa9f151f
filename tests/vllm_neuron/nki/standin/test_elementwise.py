"""Copies, operators, activations and reductions against NumPy."""

import math
import warnings

import ml_dtypes
import numpy as np
import pytest

from tests.vllm_neuron.nki.standin.harness import empty, normal, out, run, tile
from vllm_neuron.errors import KernelError
from vllm_neuron.nki.standin import nisa, nl
from vllm_neuron.nki.standin.core import local

BF16 = ml_dtypes.bfloat16

BINARY = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "divide": np.divide,
    "equal": np.equal,
    "not_equal": np.not_equal,
    "less": np.less,
    "less_equal": np.less_equal,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
}


@pytest.mark.parametrize("name", BINARY)
def test_tensor_tensor_is_the_operator_in_fp32(name):
    x, y = normal(8, 12), normal(8, 12, seed=1)
    y[:2] = x[:2]

    def kernel(a, b):
        t = empty((8, 12))
        nisa.tensor_tensor(dst=t, data1=tile(a), data2=tile(b), op=getattr(nl, name))
        return out(t)

    assert np.array_equal(run(kernel, x, y), BINARY[name](x, y).astype(np.float32))


@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize("reverse", [False, True])
def test_tensor_scalar_takes_numbers_and_columns(name, reverse):
    x, column = normal(8, 12), normal(8, 1, seed=1)
    f = BINARY[name]

    def kernel(a, b):
        t, u = empty((8, 12)), empty((8, 12))
        op = getattr(nl, name)
        nisa.tensor_scalar(dst=t, data=tile(a), op0=op, operand0=tile(b), reverse0=reverse)
        nisa.tensor_scalar(dst=u, data=t, op0=nl.multiply, operand0=2.0, op1=op, operand1=0.5, reverse1=reverse)
        return out(t), out(u)

    first, second = run(kernel, x, column)
    expected = (f(column, x) if reverse else f(x, column)).astype(np.float32)
    twice = expected * np.float32(2)
    assert np.array_equal(first, expected)
    assert np.array_equal(second, (f(np.float32(0.5), twice) if reverse else f(twice, np.float32(0.5))))


@pytest.mark.parametrize("reverse0", [False, True])
@pytest.mark.parametrize("reverse1", [False, True])
def test_scalar_tensor_tensor(reverse0, reverse1):
    x, y, column = normal(8, 12), normal(8, 12, seed=1), normal(8, 1, seed=2)

    def kernel(a, b, c):
        t = empty((8, 12))
        nisa.scalar_tensor_tensor(
            dst=t,
            data=tile(a),
            op0=nl.subtract,
            operand0=tile(c),
            op1=nl.divide,
            operand1=tile(b),
            reverse0=reverse0,
            reverse1=reverse1,
        )
        return out(t)

    inner = column - x if reverse0 else x - column
    assert np.array_equal(run(kernel, x, y, column), y / inner if reverse1 else inner / y)


def test_int32_arithmetic_is_exact_and_mixed_arithmetic_is_not():
    x = np.array([[2**24 + 1, 2**30 + 1]], np.int32)

    def kernel(a):
        t, u = empty((1, 2), nl.int32), empty((1, 2))
        data = tile(a)
        nisa.tensor_tensor(dst=t, data1=data, data2=data, op=nl.subtract)
        nisa.tensor_tensor(dst=t, data1=t, data2=data, op=nl.add)
        nisa.tensor_scalar(dst=u, data=data, op0=nl.add, operand0=0.0)
        return out(t), out(u)

    exact, rounded = run(kernel, x)
    assert np.array_equal(exact, x)
    assert np.array_equal(rounded, x.astype(np.float32))


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("bitwise_and", np.bitwise_and),
        ("bitwise_or", np.bitwise_or),
        ("bitwise_xor", np.bitwise_xor),
        ("left_shift", np.left_shift),
        ("right_shift", np.right_shift),
    ],
)
def test_bitwise_operators_work_on_raw_bits(name, function):
    x = np.array([[0b1100, 7, 2**31 - 1, 12345]], np.int32)

    def kernel(a):
        t = empty((1, 4), nl.int32)
        nisa.tensor_scalar(dst=t, data=tile(a), op0=getattr(nl, name), operand0=3)
        return out(t)

    assert np.array_equal(run(kernel, x), function(x, np.int32(3)))


def test_bitwise_operator_on_floats_needs_a_view():
    def kernel(a):
        t = empty((2, 4))
        nisa.tensor_scalar(dst=t, data=tile(a), op0=nl.bitwise_and, operand0=3)
        return out(t)

    with pytest.raises(KernelError, match=r"float32.*integers.*view"):
        run(kernel, normal(2, 4))

    def sign(a):
        data = tile(a)
        bits = empty((2, 4), nl.int32)
        nisa.tensor_scalar(dst=bits, data=data.view(nl.int32), op0=nl.bitwise_and, operand0=0x7FFFFFFF)
        return out(bits.view(nl.float32))

    assert np.array_equal(run(sign, normal(2, 4)), np.abs(normal(2, 4)))


def gelu(x):
    return np.array([0.5 * v * (1 + math.erf(v / math.sqrt(2))) for v in x.reshape(-1)]).reshape(x.shape)


ACTIVATIONS = {
    "copy": lambda x: x,
    "exp": np.exp,
    "square": np.square,
    "tanh": np.tanh,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu": gelu,
    "gelu_apprx_tanh": lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    "gelu_apprx_sigmoid": lambda x: x / (1 + np.exp(-1.702 * x)),
    "relu": lambda x: np.maximum(x, 0),
    "abs": np.abs,
    "sin": np.sin,
    "softplus": lambda x: np.log1p(np.exp(x)),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activation_is_the_function_of_scale_and_bias(name):
    x, scale, bias = normal(8, 16), normal(8, 1, seed=1) * 0.3, normal(8, 1, seed=2) * 0.3

    def kernel(a, b, c):
        t = empty((8, 16))
        nisa.activation(dst=t, op=getattr(nl, name), data=tile(a), scale=tile(b), bias=tile(c))
        return out(t)

    expected = ACTIVATIONS[name](x.astype(np.float64) * scale + bias)
    assert np.allclose(run(kernel, x, scale, bias), expected, rtol=2e-6, atol=2e-7)


@pytest.mark.parametrize(("name", "function"), [("rsqrt", lambda x: x**-0.5), ("sqrt", np.sqrt), ("log", np.log)])
def test_activation_of_positive_numbers(name, function):
    x = np.abs(normal(8, 16)) + 0.1

    def kernel(a):
        t = empty((8, 16))
        nisa.activation(dst=t, op=getattr(nl, name), data=tile(a))
        return out(t)

    assert np.allclose(run(kernel, x), function(x.astype(np.float64)), rtol=1e-6, atol=1e-7)


def test_sigmoid_of_large_numbers_is_finite():
    def kernel(a):
        t = empty((1, 2))
        nisa.activation(dst=t, op=nl.silu, data=tile(a))
        return out(t)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = run(kernel, np.array([[-500.0, 500.0]], np.float32))
    assert np.array_equal(np.abs(result), [[0, 500]])


def test_sine_outside_its_range_is_refused():
    def kernel(a):
        t = empty((1, 1))
        nisa.activation(dst=t, op=nl.sin, data=tile(a))
        return out(t)

    with pytest.raises(KernelError, match=r"got 4.0.*\[-pi, pi\]"):
        run(kernel, np.array([[4.0]], np.float32))


def test_activation_reduce_gives_row_sums():
    x = normal(8, 16)

    def kernel(a):
        t, s = empty((8, 16), nl.bfloat16), empty((8, 1))
        nisa.activation_reduce(dst=t, op=nl.exp, data=tile(a), reduce_op=nl.add, reduce_res=s, scale=0.5)
        return out(t), out(s)

    values, sums = run(kernel, x)
    expected = np.exp(x * np.float32(0.5))
    assert np.array_equal(values, expected.astype(BF16))
    assert np.allclose(sums[:, 0], expected.sum(axis=1), rtol=1e-6)


def test_activation_registers_accumulate_over_instructions():
    x = normal(8, 16)

    def kernel(a):
        data, t, s = tile(a), empty((8, 8)), empty((8, 1))
        nisa.activation(dst=t, op=nl.copy, data=data[:, 0:8], reduce_op=nl.add, reduce_cmd=nisa.reduce_cmd.reset_reduce)
        nisa.activation(dst=t, op=nl.copy, data=data[:, 8:16])
        nisa.activation(
            dst=t,
            op=nl.copy,
            data=data[:, 8:16],
            reduce_op=nl.add,
            reduce_cmd=nisa.reduce_cmd.reduce,
            reduce_res=s,
        )
        return out(s)

    assert np.allclose(run(kernel, x)[:, 0], x.sum(axis=1), rtol=1e-5, atol=1e-6)


def test_registers_that_hold_nan_were_reset():
    """A row of NaN sums to NaN, as on hardware: it is no fault of the kernel."""

    def body(x):
        total = empty((2, 1))
        result = empty((2, 4))
        command = nisa.reduce_cmd.reset_reduce
        nisa.activation(result, nl.exp, tile(x), reduce_op=nl.add, reduce_res=total, reduce_cmd=command)
        return out(total)

    assert np.isnan(run(body, np.full((2, 4), np.nan, np.float32))).all()


def test_registers_that_were_never_reset_are_refused():
    def kernel(a):
        t, s = empty((8, 16)), empty((8, 1))
        nisa.activation(
            dst=t, op=nl.copy, data=tile(a), reduce_op=nl.add, reduce_cmd=nisa.reduce_cmd.reduce, reduce_res=s
        )
        return out(s)

    with pytest.raises(KernelError, match="never reset"):
        run(kernel, normal(8, 16))


@pytest.mark.parametrize(("name", "function"), [("add", np.sum), ("maximum", np.max), ("minimum", np.min)])
@pytest.mark.parametrize(("axis", "kept"), [(2, (8, 3)), ((1, 2), (8, 1)), ([2], (8, 3, 1))])
def test_tensor_reduce_over_trailing_axes(name, function, axis, kept):
    x = normal(8, 3, 5)

    def kernel(a):
        t = empty(kept)
        nisa.tensor_reduce(dst=t, op=getattr(nl, name), data=tile(a), axis=axis, negate=True)
        return out(t)

    expected = -function(x, axis=tuple(axis) if not isinstance(axis, int) else axis)
    assert np.allclose(run(kernel, x).reshape(-1), expected.reshape(-1), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("axis", [0, 1, (0, 1), (0, 1, 2)])
def test_tensor_reduce_of_other_axes_is_refused(axis):
    def kernel(a):
        t = empty((8, 5))
        nisa.tensor_reduce(dst=t, op=nl.add, data=tile(a), axis=axis)
        return out(t)

    with pytest.raises(KernelError, match=r"tensor_reduce\.axis"):
        run(kernel, normal(8, 3, 5))


def test_tensor_scalar_reduce_with_abs():
    x = normal(8, 16)

    def kernel(a):
        t, s = empty((8, 16)), empty((8, 1))
        nisa.tensor_scalar_reduce(dst=t, data=tile(a), op0=nl.abs, operand0=0.0, reduce_op=nl.maximum, reduce_res=s)
        return out(t), out(s)

    values, largest = run(kernel, x)
    assert np.array_equal(values, np.abs(x))
    assert np.array_equal(largest[:, 0], np.abs(x).max(axis=1))


def test_reciprocal_and_memset():
    x = normal(8, 4)

    def kernel(a):
        t, m = empty((8, 4)), empty((8, 4), nl.int32)
        nisa.reciprocal(dst=t, data=tile(a))
        nisa.memset(dst=m, value=7)
        nisa.memset(dst=m[0:8, 1:3], value=-1)
        return out(t), out(m)

    inverse, filled = run(kernel, x)
    assert np.array_equal(inverse, np.float32(1) / x)
    assert np.array_equal(filled, np.tile([7, -1, -1, 7], (8, 1)))


def test_copy_of_equal_types_keeps_bits_and_other_types_go_through_fp32():
    x = np.array([[np.nan, 1.00390625, -2.5, 3.5, 300.0, -1.0]], np.float32)

    def kernel(a):
        same, narrow, whole = empty((1, 6)), empty((1, 6), nl.bfloat16), empty((1, 3), nl.uint8)
        data = tile(a)
        nisa.tensor_copy(dst=same, src=data)
        nisa.tensor_copy(dst=narrow, src=data)
        nisa.tensor_copy(dst=whole, src=data[:, 3:6])
        return out(same), out(narrow), out(whole)

    same, narrow, whole = run(kernel, x)
    assert same.tobytes() == x.tobytes()
    assert np.array_equal(narrow[0, 1:], x.astype(BF16)[0, 1:])
    assert whole.tolist() == [[4, 255, 0]]


def test_convenience_operators_make_tiles():
    x, y = normal(8, 4), normal(8, 1, seed=1)

    def kernel(a, b):
        return out(nl.add(nl.multiply(tile(a), tile(b)), 1.0)), out(nl.exp(tile(a))), out(nl.subtract(1.0, tile(a)))

    product, exponential, difference = run(kernel, x, y)
    assert np.array_equal(product, x * y + np.float32(1))
    assert np.allclose(exponential, np.exp(x))
    assert np.array_equal(difference, np.float32(1) - x)


@pytest.mark.parametrize(
    ("dtypes", "stride", "psum", "speeds"),
    [
        (("bfloat16", "bfloat16"), 1, False, (4, 4, 2)),
        (("bfloat16", "float16"), 1, False, (4, 4, 2)),
        (("bfloat16", "bfloat16"), 2, False, (2, 2, 2)),
        (("bfloat16", "bfloat16"), 1, True, (2, 2, 1)),
        (("float32", "bfloat16"), 1, False, (1, 1, 1)),
        (("bfloat16", "float32"), 1, False, (1, 1, 1)),
    ],
)
def test_vector_cycles_of_16_bit_tiles(dtypes, stride, psum, speeds):
    def kernel(a):
        source = tile(a, dtypes[0], nl.psum if psum else None)[:, 0:1024:stride]
        t = empty((8, 1024), dtypes[1])[:, 0:1024:stride]
        other = tile(a, dtypes[0])[:, 0:1024:stride]
        for call in (
            lambda: nisa.tensor_copy(dst=t, src=source),
            lambda: nisa.tensor_scalar(dst=t, data=source, op0=nl.add, operand0=1.0),
            lambda: nisa.tensor_tensor(dst=t, data1=source, data2=other, op=nl.add),
        ):
            with_call = cycles()
            call()
            found.append((1024 // stride) / (cycles() - with_call))
        return a

    def cycles():
        return local.core.counts.cycles["vector"]

    found = []
    run(kernel, normal(8, 1024))
    assert tuple(found) == speeds
