"""Tiny configs that keep every choice of a real one: each kind of layer, each feature, few layers and small sizes."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from huggingface_hub.errors import StrictDataclassError

from onboard.probe import options
from onboard.probe.reference import Reference, quiet
from vllm_neuron.errors import ConfigError, NeuronError

# Sizes by their meaning, under transformers' common names; the numbers are unlike each other.
SIZES: dict[str, int] = {
    "vocab_size": 163,
    "hidden_size": 96,
    "intermediate_size": 112,
    "num_attention_heads": 4,
    "moe_intermediate_size": 40,
    "expert_intermediate_size": 40,
    "shared_expert_intermediate_size": 56,
    "shared_intermediate_size": 56,
    "moe_shared_expert_intermediate_size": 56,
    "intermediate_size_mlp": 104,
    "dense_intermediate_size": 104,
    "max_position_embeddings": 128,
    "q_lora_rank": 40,
    "kv_lora_rank": 24,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "qk_head_dim": 24,
    "v_head_dim": 20,
    "global_head_dim": 40,
    "hidden_size_per_layer_input": 32,
    "vocab_size_per_layer_input": 163,
    "sliding_window": 8,
    "sliding_window_size": 8,
    "attention_chunk_size": 8,
    "window_size": 8,
    "word_embed_proj_dim": 96,
    "rotary_dim": 12,
    "index_topk": 4,
    "index_n_heads": 4,
    "index_head_dim": 16,
    "floor_scale": 16,
}
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts", "num_moe_experts")
TOP_K = ("num_experts_per_tok", "experts_per_token", "top_k_experts", "moe_top_k", "moe_topk", "moe_k")
GROUPS = {"n_group": 4, "num_expert_group": 4, "topk_group": 2}
THRESHOLDS = ("first_k_dense_replace", "num_dense_layers", "num_kv_shared_layers", "moe_layer_start_index")
# Lists of the layers that have something.
INDICES = ("moe_layers", "mlp_only_layers")
PERIODS = ("sliding_window_pattern", "no_rope_layer_interval", "global_attn_every_n_layers", "decoder_sparse_step")
MULTIPLIERS = {
    "embedding_multiplier": 1.7,
    "residual_multiplier": 0.6,
    "attention_multiplier": 0.31,
    "logits_scaling": 1.9,
    "logit_scale": 0.45,
    "scale_emb": 1.7,
    "scale_depth": 1.4,
    "routed_scaling_factor": 1.6,
    "query_pre_attn_scalar": 19,
}
ORIGINAL, LONGEST, MOST_LAYERS = 32, 128, 8
REFUSED = (
    StrictDataclassError,
    ArithmeticError,
    NeuronError,
    AttributeError,
    ImportError,
    LookupError,
    NameError,
    RuntimeError,
    TypeError,
    ValueError,
)


@dataclass(frozen=True)
class Variant:
    """One tiny config: ``base``, or base with one optional feature turned over."""

    name: str
    config: Any


def variants(model_type: str, given: Mapping[str, Any] | None = None) -> tuple[Variant, ...]:
    """Tiny configs of a model type that transformers can build and run; ``base`` is the first.

    Args:
        model_type: of the decoder.
        given: the decoder's section of a real config, whose choices base keeps; the class's defaults by default.

    Raises:
        ConfigError: transformers does not know the model type, or runs no tiny config of it.
    """
    with quiet(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        full = _full(model_type, given)
        base, chosen = _base(model_type, full)
        found = [Variant("base", base)]
        for name, changes in options.optional(base):
            config = _runs(model_type, {**chosen, **changes})
            if config is not None:
                found.append(Variant(name, config))
        return tuple(found)


def _class(model_type: str) -> Any:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    if model_type not in CONFIG_MAPPING:
        raise ConfigError("model_type", model_type, "a model type of the installed transformers")
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    outer = CONFIG_MAPPING[model_type]
    model: Any = MODEL_FOR_CAUSAL_LM_MAPPING.get(outer, None)
    return outer if model is None else model.config_class


def _full(model_type: str, given: Mapping[str, Any] | None) -> Any:
    fields = {
        k: plain_settings(v)
        for k, v in (given or {}).items()
        if k not in ("model_type", "quantization_config", "auto_map", "transformers_version")
    }
    try:
        return _class(model_type)(**fields)
    except REFUSED as error:
        message = f"{type(error).__name__}: {error}"
        raise ConfigError("config", message[:300], "a config that transformers accepts") from error


def _base(model_type: str, full: Any) -> tuple[Any, dict[str, Any]]:
    """The first tiny config that runs, from the most telling one on, with its settings."""
    errors: list[str] = []
    for head in options.head_sizes(settings(full)):
        chosen = shrink(full, head)
        config = _runs(model_type, chosen, errors)
        if config is not None:
            return config, chosen
    raise ConfigError(
        "model_type",
        f"{model_type}: {errors[0] if errors else 'no tiny config'}",
        "a tiny config that transformers runs",
        "Its family needs an entry in onboard/probe/options.py.",
    )


def _runs(model_type: str, chosen: Mapping[str, Any], errors: list[str] | None = None) -> Any | None:
    try:
        config = _class(model_type)(**chosen)
        logits = Reference(config).logits(range(3, 15))
        if logits.shape[-1] and bool(logits.isfinite().all()):
            return _class(model_type)(**chosen)
        raise ValueError("logits are not finite")
    except REFUSED as error:
        if errors is not None:
            errors.append(f"{type(error).__name__}: {error}"[:300])
        return None


def shrink(full: Any, head: int | None) -> dict[str, Any]:
    """Settings of the tiny twin of a config.

    Args:
        full: the config.
        head: size of a head, or None to leave it to the class.
    """
    own = getattr(full, "attribute_map", None) or {}
    values = settings(full)
    layers = _layers(full.num_hidden_layers if isinstance(getattr(full, "num_hidden_layers", None), int) else 2, values)
    for name, size in SIZES.items():
        key = own.get(name, name)
        if isinstance(values.get(key), int) and not isinstance(values[key], bool) and values[key]:
            values[key] = size
    values.update(_heads(settings(full), values, own, head))
    values.update(_experts(values))
    for name, value in MULTIPLIERS.items():
        if name in values and (values[name] in (1, 1.0) or name in ("query_pre_attn_scalar", "attention_multiplier")):
            values[name] = value
    values.update(_per_layer(full, values, own, layers))
    values.update({k: v for k, v in options.TOKENS.items() if k in values})
    values.update(options.rotary(full, values, head))
    return {**values, **options.own(full.model_type, values)}


def settings(config: Any) -> dict[str, Any]:
    """The settings of a config object; one that lists what differs by layer is told by its two sizes again."""
    values = {k: plain_settings(v) for k, v in config.to_dict().items() if k not in options.NOT_SETTINGS}
    by_layer = values.pop("per_layer_config", None)
    if by_layer:
        other = next(iter(by_layer.values()))
        values["global_head_dim"] = other.get("head_dim", values.get("head_dim"))
        if "num_key_value_heads" in other:
            values["num_global_key_value_heads"] = other["num_key_value_heads"]
    return values


def plain_settings(value: Any) -> Any:
    """A setting as transformers takes it: nested blocks without what is not a setting, infinities as numbers again."""
    if isinstance(value, list | tuple):
        return [plain_settings(each) for each in value]
    if not isinstance(value, dict):
        return value
    if set(value) == {"__float__"}:
        return float(value["__float__"])
    return {k: plain_settings(v) for k, v in value.items() if k not in options.NOT_SETTINGS}


def _heads(
    full: Mapping[str, Any], values: Mapping[str, Any], own: Mapping[str, str], head: int | None
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    key = own.get("num_key_value_heads", "num_key_value_heads")
    heads, kv = full.get(own.get("num_attention_heads", "num_attention_heads")), full.get(key)
    if isinstance(kv, int) and not isinstance(kv, bool):
        same = kv == heads or bool(values.get("kv_lora_rank"))
        found[key] = 4 if same else 1 if kv == 1 else 2
    for name, count in (
        ("num_global_key_value_heads", 1),
        ("swa_num_key_value_heads", 4),
        ("swa_num_attention_heads", 8),
    ):
        if isinstance(values.get(name), int):
            found[name] = count
    if "head_dim" in values:
        found["head_dim"] = head
    return found


def _experts(values: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in EXPERTS:
        if isinstance(values.get(name), int) and values[name] > 1:
            found[name] = 8
    for name in TOP_K:
        if isinstance(values.get(name), int) and values[name] > 0:
            found[name] = min(values[name], 3)
    for name, groups in GROUPS.items():
        if isinstance(values.get(name), int) and values[name] > 1:
            found[name] = groups
    return found


def _layers(count: int, values: Mapping[str, Any]) -> list[int]:
    """Which layers of a config its tiny twin keeps: two of each kind, in order."""
    columns = list(_lists(values, count))
    kept: list[int] = []
    seen: dict[tuple[Any, ...], int] = {}
    for index in range(count):
        kind = _kind(columns, index)
        seen[kind] = seen.get(kind, 0) + 1
        if seen[kind] <= 2:
            kept.append(index)
    if values.get("num_kv_shared_layers"):
        # Each kind with a cache of its own first, then once more for the layers that read it.
        first = [k for k in kept if not any(_kind(columns, j) == _kind(columns, k) for j in kept if j < k)]
        return (first + first)[:MOST_LAYERS]
    if len(kept) < 3:
        kept = list(range(min(count, 3)))
    return kept[:MOST_LAYERS]


def _kind(columns: Sequence[Sequence[Any]], index: int) -> tuple[str, ...]:
    return tuple(str(column[index]) for column in columns)


def _lists(values: Mapping[str, Any], count: int) -> Iterator[Sequence[Any]]:
    for name, value in values.items():
        if name in INDICES and isinstance(value, list | tuple):
            yield [k in value for k in range(count)]
        elif isinstance(value, list | tuple) and len(value) == count and count > 1:
            yield value


def _per_layer(full: Any, values: Mapping[str, Any], own: Mapping[str, str], layers: Sequence[int]) -> dict[str, Any]:
    count = full.num_hidden_layers if hasattr(full, "num_hidden_layers") else None
    found: dict[str, Any] = {own.get("num_hidden_layers", "num_hidden_layers"): len(layers)}
    for name, value in values.items():
        if name in INDICES and isinstance(value, list | tuple):
            found[name] = [k for k, i in enumerate(layers) if i in value]
        elif isinstance(value, list | tuple) and len(value) == count and count and count > 1:
            found[name] = [value[i] for i in layers]
    for name in THRESHOLDS:
        if isinstance(values.get(name), int) and values[name]:
            found[name] = 1 if name != "num_kv_shared_layers" else len(layers) // 2
    for name in PERIODS:
        if isinstance(values.get(name), int) and values[name] > 1:
            found[name] = 2
    if "max_window_layers" in values:
        found["max_window_layers"] = 1
    return found
