"""CPU mode against vLLM's own CPU backend: throughput and engine start, in one run, in turn.

    python benchmarks/serving_vs_vllm_cpu.py models/smollm2 [--pairs 3] [--output FILE]

Each measurement is a fresh process that builds the engine, generates once to warm up, and generates once for the clock.
Both backends get the same cores and threads. Prints JSON: each run, then the ratios of each pair and their median.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

LOADS = {"8 seqs": (16, 64, 8), "32 seqs": (64, 32, 32)}

CHILD = """
import json, os, sys, time
begin = time.perf_counter()
from vllm import LLM, SamplingParams
imported = time.perf_counter()
model, requests, tokens, seqs, threads, extra = json.loads(sys.argv[1])
llm = LLM(model, dtype="bfloat16", max_num_seqs=seqs, max_model_len=1024, enable_prefix_caching=False,
          disable_log_stats=True, seed=0, **extra)
started = time.perf_counter()
prompts = [f"Question {i}: write a few sentences about topic number {i * 7 % 31}." for i in range(requests)]
params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
llm.generate(prompts[:seqs], SamplingParams(temperature=0, max_tokens=4, ignore_eos=True), use_tqdm=False)
clock = time.perf_counter()
out = llm.generate(prompts, params, use_tqdm=False)
spent = time.perf_counter() - clock
made = sum(len(o.outputs[0].token_ids) for o in out)
assert made == requests * tokens, made
print("RESULT " + json.dumps({"import_s": imported - begin, "start_s": started - imported, "tokens": made,
                              "seconds": spent, "tokens_per_s": made / spent}), flush=True)
"""


def environment(ours: bool, cores: list[int]) -> dict[str, str]:
    """A child's environment: the backend's switch and the same cores for both."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("VLLM_", "OMP_"))}
    env["HF_HUB_OFFLINE"] = "1"
    env["VLLM_LOGGING_LEVEL"] = "WARNING"
    if ours:
        env["VLLM_NEURON_CPU_MODE"] = "1"
        env["VLLM_NEURON_CPU_THREADS"] = str(len(cores))
    else:
        env["VLLM_PLUGINS"] = "none"
        env["VLLM_CPU_OMP_THREADS_BIND"] = f"{cores[0]}-{cores[-1]}"
        env["VLLM_CPU_NUM_OF_RESERVED_CPU"] = "0"
        env["VLLM_CPU_KVCACHE_SPACE"] = "2"
        env.pop("VLLM_CPU_NUM_OF_RESERVED_CPU") if len(cores) == 1 else None
    return env


def measure(
    ours: bool, model: Path, load: tuple[int, int, int], cores: list[int], compile_layers: bool
) -> dict[str, Any]:
    """One run in a fresh process."""
    requests, tokens, seqs = load
    extra: dict[str, Any] = {}
    if ours and compile_layers:
        extra["additional_config"] = {"neuron_config": {"compile_layers": True}}
    argument = json.dumps([str(model), requests, tokens, seqs, len(cores), extra])
    command = [sys.executable, "-c", CHILD, argument]
    done = subprocess.run(command, env=environment(ours, cores), capture_output=True, text=True, timeout=900)
    for line in done.stdout.splitlines():
        if line.startswith("RESULT "):
            return {"backend": "neuron-cpu" if ours else "vllm-cpu", **json.loads(line[7:])}
    raise SystemExit(f"{'CPU mode' if ours else 'vLLM CPU'} failed:\n{done.stderr[-4000:]}")


def main() -> None:
    """Run the pairs and print the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="a Hugging Face folder, e.g. from `onboard demo-model smollm2`")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--load", choices=[*LOADS, "all"], default="all")
    parser.add_argument("--compile-layers", action="store_true")
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    result: dict[str, Any] = {
        "model": args.model.name,
        "cores": cores,
        "compile_layers": args.compile_layers,
        "loads": {},
    }
    for name, load in LOADS.items():
        if args.load not in (name, "all"):
            continue
        pairs = []
        for index in range(args.pairs):
            order = (True, False) if index % 2 == 0 else (False, True)
            runs = {ours: measure(ours, args.model, load, cores, args.compile_layers) for ours in order}
            pairs.append({"ours": runs[True], "vllm": runs[False]})
            print(f"{name} pair {index + 1}: {json.dumps(pairs[-1])}", file=sys.stderr, flush=True)
        throughput = [p["ours"]["tokens_per_s"] / p["vllm"]["tokens_per_s"] for p in pairs]
        start = [p["ours"]["start_s"] / p["vllm"]["start_s"] for p in pairs]
        result["loads"][name] = {
            "requests": load[0],
            "tokens": load[1],
            "max_num_seqs": load[2],
            "pairs": pairs,
            "throughput_ratio": throughput,
            "throughput_ratio_median": statistics.median(throughput),
            "start_ratio": start,
            "start_ratio_median": statistics.median(start),
        }
    text = json.dumps(result, indent=1)
    print(text)
    if args.output:
        args.output.write_text(text + "\n")


if __name__ == "__main__":
    main()
