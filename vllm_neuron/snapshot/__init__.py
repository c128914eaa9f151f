"""Capturing what a model computes, feeding tensors back into it, and running one recorded step again.

``capture`` names the module :mod:`vllm_neuron.snapshot.capture`; its context manager is ``capture.capture``.
"""
