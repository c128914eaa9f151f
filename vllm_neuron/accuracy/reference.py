"""Hugging Face as a source of logits: the fp32 gold and the bf16 baseline, computed once and kept.

The model's body runs a prompt in one pass; its head runs over chunks of positions, so a vocabulary of 262,144 in
float32 never has more than 64 MiB of logits in memory. The chunks go to the cache's file as they come, and what is
handed out is mapped from there.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vllm_neuron.accuracy.golden import GoldenCache, digest
from vllm_neuron.accuracy.hf import HFReference
from vllm_neuron.accuracy.inputs import tokenizer_id
from vllm_neuron.accuracy.sources import LayerKV, Scored
from vllm_neuron.errors import ShapeError, UnsupportedError

FORMAT = 1
CHUNK = 1 << 24
_PLAIN = {"full_attention", "sliding_attention", "chunked_attention"}
_WORDS = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}


class HFSource:
    """A causal LM of transformers with eager attention, as a
    :class:`~vllm_neuron.accuracy.sources.LogitsSource`.

    Every position is run in one pass without decoding steps: in exact arithmetic that is the same, and the rounding
    errors of a baseline have the same size.

    Args:
        folder: Hugging Face folder with safetensors files.
        dtype: float32 for the gold, bfloat16 for the baseline.
        cache: where references are kept; the default folder when None. ``GoldenCache(limit_bytes=0)`` keeps none.

    Raises:
        CheckpointError: transformers can't read the folder (when the model is first needed).
    """

    def __init__(self, folder: Path, dtype: torch.dtype = torch.float32, *, cache: GoldenCache | None = None) -> None:
        if dtype not in _WORDS:
            raise UnsupportedError("HFSource.dtype", dtype, "float32, bfloat16 or float16")
        self.folder, self._dtype = Path(folder), dtype
        self.cache = cache or GoldenCache()
        self._model: Any = None
        self._held: tuple[str, dict[str, Tensor], str] | None = None

    @property
    def name(self) -> str:
        """``Hugging Face fp32``."""
        return f"Hugging Face {_WORDS[self._dtype]}"

    @property
    def dtype(self) -> str:
        """``float32``, ``bfloat16`` or ``float16``."""
        return str(self._dtype).removeprefix("torch.")

    @cached_property
    def config(self) -> Any:
        """The transformers config of the text model."""
        from transformers import AutoConfig

        return AutoConfig.from_pretrained(self.folder, local_files_only=True).get_text_config()

    @property
    def vocab_size(self) -> int:
        """V of the config."""
        return int(self.config.vocab_size)

    @cached_property
    def tokenizer_id(self) -> str | None:
        """Hash of the folder's tokenizer, None when it has none."""
        return tokenizer_id(self.folder)

    @cached_property
    def _weights(self) -> str:
        return self.cache.weights_id(self.folder)

    def key(self, ids: Sequence[int]) -> str:
        """What the reference of a prompt is kept under: all that its numbers depend on."""
        import transformers

        return digest(
            {
                "format": FORMAT,
                "weights": self._weights,
                "ids": [int(i) for i in ids],
                "dtype": self.dtype,
                "attention": "eager",
                "torch": torch.__version__,
                "transformers": transformers.__version__,
                "cpu": torch.backends.cpu.get_cpu_capability(),
            }
        )

    def prepare(self, prompts: Sequence[Sequence[int]], progress: Callable[[int, int], None] | None = None) -> None:
        """Compute what is not kept yet, then let the model go; what can't be kept is computed when it is asked for.

        Args:
            prompts: token ids; empty ones are left out.
            progress: called with how many are done, and how many there are.
        """
        for number, ids in enumerate(prompts):
            if ids and self.cache.limit_bytes and self.cache.load(self.key(ids)) is None:
                _, _, why = self._computed(ids)
                if why:
                    return
            if progress is not None:
                progress(number + 1, len(prompts))
        self.release()

    def release(self) -> None:
        """Free the model and what was computed last."""
        self._model = self._held = None
        gc.collect()

    def score(self, prompt_ids: Sequence[int], steps: int) -> Scored:
        """See :class:`~vllm_neuron.accuracy.sources.LogitsSource`; ``steps`` changes nothing here.

        Raises:
            ShapeError: no ids, or ``steps`` out of range.
        """
        ids = tuple(int(i) for i in prompt_ids)
        if not ids or not 0 <= steps < len(ids):
            raise ShapeError("steps", steps, f"0 to {len(ids) - 1}, with {len(ids)} prompt ids")
        key = self.key(ids)
        tensors, why = self.cache.load(key), ""
        if tensors is None:
            _, tensors, why = self._held if self._held and self._held[0] == key else self._computed(ids)
        notes = (f"{self.name} {why}",) if why else ()
        layers = sorted(int(name[5:]) for name in tensors if name.startswith("keys."))
        kv = tuple(LayerKV(i, tensors[f"keys.{i}"], tensors[f"values.{i}"], name=f"layers.{i}") for i in layers)
        return Scored(tensors["logits"], ids, kv=kv or None, notes=notes)

    def _computed(self, ids: Sequence[int]) -> tuple[str, dict[str, Tensor], str]:
        """The key, tensors, and why they are not kept ("" when they are)."""
        if self._model is None:
            self._model = HFReference.load(self.folder, self._dtype).model
        key = self.key(ids)
        run = BodyRun(self._model, ids)
        first = run.logits(0, 1)
        shapes = {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in run.kv.items()}
        shapes["logits"] = (first.dtype, (len(ids), first.shape[1]))
        why = self.cache.store(key, shapes, self._pieces(run, len(ids), first.shape[1]))
        kept = None if why else self.cache.load(key)
        if kept is not None:
            return key, kept, ""
        logits = torch.cat(list(self._pieces(run, len(ids), first.shape[1]))[len(run.kv) :])
        self._held = (key, run.kv | {"logits": logits}, why or "not cached: removed by another process")
        return self._held

    @staticmethod
    def _pieces(run: BodyRun, length: int, vocab: int) -> Iterator[Tensor]:
        yield from run.kv.values()
        step = max(1, CHUNK // vocab)
        for start in range(0, length, step):
            yield run.logits(start, min(start + step, length))


class BodyRun:
    """One prompt run through the body of a causal LM; the head is run later, for any positions.

    Args:
        model: of transformers.
        ids: the prompt.

    Attributes:
        kv: ``keys.{layer}`` and ``values.{layer}`` -> [T, K, D]; empty for a model that keeps something else.
    """

    def __init__(self, model: Any, ids: Sequence[int]) -> None:
        self.model, self.ids = model, torch.tensor([list(ids)])
        self.body = model.base_model
        self.whole = self.body is model
        options: dict[str, Any] = {"use_cache": False}
        cache = _plain_cache(model)
        if cache is not None:
            options = {"use_cache": True, "past_key_values": cache}
        with torch.no_grad():
            self.output = self.body(input_ids=self.ids, return_dict=True, **options)
        self.kv = {} if cache is None else _keys_and_values(cache)

    def logits(self, start: int, stop: int) -> Tensor:
        """[stop - start, V] in the dtype that the model gives."""
        if self.whole:
            found: Tensor = self.output.logits[0, start:stop]
            return found
        hidden = self.output.last_hidden_state[:, start:stop]
        with torch.no_grad(), self._giving(hidden):
            found = self.model(input_ids=self.ids[:, start:stop], use_cache=False, return_dict=True).logits[0]
        return found

    @contextlib.contextmanager
    def _giving(self, hidden: Tensor) -> Iterator[None]:
        """The body gives these hidden states for as long as the block lasts, so that all behind it runs as it is."""
        given = type(self.output)(last_hidden_state=hidden)
        self.body.forward = lambda *args, **kwargs: given
        try:
            yield
        finally:
            del self.body.forward


def _plain_cache(model: Any) -> Any:
    """A cache in which every layer keeps all keys and values; None for a model whose layers keep something else."""
    from transformers import DynamicCache

    config = model.config.get_text_config()
    types = set(getattr(config, "layer_types", None) or ())
    if getattr(model, "_is_stateful", False) or not types <= _PLAIN:
        return None
    # Without the config no layer drops what its window has passed.
    return DynamicCache()


def _keys_and_values(cache: Any) -> dict[str, Tensor]:
    found = {}
    for index, layer in enumerate(cache.layers):
        if getattr(layer, "keys", None) is not None:
            found[f"keys.{index}"] = layer.keys[0].transpose(0, 1)
            found[f"values.{index}"] = layer.values[0].transpose(0, 1)
    return found
