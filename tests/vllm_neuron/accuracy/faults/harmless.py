"""Changes that a runtime, a kernel or a machine may make and that are no faults: none may raise an alarm."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

import vllm_neuron.functional as NF
from tests.vllm_neuron.accuracy.faults.models import Planted, subject
from tests.vllm_neuron.accuracy.faults.plant import kernels
from vllm_neuron.accuracy.bisect import Bisection, bisect
from vllm_neuron.accuracy.paged import Paged
from vllm_neuron.accuracy.ways import BATCH, CHUNKS, DECODE, PADDED, PREFILL, Piece, Prompts, Way, span
from vllm_neuron.functional.weight import matmul
from vllm_neuron.nn import Linear
from vllm_neuron.step import Phase

BLOCK = 16
ATTENTION = ("flash_attention", "segmented_attention", "attention_decode")


@dataclass(frozen=True)
class Harmless:
    """One change.

    Attributes:
        name: in words.
        model: which tiny model.
        plant: done to each loaded model.
        inside: a context in which models run.
        ways: what is run in float32; blocks are compared in both dtypes in any case.
        prompts: made of the model's own.
        block_ways: how single blocks are run in both dtypes.
    """

    name: str
    model: str
    plant: Callable[[Any], None] | None = None
    inside: Callable[[], AbstractContextManager[None]] = nullcontext
    ways: Sequence[Way] = (PREFILL, DECODE, BATCH)
    prompts: Callable[[Prompts], Prompts] = list
    block_ways: Sequence[Way] = (PREFILL, DECODE)

    def look(self) -> Bisection:
        """Run the search that users run."""
        made = subject(self.model)
        with self.inside():
            return bisect(
                Planted(made, self.plant),
                made.reference,
                self.prompts(made.prompts),
                ways=self.ways,
                block_ways=self.block_ways,
            )


def _in_chunks(size: int, prompts: Prompts) -> Iterator[Piece]:
    """Prefill in chunks of one size, the last one padded."""
    for row, ids in enumerate(prompts):
        for start in range(0, len(ids), size):
            stop = min(start + size, len(ids))
            phase = Phase.EXTEND if start else Phase.PREFILL
            yield Piece((span(row, ids, start, stop),), phase, size - (stop - start))


def chunked(size: int) -> Way:
    """Prefill in chunks of ``size``."""
    return Way(f"chunks of {size}", partial(_in_chunks, size), block_size=BLOCK)


def _one_by_one(prompts: Prompts) -> Iterator[Piece]:
    for row, ids in enumerate(prompts):
        yield Piece((span(row, ids, 0, 3),), Phase.PREFILL)
        for at in range(3, len(ids)):
            yield Piece((span(row, ids, at, at + 1),), Phase.DECODE)


def _after_a_prefix(prompts: Prompts) -> Iterator[Piece]:
    """The second prompt begins like the first one, whose blocks it reads."""
    first, second = prompts
    yield Piece((span(0, first, 0, len(first)),), Phase.PREFILL)
    # The rows of the cached part are computed too, into blocks of their own, so that every row is compared.
    yield Piece((span(1, second, 0, 2 * BLOCK),), Phase.PREFILL)
    yield Piece((span(1, second, 2 * BLOCK, len(second)),), Phase.EXTEND, 3)


def _share(paged: Paged) -> None:
    paged.share(1, 0, 2)


def _same_beginning(prompts: Prompts) -> Prompts:
    first, second = prompts
    return [first, [*first[: 2 * BLOCK], *second]]


def _mates(prompts: Prompts) -> Prompts:
    first, second = prompts
    return [first, second, first[5:60], second[::-1]]


def _padded_by(pad: int, prompts: Prompts) -> Iterator[Piece]:
    for row, ids in enumerate(prompts):
        yield Piece((span(row, ids, 0, len(ids)),), Phase.PREFILL, pad)


def _ranks(ranks: int) -> Way:
    return Way(f"TP {ranks}", CHUNKS.pieces, ranks=ranks)


@contextmanager
def threads(count: int) -> Iterator[None]:
    """torch computes with so many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _split_sum(x: Tensor, weight: Any, bias: Tensor | None, parts: int = 4) -> Tensor:
    """A product whose inner dimension is summed in parts, each rounded to the activations' dtype."""
    total = sum(matmul(a, w, None) for a, w in zip(x.chunk(parts, -1), weight.chunk(parts, 0), strict=True))
    assert isinstance(total, Tensor)
    return total if bias is None else total + bias


def _reversed_sum(x: Tensor, weight: Any, bias: Tensor | None) -> Tensor:
    return matmul(x.flip(-1), weight.flip(0), bias)


