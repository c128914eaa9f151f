"""``Family``: what is true of every model of one ``model_type``, as data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from onboard.arch.spec import ArchSpec
from onboard.facts.reader import Reader


@dataclass(frozen=True)
class Family:
    """Knowledge of one model type. Where a field may hold ``"?key"``, the config's ``key`` decides.

    Attributes:
        model_type: as in a config.
        class_name: the causal LM class.
        build: makes the architecture; None: the dense builder with the traits below.
        norm: ``rms`` or ``layernorm``; ``norm_bias``: for a layernorm; ``norm_weight``: false
            for one without parameters; ``plus_one``: weights are 1 + w; ``eps``: fixed, whatever the config says;
            ``eps_key``: the key of it, where several are written.
        places: ``pre``, ``post``, ``sandwich``, ``parallel`` (one shared norm), ``parallel2`` (two norms) or
            ``after_sum`` (of the sum with the residual).
        q_bias, k_bias, v_bias, o_bias, mlp_bias: true, false or ``"?key"``.
        qk_norm: None, ``head``, ``full``, ``each_head``; ``qk_norm_if``: key of the switch; ``qk_place``;
            ``qk_bias``: false where that norm has none although the others do.
        gated: act(gate) * up. ``fused``: gate and up are one matrix in the checkpoint.
        interleaved: rotary pairs are neighbours.
        positions: ``rotary``, ``learned``, ``alibi``, ``sinusoidal`` or ``none``.
        nope: layer types without positions.
        window: ``none``, ``all``, ``switch`` (use_sliding_window and max_window_layers) or ``pattern``;
            ``pattern_first``: the full layer of each group is its first one, else its last.
        embed_scale: None, ``sqrt`` (of the hidden size), ``sqrt?key`` (if the key is true) or ``"?key"``.
        scale: None (1 / sqrt(head size)), ``one``, or a key with its meaning: ``query_pre_attn_scalar``,
            ``attention_multiplier``.
        softcaps: the two soft-cap settings are honoured; ``head``: that of the logits alone.
        logit_scale: None, ``"?key"`` (multiplies) or ``"/key"`` (divides).
        residual: key of a residual multiplier.
        untied: the reference never ties the head to the table, whatever the config says.
        head_bias, final_norm, moe: whether; ``moe`` names the routing style in :mod:`.moe`.
        act_is: an activation that stands in for another one as written.
        unscaled_sliding: rotary scaling does not reach sliding layers.
    """

    model_type: str
    class_name: str
    build: Callable[[Reader, Family], ArchSpec] | None = None
    norm: str = "rms"
    norm_bias: bool = True
    norm_weight: bool = True
    plus_one: bool = False
    eps: float | None = None
    eps_key: str = "norm_eps"
    places: str = "pre"
    q_bias: bool | str = False
    k_bias: bool | str = False
    v_bias: bool | str = False
    o_bias: bool | str = False
    mlp_bias: bool | str = False
    qk_norm: str | None = None
    qk_norm_if: str | None = None
    qk_place: str = "before_rope"
    qk_bias: bool = True
    gated: bool = True
    fused: bool = False
    interleaved: bool = False
    positions: str = "rotary"
    nope: tuple[str, ...] = ()
    learned_offset: int = 0
    window: str = "none"
    pattern_first: bool = False
    embed_scale: str | None = None
    embed_norm: bool = False
    scale: str | None = None
    softcaps: bool | str = False
    logit_scale: str | None = None
    residual: str | None = None
    head_bias: bool | str = False
    untied: bool = False
    final_norm: bool = True
    moe: str | None = None
    act_is: tuple[tuple[str, str], ...] = ()
    unscaled_sliding: bool = False
