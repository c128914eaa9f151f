"""Planted faults and harmless changes: what the bisection finds of them, as JSON.

Run from the root of the repository: ``python benchmarks/accuracy_faults.py [--only WORD] [--out FILE]``. Each fault has
the place that must be named beside the one that was; each harmless change must raise no alarm.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))


def faults(word: str) -> list[dict[str, Any]]:
    """One row for each planted fault."""
    from tests.vllm_neuron.accuracy.faults.attention_faults import attention_faults
    from tests.vllm_neuron.accuracy.faults.block_faults import block_faults

    rows = []
    for fault in (*attention_faults(), *block_faults()):
        if word in fault.name:
            begin = time.perf_counter()
            found = fault.look()
            place = found.place
            rows.append(
                {
                    "fault": fault.name,
                    "model": fault.model,
                    "expected": fault.where.words(),
                    "dtype": fault.where.dtype,
                    "found": found.outcome == "fail",
                    "named": place.words() if place else None,
                    "right": fault.where.met(place),
                    "evidence": place.evidence if place else "",
                    "seconds": round(time.perf_counter() - begin, 2),
                }
            )
    return rows


def changes(word: str) -> list[dict[str, Any]]:
    """One row for each harmless change."""
    from tests.vllm_neuron.accuracy.faults.harmless import harmless

    rows = []
    for change in harmless():
        if word in change.name:
            begin = time.perf_counter()
            found = change.look()
            seconds = round(time.perf_counter() - begin, 2)
            alarm = None if found.outcome == "pass" else found.verdict
            rows.append({"change": change.name, "model": change.model, "alarm": alarm, "seconds": seconds})
    return rows


def main() -> None:
    """Run the matrix and print it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="a word of the names to run")
    parser.add_argument("--out", type=Path, help="write the JSON there too")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found, harmless = faults(options.only), changes(options.only)
    report = {
        "faults": len(found),
        "found": sum(row["found"] for row in found),
        "right_place": sum(row["right"] for row in found),
        "harmless": len(harmless),
        "alarms": sum(row["alarm"] is not None for row in harmless),
        "seconds": round(sum(row["seconds"] for row in found + harmless), 1),
        "fault_rows": found,
        "harmless_rows": harmless,
    }
    text = json.dumps(report, indent=1)
    print(text)
    if options.out is not None:
        options.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
