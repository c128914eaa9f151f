"""The mixture-of-experts families of transformers: a tiny config, our arguments, and the rows of its checkpoint."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from vllm_neuron.model.loading.table import Fuse, Map, Row, StackExperts
from vllm_neuron.nn import Clamp, RouterConfig

H, I, E, K = 32, 24, 8, 3  # noqa: E741
COMMON = {
    "vocab_size": 64,
    "hidden_size": H,
    "intermediate_size": I,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LAYER = 1


@dataclass(frozen=True)
class Case:
    """One family. ``block``: the reference module's name; ``shared``: width of our shared expert."""

    model_type: str
    config: dict[str, Any]
    rows: tuple[Row, ...]
    router: RouterConfig
    block: str = "model.layers.1.mlp"
    top_k: int = K
    shared: int | None = None
    act: str = "silu"
    options: dict[str, Any] = field(default_factory=dict)
    shared_options: dict[str, Any] = field(default_factory=dict)


def per_expert(block: str = "mlp", names: str = "{gate,up}_proj", down: str = "down_proj") -> tuple[Row, ...]:
    key = f"model.layers.{{i}}.{block}.experts.{{e}}."
    return StackExperts("{i}.experts.gate_up", key + names), StackExperts("{i}.experts.down", key + down)


def shared(name: str, block: str = "mlp") -> tuple[Row, ...]:
    key = f"model.layers.{{i}}.{block}.{name}."
    return Fuse("{i}.shared.gate_up", key + "{gate,up}_proj"), Map("{i}.shared.down", key + "down_proj")


def router(name: str = "gate", block: str = "mlp") -> Row:
    return Map("{i}.router", f"model.layers.{{i}}.{block}.{name}")


def correction(name: str = "gate.e_score_correction_bias", block: str = "mlp") -> Row:
    return Map("{i}.router.correction_bias", f"model.layers.{{i}}.{block}.{name}")


WIDTH = {"moe_intermediate_size": I, "num_experts_per_tok": K}
QWEN = WIDTH | {"num_experts": E, "decoder_sparse_step": 1, "mlp_only_layers": []}
DEEPSEEK = WIDTH | {
    "n_routed_experts": E,
    "n_shared_experts": 2,
    "n_group": 4,
    "topk_group": 2,
    "first_k_dense_replace": 0,
    "routed_scaling_factor": 1.7,
    "norm_topk_prob": True,
}
MLA = {
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 8,
    "num_key_value_heads": 4,
}
NOAUX = RouterConfig(
    score="sigmoid",
    normalize=True,
    scale=1.7,
    correction_bias=True,
    groups=4,
    top_groups=2,
    group_score="top2_sum",
)
PLAIN = (*per_expert(), router())
W123 = (*per_expert("block_sparse_moe", "{w1,w3}", "w2"), router("gate", "block_sparse_moe"))

