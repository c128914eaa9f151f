"""Operations on NKI kernels inside torch.compile: one graph, the numbers and the cache writes of the eager call."""

from __future__ import annotations

import pytest
import torch

import vllm_neuron.functional as NF


def layer(x_TH: torch.Tensor, w: dict[str, torch.Tensor], pages: torch.Tensor, slots_T: torch.Tensor) -> torch.Tensor:
    """Norm, projection, cache write and MLP as a decoder layer has them."""
    h = NF.rms_norm(x_TH, w["norm"], eps=1e-6)
    qkv = NF.qkv_proj(h, w["qkv"]).unflatten(-1, (-1, 16))
    NF.kv_write(pages, qkv[:, 4:6], qkv[:, 6:8], slots_T)
    out = NF.o_proj(qkv[:, :4].flatten(1), w["o"])
    return x_TH + out + NF.mlp(h, w["gate_up"], w["down"])


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_a_layer_is_one_graph(backend: str) -> None:
    torch.manual_seed(0)
    sizes = {"qkv": (64, 128), "o": (64, 64), "gate_up": (64, 96), "down": (48, 64)}
    w = {name: torch.randn(size) / 8 for name, size in sizes.items()} | {"norm": torch.ones(64)}
    x_TH, slots_T = torch.randn(6, 64), torch.tensor([40, 3, 9, 10, 32, 1])
    made, expected = torch.zeros(4, 16, 64), torch.zeros(4, 16, 64)
    with NF.use_kernels("off"):
        reference = layer(x_TH, w, expected, slots_T)
    with NF.use_kernels("require"):
        compiled = torch.compile(layer, fullgraph=True, backend=backend)
        for _ in range(2):
            torch.testing.assert_close(compiled(x_TH, w, made, slots_T), reference, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(made, expected, rtol=1e-4, atol=1e-4)
    assert made.abs().sum() > 0
