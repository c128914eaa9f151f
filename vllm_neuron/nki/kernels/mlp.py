"""The feed-forward block: gate and up products, activation, down product, in one kernel.

Layout: x ``[T, H]``; gate_up ``[H, 2 * I]``, gate columns first (``[H, I]`` when not gated); down ``[I, H]``; biases
``[2 * I]`` or ``[I]``, and ``[H]``, or None; all contiguous in HBM and of one type (float32, bfloat16 or float16).
Result ``[T, H]``. The activations between the products never leave the chip, and are rounded at each step as the
reference's are.

Two ways, by the number of tokens:

- up to 128 (decode): tokens are stationary, weights move past them 512 columns at a time, and the inner activations
  ``[T, I]`` are transposed on the tensor engine for the down product. Two programs divide I, exchange their parts of
  the inner activations, and divide the columns of the down product: each weight is read once by one of them.
- more (prefill): gate and up weights are stationary and tokens move, so that the inner activations come out transposed,
  ``[128, I / 128, T]``, and biases and limits meet them there. Two programs divide the tokens.

Engines: DMA, tensor (products, transposes, biases as a product with ones), scalar (activation), vector (the rest).

Cost bound: decode ``3 * H * I`` elements of DMA (two thirds when not gated); prefill
``T / 128 * (2 * ceil(H / 128) * I + ceil(I / 128) * H)`` cycles of the tensor engine.
"""

from typing import Any

from vllm_neuron.nki.api import nisa, nki, nl
from vllm_neuron.nki.kernels.tiles import (
    BANKS,
    COLUMNS,
    WEIGHT_BYTES,
    P,
    accumulate,
    blocks,
    group_of,
    item,
    load_row,
    load_transposed,
    load_weights,
    new_banks,
    ones_row,
    program,
    project,
    share,
    transpose_into,
)

# Columns of gate (and of up) whose weights are loaded together in prefill: 512 bytes a row in 16 bits.
PREFILL_COLUMNS = 256

# Activation, gated, clamp_limit, clamp_alpha, up_shift.
Rule = tuple[str, bool, float | None, float | None, float]


@nki.jit
def mlp_kernel(
    x: Any,
    gate_up: Any,
    down: Any,
    gate_up_bias: Any = None,
    down_bias: Any = None,
    act: str = "silu",
    gated: bool = True,
    clamp_limit: float | None = None,
    clamp_alpha: float | None = None,
    up_shift: float = 0.0,
) -> Any:
    """See the module.

    ``clamp_limit`` cuts gate above and up on both sides; with ``clamp_alpha`` the activation is
    ``gate * sigmoid(clamp_alpha * gate)`` in place of ``act``; ``up_shift`` is added to up after the limits.
    """
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    rule = (act, gated, clamp_limit, clamp_alpha, up_shift)
    if x.shape[0] <= P:
        decode(out, x, gate_up, down, gate_up_bias, down_bias, rule)
    else:
        prefill(out, x, gate_up, down, gate_up_bias, down_bias, rule)
    return out


def activation_of(act: str) -> Any:
    """The scalar engine's function for an activation name; what follows it for ``relu2`` is in :func:`activate`."""
    found = None
    if act == "silu":
        found = nl.silu
    elif act == "gelu":
        found = nl.gelu
    elif act == "gelu_tanh":
        found = nl.gelu_apprx_tanh
    elif act == "quick_gelu":
        found = nl.gelu_apprx_sigmoid
    elif act == "relu" or act == "relu2":
        found = nl.relu
    elif act == "sigmoid":
        found = nl.sigmoid
    elif act == "tanh":
        found = nl.tanh
    elif act == "linear":
        found = nl.copy
    assert found != None, f"activation {act!r} is not one of this kernel"
    return found


