"""Copies of the reference models as packages in a folder, whole or with one thing changed."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import reference_models
from onboard.probe.tiny import Variant
from onboard.prove import Package, Proof, prove
from tests.support.hf import MODELS

MODELS_ROOT = Path(reference_models.__file__).parent
ARCHITECTURES = {"llama3": ("LlamaForCausalLM", "llama"), "gemma3": ("Gemma3ForCausalLM", "gemma3_text")}
README = "# A package\n\nBefore.\n\n<!-- onboard:evidence -->\nold\n<!-- /onboard:evidence -->\n\nAfter.\n"


def write_package(folder: Path, model: str, *edits: tuple[str, str, str], opened: Sequence[Any] = ()) -> Path:
    """Copy a reference model to ``folder`` as `onboard new` lays a package out; edits are (file, old, new)."""
    name = f"copy_of_{model}"
    target = folder / "src" / name
    target.mkdir(parents=True)
    for path in (MODELS_ROOT / model).glob("*.py"):
        text = path.read_text().replace(f"reference_models.{model}", name)
        for file, old, new in edits:
            if file == path.name:
                assert old in text, f"{old!r} is not in {model}/{file}"
                text = text.replace(old, new)
        (target / path.name).write_text(text)
    architecture, model_type = ARCHITECTURES[model]
    facts = {"model": "x/y", "model_type": model_type, "architecture": architecture, "given": None}
    (folder / "onboard.json").write_text(json.dumps({**facts, "open": list(opened)}))
    (folder / "README.md").write_text(README)
    return folder


@pytest.fixture
def package(tmp_path: Path) -> Callable[..., Package]:
    """``package(model, *edits)``: the copy, imported from its folder."""
    return lambda model, *edits, **options: Package.load(write_package(tmp_path / "package", model, *edits, **options))


def tiny(*names: str) -> tuple[Variant, ...]:
    """Variants of the runtime's own tiny models; the first one is the base."""
    return tuple(Variant("base" if i == 0 else name, MODELS[name].config()) for i, name in enumerate(names))


def proof_of(package: Package, *names: str, **options: Any) -> Proof:
    """The proof on some of those variants."""
    return prove(package, tiny(*names), **options)
