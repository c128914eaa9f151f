"""lm_eval and datasets without their bars and log lines."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from contextlib import redirect_stderr
from io import StringIO
from typing import Any

Progress = Callable[[int, int], None]


class Quiet:
    """Keeps what lm_eval and datasets print about themselves off stderr; ``loud`` lets a progress bar through."""

    def __enter__(self) -> Quiet:
        self._stderr = sys.stderr
        self._levels = {name: logging.getLogger(name).level for name in ("lm_eval", "datasets")}
        for name in self._levels:
            logging.getLogger(name).setLevel(logging.ERROR)
        self._redirected = redirect_stderr(StringIO())
        self._redirected.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._redirected.__exit__(*error)
        for name, level in self._levels.items():
            logging.getLogger(name).setLevel(level)

    def loud(self, progress: Progress | None) -> Progress | None:
        """``progress`` with the real stderr."""
        if progress is None:
            return None

        def tell(done: int, total: int) -> None:
            with redirect_stderr(self._stderr):
                progress(done, total)

        return tell
