"""All reference models with every operation on NKI kernels, on the stand-in: in float32 each equals transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

import vllm_neuron.functional as NF
from vllm_neuron.accuracy.session import Session
from vllm_neuron.model.neuron_config import NeuronConfig
from vllm_neuron.model.registry import registered, resolve
from vllm_neuron.nki.backend import CORES_VARIABLE

BOUND = 1e-5
SIZES: dict[str, Any] = {
    "vocab_size": 331,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "sliding_window": 40,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
MIXED = {"layer_types": ["sliding_attention", "full_attention"]}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
GEMMA4 = {
    "attention_k_eq_v": True,
    "final_logit_softcapping": 30.0,
    "global_head_dim": 32,
    "hidden_size_per_layer_input": 0,
    "num_global_key_value_heads": 2,
    "num_kv_shared_layers": 0,
}
# Model type and what it needs beside the sizes, by architecture.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "Cohere2ForCausalLM": ("cohere2", MIXED),
    "Gemma3ForCausalLM": ("gemma3_text", MIXED),
    "Gemma4ForCausalLM": ("gemma4_text", {**MIXED, **GEMMA4}),
    "Glm4ForCausalLM": ("glm4", {}),
    "GptOssForCausalLM": ("gpt_oss", {**MIXED, **EXPERTS}),
    "GraniteForCausalLM": ("granite", {}),
    "LlamaForCausalLM": ("llama", {}),
    "MixtralForCausalLM": ("mixtral", {**EXPERTS, "sliding_window": None}),
    "Olmo2ForCausalLM": ("olmo2", {}),
    "Phi3ForCausalLM": ("phi3", {}),
    "Qwen3ForCausalLM": ("qwen3", {}),
    "Qwen3MoeForCausalLM": ("qwen3_moe", {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}),
}


def all_phases(model: Any, ids: list[int]) -> Tensor:
    """A prefill, a chunk after it, and three tokens one by one."""
    session = Session(model, max_tokens=len(ids) + 20)
    parts = [session.prefill(ids[:37]), session.extend(ids[37:-3], pad=9)]
    return torch.cat([*parts, *(session.decode(token) for token in ids[-3:])])


def test_every_reference_model_is_here() -> None:
    assert set(MODELS) == set(registered())


@pytest.mark.parametrize("architecture", sorted(MODELS))
def test_kernels_equal_transformers(architecture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CORES_VARIABLE, "2")
    kind, own = MODELS[architecture]
    config = AutoConfig.for_model(kind, **(SIZES | own))
    config.architectures = [architecture]
    torch.manual_seed(0)
    reference = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    reference.save_pretrained(tmp_path)
    ids = torch.randint(3, 320, (110,)).tolist()
    refused = NF.refusals()
    with NF.use_kernels("require"), torch.no_grad():
        model: Any = resolve(architecture).from_configs(AutoConfig.from_pretrained(tmp_path), NeuronConfig())
        model.load_weights(tmp_path, torch.float32, progress=False)
        model.lay_out_weights()
        found = all_phases(model, ids)
        expected = reference(torch.tensor([ids])).logits[0].float()
    assert float((found - expected).abs().max() / expected.abs().max()) < BOUND
    assert NF.refusals() == refused