def _product(sum_of: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda reference, x, weight, bias=None: sum_of(x, weight, bias)


def _mlp(sum_of: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def run(
        reference: Any, x: Tensor, gate_up: Any, down: Any, *, act: str = "silu", gate_up_bias_F: Any = None, **kw: Any
    ) -> Tensor:
        gate, up = sum_of(x, gate_up, gate_up_bias_F).chunk(2, dim=-1)
        return sum_of(NF.activation(act)(gate) * up, down, kw.get("down_bias_H"))

    return run


def _projections(sum_of: Callable[..., Tensor]) -> AbstractContextManager[None]:
    product = _product(sum_of)
    return kernels(linear=product, qkv_proj=product, o_proj=product, mlp=_mlp(sum_of))


def _split_qkv(x: Tensor, weight: Any, bias: Tensor | None) -> Tensor:
    """Columns of a fused matrix in three products."""
    parts = 4
    biases = [None] * parts if bias is None else bias.chunk(parts)
    return torch.cat([matmul(x, w, b) for w, b in zip(weight.chunk(parts, 1), biases, strict=True)], dim=-1)


def _online(reference: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, *, scale: float, **kw: Any) -> Tensor:
    """Softmax in tiles of keys with a running maximum, as kernels do it."""
    groups = q.shape[2] // k.shape[2]
    k, v = (x.repeat_interleave(groups, dim=2).float() for x in (k, v))
    if kw.get("causal"):
        mask = mask.tril(mask.shape[-1] - mask.shape[-2])
    top = torch.full((*q.shape[:1], q.shape[2], q.shape[1], 1), -1e30)
    total, out = torch.zeros_like(top), torch.zeros(*top.shape[:3], v.shape[-1])
    for s in range(0, k.shape[1], 32):
        scores = torch.einsum("bqnd,bsnd->bnqs", q.float(), k[:, s : s + 32]) * scale
        scores = scores.masked_fill(~mask[:, None, :, s : s + 32], float("-inf"))
        new = torch.maximum(top, scores.amax(-1, keepdim=True))
        weights = (scores - new).exp()
        out = out * (top - new).exp() + torch.einsum("bnqs,bsnd->bnqd", weights, v[:, s : s + 32])
        total, top = total * (top - new).exp() + weights.sum(-1, keepdim=True), new
    return (out / total).transpose(1, 2).to(q.dtype)


def _narrow_scores(reference: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, *, scale: float, **kw: Any) -> Tensor:
    """Scores and weights are rounded to the activations' dtype on the way, as transformers' eager attention does."""
    groups = q.shape[2] // k.shape[2]
    k, v = (x.repeat_interleave(groups, dim=2) for x in (k, v))
    if kw.get("causal"):
        mask = mask.tril(mask.shape[-1] - mask.shape[-2])
    scores = torch.einsum("bqnd,bsnd->bnqs", q, k) * scale
    weights = scores.float().masked_fill(~mask[:, None], float("-inf")).softmax(-1).to(q.dtype)
    return torch.einsum("bnqs,bsnd->bqnd", weights, v)


def _double(reference: Any, *args: Any, **kwargs: Any) -> Tensor:
    """The same in float64, rounded once."""
    wide = [a.double() if isinstance(a, Tensor) and a.is_floating_point() else a for a in args]
    return reference(*wide, **kwargs).to(args[0].dtype)


def _norm_in_double(reference: Any, x: Tensor, weight: Any, *, eps: float, plus_one: bool = False) -> Tensor:
    wide = x.double()
    normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    scale = 1.0 if weight is None else weight.double() + (1.0 if plus_one else 0.0)
    return (normed * scale).to(x.dtype)


def _written_out_silu(x: Tensor) -> Tensor:
    return x / (1 + (-x).exp())


def _turned_as_complex(reference: Any, x: Tensor, table: Tensor, *, interleaved: bool = False) -> Tensor:
    """Halves as real and imaginary parts."""
    width = table.shape[-1] // 4
    cos, sin = table[:, None, :width].float(), table[:, None, 3 * width :].float()
    z = torch.complex(x[..., :width].float(), x[..., width:].float()) * torch.complex(cos, sin)
    return torch.cat((z.real, z.imag), dim=-1).to(x.dtype)


def _experts_in_reverse(
    reference: Any, x: Tensor, weights: Tensor, experts: Tensor, up: Tensor, down: Tensor, **kw: Any
) -> Tensor:
    """Experts one after the other from the last on, each for the tokens that chose it."""
    first = kw.pop("first_expert", 0)
    total = torch.zeros_like(x)
    for e in reversed(range(len(up))):
        tokens, place = (experts == first + e).nonzero(as_tuple=True)
        if not len(tokens):
            continue
        one = {name: None if kw.get(name) is None else kw[name][e : e + 1] for name in ("up_bias_EF", "down_bias_EH")}
        chosen = torch.zeros(len(tokens), 1, dtype=experts.dtype)
        found = reference(
            x[tokens], weights[tokens, place, None], chosen, up[e : e + 1], down[e : e + 1], **{**kw, **one}
        )
        total.index_add_(0, tokens, found)
    return total


def _one_hot(reference: Any, ids: Tensor, table: Tensor) -> Tensor:
    return torch.nn.functional.one_hot(ids, len(table)).to(table.dtype) @ table


def _packed(model: Any) -> None:
    for module in model.modules():
        if isinstance(module, Linear):
            module.pack()


def _contiguous(model: Any) -> None:
    """Weights are laid out column by column."""
    for parameter in model.parameters():
        if parameter.dim() == 2:
            parameter.data = parameter.data.t().contiguous().t()


def _wide_head(model: Any) -> None:
    """Logits are computed in float32 from the same weights."""
    head = model.head
    weight = head.weight.detach().float()

    def forward(x: Tensor) -> Tensor:
        logits = x.float() @ weight.t()
        return logits if head.softcap is None else head.softcap * torch.tanh(logits / head.softcap)

    head.forward = forward


def _sink_as_key(reference: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, *, scale: float, **kw: Any) -> Tensor:
    """Sinks by log-sum-exp: the result times the share that the keys have."""
    groups = q.shape[2] // k.shape[2]
    k, v = (x.repeat_interleave(groups, dim=2).float() for x in (k, v))
    if kw.get("causal"):
        mask = mask.tril(mask.shape[-1] - mask.shape[-2])
    scores = (torch.einsum("bqnd,bsnd->bnqs", q.float(), k) * scale).masked_fill(~mask[:, None], float("-inf"))
    size = scores.logsumexp(-1, keepdim=True)
    share = torch.sigmoid(size - kw["sinks_N"].float()[None, :, None, None])
    return torch.einsum("bnqs,bsnd->bqnd", scores.softmax(-1) * share, v).to(q.dtype)


def harmless() -> Iterator[Harmless]:
    """The rows of the table."""
    for size in (1, 16, 37, 64, 128):
        yield Harmless(f"prefill in chunks of {size}", "gemma3" if size == 37 else "llama", ways=(chunked(size),))
    for size in (1, 16, 64):
        ways = [replace(way, block_size=size) for way in (DECODE, CHUNKS, BATCH)]
        yield Harmless(f"blocks of {size} tokens", "gpt_oss" if size == 16 else "llama", ways=ways)
    for name, ranks in (("llama", 2), ("llama", 4), ("gemma3", 2), ("qwen3_moe", 2), ("gpt_oss", 4)):
        on_ranks = (replace(PREFILL, ranks=ranks), replace(DECODE, ranks=ranks)) if ranks == 2 else (PREFILL, DECODE)
        yield Harmless(f"{ranks} ranks ({name})", name, ways=(_ranks(ranks),), block_ways=on_ranks)
    yield Harmless("two threads", "gemma3", inside=lambda: threads(2))
    yield Harmless("kernels off", "llama", inside=lambda: NF.use_kernels("off"))
    yield Harmless("kernels off (mixture)", "qwen3_moe", inside=lambda: NF.use_kernels("off"))
    for pad in (1, 64):
        yield Harmless(
            f"{pad} padded tokens", "gpt_oss" if pad == 64 else "llama", ways=(Way("pad", partial(_padded_by, pad)),)
        )
    yield Harmless("four in a batch", "gemma2", ways=(BATCH,), prompts=_mates)
    yield Harmless("prompts in another order", "llama", ways=(BATCH,), prompts=lambda p: list(reversed(p)))
    prefix = Way("cached prefix", _after_a_prefix, block_size=BLOCK, prepare=_share)
    yield Harmless("a cached prefix", "llama", ways=(prefix,), prompts=_same_beginning)
    yield Harmless("token by token", "gemma3", ways=(Way("tokens", _one_by_one),))
    yield Harmless("packed weights", "llama", _packed)
    yield Harmless("weights laid out by columns", "gemma2", _contiguous, ways=(PREFILL, PADDED, DECODE))
    yield Harmless("sums in four parts", "llama", inside=lambda: _projections(_split_sum))
    yield Harmless("sums in reverse", "gemma3", inside=lambda: _projections(_reversed_sum))
    yield Harmless("fused projections split", "llama", inside=lambda: kernels(qkv_proj=_product(_split_qkv)))
    yield Harmless("softmax in tiles", "llama", inside=lambda: kernels(flash_attention=_online))
    yield Harmless("scores in bf16", "llama", inside=lambda: kernels(flash_attention=_narrow_scores))
    yield Harmless("attention in float64", "gemma2", inside=lambda: kernels(flash_attention=_double))
    yield Harmless("norms in float64", "gemma3", inside=lambda: kernels(rms_norm=_norm_in_double))
    yield Harmless("rotary as complex numbers", "llama", inside=lambda: kernels(rotary=_turned_as_complex))
    yield Harmless("experts in reverse", "qwen3_moe", inside=lambda: kernels(moe_experts=_experts_in_reverse))
    yield Harmless("sinks by log-sum-exp", "gpt_oss", inside=lambda: kernels(flash_attention=_sink_as_key))
    yield Harmless("embedding by product", "llama-tied", inside=lambda: kernels(embedding=_one_hot))
    yield Harmless("logits in float32", "gemma3", _wide_head)
    yield Harmless("silu written out", "llama", inside=_silu)


@contextmanager
def _silu() -> Iterator[None]:
    from vllm_neuron.functional.mlp import ACTIVATIONS

    before = ACTIVATIONS["silu"]
    ACTIVATIONS["silu"] = _written_out_silu
    try:
        yield
    finally:
        ACTIVATIONS["silu"] = before
