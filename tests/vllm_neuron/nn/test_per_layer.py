"""Per-layer embeddings and experts beside an MLP against the modules of transformers' Gemma 4, on 1, 2 and 4 ranks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoConfig
from transformers.models.gemma4.modeling_gemma4 import Gemma4TextDecoderLayer, Gemma4TextModel

from tests.vllm_neuron.nn.test_sharding import fill, on_ranks
from vllm_neuron.nn import (
    GatedMLP,
    MoE,
    MoEBesideMLP,
    PerLayerEmbedding,
    PerLayerInput,
    RMSNorm,
    RouterConfig,
)
from vllm_neuron.parallel import Group

V, H, L, P, E, K, EPS = 50, 32, 3, 6, 8, 3, 1e-3
DENSE, EXPERT = 40, 24
ACT = "gelu_pytorch_tanh"
RANKS = [1, 2, 4]
IDS = torch.tensor([0, 49, 17, 13, 33, 25, 17])
X = torch.randn(IDS.numel(), H, generator=torch.Generator().manual_seed(1)) * 2
INPUT = torch.randn(IDS.numel(), P, generator=torch.Generator().manual_seed(2))


def config() -> Any:
    return AutoConfig.for_model(
        "gemma4_text",
        vocab_size=V,
        vocab_size_per_layer_input=V,
        hidden_size=H,
        hidden_size_per_layer_input=P,
        intermediate_size=DENSE,
        moe_intermediate_size=EXPERT,
        num_experts=E,
        top_k_experts=K,
        enable_moe_block=True,
        num_hidden_layers=L,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        global_head_dim=16,
        hidden_activation=ACT,
        rms_norm_eps=EPS,
        pad_token_id=None,
    )


@pytest.fixture(scope="module")
def model() -> Any:
    """A random model; the norms' weights and the router's scales too."""
    made = Gemma4TextModel(config()).eval()
    g = torch.Generator().manual_seed(0)
    for name, parameter in made.named_parameters():
        one = 1.0 if parameter.dim() == 1 else 0.0
        spread = 3.0 if name.endswith("router.scale") else 0.4
        parameter.data = one + spread * torch.randn(parameter.shape, generator=g)
        parameter.requires_grad_(False)
    return made


class Nothing(nn.Module):
    """Attention that adds nothing to the residual."""

    def forward(self, hidden_states: Tensor, **unused: Any) -> tuple[Tensor, None]:
        """Zeros of the input's shape."""
        return torch.zeros_like(hidden_states), None


@pytest.fixture(scope="module")
def layer(model: Any) -> Any:
    """A decoder layer without attention."""
    made: Any = Gemma4TextDecoderLayer(config(), 0).eval()
    made.load_state_dict(model.layers[0].state_dict())
    made.requires_grad_(False)
    made.self_attn = Nothing()
    return made


def error(found: Tensor, wanted: Tensor) -> float:
    """Largest relative error of a row."""
    return float(((found - wanted).norm(dim=-1) / wanted.norm(dim=-1)).max())


