"""Counted cost of each NKI kernel on the stand-in, beside the least that its call must do.

One row a kernel, phase and logical core: bytes over HBM and cycles of the tensor engine, both also as a multiple of the
bound of :mod:`vllm_neuron.nki.bounds`, instructions, peak memory, and the seconds that the stand-in took. ``judged``
names the ratio that has to stay within 1.5: bytes for decode and elementwise kernels, tensor cycles for prefill
products. One JSON object goes to stdout; the exit code is 1 when a row misses its aim.

    python benchmarks/kernel_cost.py [--kernel NAME]
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

AIM = 1.5
# One of eight ranks of an 8-billion-parameter Llama.
HIDDEN, HEADS, KV_HEADS, HEAD, INNER = 4096, 4, 1, 128, 1792
DECODE, PREFILL = 8, 2048


@dataclass(frozen=True)
class Row:
    """One call: the kernel's wrapper, its arguments by name, the phase, and what it is judged by."""

    wrapped: Any
    phase: str
    arguments: dict[str, Any]
    judged: str


def zeros(*shape: int) -> Tensor:
    """A bfloat16 tensor; counted cost does not depend on values."""
    return torch.zeros(*shape, dtype=torch.bfloat16)


def rows() -> Iterator[Row]:
    """Every kernel in decode and prefill."""
    from vllm_neuron.functional.on_nki.kv_write import KV_WRITE
    from vllm_neuron.functional.on_nki.mlp import MLP
    from vllm_neuron.functional.on_nki.norm import RMS_NORM, RMS_NORM_RESIDUAL
    from vllm_neuron.functional.on_nki.projection import LINEAR, O_PROJ, QKV
    from vllm_neuron.functional.on_nki.rotary import ROTARY

    features = (HEADS + 2 * KV_HEADS) * HEAD
    qk, kv = HEADS + KV_HEADS, KV_HEADS * HEAD
    for phase, tokens in (("decode", DECODE), ("prefill", PREFILL)):
        judged = "hbm" if phase == "decode" else "tensor"
        x = zeros(tokens, HIDDEN)
        slots = torch.arange(tokens, dtype=torch.int32).view(-1, 1)
        yield Row(QKV, phase, {"x": x, "w": zeros(HIDDEN, features)}, judged)
        yield Row(O_PROJ, phase, {"x": zeros(tokens, HEADS * HEAD), "w": zeros(HEADS * HEAD, HIDDEN)}, judged)
        mlp = {"x": x, "gate_up": zeros(HIDDEN, 2 * INNER), "down": zeros(INNER, HIDDEN)}
        yield Row(MLP, phase, mlp, judged)
        yield Row(RMS_NORM, phase, {"x": x, "weight": zeros(HIDDEN)}, "hbm")
        yield Row(RMS_NORM_RESIDUAL, phase, {"x": x, "residual": x, "weight": zeros(HIDDEN)}, "hbm")
        yield Row(ROTARY, phase, {"x": zeros(tokens, qk, HEAD), "table": zeros(tokens, 2 * HEAD)}, "hbm")
        pages = {"pages": zeros(4096, 2 * kv), "k": zeros(tokens, kv), "v": zeros(tokens, kv), "slots": slots}
        yield Row(KV_WRITE, phase, pages, "hbm")
    yield Row(LINEAR, "decode", {"x": zeros(DECODE, HIDDEN), "w": zeros(HIDDEN, 16032)}, "hbm")
    yield from attention_rows()
    yield from choice_rows()


