"""Where the time of `onboard new` goes: facts, probing, rendering, proof; and the whole command with its memory: JSON.

    python benchmarks/onboard_new.py [Qwen/Qwen3-0.6B] [--runs 1]

The parts are measured in this process, after the libraries were imported; the whole is a fresh process, imports
included. Each time stands there as wall clock and as processor time, which other programs on the machine change less.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

AIMS = {"rendering_s": 2.0, "whole_s": 40.0, "peak_gb": 6.0}
# What of rendering asks a tiny reference; the rest of it only computes with expressions and text.
PROBES = ("variants", "observe", "try_out", "leftovers")


class Clock:
    """Adds up seconds by name: wall clock, and processor time of all threads."""

    def __init__(self) -> None:
        self.wall: dict[str, float] = {}
        self.cpu: dict[str, float] = {}

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Time a block under ``name``."""
        wall, cpu = time.perf_counter(), time.process_time()
        try:
            yield
        finally:
            self.wall[name] = self.wall.get(name, 0.0) + time.perf_counter() - wall
            self.cpu[name] = self.cpu.get(name, 0.0) + time.process_time() - cpu

    def timed(self, call: Callable[..., Any], name: str) -> Callable[..., Any]:
        """``call`` with its time added to ``name``."""

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            with self.part(name):
                return call(*args, **kwargs)

        return wrapped


def parts(model: str, folder: Path) -> dict[str, Any]:
    """Seconds of each part, in this process."""
    clock = Clock()
    with clock.part("imports"):
        import torch
        import transformers.modeling_utils  # noqa: F401

        from onboard.prove import Package, prove
        from onboard.scaffold import names, origin, render
        from onboard.scaffold.answers import Answers
        from onboard.scaffold.new import code_of
        from onboard.scaffold.package import create
    for name in PROBES:
        setattr(render, name, clock.timed(getattr(render, name), "probing"))
    own = names.names("bench_model", folder)
    with clock.part("facts"):
        found = origin.read(model)
    with clock.part("rendering"):
        create(Answers(own, found, code_of(found.facts, own)), folder)
    for spent in (clock.wall, clock.cpu):
        spent["rendering"] -= spent["probing"]
    with clock.part("proof"):
        proof = prove(Package.load(folder))
    seconds = {f"{name}_s": round(spent, 3) for name, spent in clock.wall.items()}
    seconds |= {f"{name}_cpu_s": round(spent, 3) for name, spent in clock.cpu.items()}
    found_by = {"verdict": proof.verdict.value, "checks": len(proof.checks), "worst": proof.worst}
    return seconds | found_by | {"threads": torch.get_num_threads()}


def whole(model: str, folder: Path) -> dict[str, Any]:
    """Seconds and peak memory of the command in a process of its own."""
    command = [sys.executable, "-m", "onboard.cli.main", "new", "bench_model", "--from", model]
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run([*command, "--output", str(folder), "--format", "json"], capture_output=True, text=True)
    seconds, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        sys.exit(f"onboard new ended with {done.returncode}\n{done.stdout[-1000:]}\n{done.stderr[-1000:]}")
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    # Linux counts ru_maxrss in KiB.
    return {"whole_s": round(seconds, 2), "whole_cpu_s": round(cpu, 2), "peak_gb": round(after.ru_maxrss * 1024e-9, 2)}


def main() -> None:
    """Measure and print the JSON; figures are medians over the runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="Qwen/Qwen3-0.6B")
    parser.add_argument("--runs", type=int, default=1, help="of the whole command")
    args = parser.parse_args()
    os.environ |= {"HF_HUB_OFFLINE": "1", "OMP_WAIT_POLICY": "passive"}
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as scratch:
        runs = [whole(args.model, Path(scratch) / f"whole{i}") for i in range(args.runs)]
        result: dict[str, Any] = {"model": args.model, "cpus": os.cpu_count(), "load_before": round(load, 2)}
        result |= {key: statistics.median(run[key] for run in runs) for key in runs[0]}
        result |= parts(args.model, Path(scratch) / "parts")
    result["aims"] = {key: {"aim": aim, "reached": result[key] <= aim} for key, aim in AIMS.items()}
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