@pytest.mark.parametrize("ranks", RANKS)
def test_the_frames_embeddings_of_every_layer(model: Any, ranks: int) -> None:
    """Ids in every shard of a vocabulary that 4 ranks do not divide."""
    wanted = model.project_per_layer_inputs(X[None], model.get_per_layer_inputs(IDS[None], None))[0]

    def work(group: Group) -> Tensor:
        block = PerLayerEmbedding(V, L, P, H, eps=EPS)
        fill(block.table.weight, model.embed_tokens_per_layer.weight)
        fill(block.projection.weight, model.per_layer_model_projection.weight)
        fill(block.norm.weight, model.per_layer_projection_norm.weight)
        assert block.table.weight.shape == (-(-V // ranks), L * P)
        return block(IDS, X)

    found = on_ranks(ranks, work)
    assert found.shape == (IDS.numel(), L, P)
    assert error(found.flatten(0, 1), wanted.flatten(0, 1)) <= 1e-5


@pytest.mark.parametrize("ranks", RANKS)
def test_a_layer_adds_its_own_embedding(layer: Any, ranks: int) -> None:
    """The layer's output with its own embedding, less its output with none, where the norm gives nothing."""
    wanted = layer(X[None], INPUT[None])[0] - layer(X[None], torch.zeros(1, *INPUT.shape))[0]
    residual = layer(X[None], torch.zeros(1, *INPUT.shape))[0]

    def work(group: Group) -> Tensor:
        block = PerLayerInput(H, P, act=ACT, eps=EPS)
        fill(block.gate.weight, layer.per_layer_input_gate.weight)
        fill(block.projection.weight, layer.per_layer_projection.weight)
        fill(block.norm.weight, layer.post_per_layer_input_norm.weight)
        return block(residual, INPUT)

    assert error(on_ranks(ranks, work), wanted) <= 1e-5


def beside(layer: Any, *, whole: bool = False, **options: Any) -> MoEBesideMLP:
    """Our block for the current rank, with the weights of ``layer``."""
    chosen = {"normalize": True, "input_norm_eps": EPS, "input_scale": True, "expert_scale": True} | options
    moe = MoE(
        H,
        experts=E,
        top_k=K,
        intermediate_size=EXPERT,
        act=ACT,
        router=RouterConfig(**chosen),
        whole_experts=whole,
    )
    names = ("post_dense_norm", "pre_moe_norm", "post_moe_norm")
    block = MoEBesideMLP(GatedMLP(H, DENSE, act=ACT), moe, **{name: RMSNorm(H, eps=EPS) for name in names})
    stored = {
        "mlp.gate_up.weight": (layer.mlp.gate_proj.weight, layer.mlp.up_proj.weight),
        "mlp.down.weight": (layer.mlp.down_proj.weight,),
        "moe.router.weight": (layer.router.proj.weight,),
        "moe.router.input_scale": (layer.router.scale,),
        "moe.router.expert_scale": (layer.router.per_expert_scale,),
        "moe.experts.gate_up.weight": (layer.experts.gate_up_proj,),
        "moe.experts.down.weight": (layer.experts.down_proj,),
        "post_dense_norm.weight": (layer.post_feedforward_layernorm_1.weight,),
        "pre_moe_norm.weight": (layer.pre_feedforward_layernorm_2.weight,),
        "post_moe_norm.weight": (layer.post_feedforward_layernorm_2.weight,),
    }
    for name, parameter in block.named_parameters():
        fill(parameter, *stored[name])
    return block


def between(layer: Any) -> Tensor:
    """What the layer's last norm of the feed-forward reads."""
    seen: list[Tensor] = []
    handle = layer.post_feedforward_layernorm.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    layer(X[None], INPUT[None])
    handle.remove()
    return seen[0][0]


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("ranks", RANKS)
def test_experts_beside_a_dense_mlp(layer: Any, ranks: int, whole: bool) -> None:
    normed = layer.pre_feedforward_layernorm(X)
    found = on_ranks(ranks, lambda group: beside(layer, whole=whole)(normed, X))
    assert error(found, between(layer)) <= 1e-5


@pytest.mark.parametrize(
    "changed",
    [{"input_norm_eps": None}, {"input_norm_eps": 1.0}, {"input_scale": False}, {"expert_scale": False}],
    ids=lambda options: next(iter(options)) + str(next(iter(options.values()))),
)
def test_each_option_of_the_router_counts(layer: Any, changed: dict[str, Any]) -> None:
    normed = layer.pre_feedforward_layernorm(X)
    found = on_ranks(1, lambda group: beside(layer, **changed)(normed, X))
    assert error(found, between(layer)) > 1e-3


def test_the_router_reads_the_residual_itself(layer: Any) -> None:
    """A pre_moe_norm of another weight changes what experts read, and never who is chosen."""
    block = beside(layer)
    weights, experts = block.moe.router(X)
    _, wanted, chosen = layer.router(X)
    assert torch.equal(experts.sort().values, chosen.sort().values)
    torch.testing.assert_close(weights, wanted, rtol=1e-5, atol=1e-6)
    seen: list[Tensor] = []
    block.moe.router.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    block(layer.pre_feedforward_layernorm(X), X)
    assert torch.equal(seen[0], X)
