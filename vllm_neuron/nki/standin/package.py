"""``nki`` of the stand-in: the top-level module that kernels import."""

from __future__ import annotations

from vllm_neuron.nki.standin import isa, language
from vllm_neuron.nki.standin.launch import jit, simulate

IS_STANDIN = True

__all__ = ["IS_STANDIN", "isa", "jit", "language", "simulate"]
