"""Commands in the documentation: where they stand, and which of them are tested elsewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```(?:bash|sh|shell|console)\n(.*?)^```", re.DOTALL | re.MULTILINE)

# Too heavy to run here, or in need of something that isn't here: command -> where it is tested or how it is checked.
ELSEWHERE: dict[str, str] = {
    "make setup": ".ci/run",
    "make test": ".ci/run",
    "make demo": "tests/onboard/demo/test_story.py",
    "make lint": "tests/arch/test_rules.py",
    "make docs": "tests/docs/test_reference.py",
    "make bench": "benchmarks/serving_vs_vllm_cpu.py",
    "pip install .": "tests/docs/test_light_install.py",
    "onboard demo-model smollm2 --to models/smollm2": "tests/conftest.py",
    "VLLM_NEURON_CPU_MODE=1 vllm serve models/smollm2 --max-model-len 2048": "tests/vllm_neuron/vllm/test_server.py",
    "onboard new mymodel --from Qwen/Qwen3-0.6B": "tests/onboard/scaffold/test_whole.py",
    "onboard verify mymodel": "tests/onboard/scaffold/test_whole.py",
    "onboard verify mymodel --only blocks": "tests/onboard/scaffold/test_whole.py",
    "onboard verify mymodel --engine": "tests/onboard/prove/test_engine.py",
    "onboard verify mymodel --checkpoint ./my-checkpoint": "tests/onboard/prove/test_checkpoint.py",
    "onboard update mymodel": "tests/onboard/scaffold/test_whole.py",
    "onboard update mymodel --dry-run": "tests/onboard/scaffold/test_update.py",
    "onboard zoo --only llama,gemma3_text,olmo2": "tests/onboard/zoo/test_zoo.py",
    "onboard zoo --jobs 2 --resume": "tests/onboard/zoo/test_zoo.py",
    "pip install -e mymodel": "tests/onboard/scaffold/test_whole.py",
    "onboard bisect models/smollm2 --package mymodel": "tests/onboard/cli/test_bisect.py",
    "onboard validate models/smollm2 --report report": "tests/onboard/checks/test_validate.py",
    "onboard validate models/smollm2 --level 3": "tests/vllm_neuron/accuracy/test_api.py",
    "onboard validate models/smollm2 --level 2 --chunk 128": "tests/onboard/checks/test_validate.py",
    "onboard validate models/smollm2 --package mymodel": "tests/onboard/checks/test_validate.py",
    "onboard validate models/smollm2 --level 2 --level 1 --server http://127.0.0.1:8000": (
        "tests/onboard/checks/test_validate.py"
    ),
    "onboard validate models/smollm2 --level 1 --tasks plain_facts --thresholds limits.toml": (
        "tests/vllm_neuron/accuracy/test_api.py"
    ),
    "onboard validate models/smollm2 --format markdown -o report.md": "tests/onboard/report/test_accuracy_views.py",
    "onboard validate ./my-checkpoint --package mymodel --report report": "tests/onboard/checks/test_validate.py",
    "onboard doctor": "tests/onboard/checks/test_doctor.py",
    "onboard capture models/smollm2 --modules 'layers.{0-3}.attn' --modules head "
    '--prompt "The capital is" --tokens 3 --to out': "tests/vllm_neuron/vllm/test_capture_cli.py",
    "onboard replay snapshots/step-000006": "tests/vllm_neuron/vllm/test_capture_cli.py",
    "VLLM_NEURON_CPU_MODE=1 vllm serve ./my-checkpoint": "tests/onboard/demo/test_demo.py",
    "VLLM_NEURON_CPU_MODE=1 VLLM_NEURON_KERNELS=require vllm serve ./my-checkpoint": (
        "tests/vllm_neuron/vllm/test_server_kernels.py"
    ),
    (
        "onboard kernels meta-llama/Llama-3.1-8B --tp 8 --lnc 2 --max-num-batched-tokens 256 --cost --trace trace.json"
    ): "tests/onboard/checks/test_kernels.py",
}


@dataclass(frozen=True)
class Command:
    """One command line of a documentation page."""

    page: str
    line: int
    text: str


def commands() -> Iterator[Command]:
    """Every command in the README and below docs/; continued lines are joined, comments dropped."""
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        text = path.read_text()
        for block in BLOCK.finditer(text):
            first = text.count("\n", 0, block.start(1)) + 1
            yield from _lines(path.relative_to(ROOT).as_posix(), first, block.group(1))


def _lines(page: str, first: int, block: str) -> Iterator[Command]:
    pending, start = "", first
    for number, raw in enumerate(block.splitlines(), first):
        line = raw.removeprefix("$ ").split("  #")[0].strip()
        if not line or line.startswith("#"):
            continue
        start = start if pending else number
        pending += line.removesuffix("\\")
        if not line.endswith("\\"):
            yield Command(page, start, " ".join(pending.split()))
            pending = ""
