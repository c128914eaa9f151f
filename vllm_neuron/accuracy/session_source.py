"""A model package as a source of logits, run step by step without vLLM."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from vllm_neuron.accuracy.session import Session
from vllm_neuron.accuracy.sources import LayerKV, Scored
from vllm_neuron.errors import ShapeError
from vllm_neuron.model.interface import NeuronModel
from vllm_neuron.model.kv_cache import LayerSpec


class SessionSource:
    """A loaded model over a paged cache of its own; a :class:`~vllm_neuron.accuracy.sources.LogitsSource`.

    Args:
        model: with its weights (``accuracy.target.PackageTarget`` loads one).
        dtype: that it was loaded in.
        name: in words.
        tokenizer_id: hash of its checkpoint's tokenizer, None when unknown.
        chunk: tokens of a prefill step; the first is a prefill, the others extend it. None for one step.
        block_size: tokens a block.
    """

    def __init__(
        self,
        model: NeuronModel,
        dtype: torch.dtype,
        *,
        name: str = "package",
        tokenizer_id: str | None = None,
        chunk: int | None = None,
        block_size: int = 16,
    ) -> None:
        if chunk is not None and chunk < 1:
            raise ShapeError("SessionSource.chunk", chunk, "a positive number of tokens, or None")
        self.model, self._dtype, self.name, self.tokenizer_id = model, dtype, name, tokenizer_id
        self.chunk, self.block_size = chunk, block_size

    @property
    def vocab_size(self) -> int:
        """V."""
        return self.model.vocab_size

    @property
    def dtype(self) -> str:
        """``float32`` or ``bfloat16``."""
        return str(self._dtype).removeprefix("torch.")

    def score(self, prompt_ids: Sequence[int], steps: int) -> Scored:
        """See :class:`~vllm_neuron.accuracy.sources.LogitsSource`.

        Raises:
            ShapeError: no ids, or ``steps`` out of range.
        """
        ids = [int(i) for i in prompt_ids]
        if not ids or not 0 <= steps < len(ids):
            raise ShapeError("steps", steps, f"0 to {len(ids) - 1}, with {len(ids)} prompt ids")
        session = Session(self.model, max_tokens=len(ids), block_size=self.block_size)
        prefilled = len(ids) - steps
        chunk = self.chunk or prefilled
        logits = torch.empty(0)
        for start in range(0, prefilled, chunk):
            piece = ids[start : min(start + chunk, prefilled)]
            logits = self._put(logits, session.extend(piece) if start else session.prefill(piece), start, len(ids))
        for position in range(prefilled, len(ids)):
            logits = self._put(logits, session.decode(ids[position]), position, len(ids))
        return Scored(logits, tuple(ids), kv=self._read(session, len(ids)))

    @staticmethod
    def _put(logits: Tensor, rows: Tensor, start: int, total: int) -> Tensor:
        if not start:
            if len(rows) == total:
                return rows
            logits = torch.empty(total, rows.shape[1], dtype=rows.dtype)
        logits[start : start + len(rows)] = rows
        return logits

    def _read(self, session: Session, length: int) -> tuple[LayerKV, ...]:
        found = []
        bound = session.paged.caches
        positions = torch.arange(length)
        for index, spec in enumerate(self.model.get_kv_spec().layers):
            if spec.kind in ("latent", "state"):
                continue
            binding = bound[spec.name]
            table = session.paged.tables[binding.group][0]
            pages = binding.pages[table[positions // self.block_size], positions % self.block_size]
            found.append(_split(spec, pages, index))
        return tuple(found)


def _split(spec: LayerSpec, pages_SW: Tensor, index: int) -> LayerKV:
    """Keys and values of the rows of a cache (see :mod:`vllm_neuron.model.kv_cache` for the layout)."""
    keys = spec.num_kv_heads * spec.head_size
    parts: list[Any] = [piece for piece in spec.name.split(".") if piece.isdigit()]
    return LayerKV(
        int(parts[0]) if parts else index,
        pages_SW[:, :keys].unflatten(1, (spec.num_kv_heads, spec.head_size)),
        pages_SW[:, keys:].unflatten(1, (spec.num_kv_heads, spec.value_size)),
        name=spec.name,
    )
