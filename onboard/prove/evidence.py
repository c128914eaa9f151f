"""The evidence section of a package's README: rewritten by each proof, between its two markers, whole or not at all."""

from __future__ import annotations

import re

from onboard.prove.package import Package
from onboard.prove.proof import Proof
from onboard.report.proof_markdown import render
from onboard.report.write import put

BEGIN, END = "<!-- onboard:evidence -->", "<!-- /onboard:evidence -->"
_SECTION = re.compile(re.escape(BEGIN) + r".*?" + re.escape(END), re.DOTALL)


def write_evidence(package: Package, proof: Proof) -> bool:
    """Put a proof into the package's README; False when there is no README with the markers, or the proof is partial.

    Raises:
        ConfigError: the file can't be written; it is left as it was.
        OSError: the file can't be read.
    """
    path = package.folder / "README.md"
    if proof.partial or not path.is_file():
        return False
    before = path.read_text(encoding="utf-8")
    if _SECTION.search(before) is None:
        return False
    section = f"{BEGIN}\n{render(proof).strip()}\n{END}"
    after = _SECTION.sub(lambda found: section, before, count=1)
    if after != before:
        put(after, path)
    return True
