"""The items of the task ``plain_facts``: 48 plain facts, four answers each, in this project's own words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ITEMS = Path(__file__).with_name("items.jsonl")


def load(**_: Any) -> dict[str, Any]:
    """The items as lm_eval wants a data set: split -> documents with ``question``, ``choices`` and ``answer``."""
    from datasets import Dataset

    lines = ITEMS.read_text(encoding="utf-8").splitlines()
    return {"test": Dataset.from_list([json.loads(line) for line in lines])}
