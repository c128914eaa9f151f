"""Whole models on several ranks: every shard of every parameter, head counts, prefixes, a config of another model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.support.hf import MODELS, Tiny
from vllm_neuron.errors import CheckpointError, ConfigError
from vllm_neuron.model.neuron_config import NeuronConfig
from vllm_neuron.model.registry import resolve
from vllm_neuron.parallel import Group, run_in_threads

TINY = Tiny(
    "LlamaForCausalLM",
    "llama",
    {
        "vocab_size": 321,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "attention_bias": True,
        "num_hidden_layers": 2,
    },
)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    TINY.save(folder)
    return folder


def load_ranks(folder: Path, tiny: Tiny, ranks: int) -> list[dict[str, Tensor]]:
    def work(group: Group) -> dict[str, Tensor]:
        model = resolve(tiny.architecture).from_configs(tiny.config(), NeuronConfig())
        model.load_weights(folder, torch.float32, progress=False)
        return dict(model.state_dict())

    return run_in_threads(ranks, work)


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_D5_a_whole_model_glued_back_together(llama: Path, ranks: int) -> None:
    """Every parameter of all ranks together is the checkpoint, bit for bit; no two ranks are equal."""
    file = load_file(llama / "model.safetensors")
    shards = load_ranks(llama, TINY, ranks)
    copies = max(1, ranks // 2)
    sizes = (64 // ranks, 16 // min(ranks, 2), 16 // min(ranks, 2))
    for i in range(2):
        theirs = f"model.layers.{i}."
        for leaf in ("weight", "bias"):
            q, k, v = zip(*(s[f"layers.{i}.attn.qkv.{leaf}"].split(sizes) for s in shards), strict=True)
            for parts, p in ((q, "q"), (k[::copies], "k"), (v[::copies], "v")):
                assert torch.equal(torch.cat(parts), file[f"{theirs}self_attn.{p}_proj.{leaf}"])
        gate, up = zip(*(s[f"layers.{i}.mlp.gate_up.weight"].chunk(2) for s in shards), strict=True)
        assert torch.equal(torch.cat(gate), file[theirs + "mlp.gate_proj.weight"])
        assert torch.equal(torch.cat(up), file[theirs + "mlp.up_proj.weight"])
        for ours, key in (("attn.o", "self_attn.o_proj"), ("mlp.down", "mlp.down_proj")):
            whole = torch.cat([s[f"layers.{i}.{ours}.weight"] for s in shards], 1)
            assert torch.equal(whole, file[f"{theirs}{key}.weight"])
        assert all(torch.equal(s[f"layers.{i}.attn.o.bias"], file[theirs + "self_attn.o_proj.bias"]) for s in shards)
    for ours, key in (("embed", "model.embed_tokens"), ("head", "lm_head")):
        whole = torch.cat([s[f"{ours}.weight"] for s in shards])
        assert torch.equal(whole[:321], file[f"{key}.weight"]) and not whole[321:].any()
    for name in shards[0]:
        if "norm" not in name and name.split(".")[-2:] != ["o", "bias"]:
            assert len({s[name].numpy().tobytes() for s in shards}) == ranks, name


def test_D7_head_counts_that_do_not_divide_are_refused_before_the_load(tmp_path: Path) -> None:
    tiny = Tiny("LlamaForCausalLM", "llama", {"num_attention_heads": 28, "num_key_value_heads": 4, "hidden_size": 224})
    for ranks in (7, 8, 14):
        with pytest.raises(ConfigError, match="1, 2, 4, 28"):
            load_ranks(tmp_path / "never opened", tiny, ranks)


@pytest.mark.parametrize("shift", ["language_model.model.", "model.language_model.", "model.model."])
def test_C13_a_whole_model_under_another_prefix(tmp_path: Path, shift: str) -> None:
    tiny = MODELS["llama-tied-bias"]
    tiny.save(tmp_path)
    plain = load_ranks(tmp_path, tiny, 1)[0]
    file = load_file(tmp_path / "model.safetensors")
    save_file({name.replace("model.", shift, 1): t for name, t in file.items()}, tmp_path / "model.safetensors")
    shifted = load_ranks(tmp_path, tiny, 1)[0]
    assert plain.keys() == shifted.keys() and all(torch.equal(plain[name], shifted[name]) for name in plain)


def cut_config(config: dict[str, object]) -> None:
    config["num_hidden_layers"] = 1


def widen_config(config: dict[str, object]) -> None:
    config["intermediate_size"] = 128


@pytest.mark.parametrize(
    ("change", "said"),
    [(cut_config, "keys without parameters"), (widen_config, "Is this the config of this checkpoint?")],
)
def test_a_config_of_another_model(llama: Path, change: Callable[[dict[str, object]], None], said: str) -> None:
    from transformers import LlamaConfig

    values = json.loads((llama / "config.json").read_text())
    change(values)
    model = resolve("LlamaForCausalLM").from_configs(LlamaConfig(**values), NeuronConfig())
    with pytest.raises(CheckpointError, match=said.replace("?", r"\?")):
        model.load_weights(llama, torch.float32, progress=False)
    assert all(parameter.is_meta for parameter in model.parameters())
