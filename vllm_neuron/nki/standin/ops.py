"""Operators and activation functions that instructions take as ``op``: ``nl.add``, ``nl.exp`` and so on."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vllm_neuron.nki.standin.core import fail

Array = NDArray[Any]


class Op:
    """One operator of ``nki.language``.

    Attributes:
        name: public name.
        kind: ``arith``, ``compare``, ``logical``, ``bits`` (binary), ``unary`` or ``activation``.
        run: the function on fp32 arrays (on integers for ``bits``).
        reduces: the NumPy ufunc that reduces with it, or None.
    """

    __slots__ = ("arity", "kind", "name", "reduces", "run")

    def __init__(self, name: str, kind: str, run: Callable[..., Array], reduces: np.ufunc | None = None) -> None:
        self.name = name
        self.kind = kind
        self.run = run
        self.reduces = reduces
        self.arity = 2 if kind in ("arith", "compare", "logical", "bits") else 1

    def __repr__(self) -> str:
        return f"nl.{self.name}"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The convenience form on tiles: a new SBUF tile with the result."""
        from vllm_neuron.nki.standin.convenience import apply

        return apply(self, *args, **kwargs)


def erf(x: Array) -> Array:
    """Error function, accurate to fp32: Chebyshev fit of erfc (Numerical Recipes, ``erfcc``), error below 1.2e-7."""
    x64 = x.astype(np.float64)
    a = np.abs(x64)
    t = 1.0 / (1.0 + 0.5 * a)
    poly = np.zeros_like(t)
    for c in _ERFC:
        poly = poly * t + c
    erfc = t * np.exp(-a * a + poly)
    return np.where(x64 >= 0, 1.0 - erfc, erfc - 1.0).astype(np.float32)


_ERFC = (
    0.17087277,
    -0.82215223,
    1.48851587,
    -1.13520398,
    0.27886807,
    -0.18628806,
    0.09678418,
    0.37409196,
    1.00002368,
    -1.26551223,
)


def sigmoid(x: Array) -> Array:
    """Logistic function without overflow warnings."""
    return (0.5 * (1.0 + np.tanh(0.5 * x))).astype(x.dtype) if x.dtype != np.float32 else _sigmoid32(x)


def _sigmoid32(x: Array) -> Array:
    result = np.exp(np.negative(x))
    result += 1.0
    return np.reciprocal(result, out=result)


def _gelu_tanh(x: Array) -> Array:
    return 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x * x * x)))


def _gelu(x: Array) -> Array:
    return 0.5 * x * (1.0 + erf(x * np.float32(math.sqrt(0.5))))


def _sin(x: Array) -> Array:
    limit = np.float32(np.pi)
    worst = np.abs(x).max(initial=0.0)
    if worst > limit * np.float32(1.0001):
        fail("activation.data", float(worst), "values inside [-pi, pi] for nl.sin", "Reduce the range first.")
    return np.sin(x)


def _binary() -> list[Op]:
    arith = [
        Op("add", "arith", np.add, np.add),
        Op("subtract", "arith", np.subtract, np.subtract),
        Op("multiply", "arith", np.multiply, np.multiply),
        Op("maximum", "arith", np.maximum, np.maximum),
        Op("minimum", "arith", np.minimum, np.minimum),
        Op("divide", "arith", np.divide),
        Op("power", "arith", np.power),
        Op("mod", "arith", np.mod),
        Op("fmod", "arith", np.fmod),
        Op("abs_max", "arith", lambda a, b: np.where(np.abs(a) > np.abs(b), a, b)),
        Op("abs_min", "arith", lambda a, b: np.where(np.abs(a) < np.abs(b), a, b)),
    ]
    names = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")
    compare = [Op(name, "compare", getattr(np, name)) for name in names]
    logical = [Op(name, "logical", getattr(np, name)) for name in ("logical_and", "logical_or", "logical_xor")]
    bits = [
        Op("bitwise_and", "bits", np.bitwise_and, np.bitwise_and),
        Op("bitwise_or", "bits", np.bitwise_or, np.bitwise_or),
        Op("bitwise_xor", "bits", np.bitwise_xor, np.bitwise_xor),
        Op("left_shift", "bits", np.left_shift),
        Op("right_shift", "bits", np.right_shift),
    ]
    return arith + compare + logical + bits


def _unary() -> list[Op]:
    def rsqrt(x: Array) -> Array:
        return np.reciprocal(np.sqrt(x))

    return [
        Op("copy", "activation", lambda x: x),
        Op("identity", "activation", lambda x: x),
        Op("abs", "activation", np.abs),
        Op("square", "activation", np.square),
        Op("sqrt", "activation", np.sqrt),
        Op("rsqrt", "activation", rsqrt),
        Op("reciprocal", "activation", np.reciprocal),
        Op("exp", "activation", np.exp),
        Op("log", "activation", np.log),
        Op("sin", "activation", _sin),
        Op("tanh", "activation", np.tanh),
        Op("arctan", "activation", np.arctan),
        Op("erf", "activation", erf),
        Op("sign", "activation", np.sign),
        Op("relu", "activation", lambda x: np.maximum(x, np.float32(0))),
        Op("sigmoid", "activation", sigmoid),
        Op("silu", "activation", lambda x: x * sigmoid(x)),
        Op("gelu", "activation", _gelu),
        Op("gelu_apprx_tanh", "activation", _gelu_tanh),
        Op("gelu_apprx_sigmoid", "activation", lambda x: x * sigmoid(np.float32(1.702) * x)),
        Op("softplus", "activation", lambda x: np.logaddexp(np.float32(0), x)),
        Op("mish", "activation", lambda x: x * np.tanh(np.logaddexp(np.float32(0), x))),
        Op("negative", "unary", np.negative),
        Op("logical_not", "unary", lambda x: np.equal(x, 0)),
        Op("invert", "unary", np.invert),
        Op("floor", "unary", np.floor),
        Op("ceil", "unary", np.ceil),
    ]


OPS: dict[str, Op] = {op.name: op for op in (*_binary(), *_unary())}
# Unary operators that a scalar stage takes too; it then ignores the operand.
SCALAR_UNARY = frozenset(("abs", "rsqrt"))
_UFUNCS: tuple[str, ...] = ("add", "subtract", "multiply", "maximum", "minimum", "divide", "power", "exp", "tanh")
_UFUNCS += ("square", "sqrt", "abs", "equal", "not_equal", "less", "less_equal", "greater", "greater_equal")
_UFUNCS += ("bitwise_and", "bitwise_or", "bitwise_xor")
_BY_UFUNC: dict[Any, str] = {getattr(np, name): name for name in _UFUNCS}


def operator(op: Any, argument: str, arity: int) -> Op:
    """The operator behind ``nl.x`` or the NumPy function of the same meaning.

    Raises:
        KernelError: something else, or an operator with another number of operands.
    """
    if type(op) is not Op:
        name = _BY_UFUNC.get(op) if isinstance(op, np.ufunc) else None
        if name is None:
            fail(argument, op, "an operator of nki.language, e.g. nl.add")
        op = OPS[name]
    if op.arity != arity and not (arity == 2 and op.name in SCALAR_UNARY):
        fail(argument, repr(op), "a binary operator" if arity == 2 else "an activation function")
    return op
