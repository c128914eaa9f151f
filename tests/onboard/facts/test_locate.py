"""Where a model comes from, in which order, and what is said when it is not there or is something else."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from onboard.facts import locate
from onboard.facts.api import load
from vllm_neuron.errors import ConfigError, NeuronError, UnsupportedError

TINY = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "vocab_size": 100,
}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    cache = tmp_path / "hub"
    monkeypatch.setenv("HF_HUB_CACHE", str(cache))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return cache


def write(folder: Path, **changes: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**TINY, **changes}))
    return folder


def cached(cache: Path, model: str, commit: str, ref: str = "main", **changes: Any) -> None:
    repo = cache / ("models--" + model.replace("/", "--"))
    write(repo / "snapshots" / commit, **changes)
    (repo / "refs").mkdir(parents=True, exist_ok=True)
    (repo / "refs" / ref).write_text(commit)


def test_folder_and_file(tmp_path: Path) -> None:
    folder = write(tmp_path / "model")
    by_folder, by_file = load(str(folder)), load(str(folder / "config.json"))
    assert by_folder.origin == by_file.origin == "file"
    assert by_folder.arch == by_file.arch
    assert by_folder.location == str(folder / "config.json")


def test_a_folder_goes_before_the_catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "meta-llama" / "Llama-3.1-8B")
    monkeypatch.chdir(tmp_path)
    assert load("meta-llama/Llama-3.1-8B").arch.hidden == 64


def test_the_catalog_goes_before_the_cache(own_cache: Path) -> None:
    cached(own_cache, "meta-llama/Llama-3.1-8B", "c1")
    assert load("meta-llama/Llama-3.1-8B").origin == "catalog"
    with_revision = load("meta-llama/Llama-3.1-8B", revision="main")
    assert (with_revision.origin, with_revision.arch.hidden) == ("cache", 64)


def test_cache_by_branch_and_by_commit(own_cache: Path) -> None:
    cached(own_cache, "acme/tiny", "c1")
    cached(own_cache, "acme/tiny", "c2", ref="v2", hidden_size=128)
    assert load("acme/tiny").arch.hidden == 64
    assert load("acme/tiny", revision="v2").arch.hidden == 128
    assert load("acme/tiny", revision="c2").arch.hidden == 128
    with pytest.raises(ConfigError):
        load("acme/tiny", revision="v3")


def test_not_found_offline_names_near_models() -> None:
    with pytest.raises(ConfigError, match="HF_HUB_OFFLINE") as caught:
        load("Qwen/Qwen3-9B")
    assert "Qwen/Qwen3-8B" in caught.value.action


@pytest.mark.parametrize(
    "model", ["", "  ", "./nothing", "/nothing/here", "a\x00b", "../up", "x" * 5000, "a/b/c/d", "é/ü"]
)
def test_names_that_lead_nowhere(model: str) -> None:
    with pytest.raises(NeuronError):
        load(model)


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"adapter_config.json": '{"peft_type": "LORA", "base_model_name_or_path": "x"}'}, "adapter"),
        ({"model_index.json": '{"_class_name": "FluxPipeline"}'}, "diffusers"),
        ({"tokenizer.json": "{}", "tokenizer_config.json": "{}"}, "tokenizer"),
        ({"params.json": "{}"}, "Mistral"),
        ({"model.gguf": ""}, "GGUF"),
        ({"notes.txt": ""}, "no config.json"),
        ({"config.json": '{"_class_name": "UNet2DConditionModel", "_diffusers_version": "0.3"}'}, "diffusers"),
        ({"config.json": '{"peft_type": "LORA"}'}, "adapter"),
        ({"config.json": '{"model_type": "bert", "architectures": ["BertForMaskedLM"]}'}, "encoder-only"),
        ({"config.json": '{"model_type": "t5", "is_encoder_decoder": true}'}, "encoder-decoder"),
        ({"config.json": '{"model_type": "gemma3_text", "use_bidirectional_attention": true}'}, "embedding model"),
    ],
)
def test_what_is_not_a_decoder_is_called_by_its_name(tmp_path: Path, files: dict[str, str], words: str) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(UnsupportedError) as caught:
        load(str(tmp_path))
    assert words in str(caught.value)


def test_an_adapter_file_by_its_path(tmp_path: Path) -> None:
    path = tmp_path / "adapter_config.json"
    path.write_text("{}")
    with pytest.raises(UnsupportedError, match="adapter"):
        load(str(path))


def test_code_of_the_repository_is_not_executed(tmp_path: Path) -> None:
    folder = write(tmp_path / "remote", model_type="exotic", auto_map={"AutoConfig": "configuration_exotic.Config"})
    (folder / "configuration_exotic.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\n")
    facts = load(str(folder))
    assert not (tmp_path / "ran").exists()
    assert any("not executed" in note for note in facts.notes)


def _hub_error(name: str) -> Exception:
    import httpx
    from huggingface_hub import errors

    response = httpx.Response(403, request=httpx.Request("GET", "https://hub.invalid"))
    kind = getattr(errors, name)
    return kind("no", response=response) if issubclass(kind, errors.HfHubHTTPError) else kind("no")


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        ("GatedRepoError", ConfigError, "hf auth login"),
        ("RepositoryNotFoundError", ConfigError, "hf auth login"),
        ("RevisionNotFoundError", ConfigError, "--revision"),
        ("EntryNotFoundError", UnsupportedError, "adapter"),
        ("LocalEntryNotFoundError", ConfigError, "check the network"),
        ("HFValidationError", ConfigError, "org/name"),
    ],
)
def test_hub_failures(monkeypatch: pytest.MonkeyPatch, error: str, kind: type[NeuronError], words: str) -> None:
    hub = pytest.importorskip("huggingface_hub")

    def fail(*_: Any, **__: Any) -> str:
        raise _hub_error(error)

    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.setattr(locate, "_require_answer", lambda *_: None)
    monkeypatch.setattr(hub, "hf_hub_download", fail)
    with pytest.raises(kind) as caught:
        load("acme/secret")
    assert words in str(caught.value)


def test_hub_network_failure_and_success(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hub = pytest.importorskip("huggingface_hub")
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.setattr(locate, "_require_answer", lambda *_: None)

    def fail(*_: Any, **__: Any) -> str:
        raise ConnectionError("no route")

    monkeypatch.setattr(hub, "hf_hub_download", fail)
    with pytest.raises(ConfigError, match="check the network"):
        load("acme/tiny")
    folder = write(tmp_path / "fetched")
    asked: dict[str, Any] = {}

    def fetch(model: str, file: str, revision: str | None = None) -> str:
        asked.update(model=model, file=file, revision=revision)
        return str(folder / file)

    monkeypatch.setattr(hub, "hf_hub_download", fetch)
    facts = load("acme/tiny", revision="v2")
    assert facts.origin == "hub"
    assert asked == {"model": "acme/tiny", "file": "config.json", "revision": "v2"}


def test_without_huggingface_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(UnsupportedError, match="pip install huggingface_hub"):
        load("acme/tiny")


def test_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", "")
    monkeypatch.setenv("HF_HOME", "/somewhere")
    assert locate.cache_folder() == Path("/somewhere/hub")
