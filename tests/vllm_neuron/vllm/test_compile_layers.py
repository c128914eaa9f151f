"""``compile_layers``: one compiled function for all layers gives the tokens that plain execution gives."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.hf import MODELS

CHILD = """
import json, sys
from vllm import LLM, SamplingParams
folder, compiled = json.loads(sys.argv[1])
buckets = {"num_seqs_buckets": [4], "num_batched_tokens_buckets": [32], "decode_context_length_buckets": [64]}
llm = LLM(folder, dtype="float32", skip_tokenizer_init=True, max_num_seqs=4, max_model_len=64,
          max_num_batched_tokens=32, additional_config={"neuron_config": buckets | {"compile_layers": compiled}})
prompts = [{"prompt_token_ids": [5 + i, 9, 11 * i + 3, 40]} for i in range(3)] + [{"prompt_token_ids": [7] * 45}]
out = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, detokenize=False),
                   use_tqdm=False)
runner = llm.llm_engine.model_executor.driver_worker.worker.runner
forwards = {layer.forward.__func__ for layer in runner.model.layers}
from torch._dynamo.utils import counters
graphs = counters["stats"]["unique_graphs"]
print("RESULT " + json.dumps([[list(o.outputs[0].token_ids) for o in out], len(forwards), graphs]), flush=True)
"""


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile's CPU code generator needs a C++ compiler")
def test_tokens_are_those_of_plain_execution(tmp_path: Path) -> None:
    MODELS["llama"].save(tmp_path)
    environment = os.environ | {
        "VLLM_NEURON_CPU_MODE": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_LOGGING_LEVEL": "WARNING",
    }
    results = []
    for compiled in (True, False):
        command = [sys.executable, "-c", CHILD, json.dumps([str(tmp_path), compiled])]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=400)
        lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
        assert lines, done.stderr[-3000:]
        results.append(json.loads(lines[0].removeprefix("RESULT ")))
    (compiled_tokens, functions, graphs), (plain_tokens, _, none) = results
    assert compiled_tokens == plain_tokens
    assert functions == 1, "the layers do not share one function"
    assert none == 0 and 1 <= graphs <= 4, f"{graphs} graphs for three shapes, whatever the number of layers"
