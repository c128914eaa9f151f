"""Attention, mixtures and sampling on NKI kernels inside torch.compile: one graph, the numbers of the references."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import vllm_neuron.functional as NF
from vllm_neuron.parallel.group import SingleGroup

GROUP = SingleGroup()


def prefill(q_TND: Tensor, kv_TKD: Tensor, mask: Tensor, w: dict[str, Tensor]) -> Tensor:
    """A prompt's attention, its mixture, and the next token's candidates."""
    q, kv = q_TND[None], kv_TKD[None]
    x = NF.flash_attention(q, kv, kv, mask, scale=0.25, softcap=4.0, sinks_N=w["sinks"], causal=True)[0].flatten(1)
    return choose(x, w)


def decode(q_TND: Tensor, pages: Tensor, blocks: Tensor, mask: Tensor, w: dict[str, Tensor]) -> Tensor:
    """A token's attention over the cache, and the same."""
    x = NF.attention_decode(q_TND[:, None], pages, blocks, mask, kv_heads=2, scale=0.25, sinks_N=w["sinks"])
    return choose(x.flatten(1), w)


def choose(x_TH: Tensor, w: dict[str, Tensor]) -> Tensor:
    scores, chosen = (x_TH @ w["router"]).topk(2)
    y = x_TH + NF.moe_experts(x_TH, scores.softmax(-1), chosen, w["up"], w["down"])
    values, indices = NF.topk(y, 3, group=GROUP)
    return torch.cat((y, values, indices.float(), NF.argmax(y, group=GROUP)[:, None].float()), -1)


def weights() -> dict[str, Tensor]:
    sizes = {"sinks": (4,), "router": (64, 6), "up": (6, 96, 64), "down": (6, 64, 48)}
    return {name: torch.randn(size) / 4 for name, size in sizes.items()}


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_a_step_is_one_graph(backend: str) -> None:
    torch.manual_seed(0)
    w = weights()
    prompt = torch.randn(20, 4, 16), torch.randn(20, 2, 16), torch.ones(1, 20, 20, dtype=torch.bool), w
    tables, mask = torch.tensor([[2, 4], [1, 0]]), torch.rand(2, 1, 32) > 0.4
    token = torch.randn(2, 4, 16), torch.randn(5, 16, 64), tables, mask, w
    for step, arguments in ((prefill, prompt), (decode, token)):
        with NF.use_kernels("off"):
            expected = step(*arguments)
        with NF.use_kernels("require"):
            compiled = torch.compile(step, fullgraph=True, backend=backend)
            for _ in range(2):
                torch.testing.assert_close(compiled(*arguments), expected, rtol=1e-4, atol=1e-4)
