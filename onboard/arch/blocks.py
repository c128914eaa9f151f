"""The parts of a decoder layer as frozen values: norms, positions, attention, state mixers, MLP, MoE.

Legend: T tokens, H hidden, N query heads, K KV heads, D head size, E experts, I intermediate size. Every optional part
is None when the model has none; a number that the source does not give is None too and never a guess.
"""

from __future__ import annotations

from dataclasses import dataclass

ATTENTION_KINDS = ("full", "sliding", "chunked", "mla", "compressed")
STATE_KINDS = ("mamba1", "mamba2", "gated_delta_net", "kda", "lightning", "rg_lru", "wkv", "short_conv", "mlstm")
SCORES = ("softmax", "sigmoid", "sqrtsoftplus", "sparsemixer")
POSITION_KINDS = ("rotary", "learned", "alibi", "sinusoidal", "none")
NORM_KINDS = ("rms", "layernorm", "l2")


@dataclass(frozen=True)
class Norm:
    """A normalisation.

    ``plus_one``: the weight is used as ``1 + w``. ``weight``: False for one without parameters. ``gated``: multiplied
    by the activation of a gate (state mixers). ``groups``: normalised in this many pieces of the width.
    """

    kind: str = "rms"
    eps: float | None = None
    plus_one: bool = False
    bias: bool = False
    weight: bool = True
    gated: bool = False
    groups: int = 1


@dataclass(frozen=True)
class QKNorm:
    """Normalisation of queries and keys.

    ``width``: ``head`` (weight [D], shared by the heads), ``full`` (weight [N*D] and [K*D], statistics over all heads)
    or ``each_head`` (weight [N, D] and [K, D]). ``place``: ``before_rope`` or ``after_rope``. ``query_norm``: what the
    queries have instead, where it differs from the keys'.
    """

    norm: Norm
    width: str = "head"
    place: str = "before_rope"
    query_norm: Norm | None = None


@dataclass(frozen=True)
class Scaling:
    """Rotary scaling with all its parameters; None where the kind does not use it.

    ``kind``: linear, dynamic, llama3, yarn, longrope, proportional. ``factors_*``: longrope's per-frequency lists.
    ``query_beta``: Llama-4 style growth of the query scale with position (Ministral 3).
    """

    kind: str
    factor: float | None = None
    original_max_positions: int | None = None
    low_freq_factor: float | None = None
    high_freq_factor: float | None = None
    beta_fast: float | None = None
    beta_slow: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    attention_factor: float | None = None
    truncate: bool | None = None
    factors_short: tuple[float, ...] | None = None
    factors_long: tuple[float, ...] | None = None
    query_beta: float | None = None


@dataclass(frozen=True)
class Positions:
    """How a layer knows positions.

    ``rotary_dim``: the channels of each head that turn (even). ``leading``: they are the first channels, else the last.
    ``interleaved``: pairs are (2i, 2i+1), else (i, i + rotary_dim/2). ``frequency_dim``: the size that the exponents
    are divided by, when it is not rotary_dim ("proportional" rope). ``mrope``: sections of a multimodal rope.
    ``reverse``: turned by minus the angle (NanoChat). ``dealt``: the first so many frequencies are used in another
    order, those of even index before those of odd index (Cohere Compass).
    ``learned_size``: rows of a learned table; ``offset``: rows skipped at its start.
    ``sinusoidal``: H/2 sines, then H/2 cosines of (position + offset) * base ** (-2j / (frequency_dim or H)).
    """

    kind: str = "rotary"
    base: float | None = None
    rotary_dim: int | None = None
    interleaved: bool = False
    leading: bool = True
    frequency_dim: int | None = None
    scaling: Scaling | None = None
    mrope: tuple[int, ...] | None = None
    mrope_interleaved: bool = False
    reverse: bool = False
    dealt: int | None = None
    learned_size: int | None = None
    offset: int = 0


@dataclass(frozen=True)
class Latent:
    """Ranks and head parts of latent attention (MLA). ``q_rank`` None: queries are projected directly.

    ``norm``: of the low-rank query and of the latent, each with its own weight. ``kv_scale`` multiplies the normalised
    latent, so both the keys without position and the values, but not the keys with position (LongCat).
    """

    q_rank: int | None
    kv_rank: int
    nope_size: int
    rope_size: int
    norm: Norm = Norm()
    kv_scale: float = 1.0


@dataclass(frozen=True)
class Indexer:
    """A sparse indexer that picks ``top_k`` cache entries for each query.

    ``shared``: this layer reuses the choice of an earlier layer and has no weights of its own.
    """

    heads: int
    head_size: int
    top_k: int
    shared: bool = False
    interleaved: bool = False


@dataclass(frozen=True)
class Compressor:
    """A compressed long-range KV branch: one entry for every ``rate`` tokens; ``overlap``: two series per entry."""

    rate: int
    overlap: bool


