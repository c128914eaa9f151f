"""A model type that is not known: what its config says by itself, and what had to be assumed."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from onboard.facts.families import mla
from onboard.facts.families.family import Family
from onboard.facts.reader import Reader
from vllm_neuron.errors import ConfigError

EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
BIAS = "?attention_bias"


def family(model_type: str | None, text: Mapping[str, Any], class_name: str) -> Family:
    """Traits by what the keys say: which epsilon, which switches, latent ranks, experts."""
    layernorm = not any("rms" in k for k in text) and any(k.startswith(("layer_norm", "layernorm")) for k in text)
    qk_norm = next((k for k in ("use_qk_norm", "qk_layernorm", "qk_norm") if k in text), None)
    sigmoid = text.get("scoring_func") == "sigmoid" or "n_group" in text
    experts = any(isinstance(text.get(k), int) for k in EXPERTS)
    return Family(
        model_type or "",
        class_name,
        build=mla.build if text.get("kv_lora_rank") is not None else None,
        norm="layernorm" if layernorm else "rms",
        q_bias=BIAS,
        k_bias=BIAS,
        v_bias=BIAS,
        o_bias=BIAS,
        mlp_bias="?mlp_bias",
        qk_norm="head" if qk_norm else None,
        qk_norm_if=qk_norm,
        window="switch" if "use_sliding_window" in text else ("all" if not _patterned(text) else "pattern"),
        softcaps=True,
        scale="query_pre_attn_scalar" if text.get("query_pre_attn_scalar") is not None else None,
        embed_scale="?embedding_multiplier",
        residual="residual_multiplier",
        logit_scale=next((mark + k for mark, k in (("/", "logits_scaling"), ("?", "logit_scale")) if k in text), None),
        moe=("deepseek_v3" if sigmoid else _moe_style(text)) if experts else None,
    )


def _patterned(text: Mapping[str, Any]) -> bool:
    return text.get("sliding_window_pattern") is not None or text.get("_sliding_window_pattern") is not None


def _moe_style(text: Mapping[str, Any]) -> str:
    if text.get("shared_expert_intermediate_size"):
        return "qwen2"
    return "qwen" if text.get("moe_intermediate_size") else "mixtral"


def defaults(model_type: str | None) -> tuple[dict[str, Any], str | None]:
    """What an installed transformers states as the type's defaults, and a note that says so.

    Only its own config class is looked at, never a model's code; ({}, None) without transformers or such a class.
    """
    spec = importlib.util.find_spec("transformers") if model_type and model_type.isidentifier() else None
    folders = spec.submodule_search_locations if spec is not None else None
    if not folders or not (Path(next(iter(folders))) / "models" / str(model_type)).is_dir():
        return {}, None
    try:
        from transformers.models.auto.configuration_auto import CONFIG_MAPPING

        values = CONFIG_MAPPING[str(model_type)]().to_dict()
    except (ImportError, KeyError, AttributeError, TypeError, ValueError):
        return {}, None
    nested = values.get("text_config")
    values = nested if isinstance(nested, dict) else values
    return values, f"defaults of {model_type} come from the installed transformers"


def explain(r: Reader, model_type: str | None) -> None:
    """Say what was assumed and what was not understood."""
    r.warn(
        f"model type {model_type!r:.60} is not known: read from the config alone; assumed where it is silent: "
        "norms before each block, a gated MLP, half-split rotary"
    )
    unknown = r.unknown_keys()
    if unknown:
        r.warn("not understood: " + ", ".join(f"{r.prefix}{k}" for k in unknown))


def not_enough(error: ConfigError, r: Reader, model_type: str | None) -> ConfigError:
    """The error for a config that can't be read without knowledge of its family, with what was not understood."""
    unread = ", ".join(r.unknown_keys()[:12]) or "nothing else"
    action = (
        f"Model type {model_type!r:.60} is not known, and its config alone does not say enough. Not read: {unread}."
    )
    return ConfigError(error.field, error.value, error.expected, action)
