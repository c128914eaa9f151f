"""Level 3 in both dtypes, and the search for the guilty module after a level that failed."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch

from vllm_neuron.accuracy.bisect import bisect
from vllm_neuron.accuracy.hf import HFReference
from vllm_neuron.accuracy.modules import check_modules
from vllm_neuron.accuracy.results import LevelResult, Place, worst
from vllm_neuron.accuracy.rig import Rig
from vllm_neuron.accuracy.target import Target
from vllm_neuron.errors import UnsupportedError

Say = Callable[[str, int, int], None]
References = Callable[[torch.dtype], HFReference]


def run_modules(
    target: Target, references: References, ids: Sequence[int], dtypes: Sequence[torch.dtype], say: Say
) -> LevelResult:
    """Each block of the package against its Hugging Face module, in each dtype.

    Args:
        target: the package on its checkpoint.
        references: gives the Hugging Face model in a dtype.
        ids: what both sides run.
        dtypes: float32 is held to a relative bar, bfloat16 is compared three-way.
        say: told what runs, the dtypes done, and how many there are.
    """
    begin = time.perf_counter()
    found: list[LevelResult] = []
    for done, dtype in enumerate(dtypes):
        name = str(dtype).removeprefix("torch.")
        say(f"modules in {name}", done, len(dtypes))
        exact = dtype == torch.float32
        baseline = None if exact else references(dtype)
        try:
            found.append(check_modules(Rig(target, references(torch.float32), [ids], baseline=baseline, dtype=dtype)))
        except UnsupportedError as error:
            return LevelResult(f"not run: {error}", 3, seconds=time.perf_counter() - begin)
        if found[-1].outcome == "fail":
            # What is wrong in float32 is wrong in every dtype, by more than rounding hides.
            break
    say("modules", len(dtypes), len(dtypes))
    blocks = tuple(block for level in found for block in level.blocks)
    place = next((level.place for level in found if level.place is not None), None)
    outcome = worst(level.outcome for level in found)
    failed = sum(block.outcome == "fail" for block in blocks)
    words = f"{failed} of {len(blocks)} comparisons of blocks" if failed else f"{len(blocks)} comparisons of blocks"
    verdict = f"fail: {place.words()}; {words} differ" if place is not None else f"{outcome}: {words}"
    notes = tuple(dict.fromkeys(note for level in found for note in level.notes))
    return LevelResult(verdict, 3, blocks=blocks, place=place, notes=notes, seconds=time.perf_counter() - begin)


def find_place(target: Target, references: References, prompts: Sequence[Sequence[int]], say: Say) -> Place | None:
    """The first guilty module of the package on prompts that failed; None when the package by itself is right.

    Args:
        target: the package on its checkpoint.
        references: gives the Hugging Face model in a dtype.
        prompts: token ids.
        say: told what is being done.
    """
    return bisect(target, references, prompts, progress=lambda what: say(f"place: {what}", 0, 1)).place