@dataclass(frozen=True)
class Attention:
    """One attention block.

    ``head_size_k`` is the size of queries and keys. ``scale`` multiplies q.k (None: unknown). ``window`` counts the
    token itself. ``chunk``: tokens see only their own chunk. ``output_gate``: what the attention's output is
    multiplied by before the output projection: ``channel`` (one gate for each of the N * head_size_v channels) or
    ``head`` (one for each query head); ``gate_from``: its rows are in the query projection (``query``: for each
    head its query, then its gate) or in a matrix of its own that reads the same input as q (``own``, no bias);
    ``gate_act``: ``sigmoid`` or ``softplus``. ``value_scale`` multiplies the values. ``input_size``: width of what
    q, k and v read where it is not the hidden size (Zamba). ``shared_kv``: index of the layer whose cache is read
    instead of writing one. ``k_eq_v``: values come from the key projection. ``single_cache``: one cache entry
    serves as key and value. ``q_rank``: low-rank query projection outside MLA. ``query_growth_*``: Llama-4 growth
    of the query scale with the position, on layers without rope. ``o_groups``/``o_rank``: grouped low-rank output
    projection. ``undo_rope``: the output is turned back by its own position. ``storage``: how a checkpoint stores
    q, k and v: ``separate``, ``concatenated``, ``grouped`` (by KV head), ``per head``, ``transposed``, ``four
    blocks`` (each a quarter of the queries, then of the values, then of the keys) or ``unknown``. In MLA,
    ``q_bias`` and ``k_bias`` are those of the two down projections.
    """

    kind: str
    heads: int
    kv_heads: int
    head_size_k: int
    head_size_v: int
    positions: Positions = Positions()
    scale: float | None = None
    q_bias: bool = False
    k_bias: bool = False
    v_bias: bool = False
    o_bias: bool = False
    qk_norm: QKNorm | None = None
    v_norm: Norm | None = None
    out_norm: Norm | None = None
    k_eq_v: bool = False
    single_cache: bool = False
    q_rank: int | None = None
    undo_rope: bool = False
    window: int | None = None
    chunk: int | None = None
    softcap: float | None = None
    clip_qkv: float | None = None
    sinks: bool = False
    output_gate: str | None = None
    gate_from: str = "query"
    gate_act: str = "sigmoid"
    value_scale: float = 1.0
    input_size: int | None = None
    shared_kv: int | None = None
    latent: Latent | None = None
    indexer: Indexer | None = None
    compressor: Compressor | None = None
    o_groups: int | None = None
    o_rank: int | None = None
    query_growth_floor: int | None = None
    query_growth_beta: float | None = None
    storage: str = "separate"


@dataclass(frozen=True)
class State:
    """A mixer with a recurrent or convolution state instead of a KV cache.

    ``heads`` of ``head_size`` carry the state; ``state_size`` is its other side (mamba: N; delta net and mLSTM: key
    head size). ``key_heads``: heads that q and k are projected to. ``groups``: mamba2's B/C groups. ``conv_kernel`` and
    ``conv_channels``: the causal depthwise convolution before the mixer; its state holds ``conv_kernel`` columns where
    the reference keeps them all (``conv_columns``). ``dt_rank``: mamba1. ``gate_softcap``: mLSTM gates.
    ``inner_norm``: mamba1's step, B and C are each normalised (Jamba with weights, FalconMamba without).
    ``doubled_beta``: the delta rule's beta is 2 * sigmoid, so that eigenvalues may be negative.

    ``kda``: Kimi's delta attention, a delta rule with a decay for each channel from a low-rank gate.
    ``lightning``: linear attention with a fixed decay for each head (MiniMax). ``rg_lru``: RecurrentGemma's gated
    linear recurrence. ``wkv``: RWKV 4's time mixing.
    """

    kind: str
    heads: int
    head_size: int
    state_size: int
    key_heads: int | None = None
    groups: int | None = None
    conv_kernel: int | None = None
    conv_channels: int | None = None
    conv_bias: bool = False
    proj_bias: bool = False
    dt_rank: int | None = None
    norm: Norm | None = None
    activation: str | None = None
    gate_softcap: float | None = None
    fused_projections: bool = True
    inner_norm: Norm | None = None
    doubled_beta: bool = False


@dataclass(frozen=True)
class Clamp:
    """gpt-oss style limits: gate clamped above, up clamped on both sides; ``alpha`` scales the sigmoid, ``up_shift``
    is added to up."""

    limit: float
    alpha: float | None = None
    up_shift: float = 0.0


@dataclass(frozen=True)
class MLP:
    """A feed-forward block of width ``size``; ``gated``: act(gate) * up; ``fused``: gate and up are one matrix.

    ``down_norm``: over the width ``size``, before the down projection (BitNet). The activation ``xielu`` has two
    parameters of its own.
    """

    size: int
    activation: str
    gated: bool = True
    up_bias: bool = False
    down_bias: bool = False
    clamp: Clamp | None = None
    fused: bool = False
    down_norm: Norm | None = None


