"""One sequence run through a model step by step, without vLLM: what proofs and tests compare with a reference.

It makes the same three forms of step as the runtime does (see :mod:`vllm_neuron.step`), over a paged cache of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from vllm_neuron.accuracy.paged import Paged, Span
from vllm_neuron.errors import ShapeError
from vllm_neuron.model.interface import NeuronModel
from vllm_neuron.step import Phase, Step


class Session:
    """A model, a cache for one sequence, and the tokens seen so far.

    Args:
        model: loaded; its caches are bound to this session until another session is made.
        max_tokens: tokens that the sequence may reach.
        block_size: tokens a block.
    """

    def __init__(self, model: NeuronModel, *, max_tokens: int, block_size: int = 16) -> None:
        self.model = model
        self.paged = Paged(model, max_tokens=max_tokens, block_size=block_size)
        self.length = 0

    def prefill(self, ids: Sequence[int], *, pad: int = 0) -> Tensor:
        """The first tokens in one piece, with ``pad`` padded tokens behind; float32 logits [T, V] of the real ones."""
        if self.length:
            raise ShapeError("Session.prefill", self.length, "an empty sequence", "Use extend() or decode().")
        return self._run(ids, Phase.PREFILL, pad)

    def extend(self, ids: Sequence[int], *, pad: int = 0) -> Tensor:
        """A further chunk of tokens; float32 logits [T, V]."""
        return self._run(ids, Phase.EXTEND, pad)

    def decode(self, token: int) -> Tensor:
        """One token; float32 logits [1, V]."""
        return self._run([token], Phase.DECODE, 0)

    def _run(self, ids: Sequence[int], phase: Phase, pad: int) -> Tensor:
        step = self.step(ids, phase, pad=pad)
        with torch.no_grad():
            hidden = self.model.forward(step)[: len(ids)]
            self.length += len(ids)
            return self.model.compute_logits(hidden)

    def step(self, ids: Sequence[int], phase: Phase, *, pad: int = 0) -> Step:
        """What the model is given for the next tokens, with ``pad`` padded ones behind; nothing is run.

        Raises:
            ShapeError: more tokens than the session has room for.
        """
        return self.paged.step([Span(0, self.length, ids)], phase, pad=pad)
