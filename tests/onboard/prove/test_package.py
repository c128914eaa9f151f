"""Packages come in from a folder, uninstalled, or by name; what does not import says where; open features are found."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from onboard.prove import Package, Status, Verdict
from onboard.prove.evidence import write_evidence
from tests.onboard.prove.conftest import README, proof_of, write_package
from vllm_neuron.errors import ConfigError

MLP = "return x_TH + self.mlp(self.mlp_norm(x_TH))"
TEST = '''
def test_open_altup():
    """altup is written."""
    assert False
'''


def test_two_packages_of_one_name_do_not_mix(tmp_path: Path) -> None:
    first = Package.load(write_package(tmp_path / "a", "llama3"))
    second = Package.load(write_package(tmp_path / "b", "llama3"))
    assert first.name == second.name and first.factory is not second.factory
    assert Path(sys.modules[second.factory.__module__].__file__ or "").is_relative_to(tmp_path / "b")
    assert not any(str(tmp_path) in entry for entry in sys.path)


def test_a_module_by_name() -> None:
    package = Package.load("reference_models.gemma3")
    assert (package.architecture, package.generated, package.open) == ("Gemma3ForCausalLM", False, ())


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (MLP, "return x_TH +", r"SyntaxError: invalid syntax \(src/copy_of_llama3/model.py, line 39\)"),
        ("from torch import Tensor, nn", "from torch import Tenser, nn", r"ImportError: .*Tenser.*model.py, line 8\)"),
        ("class Llama(", "UNKNOWN = undefined\n\n\nclass Llama(", r"NameError: .*'undefined'.*model.py, line"),
    ],
)
def test_code_that_does_not_import_says_where(old: str, new: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=said):
        Package.load(write_package(tmp_path, "llama3", ("model.py", old, new)))


def test_folders_that_are_no_package(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"exactly one src/<name>/factory.py"):
        Package.load(tmp_path)
    write_package(tmp_path / "p", "llama3")
    (tmp_path / "p" / "onboard.json").write_text("{")
    with pytest.raises(ConfigError, match=r"onboard.json.*JSONDecodeError"):
        Package.load(tmp_path / "p")
    for name in ("no/such/folder", "reference_models.llama5"):
        with pytest.raises(ConfigError, match=name):
            Package.load(name)


def opened(tmp_path: Path, old: str, new: str) -> Package:
    """A package that leaves altup open."""
    entry = {"feature": "altup", "hf_class": "Gemma3nTextAltUp", "source": "modeling_gemma3n.py", "where": ""}
    folder = write_package(tmp_path / "open", "llama3", ("model.py", old, new), opened=[entry])
    (folder / "tests").mkdir()
    (folder / "tests" / "test_open.py").write_text(TEST)
    return Package.load(folder)


def test_an_open_feature_leaves_the_rest_proved(tmp_path: Path) -> None:
    package = opened(tmp_path, MLP, "raise NotImplementedError('altup: see the README')")
    (found,) = package.open
    assert found.to_json() == {
        "feature": "altup",
        "source": "Gemma3nTextAltUp modeling_gemma3n.py",
        "file": "src/copy_of_llama3/model.py",
        "line": 39,
        "test": "tests/test_open.py::test_open_altup",
    }
    proof = proof_of(package, "llama")
    assert proof.verdict is Verdict.OPEN and not proof.failures
    passed = {check.what for check in proof.checks if check.status is Status.PASSED}
    assert {"block embed", "block layers.*.attn", "block layers.*.mlp", "block norm", "block head"} <= passed
    assert "whole model without a cache" in {check.what for check in proof.not_run}


def test_an_open_feature_of_some_configs_only(tmp_path: Path) -> None:
    """Where a variant does without the feature, that variant is proved in full; what waits is said."""
    old = "        self.mlp_norm = RMSNorm"
    new = f"        if c.mlp_bias:\n            raise NotImplementedError('altup: with biases')\n{old}"
    proof = proof_of(opened(tmp_path, old, new), "llama", "llama-tied-bias")
    assert proof.verdict is Verdict.OPEN
    assert {check.variant for check in proof.not_run} == {"llama-tied-bias"}
    assert all(check.status is Status.PASSED for check in proof.checks if check.variant == "base")


def test_an_open_feature_hides_no_wrong_block(tmp_path: Path) -> None:
    package = opened(tmp_path, MLP, "raise NotImplementedError('altup: see the README')")
    path = package.sources / "model.py"
    path.write_text(path.read_text().replace("{gate,up}", "{up,gate}"))
    proof = proof_of(Package.load(package.folder), "llama")
    assert proof.verdict is Verdict.FAILED and proof.divergence is not None
    assert proof.divergence.block == "layers.0.mlp"


def test_a_feature_that_was_written_is_open_no_more(tmp_path: Path) -> None:
    assert opened(tmp_path, MLP, MLP).open == ()


def test_a_base_that_is_refused_is_a_failure(package: Callable[..., Package]) -> None:
    refusing = (
        "config.py",
        "        refuse_foreign(hf_config)",
        "        from vllm_neuron.model.hf_config import refuse_unless\n"
        "        refuse_unless(hf_config, 'vocab_size', 1)",
    )
    proof = proof_of(package("llama3", refusing), "llama", "llama-tied-bias")
    assert [check.status for check in proof.checks] == [Status.FAILED, Status.REFUSED]
    assert "config.vocab_size: got 320" in proof.failures[0].message and proof.verdict is Verdict.FAILED


def test_the_evidence_goes_between_the_markers(tmp_path: Path) -> None:
    folder = write_package(tmp_path, "llama3")
    package = Package.load(folder)
    proof = proof_of(package, "llama")
    assert write_evidence(package, proof)
    text = (folder / "README.md").read_text()
    before, after = README.split("old")
    assert text.startswith(before) and text.endswith(after)
    assert "**copy_of_llama3 (LlamaForCausalLM): proved, " in text and "| base |" in text and str(tmp_path) not in text
    assert write_evidence(package, proof) and (folder / "README.md").read_text() == text
    assert not write_evidence(package, proof_of(package, "llama", only=["whole"]))
    (folder / "README.md").write_text("no markers")
    assert not write_evidence(package, proof) and (folder / "README.md").read_text() == "no markers"
