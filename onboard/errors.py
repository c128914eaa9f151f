"""Errors of the command line that are not about an input."""

from __future__ import annotations

from vllm_neuron.errors import NeuronError


class RunError(NeuronError):
    """A run or a check that failed though its inputs are fine; commands exit with 5."""
