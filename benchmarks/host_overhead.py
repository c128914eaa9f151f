"""Where a decode step's time goes at 32 sequences: forward, head, sampling, and the host's work around them, as JSON.

    python benchmarks/host_overhead.py models/smollm2 [--seqs 32] [--steps 60]

The engine runs in this process; a step is one call of vLLM's ``step``: scheduling, inputs, forward, sampling, outputs.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Clock:
    """Adds up the time spent inside wrapped functions, by name."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = defaultdict(float)

    def wrap(self, owner: Any, method: str, name: str) -> None:
        """Time ``owner.method`` under ``name``."""
        inner: Callable[..., Any] = getattr(owner, method)

        def timed(*args: Any, **kwargs: Any) -> Any:
            begin = time.perf_counter()
            try:
                return inner(*args, **kwargs)
            finally:
                self.spent[name] += time.perf_counter() - begin

        setattr(owner, method, timed)


def main() -> None:
    """Run the decode steps and print the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--seqs", type=int, default=32)
    parser.add_argument("--steps", type=int, default=60)
    args = parser.parse_args()
    os.environ |= {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NEURON_CPU_MODE": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
    }
    from vllm import LLM, SamplingParams

    llm = LLM(
        str(args.model),
        dtype="bfloat16",
        max_num_seqs=args.seqs,
        max_model_len=1024,
        seed=0,
        max_num_batched_tokens=2048,
    )
    engine = llm.llm_engine
    runner = engine.model_executor.driver_worker.worker.runner
    clock = Clock()
    clock.wrap(runner.model, "forward", "forward")
    clock.wrap(runner.model, "compute_logits", "head")
    clock.wrap(runner.sampler, "choose", "sampling")
    params = SamplingParams(temperature=0, max_tokens=args.steps + 20, ignore_eos=True)
    for i in range(args.seqs):
        engine.add_request(str(i), f"Write about topic {i}.", params)
    for _ in range(8):
        engine.step()
    rows = []
    for _ in range(args.steps):
        clock.spent.clear()
        begin = time.perf_counter()
        engine.step()
        total = time.perf_counter() - begin
        inside = dict(clock.spent)
        rows.append(inside | {"total": total, "host": total - sum(inside.values())})
    names = ("total", "forward", "head", "sampling", "host")
    medians = {name: statistics.median(row[name] for row in rows) for name in names}
    print(
        json.dumps(
            {
                "model": args.model.name,
                "seqs": args.seqs,
                "steps": args.steps,
                "median_ms": {name: round(1000 * value, 3) for name, value in medians.items()},
                "host_share": round(statistics.median(row["host"] / row["total"] for row in rows), 4),
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    main()
