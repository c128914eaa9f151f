"""Multi-head latent attention (DeepSeek-V2, 2024): keys and values of all heads from one compressed vector a token."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import vllm_neuron.functional as NF
from vllm_neuron.model.kv_cache import LayerSpec
from vllm_neuron.nn.attention_options import QueryGrowth
from vllm_neuron.nn.cached import CachedBlock
from vllm_neuron.nn.linear import ColumnParallelLinear, ReplicatedLinear, RowParallelLinear, divide
from vllm_neuron.nn.norm import RMSNorm
from vllm_neuron.nn.rotary import Rotary
from vllm_neuron.parallel import get_tp_group
from vllm_neuron.step import Phase, Step
from vllm_neuron.utils.weight_loader import set_weight_loader, sharding_weight_loader


class HeadExpansion(nn.Module):
    """What makes keys and values of the latent, by head; used from both sides, so that neither is ever made.

    The weight is [N * (nope + E), R] of this rank, for each head the rows of its key, then of its value.
    """

    def __init__(self, heads: int, rank: int, key_size: int, value_size: int, dtype: torch.dtype | None) -> None:
        super().__init__()
        ranks = get_tp_group().world_size
        rows = divide("heads", heads, ranks) * (key_size + value_size)
        self.weight = nn.Parameter(torch.empty(rows, rank, dtype=dtype), requires_grad=False)
        set_weight_loader(self.weight, sharding_weight_loader(0, rows, ranks))
        self.key_size, self.value_size = key_size, value_size

    def _by_head(self) -> tuple[Tensor, Tensor]:
        both = self.weight.unflatten(0, (-1, self.key_size + self.value_size))
        keys, values = both.split((self.key_size, self.value_size), dim=1)
        return keys, values

    def to_latent(self, q_TND: Tensor) -> Tensor:
        """Queries [T, N, nope] -> [T, N, R]: their product with a latent is that with the key made of it."""
        return torch.bmm(q_TND.transpose(0, 1), self._by_head()[0]).transpose(0, 1)

    def to_values(self, out_TNR: Tensor) -> Tensor:
        """A weighted sum of latents [T, N, R] -> that of the values made of them, [T, N, E]."""
        return torch.bmm(out_TNR.transpose(0, 1), self._by_head()[1].transpose(1, 2)).transpose(0, 1)


class LatentAttention(CachedBlock):
    """One layer's latent attention in absorbed form: multi-query attention over latents of R + rope channels.

    The cache holds one entry a token for all heads, the normed latent and the turned rope key, on every rank; heads are
    divided over the ranks.

    Args:
        layer: index of the layer; names the cache.
        hidden_size: H.
        heads: N of the whole layer.
        q_rank: width of the compressed query (``q_a``, ``q_norm``, ``q_b``); None for one projection (``q``).
        kv_rank: R, width of the latent (``kv_a``, ``kv_norm``, ``kv_b``).
        nope_size, rope_size: channels of a head's query and key without and with positions; they lie in that order.
        head_size_v: E, channels of a value head.
        rotary: positions of the rope channels, made for heads of ``rope_size``.
        eps: of both norms.
        q_bias, kv_bias, o_bias: biases of ``q_a`` (or ``q``), ``kv_a`` and ``o``.
        scale: factor on the scores, with yarn's squared mscale where a model has it;
            ``(nope_size + rope_size) ** -0.5`` by default.
        q_scale, kv_scale: factors on queries and on the normed latent (LongCat-Flash).
        query_growth: queries grow with the position.
        window: tokens a query sees, itself included; None for all.
        dtype: of parameters and cache; torch's default when None.

    Shapes: x [T, H] -> [T, H].
    """

    def __init__(
        self,
        layer: int,
        hidden_size: int,
        *,
        heads: int,
        q_rank: int | None,
        kv_rank: int,
        nope_size: int,
        rope_size: int,
        head_size_v: int,
        rotary: Rotary | None,
        eps: float,
        q_bias: bool = False,
        kv_bias: bool = False,
        o_bias: bool = False,
        scale: float | None = None,
        q_scale: float = 1.0,
        kv_scale: float = 1.0,
        query_growth: QueryGrowth | None = None,
        window: int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(layer)
        width = heads * (nope_size + rope_size)
        self.q_norm = None
        if q_rank is None:
            self.q = ColumnParallelLinear(hidden_size, width, bias=q_bias, dtype=dtype)
        else:
            self.q_a = ReplicatedLinear(hidden_size, q_rank, bias=q_bias, dtype=dtype)
            self.q_norm = RMSNorm(q_rank, eps=eps, dtype=dtype)
            self.q_b = ColumnParallelLinear(q_rank, width, dtype=dtype)
        self.kv_a = ReplicatedLinear(hidden_size, kv_rank + rope_size, bias=kv_bias, dtype=dtype)
        self.kv_norm = RMSNorm(kv_rank, eps=eps, dtype=dtype)
        self.kv_b = HeadExpansion(heads, kv_rank, nope_size, head_size_v, dtype)
        self.o = RowParallelLinear(heads * head_size_v, hidden_size, bias=o_bias, dtype=dtype)
        self.heads = divide("heads", heads, get_tp_group().world_size)
        self.kv_rank, self.nope_size, self.rope_size = kv_rank, nope_size, rope_size
        self.rotary, self.query_growth = rotary, query_growth
        self.q_scale, self.kv_scale = q_scale, kv_scale
        self.scale = (nope_size + rope_size) ** -0.5 if scale is None else scale
        self.asks = LayerSpec(
            name=self.reads,
            num_kv_heads=1,
            head_size=kv_rank + rope_size,
            dtype=dtype or torch.get_default_dtype(),
            sliding_window_size=window,
            latent=True,
        )

    def forward(self, x_TH: Tensor, step: Step) -> Tensor:
        """See the class; writes this step's entries to the cache when one is bound."""
        q, entry = self._project(x_TH, step.positions_T)
        out = self.kv_b.to_values(self._attend(q, entry, step).flatten(0, 1))
        return self.o.reduce(NF.o_proj(out.reshape(x_TH.shape[0], -1), self.o.matrix, self.o.local_bias))

    def _project(self, x_TH: Tensor, positions_T: Tensor) -> tuple[Tensor, Tensor]:
        """Queries on the latent [T, N, R + rope] and the entries [T, 1, R + rope]."""
        flat = self.q(x_TH) if self.q_norm is None else self.q_b(self.q_norm(self.q_a(x_TH)))
        q_nope, q_rope = flat.unflatten(-1, (self.heads, -1)).split((self.nope_size, self.rope_size), dim=-1)
        latent, k_rope = self.kv_a(x_TH).split((self.kv_rank, self.rope_size), dim=-1)
        latent = self.kv_norm(latent)
        if self.kv_scale != 1.0:
            latent = latent * self.kv_scale
        if self.rotary is not None:
            q_rope, k_rope = self.rotary(positions_T, torch.cat((q_rope, k_rope[:, None]), dim=1)).split(
                (self.heads, 1), dim=1
            )
        else:
            k_rope = k_rope[:, None]
        q = torch.cat((self.kv_b.to_latent(q_nope), q_rope), dim=-1)
        if self.q_scale != 1.0:
            q = q * self.q_scale
        if self.query_growth is not None:
            q = q * self.query_growth(positions_T).to(q.dtype)
        return q, torch.cat((latent[:, None], k_rope), dim=-1)

    def _attend(self, q_TND: Tensor, entry_T1D: Tensor, step: Step) -> Tensor:
        """[B, Q, N, R]."""
        view = self.view(step)
        if self.cache is not None:
            NF.kv_write(self.cache.pages, entry_T1D, None, view.slots_T)
        q = q_TND.unflatten(0, (step.rows, -1))
        if step.phase is Phase.PREFILL:
            k = entry_T1D[None]
            v = k[..., : self.kv_rank]
            return NF.flash_attention(q, k, v, view.mask_BQS, scale=self.scale, causal=view.causal, window=view.window)
        assert view.blocks_BM is not None
        paged = NF.attention_decode if step.phase is Phase.DECODE else NF.segmented_attention
        return paged(
            q,
            self.pages(),
            view.blocks_BM,
            view.mask_BQS,
            kv_heads=1,
            scale=self.scale,
            latent_size=self.kv_rank,
            window=view.window,
        )
