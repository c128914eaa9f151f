"""Which part of a config is the decoder, of which family it is, and what a config that holds none looks like."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from onboard.facts.families.table import CLASSES, FAMILIES, SAME_AS
from onboard.facts.spellings import SPELLINGS
from vllm_neuron.errors import ConfigError, UnsupportedError

NESTED = ("text_config", "language_config", "llm_config", "thinker_config", "language_model_config", "lm_config",
          "llm", "text_model", "language_model", "decoder_config", "text_decoder_config")  # fmt: skip
TOWERS = {"vision_config": "vision", "visual": "vision", "vit_config": "vision", "vision_tower_config": "vision",
          "audio_config": "audio", "audio_encoder_config": "audio", "speech_config": "audio"}  # fmt: skip
ENCODERS = (
    "bert",
    "roberta",
    "xlm-roberta",
    "distilbert",
    "electra",
    "deberta",
    "deberta-v2",
    "albert",
    "modernbert",
    "nomic_bert",
    "mpnet",
    "vit",
    "clip",
    "clip_vision_model",
    "siglip",
    "siglip2",
    "dinov2",
    "wav2vec2",
    "hubert",
    "camembert",
    "xlm",
    "ernie",
    "longformer",
    "big_bird",
    "rembert",
    "esm",
    "layoutlmv3",
    "bert-generation",
    "data2vec-text",
    "megatron-bert",
    "mobilebert",
    "roberta-prelayernorm",
    "roc_bert",
    "roformer",
    "xlm-roberta-xl",
    "xmod",
)
ENCODER_HEADS = ("ForMaskedLM", "ForPreTraining", "ForImageClassification", "ForCTC", "ForTokenClassification")
SIZES = tuple(s for key in ("hidden_size", "num_hidden_layers", "num_attention_heads") for s in SPELLINGS[key])


@dataclass(frozen=True)
class Section:
    """The decoder's part of a config: its dotted path ("" for the top), content, family name and class names."""

    path: str
    text: Mapping[str, Any]
    model_type: str | None
    architectures: tuple[str, ...]


def refuse_other_kinds(raw: Mapping[str, Any], name: str) -> None:
    """Stop for configs of things that are not a causal language model.

    Raises:
        UnsupportedError: saying what it looks like.
    """
    for key, looks in (
        ("peft_type", "a PEFT adapter"),
        ("_diffusers_version", "part of a diffusers pipeline"),
        ("_class_name", "part of a diffusers pipeline"),
        ("tokenizer_class", "a tokenizer's config"),
    ):
        if key in raw and not any(size in raw for size in SIZES) and not any(k in raw for k in NESTED):
            raise UnsupportedError(name, key, "a model's config.json", f"This looks like {looks}.")
    if raw.get("is_encoder_decoder") is True:
        raise UnsupportedError(f"{name}: is_encoder_decoder", True, "a decoder-only model", "This is encoder-decoder.")
    model_type = raw.get("model_type")
    classes = _classes(raw, "architectures")
    only_encoder = classes and all(c.endswith(ENCODER_HEADS) for c in classes)
    if (model_type in ENCODERS or only_encoder) and raw.get("is_decoder") is not True:
        raise UnsupportedError(f"{name}: model_type", model_type, "a decoder", "This looks like an encoder-only model.")


def _classes(section: Mapping[str, Any], path: str) -> tuple[str, ...]:
    names = section.get("architectures")
    if names is None:
        return ()
    if isinstance(names, str):
        return (names,)
    if not isinstance(names, list) or any(not isinstance(n, str) for n in names):
        raise ConfigError(path, names, "a list of class names", "Correct the config.")
    return tuple(names)


def find(raw: Mapping[str, Any], name: str, architecture: str | None = None) -> Section:
    """The decoder's section.

    Args:
        raw: the whole config.
        name: stands for the file in errors.
        architecture: a class name that takes the place of the config's.

    Raises:
        ConfigError: no ``architectures`` anywhere and no model type that is known.
        UnsupportedError: not a decoder.
    """
    refuse_other_kinds(raw, name)
    path, text, searched = "", raw, ["the top"]
    outer_type, outer_classes = raw.get("model_type"), _classes(raw, "architectures")
    while True:
        inner = next((k for k in NESTED if isinstance(text.get(k), Mapping) and text[k]), None)
        if inner is None:
            break
        path = f"{path}.{inner}" if path else inner
        text = text[inner]
        searched.append(path)
    classes = _classes(text, f"{path}.architectures") if path else outer_classes
    model_type = text.get("model_type")
    if model_type is not None and not isinstance(model_type, str):
        raise ConfigError(f"{path}.model_type".lstrip("."), model_type, "a string", "Correct the config.")
    family = _family(model_type, (architecture,) if architecture else classes, outer_type, outer_classes)
    found = (architecture,) if architecture else (classes or outer_classes)
    if not found and family not in FAMILIES:
        raise ConfigError(
            f"{name}: architectures",
            None,
            "a class name such as LlamaForCausalLM at the top or in a nested section",
            f"Searched: {', '.join(searched)}. Add it to the config, or pass it with --architecture NAME.",
        )
    return Section(path, text, family, found or _class_of(family))


def _class_of(family: str | None) -> tuple[str, ...]:
    return (FAMILIES[family].class_name,) if family in FAMILIES else ()


def _family(model_type: str | None, classes: tuple[str, ...], outer: Any, outer_classes: tuple[str, ...]) -> str | None:
    """The family's name: the section's own model type, else what its classes or the outer type say."""
    candidates: list[Any] = [model_type]
    candidates += [CLASSES.get(c) for c in classes]
    if isinstance(outer, str):
        candidates += [outer, f"{outer}_text"]
    candidates += [CLASSES.get(c) for c in outer_classes]
    if model_type is not None and model_type not in FAMILIES and model_type not in SAME_AS:
        by_class = next((c for c in candidates[1:] if c in FAMILIES), None)
        return by_class if by_class is not None and CLASSES.get((classes or ("",))[0]) == by_class else model_type
    for candidate in candidates:
        if candidate is not None:
            known = candidate if candidate in FAMILIES else SAME_AS.get(candidate)
            if known in FAMILIES:
                return known
    return model_type if model_type is not None else (outer if isinstance(outer, str) else None)
