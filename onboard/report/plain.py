"""Text that can't act on what shows it."""

from __future__ import annotations


def printable(text: str) -> str:
    """``text`` with control, bidirectional and surrogate characters spelled out: they could hide or move other text."""
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)
