"""Grouped-query attention over the paged cache: projections, norms, positions, cache write, phases, output sum."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

import vllm_neuron.functional as NF
from vllm_neuron.errors import ConfigError
from vllm_neuron.model.kv_cache import LayerSpec
from vllm_neuron.nn.attention_options import Alibi, QueryGrowth
from vllm_neuron.nn.cached import CachedBlock
from vllm_neuron.nn.head_norm import HeadNorm, QKNorm
from vllm_neuron.nn.linear import ColumnParallelLinear, QKVLinear, RowParallelLinear
from vllm_neuron.nn.rotary import Rotary
from vllm_neuron.parallel import get_tp_group
from vllm_neuron.step import KVView, Phase, Step
from vllm_neuron.utils.weight_loader import (
    QKVShape,
    gate_layout_loader,
    get_weight_loader,
    set_weight_loader,
    sharding_weight_loader,
)

GATES: dict[str, Callable[[Tensor], Tensor]] = {"sigmoid": torch.sigmoid, "softplus": nn.functional.softplus}


class Attention(CachedBlock):
    """One layer's attention. It owns its cache, its shard of the heads, and the choice of phase.

    In the order of the computation: projections (``qkv``), ``k_eq_v``, ``qk_norm``, ``clip``, ``rotary``, ``v_norm``,
    ``query_growth``; scores times ``scale``, ``softcap``, ``alibi``, mask, ``sinks``; ``out_norm``, ``output_gate``,
    projection (``o``).

    Args:
        layer: index of the layer; names the cache ``layers.{layer}.self_attn``.
        hidden_size: H.
        heads, kv_heads, head_size: of the whole layer; the ranks share them.
        head_size_v: size of a value head, when unlike ``head_size``.
        rotary: positions, shared between layers; None for a layer without rotary positions.
        bias: biases of q, k and v; one switch for all, or three.
        o_bias: bias of the output projection.
        qk_norm: norm of queries and keys (parameters ``q_norm``, ``k_norm``).
        v_norm: norm of the values (``v_norm``).
        out_norm: norm of the heads' output (``out_norm``).
        k_eq_v: values are what the key projection gives, before ``qk_norm``; there is no value projection.
        scale: factor on the scores; ``head_size ** -0.5`` by default.
        window: tokens a query sees, itself included; None for all.
        chunk: queries see their own chunk of so many tokens alone; None for all.
        softcap: soft cap on the scores.
        sinks: one learned logit a head that takes weight and gives nothing (``sinks``).
        output_gate: ``channel`` or ``head``: the output times an activation of a projection (``gate``) of the layer's
            input, one number a channel or a head.
        gate_act, gate_bias: that activation, ``sigmoid`` or ``softplus``; the projection has a bias.
        clip: queries, keys and values are limited to ``-clip .. clip``.
        alibi: linear biases on the scores.
        shared_with: an earlier layer whose cache is read; this layer has no keys and values of its own. KV heads, head
            sizes, window and chunk are those of that layer.
        value_scale: factor on the values, after ``v_norm``.
        query_growth: queries grow with the position.
        dtype: of parameters and cache; torch's default when None.

    Shapes: x [T, H] -> [T, H].

    Raises:
        ConfigError: an unknown gate, or options that exclude each other.
    """

    slopes_N: Tensor

    def __init__(
        self,
        layer: int,
        hidden_size: int,
        *,
        heads: int,
        kv_heads: int,
        head_size: int,
        head_size_v: int | None = None,
        rotary: Rotary | None = None,
        bias: bool | tuple[bool, bool, bool] = False,
        o_bias: bool = False,
        qk_norm: QKNorm | None = None,
        v_norm: QKNorm | None = None,
        out_norm: QKNorm | None = None,
        k_eq_v: bool = False,
        scale: float | None = None,
        window: int | None = None,
        chunk: int | None = None,
        softcap: float | None = None,
        sinks: bool = False,
        output_gate: str | None = None,
        gate_act: str = "sigmoid",
        gate_bias: bool = False,
        clip: float | None = None,
        alibi: Alibi | None = None,
        shared_with: int | None = None,
        value_scale: float = 1.0,
        query_growth: QueryGrowth | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(layer, shared_with=shared_with)
        value_size = head_size if head_size_v is None else head_size_v
        if k_eq_v and value_size != head_size:
            raise ConfigError("Attention: head_size_v", head_size_v, f"{head_size} (head_size), with k_eq_v")
        parts = "q" if self.reads_other else "qk" if k_eq_v else "qkv"
        self.qkv = QKVLinear(
            hidden_size, heads, kv_heads, head_size, head_size_v=value_size, bias=bias, parts=parts, dtype=dtype
        )
        self.o = RowParallelLinear(heads * value_size, hidden_size, bias=o_bias, dtype=dtype)
        self.heads, self.kv_heads = self.qkv.heads, self.qkv.kv_heads
        self.head_size, self.value_size = head_size, value_size
        self.scale = head_size**-0.5 if scale is None else scale
        self.rotary, self.clip, self.k_eq_v, self.softcap = rotary, clip, k_eq_v, softcap
        self.value_scale, self.query_growth = value_scale, query_growth
        self._add_norms(qk_norm, v_norm, out_norm, get_tp_group().world_size // kv_heads or 1, dtype)
        self._add_gate(hidden_size, output_gate, gate_act, gate_bias, heads, dtype)
        self._add_sinks(sinks, dtype)
        self._add_alibi(alibi, heads)
        self.asks = self._spec(window, chunk, dtype)

    def _spec(self, window: int | None, chunk: int | None, dtype: torch.dtype | None) -> LayerSpec:
        return LayerSpec(
            name=self.reads,
            num_kv_heads=self.kv_heads,
            head_size=self.head_size,
            dtype=dtype or torch.get_default_dtype(),
            sliding_window_size=window,
            chunk_size=chunk,
            head_size_v=None if self.value_size == self.head_size else self.value_size,
        )

    def _add_alibi(self, alibi: Alibi | None, heads: int) -> None:
        self.alibi = alibi
        if alibi is not None:
            first = get_tp_group().rank * self.heads
            # The outer block of a model may be under torch.device("meta"); slopes are always made for real.
            with torch.device("cpu"):
                slopes = alibi.slopes(heads)[first : first + self.heads].clone()
            self.register_buffer("slopes_N", slopes, persistent=False)

    def _add_norms(
        self,
        qk_norm: QKNorm | None,
        v_norm: QKNorm | None,
        out_norm: QKNorm | None,
        replicas: int,
        dtype: torch.dtype | None,
    ) -> None:
        self.norm_after_rotary = qk_norm is not None and qk_norm.after_rotary
        own = not self.reads_other

        def norm(made: QKNorm | None, heads: int, size: int, replicas: int) -> HeadNorm | None:
            return None if made is None else HeadNorm(made, heads, size, replicas=replicas, dtype=dtype)

        self.q_norm = norm(qk_norm, self.heads, self.head_size, 1)
        self.k_norm = norm(qk_norm, self.kv_heads, self.head_size, replicas) if own else None
        self.v_norm = norm(v_norm, self.kv_heads, self.value_size, replicas) if own else None
        self.out_norm = norm(out_norm, self.heads, self.value_size, 1)

    def _add_gate(
        self, hidden_size: int, kind: str | None, act: str, bias: bool, heads: int, dtype: torch.dtype | None
    ) -> None:
        if act not in GATES:
            raise ConfigError("Attention: gate_act", act, "one of " + ", ".join(GATES))
        self.gate, self.gate_act = None, GATES[act]
        if kind is not None:
            if kind not in ("channel", "head"):
                raise ConfigError("Attention: output_gate", kind, "channel, head or None")
            width = heads * self.value_size if kind == "channel" else heads
            self.gate = ColumnParallelLinear(hidden_size, width, bias=bias, dtype=dtype)
            for parameter in self.gate.parameters():
                stored = QKVShape(heads, heads, self.value_size, self.value_size)
                set_weight_loader(parameter, gate_layout_loader(get_weight_loader(parameter), stored))

    def _add_sinks(self, sinks: bool, dtype: torch.dtype | None) -> None:
        self.sinks = nn.Parameter(torch.empty(self.heads, dtype=dtype), requires_grad=False) if sinks else None
        if self.sinks is not None:
            ranks = get_tp_group().world_size
            set_weight_loader(self.sinks, sharding_weight_loader(0, self.heads, ranks))

    def forward(self, x_TH: Tensor, step: Step) -> Tensor:
        """See the class; writes this step's keys and values to the cache when one is bound."""
        q, k, v = self._project(x_TH, step.positions_T)
        out = self._attend(q, k, v, step)
        if self.out_norm is not None:
            out = self.out_norm(out)
        out = out.reshape(x_TH.shape[0], -1)
        if self.gate is not None:
            gate = self.gate_act(self.gate(x_TH).float()).to(out.dtype)
            out = (out.unflatten(-1, (gate.shape[-1], -1)) * gate[..., None]).flatten(1)
        return self.o.reduce(NF.o_proj(out, self.o.matrix, self.o.local_bias))

    def _project(self, x_TH: Tensor, positions_T: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Queries [T, N, D]; keys [T, K, D] and values [T, K, E], or None where another layer's are read."""
        qk, v = self.qkv(x_TH)
        qk = qk.unflatten(-1, (-1, self.head_size))
        if self.k_eq_v:
            v = qk[:, self.heads :]
        elif v is not None:
            v = v.unflatten(-1, (self.kv_heads, -1))
        if self.q_norm is not None and not self.norm_after_rotary:
            qk = self._normed(qk)
        if self.clip is not None:
            qk = qk.clamp(-self.clip, self.clip)
            v = None if v is None else v.clamp(-self.clip, self.clip)
        if self.rotary is not None:
            qk = self.rotary(positions_T, qk)
        if self.q_norm is not None and self.norm_after_rotary:
            qk = self._normed(qk)
        if self.v_norm is not None and v is not None:
            v = self.v_norm(v)
        if self.value_scale != 1.0 and v is not None:
            v = v * self.value_scale
        if self.reads_other:
            q, k, v = qk, None, None
        else:
            q, k = qk.split((self.heads, self.kv_heads), dim=1)
        if self.query_growth is not None:
            q = q * self.query_growth(positions_T).to(q.dtype)
        return q, k, v

    def _normed(self, qk: Tensor) -> Tensor:
        assert self.q_norm is not None
        if self.k_norm is None:
            return self.q_norm(qk)
        q, k = qk.split((self.heads, self.kv_heads), dim=1)
        return torch.cat((self.q_norm(q), self.k_norm(k)), dim=1)

    def _attend(self, q_TND: Tensor, k_TKD: Tensor | None, v_TKE: Tensor | None, step: Step) -> Tensor:
        """[B, Q, N, E]."""
        view = self.view(step)
        if self.cache is not None and k_TKD is not None:
            NF.kv_write(self.cache.pages, k_TKD, v_TKE, view.slots_T)
        q = q_TND.unflatten(0, (step.rows, -1))
        bias = None if self.alibi is None else self._alibi(self.alibi, step, view)
        if step.phase is Phase.PREFILL:
            if k_TKD is None or v_TKE is None:
                k_TKD, v_TKE = self._other(view)
            return NF.flash_attention(
                q,
                k_TKD[None],
                v_TKE[None],
                view.mask_BQS,
                scale=self.scale,
                softcap=self.softcap,
                sinks_N=self.sinks,
                bias_BNQS=bias,
                causal=view.causal,
                window=view.window,
            )
        assert view.blocks_BM is not None
        paged = NF.attention_decode if step.phase is Phase.DECODE else NF.segmented_attention
        return paged(
            q,
            self.pages(),
            view.blocks_BM,
            view.mask_BQS,
            kv_heads=self.kv_heads,
            scale=self.scale,
            softcap=self.softcap,
            sinks_N=self.sinks,
            bias_BNQS=bias,
            window=view.window,
        )

    def _other(self, view: KVView) -> tuple[Tensor, Tensor]:
        """This step's keys and values of the layer whose cache is read, as it has just written them."""
        pages = self.pages()
        block_size = pages.shape[1]
        rows = pages[view.slots_T // block_size, view.slots_T % block_size]
        k, v = rows.split((self.kv_heads * self.head_size, self.kv_heads * self.value_size), dim=-1)
        return k.unflatten(-1, (self.kv_heads, -1)), v.unflatten(-1, (self.kv_heads, -1))

    def _alibi(self, alibi: Alibi, step: Step, view: KVView) -> Tensor:
        """[B, N, Q, S]."""
        queries = step.positions_T.unflatten(0, (step.rows, -1))
        if step.phase is Phase.PREFILL:
            return alibi.bias(self.slopes_N, queries, queries)
        keys = torch.arange(view.mask_BQS.shape[-1]).expand(step.rows, -1)
        if view.start_B is not None:
            keys = keys + view.start_B[:, None]
        return alibi.bias(self.slopes_N, keys, queries)
