"""Counts of what ran: steps by shape, tokens, and padding.

Kernel choices are counted in :mod:`vllm_neuron.functional`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from prometheus_client import Counter as Exported

_TOKENS = Exported("vllm_neuron_step_tokens", "Tokens computed, by phase, without padding.", ["phase"])
_PADDING = Exported("vllm_neuron_step_padding", "Padded tokens computed, by phase.", ["phase"])


@dataclass
class StepCounts:
    """Steps of this process by shape, and how many of their tokens were padding."""

    steps: Counter[tuple[str, int, int]] = field(default_factory=Counter)
    tokens: Counter[str] = field(default_factory=Counter)
    padding: Counter[str] = field(default_factory=Counter)

    def record(self, phase: str, size: int, context: int, *, real: int, padded: int) -> None:
        """Count one step with ``real`` tokens in a size of ``padded``."""
        self.steps[phase, size, context] += 1
        self.tokens[phase] += real
        self.padding[phase] += padded - real
        _TOKENS.labels(phase).inc(real)
        _PADDING.labels(phase).inc(padded - real)

    def padded_share(self, phase: str) -> float:
        """Share of a phase's computed tokens that were padding."""
        total = self.tokens[phase] + self.padding[phase]
        return self.padding[phase] / total if total else 0.0


STEPS = StepCounts()
