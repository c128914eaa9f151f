"""Dense families that need a step before or after the dense builder; nothing of theirs is beyond the spec's fields
but a zeroed position of XGLM and the head of ModernBERT."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from onboard.arch.blocks import Layer, LayerNorms, Positions
from onboard.arch.spec import ArchSpec, Beyond
from onboard.facts.families import classic, common, dense, windows
from onboard.facts.families.family import Family
from onboard.facts.reader import Reader

COMPASS_SECTIONS = (22, 22, 20)
POSITIONS = "attention.positions"


def build_bitnet(r: Reader, family: Family) -> ArchSpec:
    """BitNet: a norm before each of the two projections back to the residual."""

    def change(one: Layer) -> Layer:
        assert one.attention is not None and one.mlp is not None
        inner = common.norm(r, family, "attention.out_norm")
        return dataclasses.replace(
            one,
            attention=dataclasses.replace(one.attention, out_norm=inner),
            mlp=dataclasses.replace(one.mlp, down_norm=common.norm(r, family, "mlp.down_norm")),
        )

    return common.each(dense.build(r, family), change)


def build_compass(r: Reader, family: Family) -> ArchSpec:
    """Cohere Compass: multimodal sections of the rope deal its frequencies out, for text too; a layer type whose rope
    parameters are null has no positions."""
    given = r.maybe_mapping("rope_parameters") or {}
    nested = any(isinstance(v, Mapping) for v in given.values())
    nope = {kind for kind in (windows.FULL, windows.SLIDING) if nested and kind in given and given[kind] is None}

    def change(one: Layer) -> Layer:
        a = one.attention
        assert a is not None
        p = a.positions
        if p.kind != "rotary":
            return one
        sections = p.mrope or COMPASS_SECTIONS
        half = a.head_size_k // 2
        if len(sections) != 3 or sum(sections) != half:
            raise r.wrong("rope_parameters", list(sections), f"three mrope_section values that add up to {half}")
        dealt = sections[0] + sections[1] if p.scaling is None else None
        return dataclasses.replace(
            one, attention=dataclasses.replace(a, positions=dataclasses.replace(p, mrope=sections, dealt=dealt))
        )

    r.record_written(f"{POSITIONS}.kind", "rope_parameters", r.has("rope_parameters"))
    r.known(f"{POSITIONS}.dealt", f"{POSITIONS}.mrope")
    return common.each(dense.build(r, dataclasses.replace(family, nope=tuple(sorted(nope)))), change)


def build_ctrl(r: Reader, family: Family) -> ArchSpec:
    """CTRL: sinusoidal positions, ReLU, and a fixed epsilon everywhere but in the last norm."""
    r.settle("hidden_act", "relu", "the reference's code")
    spec = dense.build(r, family)
    assert spec.final_norm is not None
    eps = r.maybe_decimal("norm_eps", minimum=0.0)
    r.overrule("final_norm.eps", r.find("norm_eps")[1])
    return dataclasses.replace(
        spec,
        embedding=dataclasses.replace(spec.embedding, positions=Positions("sinusoidal", base=10000.0)),
        final_norm=dataclasses.replace(spec.final_norm, eps=eps),
    )


def build_xglm(r: Reader, family: Family) -> ArchSpec:
    """XGLM: sinusoidal positions that start after two rows, with the lowest frequency at exactly 1 / 10000; the row
    of the padding token is zero."""
    spec = dense.build(r, family)
    table = Positions("sinusoidal", base=10000.0, frequency_dim=spec.hidden - 2, offset=2)
    beyond: tuple[Beyond, ...] = ()
    pad = r.maybe_integer("pad_token_id", minimum=-1)
    if pad is not None and pad >= table.offset:
        where = f"position {pad - table.offset}, the row of the padding token"
        beyond += (Beyond("zeroed position", "XGLMSinusoidalPositionalEmbedding", where),)
    if r.flag("add_cross_attention"):
        h = spec.hidden
        size = spec.layers * (4 * (h * h + h) + 2 * h)
        beyond += (Beyond("cross attention", "XGLMAttention", "each layer, for an encoder's states", size),)
    return dataclasses.replace(spec, embedding=dataclasses.replace(spec.embedding, positions=table), beyond=beyond)


def build_gpt_neo(r: Reader, family: Family) -> ArchSpec:
    """GPT-Neo: scores without a scale, and a pattern of global and local layers of its own spelling."""
    classic.four_times(r)
    layers = r.maybe_list("attention_layers", str)
    if layers is None:
        layers = [name for names, times in _pairs(r) for _ in range(times) for name in names]
    else:
        r.find("attention_types")
    r.settle("layer_types", list(layers), "attention_layers, from attention_types")
    return dense.build(r, family)


def _pairs(r: Reader) -> list[tuple[list[str], int]]:
    pairs = r.find("attention_types")[0]
    if not isinstance(pairs, list) or any(not isinstance(p, list) or len(p) != 2 for p in pairs):
        raise r.wrong("attention_types", pairs, "a list of pairs [names, times]")
    for names, times in pairs:
        named = isinstance(names, list) and all(isinstance(name, str) for name in names)
        if not named or type(times) is not int or not 0 <= times * len(names) <= common.MAX_LAYERS:
            raise r.wrong("attention_types", [names, times], "a list of names and how often it is repeated")
    return [(names, times) for names, times in pairs]


def build_japanese(r: Reader, family: Family) -> ArchSpec:
    """GPT-NeoX-Japanese: the output projection of the last layer alone has a bias."""
    times = r.decimal("intermediate_multiple_size", "mlp.size", minimum=0.0)
    r.settle("intermediate_size", int(common.hidden_size(r) * times), "intermediate_multiple_size * hidden_size")
    spec = dense.build(r, family)
    layers = list(spec)
    last = layers[-1].attention
    assert last is not None
    layers[-1] = dataclasses.replace(layers[-1], attention=dataclasses.replace(last, o_bias=True))
    return common.regroup(spec, layers)


def build_granite_swa(r: Reader, family: Family) -> ArchSpec:
    """Granite with windows: sinks, and a rotary base for each layer, where 0 or null means no positions."""
    spec = dense.build(r, family)
    bases, source = r.find("layer_rope_theta")
    if bases is not None and (not isinstance(bases, list) or len(bases) != spec.layers):
        raise r.wrong("layer_rope_theta", bases, f"a base, 0 or null for each of the {spec.layers} layers")
    r.known("attention.sinks")
    if bases is not None:
        r.overrule(f"{POSITIONS}.base", source)
        r.overrule(f"{POSITIONS}.kind", source)
    layers = []
    for i, one in enumerate(spec):
        a = one.attention
        assert a is not None
        p = a.positions
        if bases is not None:
            base = r.number("layer_rope_theta", bases[i] or 0, 0.0)
            p = dataclasses.replace(p, base=base) if base else Positions("none")
        layers.append(dataclasses.replace(one, attention=dataclasses.replace(a, positions=p, sinks=True)))
    return common.regroup(spec, layers)


def build_hyperclovax(r: Reader, family: Family) -> ArchSpec:
    """HyperCLOVA X: a norm after each block unless it is switched off; logits are multiplied, not divided."""
    if r.flag("use_post_norm", "norms.places"):
        family = dataclasses.replace(family, places="sandwich")
    if r.maybe_decimal("attention_multiplier") is None:
        family = dataclasses.replace(family, scale=None)
    return dense.build(r, family)


def build_modernbert(r: Reader, family: Family) -> ArchSpec:
    """ModernBERT as a decoder: the first layer's attention has no norm, since the embedding has one; a dense layer,
    an activation and a norm before the head; half of ``local_attention`` is the window, the token itself included."""
    local = r.maybe_integer("local_attention", "attention.window", minimum=0)
    r.settle("sliding_window", local // 2 if local else None, "sliding_window = local_attention // 2")
    bias = r.flag("norm_bias", "norms.bias")
    spec = dense.build(r, dataclasses.replace(family, norm_bias=bias))
    layers = list(spec)
    layers[0] = dataclasses.replace(layers[0], norms=LayerNorms(pre_mlp=layers[0].norms.pre_mlp))
    h = spec.hidden
    size = h * h + h * r.flag("classifier_bias") + h * (1 + bias)
    act = r.maybe_text("classifier_activation") or "gelu"
    where = f"between the last norm and the head: a dense layer, {act}, a norm"
    head = Beyond("head MLP", "ModernBertDecoderPredictionHead", where, size)
    return dataclasses.replace(common.regroup(spec, layers), beyond=(head,))


def build_moshi(r: Reader, family: Family) -> ArchSpec:
    """Moshi's text decoder: ``ffn_dim`` counts gate and up together; the table has one row more than the head."""
    both = r.integer("ffn_dim", "mlp.size", maximum=2 * common.MAX_WIDTH)
    if both % 2:
        raise r.wrong("ffn_dim", both, "an even number")
    r.settle("intermediate_size", both // 2, "ffn_dim / 2")
    if r.maybe_integer("sliding_window") is not None:
        r.notes.append("sliding_window is not read by the reference's mask: every layer sees all tokens")
        r.settle("sliding_window", None, "the reference's code")
    spec = dense.build(r, family)
    r.known("embedding.extra_rows")
    return dataclasses.replace(spec, embedding=dataclasses.replace(spec.embedding, extra_rows=1))


def build_nanochat(r: Reader, family: Family) -> ArchSpec:
    """NanoChat: queries and keys turn by minus the angle; no norm has a weight."""

    def change(one: Layer) -> Layer:
        a = one.attention
        assert a is not None
        turned = dataclasses.replace(a.positions, reverse=True)
        return dataclasses.replace(one, attention=dataclasses.replace(a, positions=turned))

    r.known(f"{POSITIONS}.reverse")
    return common.each(dense.build(r, family), change)


def build_openai(r: Reader, family: Family) -> ArchSpec:
    """The first GPT: norms after the sums, four times the hidden size in the MLP whatever the config says."""
    r.settle("intermediate_size", 4 * common.hidden_size(r), "4 * hidden size")
    return dense.build(r, family)
