"""The index of a capture folder and the outcome of a replay, as plain lines and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from onboard.report.plain import printable

if TYPE_CHECKING:
    from vllm_neuron.snapshot.index import CaptureFolder, StepFile
    from vllm_neuron.snapshot.replay import Compared, Replayed

REQUESTS = 4


def capture_json(folder: CaptureFolder) -> dict[str, Any]:
    """Everything that the index knows."""
    return {
        "folder": str(folder.path),
        "ranks": folder.ranks,
        "about": {str(rank): dict(about) for rank, about in folder.about.items()},
        "modules": folder.modules,
        "steps": [
            {
                "rank": step.rank,
                "step": step.label.step,
                "phase": step.label.phase,
                "file": step.path.name,
                "bytes": step.bytes,
                "token_ids": list(step.token_ids),
                "calls": [
                    {
                        "module": call.module,
                        "call": call.number,
                        "rows": [span.to_json() for span in call.label.spans],
                        "tensors": {
                            name: {"dtype": dtype, "shape": list(shape)} for name, (dtype, shape) in call.shapes.items()
                        },
                    }
                    for call in step.calls
                ],
            }
            for step in folder.steps
        ],
    }


def capture_lines(folder: CaptureFolder) -> Iterator[str]:
    """What was captured: the run, the modules with their tensors, the steps with their requests."""
    about = next((each for each in folder.about.values() if each), {})
    total = sum(step.bytes for step in folder.steps) / 1e6
    yield f"{folder.path}: {len(folder.steps)} files of {len(folder.ranks)} rank(s), {total:.1f} MB"
    if about:
        run = ("architecture", "dtype", "tensor_parallel_size")
        yield printable(f"  {about.get('model')}: " + ", ".join(f"{key} {about.get(key)}" for key in run))
    for rank, each in folder.about.items():
        if each.get("stopped"):
            yield printable(f"  rank {rank} stopped early: {each['stopped']}")
        elif not each:
            yield f"  rank {rank} has no index.json: its run did not end; the files are whole"
    yield ""
    yield "modules (T: rows that are tokens)"
    for name in folder.modules:
        calls = [call for step in folder.steps for call in step.calls if call.module == name]
        shapes = ", ".join(
            f"{key} {dtype} {_shape(shape, calls[0].label.tokens)}" for key, (dtype, shape) in calls[0].shapes.items()
        )
        yield printable(f"  {name:<28} {len(calls):>5} calls  {shapes}")
    yield ""
    yield f"  {'step':>6} {'rank':>4}  {'phase':<8} {'tokens':>6}  requests (positions)"
    for step in folder.steps:
        phase = step.label.phase or ""
        yield printable(
            f"  {step.label.step:>6} {step.rank:>4}  {phase:<8} {len(step.token_ids):>6}  {_requests(step)}"
        )


def _shape(shape: tuple[int, ...], tokens: int) -> str:
    parts = ["T" if i == 0 and size == tokens else str(size) for i, size in enumerate(shape)]
    return "[" + ", ".join(parts) + "]"


def _requests(step: StepFile) -> str:
    spans = step.label.spans
    shown = [
        f"{s.request} ({s.position})" if s.count == 1 else f"{s.request} ({s.position}-{s.position + s.count - 1})"
        for s in spans[:REQUESTS]
    ]
    more = f" and {len(spans) - REQUESTS} more" if len(spans) > REQUESTS else ""
    return ", ".join(shown) + more


def replay_lines(found: Replayed) -> Iterator[str]:
    """Tensor by tensor, then the verdict in words."""
    requests = ", ".join(found.requests[:REQUESTS])
    yield printable(f"{found.folder}: step {found.step}, {found.phase}, {found.tokens} tokens of {requests}")
    for note in found.notes:
        yield printable(f"  note: {note}")
    for each in found.tensors:
        yield f"  rank {each.rank}  {each.name:<20} {each.dtype} {list(each.shape)}  {_outcome(each)}"
    if not found.tensors:
        yield "verdict: not run: nothing was recorded to compare with"
    else:
        equal = sum(each.bitwise for each in found.tensors)
        outcome = "pass" if found.bitwise else "fail"
        yield f"verdict: {outcome}: {equal} of {len(found.tensors)} tensors equal bit by bit"


def _outcome(each: Compared) -> str:
    if each.bitwise:
        return "equal bit by bit"
    place = list(each.at or ())
    return f"differs by up to {each.worst:g}, at {place}: {each.replayed:g}, recorded {each.recorded:g}"
