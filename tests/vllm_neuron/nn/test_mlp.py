"""Feed-forward blocks against the modules of transformers, whole and sharded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import (
    ApertusConfig,
    BitNetConfig,
    FalconConfig,
    GemmaConfig,
    GPTNeoXConfig,
    GptOssConfig,
    LlamaConfig,
    NemotronConfig,
    PhiConfig,
)
from transformers.activations import ACT2CLS, ACT2FN, XIELUActivation
from transformers.models.apertus.modeling_apertus import ApertusMLP
from transformers.models.bitnet.modeling_bitnet import BitNetMLP
from transformers.models.falcon.modeling_falcon import FalconMLP
from transformers.models.gemma.modeling_gemma import GemmaMLP
from transformers.models.gpt_neox.modeling_gpt_neox import GPTNeoXMLP
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts
from transformers.models.llama.modeling_llama import LlamaMLP
from transformers.models.nemotron.modeling_nemotron import NemotronMLP
from transformers.models.phi.modeling_phi import PhiMLP

import vllm_neuron.functional as NF
from tests.vllm_neuron.nn.test_sharding import fill, on_ranks
from vllm_neuron.errors import ConfigError, OperationError
from vllm_neuron.nn import MLP, Clamp, GatedMLP, QKNorm
from vllm_neuron.nn.mlp import XIELU
from vllm_neuron.parallel import Group

H, I = 16, 24  # noqa: E741
SIZES: dict[str, Any] = {"hidden_size": H, "intermediate_size": I, "num_attention_heads": 4}
X = torch.randn(7, H, generator=torch.Generator().manual_seed(0))
RANKS = [1, 2, 4]


def randomise(module: nn.Module) -> nn.Module:
    generator = torch.Generator().manual_seed(1)
    for parameter in module.parameters():
        parameter.data.normal_(0.0, 0.3, generator=generator)
    return module.eval()


def relative(ours: Tensor, expected: Tensor) -> float:
    return float(((ours - expected).norm(dim=-1) / expected.norm(dim=-1)).max())


def load(block: nn.Module, reference: nn.Module, table: Mapping[str, Sequence[str]]) -> None:
    """Fill each of our parameters from the reference's tensors of those names."""
    stored = reference.state_dict()
    assert {name for name, _ in block.named_parameters()} == set(table)
    for name, names in table.items():
        fill(block.get_parameter(name), *(stored[n] for n in names))


@dataclass(frozen=True)
class Case:
    """A reference, our block, and which tensors of the reference fill which parameter of ours."""

    reference: Callable[[], nn.Module]
    ours: Callable[[], Any]
    table: Mapping[str, Sequence[str]]


def names(up: str, down: str, bias: bool) -> Mapping[str, Sequence[str]]:
    kinds = ("weight", "bias") if bias else ("weight",)
    return {f"{ours}.{kind}": [f"{theirs}.{kind}"] for ours, theirs in (("up", up), ("down", down)) for kind in kinds}


def gated_names(bias: bool) -> Mapping[str, Sequence[str]]:
    kinds = ("weight", "bias") if bias else ("weight",)
    return {f"gate_up.{k}": [f"gate_proj.{k}", f"up_proj.{k}"] for k in kinds} | {
        f"down.{k}": [f"down_proj.{k}"] for k in kinds
    }


