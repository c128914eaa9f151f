"""Grouped-query attention over the paged cache: projections, norms, positions, cache write, phases, output sum."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import vllm_neuron.functional as NF
from vllm_neuron.model.kv_cache import KVBinding, LayerSpec
from vllm_neuron.nn.linear import QKVLinear, RowParallelLinear
from vllm_neuron.nn.norm import RMSNorm
from vllm_neuron.nn.rotary import Rotary
from vllm_neuron.step import Phase, Step


class Attention(nn.Module):
    """One layer's attention. It owns its cache, its shard of the heads, and the choice of phase.

    Args:
        layer: index of the layer; names the cache ``layers.{layer}.self_attn``.
        hidden_size: H.
        heads, kv_heads, head_size: of the whole layer; the ranks share them.
        rotary: positions, shared between layers; None for a layer without positions.
        bias, o_bias: q, k and v (or the output projection) have a bias.
        qk_norm_eps: RMS-normalise each query and key head before the rotary embedding, with this eps.
        qk_norm_plus_one: that norm multiplies by ``1 + weight``.
        scale: factor on the scores; ``head_size ** -0.5`` by default.
        window: tokens a query sees, itself included; None for all.
        softcap: soft cap on the scores.
        dtype: of parameters and cache; torch's default when None.

    Shapes: x [T, H] -> [T, H].
    """

    def __init__(
        self,
        layer: int,
        hidden_size: int,
        *,
        heads: int,
        kv_heads: int,
        head_size: int,
        rotary: Rotary | None,
        bias: bool = False,
        o_bias: bool = False,
        qk_norm_eps: float | None = None,
        qk_norm_plus_one: bool = False,
        scale: float | None = None,
        window: int | None = None,
        softcap: float | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.qkv = QKVLinear(hidden_size, heads, kv_heads, head_size, bias=bias, dtype=dtype)
        self.o = RowParallelLinear(heads * head_size, hidden_size, bias=o_bias, dtype=dtype)
        self.q_norm = self.k_norm = None
        if qk_norm_eps is not None:
            self.q_norm = RMSNorm(head_size, eps=qk_norm_eps, plus_one=qk_norm_plus_one, dtype=dtype)
            self.k_norm = RMSNorm(head_size, eps=qk_norm_eps, plus_one=qk_norm_plus_one, dtype=dtype)
        self.rotary = rotary
        self.head_size = head_size
        self.scale = head_size**-0.5 if scale is None else scale
        self.softcap = softcap
        self.spec = LayerSpec(
            name=f"layers.{layer}.self_attn",
            num_kv_heads=self.qkv.kv_heads,
            head_size=head_size,
            dtype=dtype or torch.get_default_dtype(),
            sliding_window_size=window,
        )
        self.cache: KVBinding | None = None

    def bind(self, cache: KVBinding) -> None:
        """Take the layer's cache from the runner."""
        self.cache = cache

    def forward(self, x_TH: Tensor, step: Step) -> Tensor:
        """See the class; writes this step's keys and values to the cache when one is bound."""
        qk, v = self.qkv(x_TH)
        qk, v = qk.unflatten(-1, (-1, self.head_size)), v.unflatten(-1, (self.qkv.kv_heads, -1))
        if self.q_norm is not None and self.k_norm is not None:
            q, k = qk.split((self.qkv.heads, self.qkv.kv_heads), dim=1)
            qk = torch.cat((self.q_norm(q), self.k_norm(k)), dim=1)
        if self.rotary is not None:
            qk = self.rotary(step.positions_T, qk)
        q, k = qk.split((self.qkv.heads, self.qkv.kv_heads), dim=1)
        out = self._attend(q, k, v, step)
        return self.o.reduce(NF.o_proj(out.reshape(x_TH.shape[0], -1), self.o.matrix, self.o.local_bias))

    def _attend(self, q_TND: Tensor, k_TKD: Tensor, v_TKE: Tensor, step: Step) -> Tensor:
        view = step.views[self.cache.group if self.cache else 0]
        if self.cache is not None:
            NF.kv_write(self.cache.pages, k_TKD, v_TKE, view.slots_T)
        q = q_TND.unflatten(0, (step.rows, -1))
        if step.phase is Phase.PREFILL:
            return NF.flash_attention(
                q, k_TKD[None], v_TKE[None], view.mask_BQS, scale=self.scale, softcap=self.softcap
            )
        assert self.cache is not None and view.blocks_BM is not None
        paged = NF.attention_decode if step.phase is Phase.DECODE else NF.segmented_attention
        return paged(
            q,
            self.cache.pages,
            view.blocks_BM,
            view.mask_BQS,
            kv_heads=self.qkv.kv_heads,
            scale=self.scale,
            softcap=self.softcap,
        )