def combine(dst: Any, gate: Any, up: Any, rule: Rule) -> None:
    """``dst`` (SBUF) = act(gate) * up, from PSUM tiles of one shape; without up (not gated) act(gate).

    Each step is rounded to the type of ``dst``, as the reference's are.
    """
    gated = rule[1]
    gate = cut(gate, dst, None, rule[2]) if gated else cut(gate, dst, None, None)
    if not gated:
        activate(dst, gate, rule)
    else:
        turned = nl.ndarray(dst.shape, dtype=dst.dtype, buffer=nl.sbuf)
        activate(turned, gate, rule)
        up = cut(up, dst, lower(rule[2]), rule[2])
        if rule[4] != 0.0:
            nisa.tensor_scalar(dst=up, data=up, op0=nl.add, operand0=rule[4])
        nisa.tensor_tensor(dst=dst, data1=turned, data2=up, op=nl.multiply)


def lower(limit: float | None) -> float | None:
    """``-limit``, or None."""
    least = None
    if limit != None:
        least = -limit
    return least


def cut(source: Any, like: Any, least: float | None, most: float | None) -> Any:
    """``source`` in the type and shape of ``like``, between limits; either may be None."""
    tile = nl.ndarray(like.shape, dtype=like.dtype, buffer=nl.sbuf)
    if most == None:
        nisa.tensor_copy(dst=tile, src=source)
    elif least == None:
        nisa.tensor_scalar(dst=tile, data=source, op0=nl.minimum, operand0=most)
    else:
        nisa.tensor_scalar(dst=tile, data=source, op0=nl.minimum, operand0=most, op1=nl.maximum, operand1=least)
    return tile


def activate(dst: Any, gate: Any, rule: Rule) -> None:
    """``dst`` = act(gate), or ``gate * sigmoid(alpha * gate)``."""
    act, gated, alpha = rule[0], rule[1], rule[3]
    if alpha != None and gated:
        nisa.tensor_scalar(dst=dst, data=gate, op0=nl.multiply, operand0=alpha)
        nisa.activation(dst=dst, op=nl.sigmoid, data=dst)
        nisa.tensor_tensor(dst=dst, data1=gate, data2=dst, op=nl.multiply)
    else:
        nisa.activation(dst=dst, op=activation_of(act), data=gate)
        if act == "relu2":
            nisa.tensor_tensor(dst=dst, data1=dst, data2=dst, op=nl.multiply)