@dataclass(frozen=True)
class Router:
    """How experts are picked and weighted, in this order, all in float32.

    1. Logits: ``l = x W^T`` (``bias``: plus a bias [E]); ``softcap`` c: ``c * tanh(l / c)``.
    2. Scores over all E experts: ``s = softmax(l)``, ``sigmoid(l)`` or ``sqrt(softplus(l))``.
    3. Choice values: ``c = s``, with ``correction_bias`` ``c = s + b`` (b [E] enters nothing but the choice).
    4. With ``groups`` > 1 (runs of E / groups neighbours): a group's value is the ``max`` of its c, or the sum of its
       two largest (``top2_sum``); the c of experts outside the ``top_groups`` best groups count as minus infinity.
    5. The ``top_k`` largest c are chosen; their weights are their s (not c); ``normalize``: divided by their sum;
       then times ``scale``.

    A softmax over the chosen logits alone (Mixtral's paper, gpt-oss, Granite) equals ``softmax`` with ``normalize``
    and is written so; a sigmoid of the chosen logits alone equals ``sigmoid``. A sum of weights is never near 0, so
    the tiny numbers that some families add to it are left out.

    ``score`` ``sparsemixer`` (Phi-3.5 MoE, always two experts): the first is the largest logit m1; its weight is its
    softmax over the logits l with ``(m1 - l) / max(abs(l), m1) <= 2 * jitter``; the second is the largest logit m2 of
    the others; its weight is its softmax over those of the others with ``(m2 - l) / max(abs(l), m2) <= 2 * jitter``.

    ``weight_on``: ``output`` or ``input`` of the expert. ``hash``: chosen by token id from a table.
    ``input_norm``: the router normalises its own input; ``input_scale``: with a learned scale [H];
    ``expert_scale``: a learned scale for each expert.
    """

    score: str = "softmax"
    normalize: bool = False
    scale: float = 1.0
    bias: bool = False
    correction_bias: bool = False
    groups: int = 1
    top_groups: int = 1
    group_score: str | None = None
    weight_on: str = "output"
    hash: bool = False
    input_norm: Norm | None = None
    input_scale: bool = False
    expert_scale: bool = False
    softcap: float | None = None
    jitter: float | None = None


@dataclass(frozen=True)
class MoE:
    """A mixture of experts: ``experts`` MLPs of width ``size``, ``top_k`` chosen for each token.

    ``shared``: an MLP that every token passes; ``shared_gate``: its output is multiplied by a learned sigmoid.
    ``latent_size``: experts work in this width, with a projection down and up around them. ``output_scale`` multiplies
    the sum of the chosen experts and the shared one (Cohere 2 MoE averages them: 0.5).
    """

    experts: int
    top_k: int
    size: int
    activation: str
    router: Router = Router()
    gated: bool = True
    up_bias: bool = False
    down_bias: bool = False
    clamp: Clamp | None = None
    shared: MLP | None = None
    shared_gate: bool = False
    latent_size: int | None = None
    latent_bias: bool = False
    output_scale: float = 1.0


@dataclass(frozen=True)
class LayerNorms:
    """Where a layer normalises. ``pre``, ``post``, ``sandwich`` or ``parallel`` follow from which are set:
    see :attr:`Layer.norm_places`. ``moe_*``: separate norms around experts that run beside a dense MLP (Gemma 4).
    """

    pre_mixer: Norm | None = None
    post_mixer: Norm | None = None
    pre_mlp: Norm | None = None
    post_mlp: Norm | None = None
    post_dense: Norm | None = None
    pre_moe: Norm | None = None
    post_moe: Norm | None = None


@dataclass(frozen=True)
class Layer:
    """One kind of layer. One of ``attention`` and ``state`` is set, or neither in a layer that is only an MLP; both in
    a hybrid one (Falcon H1: side by side on the same input; Zamba: attention and MLP feed the state mixer).

    ``parallel``: mixer and MLP read the same residual; ``shared_norm``: they share one norm too. ``residual_scale``
    multiplies what is added to the residual. ``per_layer_input``: the layer takes its own embedding of each token.
    ``output_scalar``: a stored scalar multiplies the layer's output. ``norm_after_add``: the post norms normalise the
    sum, ``x = norm(x + block(x))``, instead of what is added to it. A layer with no part at all passes its input on.
    ``weights_of``: attention, MLP and the MLP's norm use the weights of this earlier layer (Zamba).
    """

    attention: Attention | None = None
    state: State | None = None
    mlp: MLP | None = None
    moe: MoE | None = None
    norms: LayerNorms = LayerNorms()
    parallel: bool = False
    shared_norm: bool = False
    residual_scale: float = 1.0
    per_layer_input: bool = False
    output_scalar: bool = False
    norm_after_add: bool = False
    weights_of: int | None = None

    @property
    def norm_places(self) -> str:
        """``parallel``, ``sandwich``, ``pre``, ``post``, ``after the sum`` or ``none``."""
        if self.parallel:
            return "parallel"
        if self.norm_after_add:
            return "after the sum"
        before = self.norms.pre_mixer is not None or self.norms.pre_mlp is not None
        after = self.norms.post_mixer is not None or self.norms.post_mlp is not None
        return {(True, True): "sandwich", (True, False): "pre", (False, True): "post"}.get((before, after), "none")

    @property
    def mixer_kind(self) -> str:
        """The attention's or the state's kind, else ``none``."""
        part = self.attention or self.state
        return part.kind if part is not None else "none"
