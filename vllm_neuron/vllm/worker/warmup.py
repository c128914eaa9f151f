"""A step of each static shape, made of padding: the null block is all it touches."""

from __future__ import annotations

import numpy as np

from vllm_neuron.step import Phase
from vllm_neuron.vllm.worker.buckets import Shape
from vllm_neuron.vllm.worker.inputs import Batch, StepBuilder, Work


def empty_work(builder: StepBuilder, shape: Shape, longest: int) -> Work:
    """A step of that shape whose tokens all lie in the null block.

    Args:
        builder: of the run.
        shape: one of its buckets'.
        longest: max_model_len; a context bucket is rounded up to a block, a position is not.
    """
    rows = shape.size if shape.phase is Phase.DECODE else -(-shape.size // longest)
    ids = np.zeros((rows, longest + 1), np.int32)
    blocks = builder.buckets.context[-1]
    tables = [np.zeros((rows, blocks // group.block_size), np.int32) for group in builder.groups]
    if shape.phase is Phase.PREFILL:
        counts = np.full(rows, longest, np.int32)
        counts[-1] = shape.size - longest * (rows - 1)
        return builder.prefill(Batch(ids, np.zeros(rows, np.int32), counts, tables), list(range(rows)))
    reached = min(shape.context, longest)
    if shape.phase is Phase.EXTEND:
        count = max(1, min(shape.size, reached - 1))
        computed = np.array([reached - count], np.int32)
        return builder.extend(Batch(ids[:1], computed, np.array([count], np.int32), [t[:1] for t in tables]), 0)
    computed = np.full(rows, reached - 1, np.int32)
    return builder.decode(Batch(ids, computed, np.ones(rows, np.int32), tables), np.arange(rows))
