"""One sequence run through a model step by step, without vLLM: what proofs and tests compare with a reference.

It makes the same three forms of step as the runtime does (see :mod:`vllm_neuron.step`), over a paged cache of its own
whose blocks are dealt out of order, so that a model that reads the wrong slot is found out.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from vllm_neuron.errors import ShapeError
from vllm_neuron.model.interface import NeuronModel
from vllm_neuron.model.kv_cache import KVBinding, LayerSpec
from vllm_neuron.step import KVView, Phase, Step


class Session:
    """A model, a cache for one sequence, and the tokens seen so far.

    Args:
        model: loaded; its caches are bound to this session until another session is made.
        max_tokens: tokens that the sequence may reach.
        block_size: tokens a block.
    """

    def __init__(self, model: NeuronModel, *, max_tokens: int, block_size: int = 16) -> None:
        self.model, self.block_size = model, block_size
        self.blocks = -(-max_tokens // block_size)
        self.length = 0
        specs = model.get_kv_spec().layers
        self.kinds = sorted({self._kind(s) for s in specs}, key=str)
        order = torch.Generator().manual_seed(0)
        self.tables = [torch.randperm(self.blocks, generator=order) + 1 for _ in self.kinds]
        self.model.bind_kv_cache({s.name: self._binding(s) for s in specs})

    @staticmethod
    def _kind(spec: LayerSpec) -> tuple[int | None, int | None]:
        return (spec.sliding_window_size, spec.chunk_size)

    def _binding(self, spec: LayerSpec) -> KVBinding:
        # 1e4 in every unwritten slot: a finite value that no masked-out slot may let through.
        pages = torch.full((self.blocks + 1, self.block_size, spec.token_width), 1e4, dtype=spec.dtype)
        return KVBinding(pages, self.kinds.index(self._kind(spec)))

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
        count = len(ids)
        if self.length + count > self.blocks * self.block_size:
            raise ShapeError("Session", self.length + count, f"at most {self.blocks * self.block_size} tokens")
        positions = torch.arange(self.length, self.length + count)
        padded = torch.cat((positions, torch.zeros(pad, dtype=torch.int64)))
        return Step(
            phase=phase,
            token_ids_T=torch.tensor([*ids, *[0] * pad], dtype=torch.int64),
            positions_T=padded,
            views=tuple(self._view(i, positions, pad, phase) for i in range(len(self.kinds))),
            rows=1,
        )

    def _view(self, index: int, positions: Tensor, pad: int, phase: Phase) -> KVView:
        window, chunk = self.kinds[index]
        table = self.tables[index]
        slots = table[positions // self.block_size] * self.block_size + positions % self.block_size
        slots = torch.cat((slots, torch.zeros(pad, dtype=torch.int64)))
        queries = torch.cat((positions, torch.zeros(pad, dtype=torch.int64)))[:, None]
        if phase is Phase.PREFILL:
            keys = torch.cat((positions, torch.full((pad,), 2**40)))
        else:
            keys = torch.arange(self.blocks * self.block_size)
        mask = keys <= queries
        if window is not None:
            mask &= keys > queries - window
        if chunk is not None:
            mask &= keys // chunk == queries // chunk
        if phase is Phase.PREFILL:
            return KVView(slots, None, mask[None])
        return KVView(slots, table[None], mask[None], torch.zeros(1, dtype=torch.int64))
