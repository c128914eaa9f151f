"""The package on several ranks, in threads: equal logits on each, and shards that glue back to the checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from onboard.prove.proof import Divergence
from onboard.prove.subject import Subject, chunks, run
from onboard.prove.walk import Walk
from vllm_neuron.accuracy.calls import Capture
from vllm_neuron.accuracy.pairs import Pair
from vllm_neuron.errors import CheckpointError
from vllm_neuron.model.loading.checkpoint import Checkpoint
from vllm_neuron.model.loading.plan import Source
from vllm_neuron.parallel import Group, run_in_threads


def on_ranks(subject: Subject, ranks: int, ids: Sequence[int]) -> Tensor:
    """Load and run the tokens in chunks on ``ranks`` ranks; the logits [T, V], which all of them give.

    Raises:
        CheckpointError: the ranks' shards together are not the checkpoint, or two ranks give different logits.
    """

    def work(group: Group) -> tuple[Tensor, dict[str, Tensor], dict[str, Source]]:
        model = subject.load()
        shards = {name: parameter.detach() for name, parameter in model.named_parameters()}
        return run(model, chunks, ids), shards, subject.sources(model)

    results = run_in_threads(ranks, work)
    refuse_unglued([shards for _, shards, _ in results], results[0][2], subject)
    logits = results[0][0]
    for rank, (other, _, _) in enumerate(results):
        if not torch.equal(other.view(torch.int32), logits.view(torch.int32)):
            worst = float((other - logits).abs().max())
            raise CheckpointError(f"logits of rank {rank}", f"{worst:.1e} away", "the same bits as on rank 0")
    return logits


def refuse_unglued(shards: Sequence[Mapping[str, Tensor]], sources: Mapping[str, Source], subject: Subject) -> None:
    """Hold the numbers of all ranks' shards of each parameter against those of the tensors that it came from.

    The order inside a shard is the layer's own business (and the logits' check); here no number may be missing and
    none may be foreign, but zeros that pad a ragged shard.

    Raises:
        CheckpointError: naming the parameter.
    """
    with Checkpoint(subject.folder) as checkpoint:
        for name, source in sources.items():
            parts = [_part(checkpoint.slice(key, torch.float32)[...], source) for key in source.keys]
            stored = _values(parts)
            held = _values([rank[name] for rank in shards])
            if not torch.equal(stored, held):
                lost = int((~torch.isin(stored, held)).sum())
                foreign = int((~torch.isin(held, stored)).sum())
                raise CheckpointError(
                    f"{name}: shards of {len(shards)} ranks",
                    f"{lost} numbers of {' + '.join(source.keys[:4])} missing, {foreign} of elsewhere",
                    "the tensor when glued together",
                )


def _values(tensors: Sequence[Tensor]) -> Tensor:
    """The distinct numbers other than zero, ascending."""
    found = torch.unique(torch.cat([tensor.float().reshape(-1) for tensor in tensors]))
    return found[found != 0]


def _part(tensor: Tensor, source: Source) -> Tensor:
    return tensor if source.parts == 1 else tensor.chunk(source.parts, dim=source.dim)[source.part]


def refusal_of_ranks(error: BaseException) -> Any:
    """The field that says that a layer can't be divided by so many ranks, or None for any other error."""
    return getattr(error, "field", None) if "tensor_parallel_size" in str(error) else None


def rank_divergence(
    subject: Subject, ranks: int, pairs: Sequence[Pair], capture: Capture, skip: set[str]
) -> Divergence | None:
    """Where the first rank's run leaves the reference; every rank walks, for the collectives."""

    def work(group: Group) -> Divergence | None:
        return Walk(subject.load(), pairs).first(chunks, capture, skip)

    return run_in_threads(ranks, work)[0]
