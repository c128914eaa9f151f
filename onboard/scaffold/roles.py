"""Which stored tensor plays which part: names as checkpoints use them, the order of execution for the norms, and the
architecture for what is there at all."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")
LEAVES = ("weight", "bias")

# Part of an attention block -> the last names that stand for it.
ATTENTION = {
    "q": r"q_proj(\.linear)?|Wq|wq|project_q|query|q_lin",
    "k": r"k_proj(\.linear)?|Wk|wk|project_k|key|k_lin",
    "v": r"v_proj(\.linear)?|Wv|wv|project_v|value|v_lin",
    "qkv": r"query_key_value|qkv_proj|c_attn|Wqkv|W_pack|wqkv",
    "o": r"o_proj(\.linear)?|out_proj|dense|c_proj|Wo|wo|attention_out|out_lin",
    "o.bias": r"dense_bias",
    "q_norm": r"q_norm|q_layernorm|query_layernorm|q_layer_norm",
    "k_norm": r"k_norm|k_layernorm|key_layernorm|k_layer_norm",
    "sinks": r"sinks|attention_sink_bias|learnable_sink_param",
    "gate": r"gate_proj|g_proj|q_gate_proj|linear_gate",
    "out_norm": r"attn_sub_norm|out_norm",
    "q_a": r"q_a_proj",
    "q_a_norm": r"q_a_layernorm|q_a_norm",
    "q_b": r"q_b_proj",
    "kv_a": r"kv_a_proj_with_mqa|kv_a_proj",
    "kv_norm": r"kv_a_layernorm|kv_norm",
    "kv_b": r"kv_b_proj",
}
MLP = {
    "gate": r"gate_proj|w1|w_in\.w_0",
    "up": r"up_proj|w3|v1|w_in\.w_1|fc1|fc_in|c_fc|dense_h_to_4h|linear1|ffn\.0",
    "down": r"down_proj|w2|w_out|fc2|fc_out|c_proj|dense_4h_to_h|linear2|output_linear|Wo|ffn\.2",
    "gate_up": r"gate_up_proj|input_linear|Wi|gate_and_up_proj",
    "mid_norm": r"ffn_sub_norm",
    "act_fn.alpha_p": r"act_fn\.alpha_p",
    "act_fn.alpha_n": r"act_fn\.alpha_n",
    "act_fn.beta": r"act_fn\.beta",
    "act_fn.eps": r"act_fn\.eps",
}
PER_LAYER = {
    "per_layer.table": r"(?:.*\.)?embed_tokens_per_layer",
    "per_layer.projection": r"(?:.*\.)?per_layer_model_projection",
    "per_layer.norm": r"(?:.*\.)?per_layer_projection_norm",
    "layer_input.gate": r"per_layer_input_gate",
    "layer_input.projection": r"per_layer_projection",
    "layer_input.norm": r"post_per_layer_input_norm",
}
ROUTER = {
    "router.input_scale": r"router\.scale",
    "router.expert_scale": r"router\.per_expert_scale",
    "router": r"gate|router|router\.proj|router\.layer|router\.classifier|router\.gate|gate\.wg|block_sparse_moe\.gate",
    "router.correction_bias": r"(?:.*\.)?(e_score_correction_bias|expert_bias)",
    "shared_gate": r"shared_expert_gate",
}
ATTENTION_PARTS = ("attn", "attention", "self_att", "mixer", "temporal_block")
SHARED = re.compile(r"(?:.*\.)?(shared_experts?|shared_mlp|shared_expert_mlp)\.(.+)")
EXPERTS = re.compile(r"(?:.*\.)?experts\.(\{e\}\.)?(.+)")
TOP = {
    "embed": r"(?:.*\.)?(embed_tokens|wte|word_embeddings|tok_embeddings|embed_in|tokens_embed|input_embedding|w)",
    "positions": r"(?:.*\.)?(wpe|embed_positions|positions_embed)",
    "embed_norm": r"(?:.*\.)?(word_embeddings_layernorm|embeddings\.norm|embed_layernorm|layernorm_embedding)",
    "head": r"lm_head|embed_out|output_projection|output",
}


@dataclass(frozen=True)
class Stored:
    """A stored module: the pattern of its name without the leaf, and its leaves (none for a bare parameter)."""

    pattern: str
    leaves: tuple[str, ...]
    shape: tuple[int, ...]


def patterns(shapes: Mapping[str, Sequence[int]]) -> list[Stored]:
    """The distinct names of a checkpoint, with ``{i}`` for the first number and ``{e}`` for the second."""
    leaves: dict[str, list[str]] = {}
    sizes: dict[str, tuple[int, ...]] = {}
    for key, shape in shapes.items():
        leaf, name = key.rpartition(".")[2], pattern_of(key)
        found = leaves.setdefault(name, [])
        if leaf in LEAVES and leaf not in found:
            found.append(leaf)
        if name not in sizes or leaf == "weight":
            sizes[name] = tuple(shape)
    return [Stored(name, tuple(each), sizes[name]) for name, each in leaves.items()]


def pattern_of(key: str) -> str:
    """The pattern of the module that a key belongs to, or of the key where it is a bare parameter."""
    module, _, leaf = key.rpartition(".")
    return numbered(module if leaf in LEAVES else key)


def numbered(name: str) -> str:
    """``{i}`` for the first number, ``{e}`` for the one after ``experts``; others stay."""
    first = _NUMBER.search(name)
    if first is None:
        return name
    head, tail = name[: first.start()] + "{i}", name[first.end() :]
    return head + re.sub(r"(?<=experts\.)\d+(?=\.|$)", "{e}", tail)


def split(pattern: str) -> tuple[str, str]:
    """(what is before the layer's index and with it, the rest); ("", pattern) outside the layers."""
    before, mark, tail = pattern.partition("{i}.")
    return (before + mark, tail) if mark else ("", pattern)


def matching(names: Mapping[str, str], tail: str, *, whole: bool = False) -> str | None:
    """The part that a name's end stands for."""
    for part, expression in names.items():
        if re.fullmatch(expression if whole else rf"(?:.*\.)?(?:{expression})", tail):
            return part
    return None


def in_attention(tail: str) -> bool:
    """Whether a name within a layer belongs to the attention block."""
    return any(any(part in piece for part in ATTENTION_PARTS) and not is_norm(piece) for piece in tail.split("."))


def is_norm(name: str) -> bool:
    """Whether a module's name is that of a norm."""
    last = name.rsplit(".", 1)[-1].lower()
    return "norm" in last or bool(re.fullmatch(r"ln_?\w*|ln", last))


def order(names: Iterable[str], executed: Sequence[str]) -> list[str]:
    """Names in the order of their first execution; names that never ran come last."""
    first = {name: k for k, name in reversed(list(enumerate(executed)))}
    return sorted(names, key=lambda name: first.get(name, len(executed)))
