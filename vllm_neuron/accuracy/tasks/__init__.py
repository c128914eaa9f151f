"""Level 1: tasks of EleutherAI's harness, and perplexity, against the target and the reference on the same items.

``plain_facts`` is a task of our own that needs no download; ``plain_text.txt`` is the default text for perplexity. Only
:mod:`vllm_neuron.accuracy.tasks.model` and :mod:`vllm_neuron.accuracy.tasks.harness` import ``lm_eval``.
"""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent
OWN_TASK = "plain_facts"
DEFAULT_TEXT = FOLDER / "plain_text.txt"
INSTALL = "Install it: pip install 'neuron-onboard[accuracy]'."