def attention_rows() -> Iterator[Row]:
    """Attention over 2,048 keys: a prompt, a chunk of one in the cache, and a token of each of eight rows."""
    from vllm_neuron.functional.on_nki.attention import DECODE as ATTENTION_DECODE
    from vllm_neuron.functional.on_nki.attention import FLASH, SEGMENTED

    def visible(rows: int, queries: int) -> Tensor:
        return torch.ones(rows, queries, PREFILL, dtype=torch.uint8)

    kv = zeros(1, PREFILL, KV_HEADS, HEAD)
    flash = {"q": zeros(1, PREFILL, HEADS, HEAD), "k": kv, "v": kv, "mask": visible(1, PREFILL), "scale": 0.1}
    yield Row(FLASH, "prefill", flash, "tensor")
    yield Row(FLASH, "prefill", flash | {"causal": True}, "tensor")
    yield Row(FLASH, "prefill, window 512", flash | {"causal": True, "window": 512}, "tensor")
    small = zeros(1, PREFILL, KV_HEADS, 64)
    halves = {"q": zeros(1, PREFILL, HEADS, 64), "k": small, "v": small, "causal": True}
    yield Row(FLASH, "prefill, head size 64", flash | halves, "tensor")
    layout = {"scale": 0.1, "kv_heads": KV_HEADS, "value_size": HEAD, "value_start": KV_HEADS * HEAD, "run": 16}
    for wrapped, phase, rows, queries in ((SEGMENTED, "extend", 1, 512), (ATTENTION_DECODE, "decode", DECODE, 1)):
        cache = {
            "q": zeros(rows, queries, HEADS, HEAD),
            "pages": zeros(rows * PREFILL, 2 * KV_HEADS * HEAD),
            "slots": torch.arange(rows * PREFILL, dtype=torch.int32).view(rows, PREFILL),
            "mask": visible(rows, queries),
        }
        yield Row(wrapped, phase, cache | layout, "hbm" if phase == "decode" else "tensor")


def choice_rows() -> Iterator[Row]:
    """The largest of a rank's logits, and eight tokens on two experts each, of 32."""
    from vllm_neuron.functional.on_nki.moe import EXPERTS, slots
    from vllm_neuron.functional.on_nki.sampling import ARGMAX, TOPK

    logits = torch.arange(DECODE * 16032).view(DECODE, 16032).float()
    yield Row(ARGMAX, "decode", {"logits": logits}, "hbm")
    yield Row(TOPK, "decode", {"logits": logits, "k": 64}, "hbm")
    chosen = torch.arange(2 * DECODE).view(DECODE, 2) % 12
    index, after, _ = slots(torch.ones(DECODE, 2), chosen, 32, 0)
    weights = {"up": zeros(32, 2 * 384, 2048), "down": zeros(32, 2048, 384)}
    yield Row(EXPERTS, "decode", {"x": zeros(DECODE, 2048), "experts": index, "after": after, **weights}, "hbm")


def measure(row: Row, cores: int) -> dict[str, Any]:
    """Run one row and set what was counted beside its bound."""
    from vllm_neuron.nki import standin
    from vllm_neuron.nki.bounds import bound

    began = time.perf_counter()
    row.wrapped[cores](**row.arguments)
    seconds = time.perf_counter() - began
    counts, least = standin.last_counts(), bound(row.wrapped.name, row.arguments)
    assert counts is not None and least is not None
    ratios = {name: round(ratio, 3) for name, ratio in least.ratios(counts).items()}
    return {
        "kernel": row.wrapped.name,
        "phase": row.phase,
        "cores": cores,
        "shapes": {name: list(value.shape) for name, value in row.arguments.items() if isinstance(value, Tensor)},
        "hbm_bytes": counts.hbm_traffic,
        "tensor_cycles": counts.matmul_cycles + counts.transpose_cycles,
        "ratios": ratios,
        "judged": row.judged,
        "met": ratios[row.judged] <= AIM,
        "instructions": sum(counts.instructions.values()),
        "peak_sbuf_bytes": counts.peak_sbuf,
        "peak_psum_bytes": counts.peak_psum,
        "standin_seconds": round(seconds, 4),
    }


def main() -> int:
    """Print the JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernel", help="only kernels whose name contains this")
    chosen = parser.parse_args().kernel or ""
    found = [measure(row, cores) for row in rows() if chosen in row.wrapped.name for cores in (1, 2)]
    met = bool(found) and all(row["met"] for row in found)
    print(json.dumps({"aim": AIM, "met": met, "rows": found}, indent=2))
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
