"""Real checkpoints in float32: every greedy token equals what transformers would choose at that place.

16 prompts of 64 tokens each; two prompts are longer than Gemma's window of 512 and than position 256, and are prefilled
in chunks. The reference sees prompt and tokens at once and must name the same token at each position.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

CHILD = """
import json, sys
from vllm import LLM, SamplingParams
folder, prompts, tokens = json.loads(sys.argv[1])
llm = LLM(folder, dtype="float32", max_num_seqs=16, max_model_len=1024, max_num_batched_tokens=512, seed=0)
ids = [llm.get_tokenizer()(p)["input_ids"] for p in prompts]
out = llm.generate([{"prompt_token_ids": i} for i in ids],
                   SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True), use_tqdm=False)
print("RESULT " + json.dumps([[list(o.prompt_token_ids), list(o.outputs[0].token_ids)] for o in out]), flush=True)
"""
TOKENS = 64
LONG = " ".join(
    f"On day {i} the crew of ship number {i * 37 % 101} measured {i * i % 71} knots and wrote it in the log."
    for i in range(28)
)
PROMPTS = [
    "The capital of France is",
    "Once upon a time, in a village by the sea,",
    "def fibonacci(n):\n    ",
    "Q: What is 12 times 12?\nA:",
    "Die Hauptstadt von Deutschland ist",
    "人工知能とは",
    "The three laws of motion are:",
    "import numpy as np\n\nx =",
    "In a hole in the ground there lived",
    "Water boils at",
    "A list of prime numbers: 2, 3, 5,",
    "Dear Sir or Madam,",
    "SELECT name, COUNT(*) FROM",
    "The opposite of hot is",
    LONG,
    "Read the log and answer.\n" + LONG + "\nThe last ship was number",
]


@pytest.mark.parametrize("model", ["smollm2", "gemma3_270m"])
def test_greedy_tokens_equal_transformers(model: str, request: pytest.FixtureRequest) -> None:
    folder: Path = request.getfixturevalue(model)
    environment = {**os.environ, "VLLM_NEURON_CPU_MODE": "1", "HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "WARNING"}
    command = [sys.executable, "-c", CHILD, json.dumps([str(folder), PROMPTS, TOKENS])]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=550)
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert lines, done.stderr[-3000:]
    sequences = json.loads(lines[0].removeprefix("RESULT "))
    assert sum(len(prompt) > 512 for prompt, _ in sequences) == 2
    assert mismatches(folder, sequences) == []


def mismatches(
    folder: Path, sequences: list[tuple[list[int], list[int]]], length: int = TOKENS
) -> list[tuple[int, int, int, int]]:
    """(prompt, position, ours, the reference's) wherever the two differ."""
    from transformers import AutoModelForCausalLM

    reference = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    found = []
    with torch.no_grad():
        for number, (prompt, tokens) in enumerate(sequences):
            assert len(tokens) == length
            hidden = reference.model(torch.tensor([prompt + tokens])).last_hidden_state[0, len(prompt) - 1 : -1]
            wanted = reference.lm_head(hidden).argmax(-1).tolist()
            found += [(number, i, a, b) for i, (a, b) in enumerate(zip(tokens, wanted, strict=True)) if a != b]
    return found
