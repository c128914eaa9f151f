"""How a family's checkpoint stores queries, keys and values. A config does not say it; the modelling code does.

- ``separate``: three matrices.
- ``concatenated``: one, all queries, then all keys, then all values.
- ``grouped``: one, for each KV head its queries, its key, its value.
- ``per head``: one, for each head its query, key and value (``grouped`` with a KV head a query head).
- ``transposed``: one as ``concatenated``, stored [in, out].
- ``four blocks``: four blocks of a quarter of the heads, each all its queries, then its values, then its keys.
- ``unknown``: the family is not in the table.

Sources: transformers 5.19, the attention classes of the families; InternLM2's ``wqkv`` and Baichuan's ``W_pack`` from
their published modelling code.
"""

from __future__ import annotations

import dataclasses

from onboard.arch.blocks import Attention
from onboard.arch.spec import ArchSpec

FIXED = {
    "baichuan": "concatenated",
    "bloom": "per head",
    "codegen": "four blocks",
    "dbrx": "concatenated",
    "gpt2": "transposed",
    "gpt_neox": "per head",
    "gpt_neox_japanese": "per head",
    "internlm2": "grouped",
    "mpt": "concatenated",
    "openai-gpt": "transposed",
    "persimmon": "per head",
    "phi3": "concatenated",
    "phi4_multimodal": "concatenated",
}


def _storage(model_type: str, attention: Attention) -> str:
    if model_type in ("chatglm", "falcon", "gpt_bigcode"):
        if attention.kv_heads == 1 or (model_type == "chatglm" and attention.kv_heads < attention.heads):
            return "concatenated"
        return "per head" if attention.kv_heads == attention.heads else "grouped"
    return FIXED.get(model_type, "separate")


def with_storage(spec: ArchSpec, model_type: str | None) -> ArchSpec:
    """The spec with the storage of every attention block filled in; ``model_type`` is None for an unknown family."""

    def stored(attention: Attention) -> Attention:
        storage = "unknown" if model_type is None else _storage(model_type, attention)
        return dataclasses.replace(attention, storage=storage)

    kinds = tuple(
        kind if kind.attention is None else dataclasses.replace(kind, attention=stored(kind.attention))
        for kind in spec.kinds
    )
    return spec if kinds == spec.kinds else dataclasses.replace(spec, kinds=kinds)


def interleaved_experts(model_type: str | None) -> bool:
    """Whether the experts' gate and up rows are stored in turn: gate 0, up 0, gate 1, ... (gpt-oss)."""
    return model_type == "gpt_oss"
