"""The least that a kernel call must do: bytes over the HBM interface, and cycles of the tensor engine.

Every operand is read once and every result written once; a product of ``[T, H]`` and ``[H, O]`` takes ``T * H * O``
multiplications, 128 x 128 a cycle, four times as long in float32. Nothing is rounded up to tiles, so a kernel can come
close for large shapes only: that is where its ratio is judged, by whichever of the two takes longer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from vllm_neuron.nki.standin.counts import FP32_PASSES, Counts

ARRAY = 128 * 128


@dataclass(frozen=True)
class Bound:
    """Least work of a call, summed over the programs of a logical core.

    Attributes:
        hbm_bytes: operands and results, each once.
        tensor_cycles: of the tensor engine, products alone.
    """

    hbm_bytes: int
    tensor_cycles: float = 0.0

    def ratios(self, counts: Counts) -> dict[str, float]:
        """Counted work as a multiple of this: ``hbm``, and with products ``tensor``, transposes included."""
        found = {"hbm": counts.hbm_traffic / self.hbm_bytes}
        if self.tensor_cycles:
            found["tensor"] = (counts.matmul_cycles + counts.transpose_cycles) / self.tensor_cycles
        return found


Arguments = Mapping[str, Any]


def _bytes(*tensors: Any) -> int:
    return sum(t.nbytes for t in tensors if t is not None)


def _multiply(tokens: int, height: int, width: int, like: Any) -> float:
    """Cycles of a product in the type of ``like``."""
    passes = FP32_PASSES if _item(like) == 4 else 1
    return tokens * height * width * passes / ARRAY


def _item(tensor: Any) -> int:
    return tensor.nbytes // math.prod(tensor.shape)


def _product(a: Arguments) -> Bound:
    x, w = a["x"], a["w"]
    tokens, height, width = x.shape[0], x.shape[1], w.shape[1]
    result = tokens * width * _item(x)
    return Bound(_bytes(x, w, a.get("bias")) + result, _multiply(tokens, height, width, x))


def _mlp(a: Arguments) -> Bound:
    x, gate_up, down = a["x"], a["gate_up"], a["down"]
    tokens, height = x.shape
    cycles = _multiply(tokens, height, gate_up.shape[1], x) + _multiply(tokens, down.shape[0], height, x)
    return Bound(2 * x.nbytes + _bytes(gate_up, down, a.get("gate_up_bias"), a.get("down_bias")), cycles)


def _rmsnorm(a: Arguments) -> Bound:
    return Bound(2 * a["x"].nbytes + _bytes(a.get("weight")))


def _rmsnorm_residual(a: Arguments) -> Bound:
    return Bound(4 * a["x"].nbytes + _bytes(a.get("weight")))


def _rotary(a: Arguments) -> Bound:
    return Bound(2 * a["x"].nbytes + a["table"].nbytes)


def _kv_write(a: Arguments) -> Bound:
    rows = a["k"].shape[0] * a["pages"].shape[1] * _item(a["pages"])
    return Bound(_bytes(a["k"], a["v"], a["slots"]) + rows)


def _flash(a: Arguments) -> Bound:
    """Keys that ``causal`` and ``window`` leave out cost nothing, their part of the mask included."""
    q, k, v = a["q"], a["k"], a["v"]
    batch, queries, heads, size = q.shape
    keys, value_size = k.shape[1], v.shape[3]
    before, window = keys - queries, a.get("window")
    first = [max(0, i + before - window + 1) if window is not None else 0 for i in range(queries)]
    last = [i + before if a.get("causal") else keys - 1 for i in range(queries)]
    pairs = sum(last) - sum(first) + queries
    seen = last[-1] - first[0] + 1
    result = batch * queries * heads * value_size * _item(q)
    bias = batch * heads * pairs * 4 if a.get("bias") is not None else 0
    moved = _bytes(q, a.get("sinks")) + (k.nbytes + v.nbytes) * seen // keys + batch * pairs + bias + result
    return Bound(moved, batch * heads * _multiply(pairs, 1, size + value_size, q))


def _paged(a: Arguments) -> Bound:
    """Each key and value that the block tables name, once; a table names a block for each row that it serves.

    With a ``window`` each query sees so many of them, and no other part of the mask is read.
    """
    q, slots = a["q"], a["slots"]
    rows, queries, heads, size = q.shape
    keys = slots.shape[1]
    result = rows * queries * heads * a["value_size"] * _item(q)
    cache = rows * keys * a["pages"].shape[1] * _item(q)
    window = a.get("window")
    seen = keys if window is None else min(keys, window)
    bias = rows * heads * queries * seen * 4 if a.get("bias") is not None else 0
    moved = _bytes(q, slots, a.get("sinks")) + rows * queries * seen + bias + cache + result
    return Bound(moved, rows * heads * _multiply(queries * seen, 1, size + a["value_size"], q))


def _largest(a: Arguments) -> Bound:
    return Bound(a["logits"].nbytes + a["logits"].shape[0] * a.get("k", 1) * 8)


def _moe(a: Arguments) -> Bound:
    """Weights of the chosen experts alone, whose number the slots tell; products of a token with its own experts."""
    x, up, down, experts = a["x"], a["up"], a["down"], a["experts"]
    chosen = int((experts < up.shape[0]).sum())
    one = (up.nbytes + down.nbytes + _bytes(a.get("up_bias"), a.get("down_bias"))) // up.shape[0]
    moved = 2 * x.nbytes + chosen * one + _bytes(experts, a["after"], a.get("before"))
    passed = int((a["after"] != 0).sum())
    height, width = x.shape[1], up.shape[1] + down.shape[2]
    return Bound(moved, _multiply(passed, height, width, x))


BOUNDS: dict[str, Callable[[Arguments], Bound]] = {
    "linear_kernel": _product,
    "qkv_kernel": _product,
    "o_proj_kernel": _product,
    "mlp_kernel": _mlp,
    "rmsnorm_kernel": _rmsnorm,
    "rmsnorm_residual_kernel": _rmsnorm_residual,
    "rotary_kernel": _rotary,
    "kv_write_kernel": _kv_write,
    "flash_attention_kernel": _flash,
    "segmented_attention_kernel": _paged,
    "attention_decode_kernel": _paged,
    "argmax_kernel": _largest,
    "topk_kernel": _largest,
    "moe_decode_kernel": _moe,
}


def bound(kernel: str, arguments: Arguments) -> Bound | None:
    """The bound of a call by the kernel's name and arguments (torch or NumPy tensors); None for an unknown kernel."""
    of = BOUNDS.get(kernel)
    return None if of is None else of(arguments)
