"""A package to try things on: written with the fake renderer, which needs neither torch nor transformers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from onboard.scaffold import new
from onboard.scaffold.new import Made
from tests.onboard.scaffold import fake

SOURCE = "meta-llama/Llama-3.1-8B"


@pytest.fixture
def renderer(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[..., object]], None]:
    """Put another renderer in place."""
    monkeypatch.setattr(new, "code_of", fake.model_code)
    return lambda code: monkeypatch.setattr(new, "code_of", code)


@pytest.fixture
def make(tmp_path: Path, renderer: object) -> Callable[..., Made]:
    """``onboard new`` below ``tmp_path``."""

    def run(name: str = "mymodel", source: str = SOURCE, **options: object) -> Made:
        return new.make(name, source, tmp_path / name, **options)

    return run
