"""Counts of what ran: steps by shape, tokens and padding, and which kernel each operation took.

A server's workers are processes of their own, so the counts go to its ``/metrics`` through files
(:mod:`vllm_neuron.metrics.shared`).
"""

from vllm_neuron.metrics.counts import STEPS, StepCounts, publish
from vllm_neuron.metrics.shared import share

__all__ = ["STEPS", "StepCounts", "publish", "share"]