CASES = {
    "llama": Case(
        lambda: LlamaMLP(LlamaConfig(**SIZES, mlp_bias=False)),
        lambda: GatedMLP(H, I, act="silu"),
        gated_names(False),
    ),
    "llama, biases": Case(
        lambda: LlamaMLP(LlamaConfig(**SIZES, mlp_bias=True)),
        lambda: GatedMLP(H, I, act="silu", bias=True),
        gated_names(True),
    ),
    "gemma": Case(
        lambda: GemmaMLP(GemmaConfig(**SIZES, hidden_act="gelu_pytorch_tanh")),
        lambda: GatedMLP(H, I, act="gelu_pytorch_tanh"),
        gated_names(False),
    ),
    "bitnet, norm before the down projection": Case(
        lambda: BitNetMLP(BitNetConfig(**SIZES, hidden_act="relu2", rms_norm_eps=1e-2)),
        lambda: GatedMLP(H, I, act="relu2", down_norm=QKNorm(1e-2, width="full")),
        {**gated_names(False), "mid_norm.weight": ["ffn_sub_norm.weight"]},
    ),
    "nemotron": Case(
        lambda: NemotronMLP(NemotronConfig(**SIZES, hidden_act="relu2", mlp_bias=False)),
        lambda: MLP(H, I, act="relu2"),
        names("up_proj", "down_proj", False),
    ),
    "phi": Case(
        lambda: PhiMLP(PhiConfig(**SIZES, hidden_act="gelu_new")),
        lambda: MLP(H, I, act="gelu_new", up_bias=True, down_bias=True),
        names("fc1", "fc2", True),
    ),
    "gpt_neox": Case(
        lambda: GPTNeoXMLP(GPTNeoXConfig(**SIZES, hidden_act="gelu")),
        lambda: MLP(H, I, act="gelu", up_bias=True, down_bias=True),
        names("dense_h_to_4h", "dense_4h_to_h", True),
    ),
    "falcon": Case(
        lambda: FalconMLP(FalconConfig(hidden_size=H, ffn_hidden_size=I, bias=True)),
        lambda: MLP(H, I, act="gelu", up_bias=True, down_bias=True),
        names("dense_h_to_4h", "dense_4h_to_h", True),
    ),
    "apertus, xIELU": Case(
        lambda: ApertusMLP(ApertusConfig(**SIZES, hidden_act="xielu")).float(),
        lambda: MLP(H, I, act="xielu"),
        {
            **names("up_proj", "down_proj", False),
            **{f"act_fn.{n}": [f"act_fn.{n}"] for n in ("alpha_p", "alpha_n", "beta", "eps")},
        },
    ),
}


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("name", CASES)
def test_blocks_of_families(name: str, ranks: int) -> None:
    case = CASES[name]
    reference = randomise(case.reference())
    with torch.no_grad():
        expected = reference(X)

    def work(group: Group) -> Tensor:
        block = case.ours()
        load(block, reference, case.table)
        return block(X)

    assert relative(on_ranks(ranks, work), expected) <= 1e-6


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("gated", [False, True])
def test_partial_products_sum_to_the_block_with_every_bias_once(gated: bool, ranks: int) -> None:
    case = CASES["llama, biases" if gated else "phi"]
    reference = randomise(case.reference())
    with torch.no_grad():
        expected = reference(X)

    def work(group: Group) -> Tensor:
        block = case.ours()
        load(block, reference, case.table)
        return group.all_reduce(block.partial(X)) if ranks > 1 else block.partial(X)

    assert relative(on_ranks(ranks, work), expected) <= 1e-6


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize(("up_bias", "down_bias"), [(True, False), (False, True)])
@pytest.mark.parametrize("gated", [False, True])
def test_a_bias_on_one_side_alone(gated: bool, up_bias: bool, down_bias: bool, ranks: int) -> None:
    gate, up, down = nn.Linear(H, I, up_bias), nn.Linear(H, I, up_bias), nn.Linear(I, H, down_bias)
    reference = randomise(nn.ModuleDict({"gate_proj": gate, "up_proj": up, "down_proj": down}))
    with torch.no_grad():
        inner = nn.functional.silu(gate(X)) * up(X) if gated else nn.functional.silu(up(X))
        expected = down(inner)
    table = gated_names(True) if gated else names("up_proj", "down_proj", True)

    def work(group: Group) -> Tensor:
        make = GatedMLP if gated else MLP
        block = make(H, I, act="silu", up_bias=up_bias, down_bias=down_bias)
        has = {name for name, _ in block.named_parameters()}
        assert len(has) == 3
        load(block, reference, {name: source for name, source in table.items() if name in has})
        return block(X)

    assert relative(on_ranks(ranks, work), expected) <= 1e-6