def decode(out: Any, x: Any, gate_up: Any, down: Any, gate_up_bias: Any, down_bias: Any, rule: Rule) -> None:
    """Up to 128 tokens; see the module."""
    tokens, height = x.shape
    inner = down.shape[0]
    gated = rule[1]
    index, count = program()
    first, last = 0, inner
    half = (blocks(inner) + 1) // 2
    divided = count == 2 and blocks(inner) >= 2
    if divided:
        first, last = share(inner, P)
    kept = load_transposed(x, 0, tokens)
    turned = nl.ndarray((P, 2 * half if divided else blocks(inner), tokens), dtype=x.dtype, buffer=nl.sbuf)
    if divided and inner % (2 * P) != 0:
        nisa.memset(dst=turned, value=0.0)
    step = BANKS // 2 * COLUMNS if gated else BANKS * COLUMNS
    for i in range(first, last, step):
        columns = min(step, last - i)
        gate = new_banks(tokens, columns)
        accumulate(gate, kept, height, gate_up, i, columns, gate_up_bias)
        up = gate
        if gated:
            up = new_banks(tokens, columns)
            accumulate(up, kept, height, gate_up, inner + i, columns, gate_up_bias)
        tile = nl.ndarray((tokens, columns), dtype=x.dtype, buffer=nl.sbuf)
        for c in range(len(gate[0])):
            n = min(COLUMNS, columns - c * COLUMNS)
            where = tile[:, nl.ds(c * COLUMNS, n)]
            combine(where, gate[0][c][0:tokens, 0:n], up[0][c][0:tokens, 0:n], rule)
        gate = None
        up = None
        transpose_into(turned[:, nl.ds(i // P, blocks(columns)), :], tile, columns)
    if divided:
        exchange(turned, index, half)
    start, stop = share(down.shape[1], P)
    if stop > start:
        project(out, 0, turned, inner, down, start, stop, down_bias)


def exchange(turned: Any, index: int, half: int) -> None:
    """Send this program's half of the blocks of the inner activations to the other one, and take its half."""
    nisa.sendrecv(
        src=turned[:, nl.ds(index * half, half), :],
        dst=turned[:, nl.ds((1 - index) * half, half), :],
        send_to_rank=1 - index,
        recv_from_rank=1 - index,
        pipe_id=0,
    )


def prefill(out: Any, x: Any, gate_up: Any, down: Any, gate_up_bias: Any, down_bias: Any, rule: Rule) -> None:
    """More than 128 tokens; see the module."""
    tokens, height = x.shape
    inner = down.shape[0]
    first, last = share(tokens, P)
    group = group_of(max(1, last - first), (blocks(height) + blocks(inner)) * item(x.dtype))
    for t in range(first, last, group):
        count = min(group, last - t)
        kept = load_transposed(x, t, count)
        turned = nl.ndarray((P, blocks(inner), count), dtype=x.dtype, buffer=nl.sbuf)
        for i in range(0, inner, PREFILL_COLUMNS):
            inner_columns(turned, kept, height, gate_up, gate_up_bias, i, min(PREFILL_COLUMNS, inner - i), rule)
        kept = None
        project(out, t, turned, inner, down, 0, down.shape[1], down_bias)
        turned = None


def inner_columns(
    turned: Any, kept: Any, height: int, gate_up: Any, bias: Any, start: int, columns: int, rule: Rule
) -> None:
    """Columns [start, start + columns) of the inner activations, transposed, for all tokens of ``kept``."""
    tokens = kept.shape[2]
    inner = gate_up.shape[1]
    gated = rule[1]
    starts = [start]
    if gated:
        inner = inner // 2
        starts.append(inner + start)
    banks = []
    for _side in range(len(starts)):
        row = []
        for _b in range(0, columns, P):
            row.append(nl.ndarray((P, COLUMNS), dtype=nl.float32, buffer=nl.psum))
        banks.append(row)
    for side in range(len(starts)):
        transposed_product(banks[side], kept, height, gate_up, starts[side], columns, bias)
    for b in range(len(banks[0])):
        p = min(P, columns - b * P)
        gate = banks[0][b][0:p, 0:tokens]
        up = banks[len(starts) - 1][b][0:p, 0:tokens]
        combine(turned[0:p, start // P + b, :], gate, up, rule)


def transposed_product(banks: Any, kept: Any, height: int, w: Any, start: int, columns: int, bias: Any) -> None:
    """``banks[b] [128, tokens]`` = columns ``start + b * 128 ...`` of ``w``, transposed, times ``kept``, plus bias."""
    tokens = kept.shape[2]
    depth = blocks(height)
    group = max(1, min(depth, WEIGHT_BYTES // (2 * columns * item(w.dtype))))
    for first in range(0, depth, group):
        count = min(group, depth - first)
        weights = load_weights(w, first, count, start, columns)
        for k in range(count):
            rows = min(P, height - (first + k) * P)
            for b in range(len(banks)):
                p = min(P, columns - b * P)
                nisa.nc_matmul(
                    dst=banks[b][0:p, 0:tokens],
                    stationary=weights[0:rows, k, nl.ds(b * P, p)],
                    moving=kept[0:rows, first + k, :],
                    accumulate=first + k > 0,
                )
    if bias != None:
        row = load_row(bias, start, columns)
        ones = ones_row(tokens, bias.dtype)
        for b in range(len(banks)):
            p = min(P, columns - b * P)
            nisa.nc_matmul(
                dst=banks[b][0:p, 0:tokens], stationary=row[:, nl.ds(b * P, p)], moving=ones, accumulate=True
            )
