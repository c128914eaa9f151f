"""The reference models are what ``onboard new`` renders today, and each is registered."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from onboard.scaffold.references import REFERENCES, files

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", REFERENCES)
def test_a_reference_model_is_what_the_renderer_writes(name: str) -> None:
    folder = ROOT / "reference_models" / name
    for file, text in files(name).items():
        assert (folder / file).read_text(encoding="utf-8") == text, f"make references writes {name}/{file} again"


def test_every_reference_model_is_registered() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    points = project["entry-points"]["vllm_neuron.models"]
    assert {value.split(".")[1] for value in points.values()} == set(REFERENCES)
    folders = {p.parent.name for p in (ROOT / "reference_models").glob("*/model.py")}
    assert folders == set(REFERENCES)
