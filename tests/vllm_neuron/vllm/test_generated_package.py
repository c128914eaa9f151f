"""The real Gemma 3 270M through a package generated from its own config: the tokens of transformers, in float32."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from onboard.demo.installed import environment, install
from onboard.scaffold.new import make
from tests.vllm_neuron.vllm.test_real_weights import CHILD, PROMPTS, mismatches
from vllm_neuron import envs

# Short ones, and one that is longer than the window of 512 and prefilled in chunks.
CHOSEN = [PROMPTS[0], PROMPTS[5], PROMPTS[9], PROMPTS[-1]]
TOKENS = 32


def test_generated_gemma3_gives_the_tokens_of_transformers(gemma3_270m: Path, tmp_path: Path) -> None:
    package, target = tmp_path / "gemma3-tokens", tmp_path / "installed"
    made = make("gemma3-tokens", str(gemma3_270m), package)
    assert made.answers.code.open == ()
    install(package, target)
    changes = environment(target, "gemma3-tokens") | {"VLLM_NEURON_CPU_MODE": "1", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", CHILD, json.dumps([str(gemma3_270m), CHOSEN, TOKENS])]
    done = subprocess.run(command, env=envs.child(changes), capture_output=True, text=True, timeout=400)
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert lines, done.stderr[-3000:]
    assert "Gemma3ForCausalLM is served by gemma3-tokens, not by neuron-onboard" in done.stdout + done.stderr
    sequences = json.loads(lines[0].removeprefix("RESULT "))
    assert sum(len(prompt) > 512 for prompt, _ in sequences) == 1
    assert mismatches(gemma3_270m, sequences, TOKENS) == []
