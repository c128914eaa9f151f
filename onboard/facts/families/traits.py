"""Traits that many rows share, and the constructor of a row."""

from __future__ import annotations

from typing import Any

from onboard.facts.families.family import Family

BIAS = "?attention_bias"
QKV: dict[str, Any] = dict(q_bias=True, k_bias=True, v_bias=True)
ALL_BIAS: dict[str, Any] = dict(q_bias=BIAS, k_bias=BIAS, v_bias=BIAS, o_bias=BIAS)
QKV_BIAS: dict[str, Any] = dict(q_bias=BIAS, k_bias=BIAS, v_bias=BIAS)
USE_BIAS: dict[str, Any] = dict(q_bias="?use_bias", k_bias="?use_bias", v_bias="?use_bias", o_bias="?use_bias",
                                mlp_bias="?use_bias")  # fmt: skip
TRUE_BIAS: dict[str, Any] = dict(**QKV, o_bias=True, mlp_bias=True)
GEMMA_ACT = (("gelu", "gelu_pytorch_tanh"),)
MULTIPLIERS: dict[str, Any] = dict(scale="attention_multiplier", embed_scale="?embedding_multiplier",
                                   residual="residual_multiplier")  # fmt: skip
GRANITE: dict[str, Any] = dict(**MULTIPLIERS, logit_scale="/logits_scaling")
GEMMA: dict[str, Any] = dict(plus_one=True, embed_scale="sqrt", **ALL_BIAS)


def row(model_type: str, class_name: str, **traits: Any) -> Family:
    """One family: its model type, its causal LM class, and what differs from a plain Llama."""
    return Family(model_type, class_name, **traits)
