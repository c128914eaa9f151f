"""The public name of kernels' wrapper; see :mod:`vllm_neuron.nki.wrap`."""

from vllm_neuron.nki.wrap import WrappedKernel, wrap_nki

__all__ = ["WrappedKernel", "wrap_nki"]
