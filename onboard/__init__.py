"""The `onboard` command line: compare a model with what exists, generate its port, prove it, and serve it."""

from __future__ import annotations

__version__ = "0.1.0"