@pytest.mark.parametrize("ranks", RANKS)
def test_clamp_of_gpt_oss(ranks: int) -> None:
    """One expert as a block: limits that bite, its own sigmoid, and up shifted by one."""
    config = GptOssConfig(**SIZES, num_local_experts=1)
    reference: Any = randomise(GptOssExperts(config))
    reference.limit = 0.9
    clamp = Clamp(limit=0.9, alpha=reference.alpha, up_shift=1.0)
    with torch.no_grad():
        expected = reference(X, torch.zeros(len(X), 1, dtype=torch.int64), torch.ones(len(X), 1))
    weight, bias = reference.gate_up_proj.data[0].t(), reference.gate_up_proj_bias.data[0]

    def run(clamp: Clamp) -> Callable[[Group], Tensor]:
        def work(group: Group) -> Tensor:
            block = GatedMLP(H, I, act="silu", bias=True, clamp=clamp)
            fill(block.gate_up.weight, weight[0::2], weight[1::2])
            fill(block.gate_up.bias, bias[0::2], bias[1::2])
            fill(block.down.weight, reference.down_proj.data[0].t())
            fill(block.down.bias, reference.down_proj_bias.data[0])
            return block(X)

        return work

    assert relative(on_ranks(ranks, run(clamp)), expected) <= 1e-6
    for other in (Clamp(9.0, clamp.alpha, 1.0), Clamp(0.9, None, 1.0), Clamp(0.9, clamp.alpha, 0.0)):
        assert relative(on_ranks(ranks, run(other)), expected) > 1e-2


def test_clamp_without_alpha_keeps_the_activation() -> None:
    gate, up, down = (torch.randn(s, generator=torch.Generator().manual_seed(9)) for s in ((I, H), (I, H), (H, I)))
    block = GatedMLP(H, I, act="gelu", clamp=Clamp(0.5))
    fill(block.gate_up.weight, gate, up)
    fill(block.down.weight, down)
    inner = nn.functional.gelu((X @ gate.t()).clamp(max=0.5)) * (X @ up.t()).clamp(-0.5, 0.5)
    assert relative(block(X), inner @ down.t()) <= 1e-6


@pytest.mark.parametrize("name", sorted(set(ACT2CLS) - {"prelu", "xielu"}))
def test_every_activation_of_transformers_without_parameters(name: str) -> None:
    x = torch.linspace(-14.0, 14.0, 4001)
    torch.testing.assert_close(NF.activation(name)(x), ACT2FN[name](x), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["prelu", "xielu", "swiglu"])
def test_an_activation_that_is_no_plain_function_is_refused(name: str) -> None:
    with pytest.raises(OperationError, match=name):
        GatedMLP(H, I, act=name)


def test_xielu_with_stored_numbers() -> None:
    """All four come from the checkpoint; the smallest eps matters where exp(x) - 1 would be 0."""
    reference = XIELUActivation(alpha_p_init=0.6, alpha_n_init=1.1, beta=0.3, eps=-0.2, dtype=torch.float32)
    block = XIELU()
    block.load_state_dict(reference.state_dict())
    x = torch.cat((torch.linspace(-6.0, 6.0, 501), torch.tensor([-1e-7, 0.0, 1e-7])))
    with torch.no_grad():
        torch.testing.assert_close(block(x), reference(x), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("norm", "clamp", "message"),
    [
        (QKNorm(1e-6, width="full"), Clamp(1.0), "down_norm.*beside a clamp"),
        (QKNorm(1e-6), None, "width.*full"),
    ],
)
def test_options_that_do_not_go_together(norm: QKNorm, clamp: Clamp | None, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        GatedMLP(H, I, act="silu", down_norm=norm, clamp=clamp)
