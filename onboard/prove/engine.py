"""The package served by vLLM once, in a child process: greedy tokens and prompt log-probabilities, in float32."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from onboard.checks.child import last_exception
from onboard.prove.package import Package
from onboard.prove.proof import BAR, Check, Status
from onboard.prove.reference import HFReference
from vllm_neuron import envs

TIMEOUT_S = 300
PROMPTS = (3, 11, 29)
NEW_TOKENS = 6
WHAT = "served by vLLM"

# Reads a task file and writes the answers; vLLM is imported nowhere else in the proof.
CHILD = """
import json, sys
from vllm import LLM, SamplingParams
task = json.loads(open(sys.argv[1]).read())
llm = LLM(task["model"], skip_tokenizer_init=True, dtype="float32", max_model_len=task["length"], max_num_seqs=4,
          max_num_batched_tokens=16, enable_prefix_caching=False, kv_cache_memory_bytes=1 << 25, seed=0,
          max_logprobs=-1, disable_log_stats=True)
params = SamplingParams(temperature=0, max_tokens=task["new"], ignore_eos=True, prompt_logprobs=0, detokenize=False)
outputs = llm.generate([{"prompt_token_ids": p} for p in task["prompts"]], params, use_tqdm=False)
answers = [
    {
        "tokens": list(o.outputs[0].token_ids),
        "logprobs": [each[t].logprob for each, t in zip(o.prompt_logprobs[1:], o.prompt_token_ids[1:])],
    }
    for o in outputs
]
open(sys.argv[2], "w").write(json.dumps(answers))
"""


def check_engine(package: Package, reference: HFReference, folder: Path, *, seed: int) -> Check:
    """Serve a saved checkpoint with the package and compare with the reference.

    Args:
        package: found by the child through entry points, its own or ones written for this run.
        reference: the model of the checkpoint.
        folder: the checkpoint.
        seed: of the prompts.

    Returns:
        A check whose error is that of the prompt's log-probabilities; a greedy token that the reference would not
        choose fails it.
    """
    begin = time.perf_counter()
    generator = torch.Generator().manual_seed(seed + 1)
    vocab = int(reference.config.get_text_config().vocab_size)
    prompts = [torch.randint(3, vocab, (n,), generator=generator).tolist() for n in PROMPTS]
    task = {"model": str(folder), "length": max(PROMPTS) + NEW_TOKENS + 1, "new": NEW_TOKENS, "prompts": prompts}
    answers, problem = _serve(package, task, folder.parent / "engine")
    seconds = time.perf_counter() - begin
    if problem:
        return Check("", "engine", WHAT, None, seconds, Status.FAILED, problem)
    error = 0.0
    for prompt, answer in zip(prompts, answers, strict=True):
        with torch.no_grad():
            logits = reference.logits(torch.tensor([*prompt, *answer["tokens"]])).float().reshape(-1, vocab)
        problem = problem or _wrong_token(logits, prompt, answer["tokens"])
        error = max(error, _logprob_error(logits, prompt, answer["logprobs"]))
    failed = bool(problem) or not error <= BAR
    message = problem or (f"log-probabilities of the prompt over {BAR:g}" if failed else "")
    return Check("", "engine", WHAT, error, seconds, Status.FAILED if failed else Status.PASSED, message)


def _wrong_token(logits: Tensor, prompt: list[int], tokens: list[int]) -> str:
    for step, token in enumerate(tokens):
        row = logits[len(prompt) - 1 + step]
        # Two logits that are equal within the bar are a tie, which either may win.
        if row[token] < row.max() - BAR * row.abs().max():
            return f"greedy token {step} after {len(prompt)} tokens is {token}, the reference's is {int(row.argmax())}"
    return ""


def _logprob_error(logits: Tensor, prompt: list[int], found: list[float]) -> float:
    expected = logits.log_softmax(-1)[: len(prompt) - 1].gather(1, torch.tensor(prompt[1:])[:, None])[:, 0]
    return float((torch.tensor(found) - expected).norm() / expected.norm())


def _serve(package: Package, task: dict[str, Any], scratch: Path) -> tuple[list[dict[str, Any]], str]:
    """The child's answers, or what went wrong."""
    scratch.mkdir()
    question, answer = scratch / "task.json", scratch / "answer.json"
    question.write_text(json.dumps(task), encoding="utf-8")
    own = _entry_points(package, scratch)
    changes = {"VLLM_NEURON_CPU_MODE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "HF_HUB_OFFLINE": "1"}
    if own:
        before = envs.foreign("PYTHONPATH")
        changes["PYTHONPATH"] = os.pathsep.join([*own, *([before] if before else [])])
        changes["VLLM_NEURON_MODEL_PACKAGE"] = package.name
    environment = envs.child(changes)
    command = [sys.executable, "-c", CHILD, str(question), str(answer)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT_S, stdin=subprocess.DEVNULL, env=environment
        )
    except subprocess.TimeoutExpired:
        return [], f"vLLM gave no answer within {TIMEOUT_S} s"
    if done.returncode or not answer.is_file():
        return [], failure(done.stderr, done.returncode)
    return json.loads(answer.read_text(encoding="utf-8")), ""


def failure(stderr: str, code: int) -> str:
    """The child's last exception, with the file's name and line."""
    # torch.distributed puts the rank in front of the lines of a traceback.
    exception, place = last_exception(re.sub(r"(?m)^\[rank\d+\]: ?", "", stderr))
    return f"vLLM: {exception or f'exit code {code}'}" + (f" ({Path(place).name})" if place else "")


def _entry_points(package: Package, scratch: Path) -> list[str]:
    """Paths that make a package known to the child as if it were installed; none for an importable module."""
    if not package.generated and package.sources == package.folder:
        return []
    info = scratch / f"{package.name}-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package.name}\nVersion: 0\n", encoding="utf-8")
    value = f"{package.factory.__module__}:{package.factory.__name__}"
    (info / "entry_points.txt").write_text(
        f"[vllm_neuron.models]\n{package.architecture} = {value}\n", encoding="utf-8"
    )
    return [str(package.sources.parent), str(scratch)]
