"""What the renderer knows of a model: its config and tiny twins of it as transformers sees them, each with its spec."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onboard.arch.spec import ArchSpec
from onboard.facts.api import ModelFacts, read
from onboard.facts.families.common import CANONICAL_ACTIVATIONS
from onboard.facts.spellings import SPELLINGS
from onboard.probe.options import NOT_SETTINGS
from onboard.probe.tiny import plain_settings
from onboard.scaffold.expressions import Example
from vllm_neuron.errors import ConfigError, NeuronError
from vllm_neuron.model import hf_config as helpers

# Names in the order in which an expression prefers them.
WELL_KNOWN = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "hidden_act",
    "hidden_activation",
    "rms_norm_eps",
    "layer_norm_eps",
    "layer_types",
    "sliding_window",
    "max_position_embeddings",
    "tie_word_embeddings",
    "attention_bias",
    "mlp_bias",
)
# Settings of a config object that no computation of the decoder reads.
NOT_THE_MODEL = re.compile(
    r".*_token_id|.*_token_ids|.*dropout.*|.*_pdrop|drop_.*|initializer.*|init_.*|use_cache|return_dict|"
    r"output_attentions|output_hidden_states|output_router_logits|"
    r"id2label|label2id|problem_type|transformers_version|_.*|dtype|torch_dtype|architectures|model_type|name_or_path|"
    r"chunk_size_feed_forward|is_encoder_decoder|add_cross_attention|is_decoder|cross_attention_hidden_size|pruned_heads|"
    r"router_aux_loss_coef|aux_loss_alpha|seq_aux|router_z_loss_coef|router_jitter_noise|input_jitter_noise|"
    r"summary_.*|quantization_config|auto_map|attn_implementation|experts_implementation|tokenizer_class|"
    r"finetuning_task|.*mtp.*|num_nextn_predict_layers|task_specific_params|"
    r"gradient_checkpointing|scale_attn_weights_grad|use_mamba_kernels|"
    r"pretraining_tp|num_labels|sep_token_id|ep_size|decoder_start_token_id|layer_norm_type|.*_loss_.*|moe_loss_weight"
)


@dataclass(frozen=True)
class Twin:
    """One config with what it says.

    Attributes:
        name: "given" for the model at hand, else the variant's name.
        config: the transformers config object.
        spec: the architecture, read by the same rules as the model's own.
        env: field -> value, under the names that expressions use.
        sources: path in the architecture -> fields that decide it.
        derived: fields that no attribute holds -> (the expression over ``hf_config``, the helpers that it calls).
    """

    name: str
    config: Any
    spec: ArchSpec
    env: Mapping[str, Any]
    sources: Mapping[str, tuple[str, ...]]
    derived: Mapping[str, tuple[str, tuple[str, ...]]]

    def examples(self) -> list[Example]:
        """One for each layer."""
        return [Example(self.env, i, self.spec.layers, self.name) for i in range(self.spec.layers)]

    def example(self) -> Example:
        """One for the whole model."""
        return Example(self.env, 0, self.spec.layers, self.name)


def config_of(facts: ModelFacts) -> Any:
    """The transformers config object of the decoder; code from a repository is never run.

    Raises:
        ConfigError: transformers does not know the model type, or refuses the config.
    """
    from transformers import AutoConfig
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    if facts.model_type not in CONFIG_MAPPING:
        raise ConfigError(
            "model_type",
            facts.model_type,
            "a model type that the installed transformers has",
            "Upgrade transformers, or give a config of a known type.",
        )
    fields = {k: plain_settings(v) for k, v in facts.text.items() if k not in NOT_SETTINGS}
    try:
        return AutoConfig.for_model(str(facts.model_type), **fields)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        message = f"{type(error).__name__}: {error}"
        raise ConfigError("config", message[:300], "a config that transformers accepts", "Correct it.") from error


def twins(facts: ModelFacts, variants: Sequence[tuple[str, Any]]) -> list[Twin]:
    """The model's own config first, then its tiny variants; one whose spec can't be read is left out."""
    found = [twin("given", config_of(facts), facts.arch, facts)]
    for name, config in variants:
        try:
            tiny = read(config.to_dict(), name=name)
        except NeuronError:
            continue
        found.append(twin(name, config, tiny.arch, tiny))
    return found


def twin(name: str, config: Any, spec: ArchSpec, facts: ModelFacts) -> Twin:
    """A config with its spec and the fields that decide each value."""
    keys = {word for path, source in facts.sources.items() if "." in path for word in (source.key or "").split(".")}
    env, derived = environment(config, keys)
    hints = _hints(facts, env, getattr(config, "attribute_map", None) or {})
    return Twin(name, config, spec, env, hints, derived)


Derived = dict[str, tuple[str, tuple[str, ...]]]


def environment(config: Any, decisive: Collection[str] = ()) -> tuple[dict[str, Any], Derived]:
    """Field -> value of a config object, under transformers' common names where a class has its own; and how those
    are read that no single attribute holds.

    Args:
        config: the config object.
        decisive: fields that the architecture was read from, whatever their names look like.
    """
    own = {v: k for k, v in (getattr(config, "attribute_map", None) or {}).items()}
    values: dict[str, Any] = {}
    unread = unread_fields(config)
    for name, value in vars(config).items():
        if name in unread or (NOT_THE_MODEL.fullmatch(name) and name not in decisive):
            continue
        if hasattr(value, "to_dict"):
            values.update({f"{name}.{k}": v for k, v in vars(value).items() if not NOT_THE_MODEL.fullmatch(k)})
        else:
            values[own.get(name, name)] = value
    for name in ("layer_types", "layers_block_type", "mlp_layer_types"):
        if name not in values and isinstance(getattr(config, name, None), list | tuple):
            values[name] = getattr(config, name)
    derived = _derived(config, values)
    return {name: _plain(name, values[name]) for name in sorted(values, key=_rank)}, derived


def unread_fields(config: Any) -> frozenset[str]:
    """Keys of a config that its class does not declare and its model's source does not name: transformers carries
    them along and computes nothing with them."""
    declared = {field for one in type(config).__mro__ for field in vars(one).get("__annotations__", ())}
    declared |= set((getattr(config, "attribute_map", None) or {}).values())
    extra = [name for name in vars(config) if name not in declared and not name.startswith("_")]
    if not extra:
        return frozenset()
    module = type(config).__module__
    try:
        source = inspect.getsource(importlib.import_module(module.replace("configuration_", "modeling_")))
    except (ImportError, OSError, TypeError):
        return frozenset()
    return frozenset(name for name in extra if not re.search(rf"\b{re.escape(name)}\b", source))


def _derived(config: Any, values: dict[str, Any]) -> Derived:
    """Add what takes a helper to read."""
    derived: Derived = {}
    varying = {k for each in (config.to_dict().get("per_layer_config") or {}).values() for k in each}
    for name in sorted(varying & values.keys()):
        values[name] = helpers.per_layer(config, name)
        derived[name] = (f"per_layer(hf_config, {name!r})", ("per_layer",))
    if "head_dim" not in varying and {"hidden_size", "num_attention_heads"} <= values.keys():
        try:
            values["head_dim"] = helpers.head_size(config)
            derived["head_dim"] = ("head_size(hf_config)", ("head_size",))
        except (ConfigError, TypeError):
            values.pop("head_dim", None)
    if isinstance(values.get("num_kv_shared_layers"), int) and values.get("layer_types"):
        values["kv_source"] = helpers.shared_kv_layers(values["layer_types"], values["num_kv_shared_layers"])
        text = "shared_kv_layers(require(hf_config, 'layer_types'), require(hf_config, 'num_kv_shared_layers'))"
        derived["kv_source"] = (text, ("require", "shared_kv_layers"))
    if isinstance(values.get("kv_lora_rank"), int):
        try:
            values["latent_scale"] = helpers.latent_scale(config)
            derived["latent_scale"] = ("latent_scale(hf_config)", ("latent_scale",))
        except (ConfigError, TypeError):
            values.pop("latent_scale", None)
    rope = getattr(config, "rope_parameters", None)
    if isinstance(rope, Mapping) and not any(isinstance(v, Mapping) for v in rope.values()):
        for name in ("original_max_position_embeddings", "llama_4_scaling_beta"):
            if isinstance(rope.get(name), int | float):
                values[name] = rope[name]
                derived[name] = (f"rope_parameters(hf_config)[{name!r}]", ("rope_parameters",))
        if isinstance(rope.get("rope_theta"), int | float):
            values["rope_theta"] = rope["rope_theta"]
            derived["rope_theta"] = ("plain_rope_base(hf_config)", ("plain_rope_base",))
    return derived


def _rank(name: str) -> tuple[int, str]:
    return (WELL_KNOWN.index(name), "") if name in WELL_KNOWN else (len(WELL_KNOWN), name)


def _plain(name: str, value: Any) -> Any:
    if isinstance(value, str) and "act" in name:
        return CANONICAL_ACTIVATIONS.get(value, value)
    return tuple(value) if isinstance(value, list) else value


# Derived fields that decide a value, beside the ones that the facts name.
EXTRA_HINTS = {
    "attention.scale": ("latent_scale",),
    "attention.shared_kv": ("kv_source",),
    "attention.head_size_k": ("head_dim",),
    "attention.head_size_v": ("head_dim",),
    "attention.positions.scaling.query_beta": ("llama_4_scaling_beta",),
    "attention.positions.scaling.original": ("original_max_position_embeddings",),
    "moe.router.groups": ("n_group",),
    "moe.router.top_groups": ("topk_group",),
}


def _hints(facts: ModelFacts, env: Mapping[str, Any], renamed: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    common = {v: k for k, v in renamed.items()}
    prefix = facts.section + "." if facts.section else ""
    hints: dict[str, tuple[str, ...]] = {}
    for path, source in facts.sources.items():
        key = source.key or ""
        words = [key.removeprefix(prefix), *re.findall(r"[A-Za-z_][\w.]*", key)]
        names = [common.get(w, w) for word in words for w in spellings(word)]
        plain = path.split("@", 1)[0]
        found = tuple(dict.fromkeys(n for n in names if n in env))
        hints[plain] = tuple(dict.fromkeys((*hints.get(plain, ()), *found)))
    return hints


def spellings(name: str) -> tuple[str, ...]:
    """A key with the other spellings of the same setting; a family's class reads one of them."""
    group = next((each for each in SPELLINGS.values() if name in each), ())
    return tuple(dict.fromkeys((name, *group)))


EPS = (
    "attention.qk_norm.eps",
    "attention.v_norm.eps",
    "attention.out_norm.eps",
    "attention.latent.norm.eps",
    "mlp.down_norm.eps",
    "final_norm.eps",
    "embedding.norm.eps",
)


def merged_hints(twins: Sequence[Twin]) -> dict[str, tuple[str, ...]]:
    """The fields that decide a path in any of the configs."""
    merged: dict[str, tuple[str, ...]] = {}
    for twin in twins:
        for path, names in twin.sources.items():
            merged[path] = tuple(dict.fromkeys((*merged.get(path, ()), *names)))
    for path, names in EXTRA_HINTS.items():
        known = tuple(n for n in names if all(n in twin.env for twin in twins))
        merged[path] = tuple(dict.fromkeys((*merged.get(path, ()), *known)))
    # One eps serves all norms of a model, unless the facts say more.
    shared = merged.get("norms.eps", ())
    for path in EPS:
        merged.setdefault(path, shared)
    return merged
