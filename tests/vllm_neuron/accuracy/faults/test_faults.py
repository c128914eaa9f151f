"""Every planted fault is found, and the place that is named is the one that was stated beforehand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.vllm_neuron.accuracy.faults.attention_faults import attention_faults
from tests.vllm_neuron.accuracy.faults.block_faults import block_faults
from tests.vllm_neuron.accuracy.faults.fault import Fault, Where
from tests.vllm_neuron.accuracy.faults.models import Planted, subject
from tests.vllm_neuron.accuracy.faults.plant import at, rewritten
from vllm_neuron.accuracy.bisect import bisect
from vllm_neuron.model.loading.plan import Source

FAULTS = [*attention_faults(), *block_faults()]
# Those that only show after everything else has passed take longest; `make sweep` runs them all.
QUICK = {
    "attention not summed",
    "gate and up cut as one block",
    "positions in bf16",
    "shard cut along the other dimension",
    "softmax summed in bf16",
}


def _parameters() -> list[object]:
    late = [f for f in FAULTS if (f.where.phase == "TP 2" or f.where.dtype != "float32") and f.name not in QUICK]
    return [pytest.param(f, id=f.name, marks=[pytest.mark.slow] if f in late else []) for f in FAULTS]


@pytest.mark.parametrize("fault", _parameters())
def test_fault_is_found_where_it_is(fault: Fault) -> None:
    found = fault.look()
    assert found.outcome == "fail", f"not found: {found.verdict}"
    assert found.place is not None
    assert fault.where.met(found.place), f"{found.place.words()} for {fault.where.words()}: {found.place.evidence}"
    # What shows in float32 is found there; what shows in bfloat16 alone has passed in float32.
    assert (fault.where.dtype == "bfloat16") == (len(found.levels) == 2)


def test_gate_and_up_swapped_in_the_table_of_weights() -> None:
    path = "layers.1.mlp.gate_up"

    class UpFirst(Planted):
        def sources(self, model: Any) -> dict[str, Source]:
            found = super().sources(model)
            source = found[f"{path}.weight"]
            return found | {f"{path}.weight": replace(source, keys=source.keys[::-1])}

    made = subject("llama")
    target = UpFirst(made, rewritten(path, lambda weight: torch.cat(weight.chunk(2)[::-1])))
    found = bisect(target, made.reference, made.prompts, dtypes=("float32",))
    assert Where(1, "mlp", "gate_up").met(found.place), found.verdict


def _own_attention(module: Any) -> None:
    """Attention without an operation of the project, and with scores that are too flat."""

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, step: Any) -> torch.Tensor:
        heads = [x.unflatten(0, (step.rows, -1)).transpose(1, 2) for x in (q, k, v)]
        scale, mask = 0.9 * module.scale, module.view(step).mask_BQS[:, None]
        out = torch.nn.functional.scaled_dot_product_attention(*heads, attn_mask=mask, scale=scale, enable_gqa=True)
        return out.transpose(1, 2)

    module._attend = attend


def test_attention_in_code_of_its_own_has_no_gate() -> None:
    made = subject("llama")
    target = Planted(made, at("layers.1.attn", _own_attention))
    found = bisect(target, made.reference, made.prompts, dtypes=("float32",))
    assert Where(1, "attn", "softmax").met(found.place), found.verdict
    assert found.place is not None and "own" in found.place.evidence


def test_the_matrix_is_large_enough() -> None:
    names = [fault.name for fault in FAULTS]
    assert len(set(names)) == len(names) >= 30
    assert {fault.model for fault in FAULTS} >= {"llama", "gemma2", "gemma3", "gpt_oss", "qwen3_moe"}
    assert {fault.where.phase for fault in FAULTS} >= {"prefill", "decode", "chunked prefill", "batch", "TP 2"}
