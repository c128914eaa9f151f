"""Norms against the modules of transformers that compute them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from transformers.models.cohere.modeling_cohere import CohereLayerNorm
from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm
from transformers.models.gemma4.modeling_gemma4 import Gemma4RMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.nemotron.modeling_nemotron import NemotronLayerNorm1P
from transformers.models.olmo.modeling_olmo import OlmoLayerNorm

from vllm_neuron.errors import ConfigError
from vllm_neuron.nn import LayerNorm, RMSNorm

D, EPS = 24, 1e-2
CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[], nn.Module]]] = {
    "llama": (lambda: LlamaRMSNorm(D, eps=EPS), lambda: RMSNorm(D, eps=EPS)),
    "gemma3": (lambda: Gemma3RMSNorm(D, eps=EPS), lambda: RMSNorm(D, eps=EPS, plus_one=True)),
    "gemma4": (lambda: Gemma4RMSNorm(D, eps=EPS), lambda: RMSNorm(D, eps=EPS)),
    "gemma4 of values": (
        lambda: Gemma4RMSNorm(D, eps=EPS, with_scale=False),
        lambda: RMSNorm(D, eps=EPS, weight=False),
    ),
    "gpt2": (lambda: nn.LayerNorm(D, eps=EPS), lambda: LayerNorm(D, eps=EPS)),
    "cohere": (lambda: CohereLayerNorm(D, eps=EPS), lambda: LayerNorm(D, eps=EPS, bias=False)),
    "olmo": (lambda: OlmoLayerNorm(D), lambda: LayerNorm(D, eps=1e-5, bias=False, weight=False)),
    "nemotron": (lambda: NemotronLayerNorm1P(D, eps=EPS), lambda: LayerNorm(D, eps=EPS, plus_one=True)),
}


def pair(name: str) -> tuple[nn.Module, nn.Module]:
    """The reference with random parameters, and our block with the same."""
    reference, ours = (make() for make in CASES[name])
    generator = torch.Generator().manual_seed(1)
    for parameter in reference.parameters():
        parameter.data.normal_(0.0, 0.5, generator=generator)
    ours.load_state_dict(reference.state_dict())
    return reference, ours


@pytest.mark.parametrize("name", CASES)
def test_float32_is_the_reference(name: str) -> None:
    reference, ours = pair(name)
    x = 0.1 * torch.randn(7, 3, D, generator=torch.Generator().manual_seed(2)) + 0.2
    with torch.no_grad():
        expected = reference(x)
    error = (ours(x) - expected).norm(dim=-1) / expected.norm(dim=-1)
    assert float(error.max()) <= 1e-6


@pytest.mark.parametrize("name", ["llama", "gemma3", "gemma4 of values", "olmo"])
def test_bfloat16_is_the_reference_to_the_bit(name: str) -> None:
    """Statistics are taken in float32, and the weight is multiplied before the cast or after it as the family does."""
    reference, ours = (module.bfloat16() for module in pair(name))
    x = torch.randn(7, D, generator=torch.Generator().manual_seed(3)).bfloat16()
    with torch.no_grad():
        assert torch.equal(ours(x), reference(x))


@pytest.mark.parametrize("name", ["cohere", "gemma4", "gpt2", "nemotron"])
def test_bfloat16_is_the_reference_to_a_rounding(name: str) -> None:
    reference, ours = (module.bfloat16() for module in pair(name))
    x = torch.randn(7, D, generator=torch.Generator().manual_seed(3)).bfloat16()
    with torch.no_grad():
        torch.testing.assert_close(ours(x), reference(x), rtol=2**-6, atol=2**-7)


@pytest.mark.parametrize("make", [RMSNorm, LayerNorm])
def test_eps_is_not_a_default_nor_left_out(make: type[RMSNorm] | type[LayerNorm]) -> None:
    x = 0.05 * torch.randn(5, D, generator=torch.Generator().manual_seed(4))
    small, large = make(D, eps=1e-6), make(D, eps=1e-2)
    for block in (small, large):
        for parameter in block.parameters():
            parameter.data.fill_(1.0)
    assert not torch.allclose(small(x), large(x), rtol=0.1)


def test_options_that_need_a_weight() -> None:
    with pytest.raises(ConfigError, match="plus_one"):
        RMSNorm(D, eps=EPS, plus_one=True, weight=False)
    with pytest.raises(ConfigError, match="plus_one"):
        LayerNorm(D, eps=EPS, bias=False, plus_one=True, weight=False)
    with pytest.raises(ConfigError, match="bias"):
        LayerNorm(D, eps=EPS, weight=False)
