"""Markdown view of a proof: the evidence in a package's README. It says nothing that differs between equal proofs."""

from __future__ import annotations

from onboard.prove.proof import Proof
from onboard.report.proof_rows import HEADINGS, cell, noted, others, summary, told, variants


def render(proof: Proof) -> str:
    """The evidence: verdict, a table of variants, and lists of what failed, is open, was refused or was noted."""
    lines = [f"**{summary(proof)}.**", ""]
    rows = variants(proof)
    if rows:
        lines += [_row(["variant", *HEADINGS]), _row(["---"] * (1 + len(HEADINGS)))]
        lines += [_row([name, *cells]) for name, cells in rows]
        lines += [
            "",
            "Relative error of float32 numbers against transformers, on weights and tokens of seed "
            f"{proof.seed}: each block fed what its counterpart was fed; the whole model without a cache; prefill in "
            "one piece, uneven chunks and single tokens over the paged cache; the saved checkpoint on several ranks.",
        ]
    lines += _list("", [f"{check.what}: {cell([check])}" for check in others(proof)])
    lines += _list("Failed:", told(proof.failures))
    lines += _list("Refused by name:", told(proof.refused))
    lines += _list("Not run:", told(proof.not_run))
    for feature in proof.open:
        test = f"; `{feature.test}` fails until it is written" if feature.test else ""
        source = f" (transformers: {feature.source})" if feature.source else ""
        lines += _list("Open:", [f"{feature.feature}: `{feature.file}` line {feature.line}{source}{test}"])
    lines += _list("Notes:", noted(proof.notes))
    return "\n".join(lines) + "\n"


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(text.replace("|", "\\|") for text in cells) + " |"


def _list(title: str, items: list[str]) -> list[str]:
    if not items:
        return []
    return ["", *([title, ""] if title else []), *(f"- {' '.join(item.split())}" for item in items)]
