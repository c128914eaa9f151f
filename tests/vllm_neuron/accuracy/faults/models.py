"""The tiny models that faults are planted in: real architectures, random weights that are bfloat16 numbers."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig

from onboard.probe.reference import Reference
from tests.support.hf import Tiny
from tests.vllm_neuron.accuracy.faults.gemma2 import Gemma2
from vllm_neuron.accuracy.hf import HFReference
from vllm_neuron.accuracy.target import PackageTarget
from vllm_neuron.model.loading.plan import Source
from vllm_neuron.model.registry import resolve
from vllm_neuron.parallel import get_tp_group

# Past every window and past position 256; and a short mate.
LENGTHS = (272, 37)
WINDOW = 40
ALTERNATE = ["sliding_attention", "full_attention", "sliding_attention"]
TINY = {
    "llama": Tiny(
        "LlamaForCausalLM",
        "llama",
        {"head_dim": 16, "tie_word_embeddings": False, "attention_bias": True, "num_hidden_layers": 3},
    ),
    "llama-tied": Tiny(
        "LlamaForCausalLM", "llama", {"head_dim": 16, "tie_word_embeddings": True, "num_hidden_layers": 2}
    ),
    "gemma2": Tiny(
        "Gemma2ForCausalLM",
        "gemma2",
        {
            "head_dim": 16,
            "sliding_window": WINDOW,
            "query_pre_attn_scalar": 24,
            "num_hidden_layers": 3,
            "layer_types": ALTERNATE,
            "attn_logit_softcapping": 3.0,
            "final_logit_softcapping": 5.0,
        },
    ),
    "gemma3": Tiny(
        "Gemma3ForCausalLM",
        "gemma3_text",
        {
            "head_dim": 32,
            "sliding_window": WINDOW,
            "query_pre_attn_scalar": 24,
            "num_hidden_layers": 3,
            "layer_types": ALTERNATE,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
            "final_logit_softcapping": 5.0,
        },
    ),
    "gpt_oss": Tiny(
        "GptOssForCausalLM",
        "gpt_oss",
        {
            "head_dim": 16,
            "sliding_window": WINDOW,
            "num_hidden_layers": 3,
            "layer_types": ALTERNATE,
            "num_local_experts": 8,
            "num_experts_per_tok": 3,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
        },
    ),
    "qwen3_moe": Tiny(
        "Qwen3MoeForCausalLM",
        "qwen3_moe",
        {
            "head_dim": 16,
            "num_hidden_layers": 2,
            "num_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 48,
            "norm_topk_prob": True,
        },
    ),
}
Plant = Callable[[Any], None]


@dataclass
class Planted:
    """A target whose every loaded model is changed by ``plant``.

    Attributes:
        subject: the tiny model.
        plant: what is done to a loaded model, on each rank.
    """

    subject: Subject
    plant: Plant | None = None

    def load(self, dtype: torch.dtype) -> Any:
        """See :class:`~vllm_neuron.accuracy.target.Target`."""
        model = self.subject.loaded(dtype)
        if self.plant is not None:
            self.plant(model)
        return model

    def sources(self, model: Any) -> dict[str, Source]:
        """See :class:`~vllm_neuron.accuracy.target.Target`."""
        return self.subject.target.sources(model)


@dataclass
class Subject:
    """One tiny model: saved, read back as references, loaded as ours."""

    name: str
    _loaded: dict[torch.dtype, Any] = field(default_factory=dict)
    _references: dict[torch.dtype, HFReference] = field(default_factory=dict)

    @cached_property
    def folder(self) -> Path:
        """The checkpoint; it is gone when the process ends."""
        self._keeper = tempfile.TemporaryDirectory(prefix="faults-")
        folder = Path(self._keeper.name)
        made = Reference(TINY[self.name].config())
        for parameter in made.model.parameters():
            parameter.copy_(parameter.bfloat16().float())
        made.save(folder)
        return folder

    @cached_property
    def target(self) -> PackageTarget:
        """Without a fault."""
        factory = Gemma2 if self.name == "gemma2" else resolve(TINY[self.name].architecture)
        return PackageTarget(factory, self.folder, AutoConfig.from_pretrained(self.folder))

    def loaded(self, dtype: torch.dtype) -> Any:
        """A fresh model for the current group."""
        if get_tp_group().world_size > 1:
            return self.target.load(dtype)
        if dtype not in self._loaded:
            self._loaded[dtype] = self.target.load(dtype)
        return copy.deepcopy(self._loaded[dtype])

    def reference(self, dtype: torch.dtype) -> HFReference:
        """The Hugging Face model in a dtype."""
        if dtype not in self._references:
            self._references[dtype] = HFReference.load(self.folder, dtype)
        return self._references[dtype]

    @cached_property
    def prompts(self) -> list[list[int]]:
        """Tokens at which no router's choice is a tie."""
        for seed in range(40):
            generator = torch.Generator().manual_seed(seed)
            prompts = [torch.randint(3, 320, (size,), generator=generator).tolist() for size in LENGTHS]
            if all(self._steady(ids) for ids in prompts):
                return prompts
        raise AssertionError(f"{self.name}: every prompt has a tie")

    def _steady(self, ids: list[int]) -> bool:
        """Whether rounding errors leave every token's logits where they are."""
        reference = self.reference(torch.float32)
        table = reference.model.get_input_embeddings().weight
        before, kept = reference.logits(ids), table.detach().clone()
        generator = torch.Generator().manual_seed(len(ids))
        try:
            table.copy_(kept * (1 + 1e-5 * torch.randn(kept.shape, generator=generator)))
            after = reference.logits(ids)
        finally:
            table.copy_(kept)
        return bool(((after - before).norm(dim=-1) < 3e-3 * before.norm(dim=-1)).all())


@cache
def subject(name: str) -> Subject:
    """The tiny model of that name, made once in a process."""
    return Subject(name)
