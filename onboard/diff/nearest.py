"""Which reference model a port of a given model starts from."""

from __future__ import annotations

from onboard.diff.compare import diff
from onboard.facts.api import ModelFacts, load

# Reference model -> the checkpoint that stands for its architecture in the catalog.
REFERENCES = {
    "llama3": "meta-llama/Llama-3.1-8B",
    "gemma3": "google/gemma-3-27b-it",
}


def choose(model: ModelFacts) -> tuple[ModelFacts, str]:
    """The reference model with the fewest semantic differences from ``model``, and why it was chosen.

    A tie goes to the one with less to write, then to the one that is named first in :data:`REFERENCES`.
    """
    known = {name: load(stands_for) for name, stands_for in REFERENCES.items()}
    summaries = {name: diff(model, reference, target="a").summary() for name, reference in known.items()}
    scores = {name: (one["differences"], one["to_write"]) for name, one in summaries.items()}
    best = min(scores, key=lambda name: scores[name])
    told = " and ".join(f"{name} {n} ({w} to write)" for name, (n, w) in scores.items())
    return known[best], f"compared with the nearest reference model, {best}; semantic differences: {told}"
