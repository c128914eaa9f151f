"""Two architectures -> what differs, what each difference touches, and what covers it: ``diff``, ``Diff``, ``Row``."""

from onboard.diff.compare import diff
from onboard.diff.rows import ITEMS, Diff, Row

__all__ = ["ITEMS", "Diff", "Row", "diff"]