CASES = {
    "mixtral": Case(
        "mixtral", {"num_local_experts": E, "num_experts_per_tok": 2}, W123, RouterConfig(normalize=True), top_k=2
    ),
    "olmoe": Case("olmoe", {"num_experts": E, "num_experts_per_tok": K}, PLAIN, RouterConfig()),
    "qwen2_moe": Case(
        "qwen2_moe",
        QWEN | {"shared_expert_intermediate_size": 40},
        (*PLAIN, *shared("shared_expert"), Map("{i}.shared_gate", "model.layers.{i}.mlp.shared_expert_gate")),
        RouterConfig(),
        shared=40,
        options={"shared_gate": True},
    ),
    "qwen3_moe": Case("qwen3_moe", QWEN | {"norm_topk_prob": True}, PLAIN, RouterConfig(normalize=True)),
    "deepseek_v2 greedy": Case(
        "deepseek_v2",
        DEEPSEEK | MLA | {"topk_method": "greedy"},
        (*PLAIN, *shared("shared_experts")),
        RouterConfig(scale=1.7),
        shared=2 * I,
    ),
    "deepseek_v2 groups": Case(
        "deepseek_v2",
        DEEPSEEK | MLA | {"topk_method": "group_limited_greedy"},
        (*PLAIN, *shared("shared_experts")),
        RouterConfig(scale=1.7, groups=4, top_groups=2, group_score="max"),
        shared=2 * I,
    ),
    "deepseek_v3": Case(
        "deepseek_v3", DEEPSEEK | MLA, (*PLAIN, correction(), *shared("shared_experts")), NOAUX, shared=2 * I
    ),
    "glm4_moe": Case("glm4_moe", DEEPSEEK, (*PLAIN, correction(), *shared("shared_experts")), NOAUX, shared=2 * I),
    "dots1": Case("dots1", DEEPSEEK, (*PLAIN, correction(), *shared("shared_experts")), NOAUX, shared=2 * I),
    "gpt_oss": Case(
        "gpt_oss",
        {"num_local_experts": E, "num_experts_per_tok": K, "head_dim": 8},
        (
            router("router"),
            Map(
                "{i}.experts.gate_up.weight",
                "model.layers.{i}.mlp.experts.gate_up_proj",
                transpose=True,
                layout="interleaved",
            ),
            Map("{i}.experts.gate_up.bias", "model.layers.{i}.mlp.experts.gate_up_proj_bias", layout="interleaved"),
            Map("{i}.experts.down.weight", "model.layers.{i}.mlp.experts.down_proj", transpose=True),
            Map("{i}.experts.down.bias", "model.layers.{i}.mlp.experts.down_proj_bias"),
        ),
        RouterConfig(normalize=True, bias=True),
        options={"bias": True, "clamp": Clamp(7.0, alpha=1.702, up_shift=1.0)},
    ),
    "granitemoe": Case(
        "granitemoe",
        {"num_local_experts": E, "num_experts_per_tok": K},
        (
            router("router.layer", "block_sparse_moe"),
            Map("{i}.experts.gate_up", "model.layers.{i}.block_sparse_moe.input_linear"),
            Map("{i}.experts.down", "model.layers.{i}.block_sparse_moe.output_linear"),
        ),
        RouterConfig(normalize=True),
        block="model.layers.1.block_sparse_moe",
    ),
    "llama4": Case(
        "llama4_text",
        {"num_local_experts": E, "num_experts_per_tok": 2, "interleave_moe_layer_step": 1, "head_dim": 8},
        (
            router("router", "feed_forward"),
            Map("{i}.experts.gate_up.weight", "model.layers.{i}.feed_forward.experts.gate_up_proj", transpose=True),
            Map("{i}.experts.down.weight", "model.layers.{i}.feed_forward.experts.down_proj", transpose=True),
            *shared("shared_expert", "feed_forward"),
        ),
        RouterConfig(score="sigmoid", weight_on="input"),
        block="model.layers.1.feed_forward",
        top_k=2,
        shared=I,
    ),
    "ernie4_5_moe": Case(
        "ernie4_5_moe",
        {
            "moe_intermediate_size": I,
            "moe_num_experts": E,
            "moe_k": K,
            "moe_num_shared_experts": 2,
            "moe_layer_start_index": 0,
            "moe_layer_interval": 1,
            "moe_layer_end_index": 1,
        },
        (*PLAIN, correction("moe_statics.e_score_correction_bias"), *shared("shared_experts")),
        RouterConfig(normalize=True, correction_bias=True),
        shared=2 * I,
    ),
    "hunyuan_v1_moe": Case(
        "hunyuan_v1_moe",
        {"num_experts": E, "moe_topk": K, "head_dim": 8},
        (*per_expert(), router("gate.wg"), *shared("shared_mlp")),
        RouterConfig(normalize=True),
        shared=I,
    ),
    "minimax_m2": Case(
        "minimax_m2",
        {"num_local_experts": E, "num_experts_per_tok": K, "head_dim": 8},
        (*W123, correction("e_score_correction_bias", "block_sparse_moe")),
        RouterConfig(score="sigmoid", normalize=True, correction_bias=True),
    ),
    "lfm2_moe": Case(
        "lfm2_moe",
        WIDTH
        | {
            "num_experts": E,
            "num_dense_layers": 0,
            "use_expert_bias": True,
            "norm_topk_prob": True,
            "routed_scaling_factor": 1.3,
            "layer_types": ["full_attention", "full_attention"],
        },
        (
            *per_expert("feed_forward", "{w1,w3}", "w2"),
            router("gate", "feed_forward"),
            correction("expert_bias", "feed_forward"),
        ),
        RouterConfig(score="sigmoid", normalize=True, scale=1.3, correction_bias=True),
        block="model.layers.1.feed_forward",
    ),
    "phimoe": Case(
        "phimoe",
        {"num_local_experts": E, "num_experts_per_tok": 2, "router_jitter_noise": 0.2},
        (*per_expert("block_sparse_moe", "{w1,w3}", "w2"), router("gate", "block_sparse_moe")),
        RouterConfig(score="sparsemixer", jitter=0.2),
        top_k=2,
    ),
    "longcat_flash": Case(
        "longcat_flash",
        MLA
        | {
            "expert_ffn_hidden_size": I,
            "ffn_hidden_size": 48,
            "n_routed_experts": E,
            "zero_expert_num": 4,
            "moe_topk": K,
            "head_dim": 4,
            "num_hidden_layers": 4,
            "routed_scaling_factor": 1.5,
        },
        (*per_expert(), router("router.classifier"), correction("router.e_score_correction_bias")),
        RouterConfig(scale=1.5, correction_bias=True),
        options={"zero_experts": 4},
    ),
    "minimax_m3": Case(
        "minimax_m3_vl_text",
        {
            "num_local_experts": E,
            "num_experts_per_tok": K,
            "shared_intermediate_size": 40,
            "routed_scaling_factor": 2.0,
            "head_dim": 8,
        },
        (
            router(),
            correction(),
            Map("{i}.experts.gate_up.weight", "model.layers.{i}.mlp.experts.gate_up_proj"),
            Map("{i}.experts.down.weight", "model.layers.{i}.mlp.experts.down_proj"),
            Map("{i}.shared.gate_up", "model.layers.{i}.mlp.shared_experts.gate_up_proj"),
            Map("{i}.shared.down", "model.layers.{i}.mlp.shared_experts.down_proj"),
        ),
        RouterConfig(score="sigmoid", normalize=True, scale=2.0, correction_bias=True),
        shared=40,
        options={"clamp": Clamp(7.0, alpha=1.702, up_shift=1.0)},
        shared_options={"clamp": Clamp(7.0, alpha=1.702, up_shift=1.0)},
    ),
    "deepseek_v4": Case(
        "deepseek_v4",
        WIDTH
        | {
            "n_routed_experts": E,
            "n_shared_experts": 1,
            "routed_scaling_factor": 1.5,
            "swiglu_limit": 1.25,
            "mlp_layer_types": ["moe", "moe"],
            "layer_types": ["sliding_attention", "sliding_attention"],
        },
        (
            router("gate", "ffn"),
            Map("{i}.router.correction_bias", "model.layers.{i}.ffn.gate.bias"),
            *per_expert("ffn", "{w1,w3}", "w2"),
            Fuse("{i}.shared.gate_up", "model.layers.{i}.ffn.shared_experts.{w1,w3}"),
            Map("{i}.shared.down", "model.layers.{i}.ffn.shared_experts.w2"),
        ),
        RouterConfig(score="sqrtsoftplus", normalize=True, scale=1.5, correction_bias=True),
        shared=I,
        options={"clamp": Clamp(1.25)},
        shared_options={"clamp": Clamp(1.25)},
    ),
    "dbrx": Case(
        "dbrx",
        {
            "d_model": H,
            "n_heads": 4,
            "n_layers": 2,
            "max_seq_len": 64,
            "attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 1e4},
            "ffn_config": {"ffn_hidden_size": I, "moe_num_experts": E, "moe_top_k": K, "hidden_size": H},
            "tie_word_embeddings": False,
        },
        (
            Map("{i}.router", "transformer.blocks.{i}.ffn.router.layer"),
            Fuse("{i}.experts.gate_up.weight", "transformer.blocks.{i}.ffn.experts.mlp.{w1,v1}"),
            Map("{i}.experts.down.weight", "transformer.blocks.{i}.ffn.experts.mlp.w2", transpose=True),
        ),
        RouterConfig(normalize=True),
        block="transformer.blocks.1.ffn",
    ),
    "nemotron_h": Case(
        "nemotron_h",
        DEEPSEEK
        | {
            "moe_shared_expert_intermediate_size": 40,
            "layers_block_type": ["moe", "moe"],
            "head_dim": 8,
        },
        (
            StackExperts("{i}.experts.up", "backbone.layers.{i}.mixer.experts.{e}.up_proj"),
            StackExperts("{i}.experts.down", "backbone.layers.{i}.mixer.experts.{e}.down_proj"),
            Map("{i}.router", "backbone.layers.{i}.mixer.gate"),
            Map("{i}.router.correction_bias", "backbone.layers.{i}.mixer.gate.e_score_correction_bias"),
            Map("{i}.shared.{up,down}", "backbone.layers.{i}.mixer.shared_experts.{up,down}_proj"),
        ),
        NOAUX,
        block="model.layers.1.mixer",
        shared=40,
        act="relu2",
        options={"gated": False},
    ),
    "cohere2_moe": Case(
        "cohere2_moe",
        {
            "num_experts": E,
            "num_experts_per_tok": K,
            "num_shared_experts": 2,
            "shared_expert_combination_strategy": "average",
            "expert_selection_fn": "sigmoid",
            "norm_topk_prob": True,
            "head_dim": 8,
        },
        (*PLAIN, *shared("shared_experts")),
        RouterConfig(score="sigmoid", normalize=True),
        shared=2 * I,
        options={"output_scale": 0.5},
    ),
    "laguna": Case(
        "laguna",
        WIDTH
        | {
            "num_experts": E,
            "shared_expert_intermediate_size": 40,
            "moe_routed_scaling_factor": 1.5,
            "mlp_layer_types": ["sparse", "sparse"],
            "head_dim": 8,
        },
        (*PLAIN, correction("experts.e_score_correction_bias"), *shared("shared_expert")),
        RouterConfig(score="sigmoid", normalize=True, scale=1.5, correction_bias=True),
        shared=40,
    ),
    "aria": Case(
        "aria_text",
        {"moe_num_experts": E, "moe_topk": K, "moe_num_shared_experts": 2},
        (
            router("router"),
            Map("{i}.experts.gate_up", "model.layers.{i}.mlp.experts.fc1", transpose=True),
            Map("{i}.experts.down", "model.layers.{i}.mlp.experts.fc2", transpose=True),
            *shared("shared_experts"),
        ),
        RouterConfig(normalize=True),
        shared=2 * I,
    ),
}
