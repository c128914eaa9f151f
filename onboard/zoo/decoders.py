"""Which model types of the installed transformers are decoder-only language models."""

from __future__ import annotations

from collections.abc import Iterable

from vllm_neuron.errors import ConfigError, nearest

# Entries of transformers' causal-LM mapping that are none, by reason.
EXCLUDED: dict[str, str] = {
    "an encoder that can be run as a decoder": "bert bert-generation big_bird camembert data2vec-text electra ernie "
    "megatron-bert reformer rembert roberta roberta-prelayernorm roc_bert roformer xlm xlm-roberta xlm-roberta-xl "
    "xlnet xmod",
    "the decoder half of an encoder-decoder": "bart bigbird_pegasus blenderbot blenderbot-small marian mbart musicgen "
    "musicgen_melody mvp pegasus plbart prophetnet trocr whisper",
    "a model with other inputs too; its text decoder has a model type of its own or is another family": "fuyu gemma3 "
    "gemma3n gemma4 gemma4_unified git got_ocr2",
    "another name of a model type that is in the list": "gpt-sw3 llama4 qwen3_5 qwen3_5_moe qwen4_exp",
    "needs another model's states, or bytes in patches": "blt gemma4_assistant gemma4_unified_assistant",
}


def decoders() -> dict[str, str]:
    """Model type -> name of its causal LM class, in the order of the alphabet."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as NAMES

    left_out = {name for names in EXCLUDED.values() for name in names.split()}
    return {name: NAMES[name] for name in sorted(NAMES) if name not in left_out}


def chosen(only: Iterable[str] = ()) -> dict[str, str]:
    """The decoders that were asked for; all when none was.

    Raises:
        ConfigError: one of them is not in the list.
    """
    known, wanted = decoders(), list(only)
    for name in wanted:
        if name not in known:
            reason = next((why for why, names in EXCLUDED.items() if name in names.split()), "")
            action = f"It is left out: {reason}." if reason else nearest(name, known)
            raise ConfigError("--only", name, "a decoder-only model type of the installed transformers", action)
    return {name: known[name] for name in wanted} if wanted else known
