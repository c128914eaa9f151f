"""Which package serves an architecture: a user's own before ours, errors with the package's name, nothing guessed."""

from __future__ import annotations

from pathlib import Path

import pytest

from vllm_neuron.errors import ConfigError, UnsupportedError
from vllm_neuron.model import registry


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Install a distribution that serves LlamaForCausalLM from a module with the given source."""

    def install(name: str, source: str) -> None:
        module = name.replace("-", "_")
        (tmp_path / f"{module}.py").write_text(source)
        info = tmp_path / f"{module}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[vllm_neuron.models]\nLlamaForCausalLM = {module}:Mine\n")
        monkeypatch.syspath_prepend(tmp_path)

    return install


def test_a_package_of_the_user_wins_over_a_reference_model(package) -> None:
    package("my-llama", "class Mine: pass\n")
    assert registry.resolve("LlamaForCausalLM").__module__ == "my_llama"
    assert registry.resolve("Gemma3ForCausalLM").__module__ == "reference_models.gemma3.factory"


def test_two_packages_of_the_user_need_a_choice(package, monkeypatch: pytest.MonkeyPatch) -> None:
    package("llama-one", "class Mine: pass\n")
    package("llama-two", "class Mine: pass\n")
    with pytest.raises(ConfigError, match=r"llama-one.*llama-two"):
        registry.find("LlamaForCausalLM")
    monkeypatch.setenv("VLLM_NEURON_MODEL_PACKAGE", "llama-two")
    assert registry.resolve("LlamaForCausalLM").__module__ == "llama_two"


def test_a_choice_that_nobody_answers_to_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_NEURON_MODEL_PACKAGE", "neuron-onbord")
    with pytest.raises(ConfigError, match="Did you mean 'neuron-onboard'"):
        registry.find("LlamaForCausalLM")


@pytest.mark.parametrize(
    "source",
    ["import no_such_module\n", "undefined_name\n", "1 / 0\n", "open('/no/such/file')\n", "class Other: pass\n"],
)
def test_a_package_that_does_not_import_is_named(package, source: str) -> None:
    package("broken-llama", source)
    with pytest.raises(ConfigError, match=r"broken-llama.*onboard doctor") as caught:
        registry.resolve("LlamaForCausalLM")
    assert caught.value.__cause__ is not None


def test_unknown_architecture_lists_the_registered_ones() -> None:
    with pytest.raises(UnsupportedError, match=r"Gemma3ForCausalLM, .*LlamaForCausalLM.*add-a-model"):
        registry.find("LamaForCausal")
