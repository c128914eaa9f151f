"""What a worker counts, and what of it is exported."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import vllm_neuron.functional as NF
from vllm_neuron.metrics.shared import export

_TOKENS = ("vllm_neuron_step_tokens", "Tokens computed, by phase, without padding.")
_PADDING = ("vllm_neuron_step_padding", "Padded tokens computed, by phase.")
_CALLS = (
    "vllm_neuron_kernel_calls",
    "Calls of an operation by the kernel that ran; reference is plain torch, compiler is plain torch on purpose. "
    "A compiled graph counts once, when it is traced.",
)
_REFUSALS = ("vllm_neuron_kernel_refusals", "Calls that a kernel did not take, by the reason.")


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

    def padded_share(self, phase: str) -> float:
        """Share of a phase's computed tokens that were padding."""
        total = self.tokens[phase] + self.padding[phase]
        return self.padding[phase] / total if total else 0.0


STEPS = StepCounts()


def publish() -> None:
    """Write this process's counts to where the server reads them; the runner calls it once a step."""
    for phase, tokens in STEPS.tokens.items():
        export(*_TOKENS, {"phase": phase}, tokens)
        export(*_PADDING, {"phase": phase}, STEPS.padding[phase])
    for (operation, kernel), count in NF.calls().items():
        export(*_CALLS, {"operation": operation, "kernel": kernel}, count)
    for (operation, kernel, reason), count in NF.refusals().items():
        export(*_REFUSALS, {"operation": operation, "kernel": kernel, "reason": reason}, count)
