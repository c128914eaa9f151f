"""Shared fixtures: the two demo models, written once into models/ at the root of the repository."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

os.environ.setdefault("HF_HUB_OFFLINE", "1")
# Threads that wait by spinning stall each other when several processes of a test share two cores.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# A deadline for each example measures the machine, not the code.
settings.register_profile("project", deadline=None)
settings.load_profile("project")

ROOT = Path(__file__).resolve().parent.parent


def _demo_model(name: str) -> Path:
    from onboard.demo.convert import write
    from onboard.demo.sources import find
    from onboard.report.console import Progress

    return write(find(name), ROOT / "models" / name, force=False, progress=Progress(enabled=False)).folder


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """Folder of SmolLM2-135M-Instruct, a real Llama in bf16."""
    return _demo_model("smollm2")


@pytest.fixture(scope="session")
def gemma3_270m() -> Path:
    """Folder of Gemma 3 270M in bf16."""
    return _demo_model("gemma3-270m")
