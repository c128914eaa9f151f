"""Rotary settings in all their spellings -> :class:`Positions`.

Two generations: ``rope_theta``/``rope_scaling``/``rope_local_base_freq`` at the top of a config, and one
``rope_parameters`` object, flat or with a block for each layer type (transformers 5).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onboard.arch.blocks import Positions, Scaling
from onboard.facts.reader import Reader
from vllm_neuron.errors import UnsupportedError

PATH = "attention.positions"
KINDS = {
    "default": None,
    "mrope": None,
    "linear": "linear",
    "dynamic": "dynamic",
    "llama3": "llama3",
    "yarn": "yarn",
    "deepseek_yarn": "yarn",
    "longrope": "longrope",
    "su": "longrope",
    "proportional": "proportional",
}
NUMBERS = {
    "factor": "factor",
    "low_freq_factor": "low_freq_factor",
    "high_freq_factor": "high_freq_factor",
    "beta_fast": "beta_fast",
    "beta_slow": "beta_slow",
    "mscale": "mscale",
    "mscale_all_dim": "mscale_all_dim",
    "attention_factor": "attention_factor",
    "attn_factor": "attention_factor",
    "llama_4_scaling_beta": "query_beta",
}
NEEDS = {
    "linear": ("factor",),
    "dynamic": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_positions"),
    "yarn": ("factor",),
    "longrope": ("factors_short", "factors_long"),
}
# Model types whose code in transformers 5.19 takes no notice of ``rotary_dim``, and of a partial rotary factor.
UNREAD_DIM = ("minimax_m3_vl_text",)
_WHOLE_HEAD = """
apertus arcee bitnet cohere cohere2 cwm diffllama doge emu3_text_model ernie4_5 exaone4 falcon gemma gemma2 granite
granite_swa helium hunyuan_v1_dense hyperclovax jais2 llama ministral mistral mllama_text_model moshi nanochat olmo
olmo2 qwen2 qwen3
"""
WHOLE_HEAD = frozenset(_WHOLE_HEAD.split())
OTHER = ("type", "rope_type", "rope_theta", "partial_rotary_factor", "mrope_section", "mrope_interleaved", "truncate",
         "short_factor", "long_factor", "original_max_position_embeddings", "max_position_embeddings", "finetuned",
         "short_mscale", "long_mscale")  # fmt: skip


def rotary(
    r: Reader,
    head_size: int,
    *,
    layer_type: str | None = None,
    rotary_dim: int | None = None,
    interleaved: bool = False,
    leading: bool = True,
    unscaled: bool = False,
) -> Positions:
    """The rotary positions of one kind of layer.

    Args:
        r: the config.
        head_size: D.
        layer_type: picks the block where there is one for each ("full_attention", "sliding_attention").
        rotary_dim: given where the family fixes it in another way (MLA's rope part).
        interleaved: pairs of neighbours.
        leading: the turned channels come first.
        unscaled: scaling in the old spelling does not apply to this layer.

    Raises:
        ConfigError: a value that can't be right.
        UnsupportedError: a rope type that is not known; no fallback is sound.
    """
    block, where = _block(r, layer_type)
    if unscaled and where == "rope_scaling":
        block = {}
    base = _base(r, block, where, layer_type)
    if block.get("alpha") and block.get("rope_type", block.get("type")) == "dynamic":
        base, block = _ntk(r, block, base, head_size)
    name, scaling = _scaling(r, block, where)
    if rotary_dim is None:
        rotary_dim = _rotary_dim(r, block, head_size)
    sections = block.get("mrope_section")
    if sections is not None and not (isinstance(sections, list) and all(type(s) is int and s > 0 for s in sections)):
        raise r.wrong("rope_scaling", sections, "mrope_section as a list of positive integers")
    positions = Positions(
        kind="rotary",
        base=base,
        rotary_dim=rotary_dim,
        interleaved=interleaved,
        leading=leading,
        frequency_dim=head_size if name == "proportional" else None,
        scaling=scaling,
        mrope=tuple(sections) if sections else None,
        mrope_interleaved=block.get("mrope_interleaved") is True,
    )
    if scaling is not None and scaling.kind == "longrope":
        _check_longrope(r, scaling, rotary_dim)
    return positions


def _ntk(r: Reader, block: Mapping[str, Any], base: float, size: int) -> tuple[float, Mapping[str, Any]]:
    """Hunyuan's fixed NTK scaling: a larger base, and no scaling besides."""
    alpha = r.number("rope_scaling", block["alpha"], minimum=1e-6)
    r.derived(f"{PATH}.base", "rope_theta * alpha ** (head_dim / (head_dim - 2))")
    return base * alpha ** (size / (size - 2)), {k: v for k, v in block.items() if k in ("rope_theta", "mrope_section")}


def _is_nested(params: Mapping[str, Any]) -> bool:
    return any(isinstance(v, Mapping) for v in params.values())


def _block(r: Reader, layer_type: str | None) -> tuple[Mapping[str, Any], str]:
    """The settings that apply, merged into one flat block, and the key that they came from."""
    r.find("rope_scaling"), r.find("rope_theta"), r.find("rope_local_base_freq")
    written = r.has("rope_parameters")
    params = r.maybe_mapping("rope_parameters")
    old = r.maybe_mapping("rope_scaling")
    legacy = old is not None or r.has("rope_theta") or r.has("rope_local_base_freq")
    if params is not None and (written or not legacy):
        if _is_nested(params):
            block = params.get(layer_type or "full_attention")
            if block is None and layer_type is None and len(params) == 1:
                block = next(iter(params.values()))
            if not isinstance(block, Mapping):
                raise r.wrong("rope_parameters", sorted(map(str, params)), f"a block for {layer_type!r}")
            return block, f"rope_parameters.{layer_type or 'full_attention'}"
        if old is not None and {**old, **params} != params:
            r.warn("rope_scaling contradicts rope_parameters; rope_parameters wins")
        return params, "rope_parameters"
    if layer_type == "sliding_attention" and (r.has("rope_local_base_freq") or r.defaults.get("rope_local_base_freq")):
        return {}, "rope_local_base_freq"
    return old or {}, "rope_scaling"


def _base(r: Reader, block: Mapping[str, Any], where: str, layer_type: str | None) -> float:
    at = f"{PATH}.base"
    theta = block.get("rope_theta")
    local = layer_type == "sliding_attention" and r.defaults.get("rope_local_base_freq") is not None
    if where == "rope_local_base_freq" or (local and theta is None and where.startswith("rope_parameters.")):
        return r.decimal("rope_local_base_freq", at, minimum=1.0)
    if theta is not None:
        value = r.number("rope_parameters", theta, 1.0)
        r.record_written(at, where, r.has(where.split(".", 1)[0]))
        flat = r.find("rope_theta")[0] if where in ("rope_parameters", "rope_scaling") else None
        if r.has("rope_theta") and flat not in (None, theta):
            r.warn(f"rope_theta={flat!r:.40} contradicts {where}.rope_theta={theta!r:.40}; {where} wins")
        return value
    return r.decimal("rope_theta", at, minimum=1.0)


def _scaling(r: Reader, block: Mapping[str, Any], where: str) -> tuple[str, Scaling | None]:
    kind = block.get("rope_type", block.get("type", "default"))
    if kind is None:
        kind = "default"
    if not isinstance(kind, str) or kind not in KINDS:
        raise UnsupportedError(
            f"{r.prefix}{where}.rope_type", kind, "one of " + ", ".join(KINDS), "No other kind of rope can stand in."
        )
    other = block.get("type")
    if "rope_type" in block and other not in (None, kind):
        r.warn(f"{where}.type={other!r:.40} contradicts {where}.rope_type={kind!r}; rope_type wins")
    written = r.has(where.split(".", 1)[0])
    r.record_written(f"{PATH}.scaling", where, written)
    for key in block:
        if key not in NUMBERS and key not in OTHER:
            r.warn(f"{r.prefix}{where}.{key} is not understood")
    name = KINDS[kind]
    if name is None:
        return kind, None
    values: dict[str, Any] = {}
    for key, field in NUMBERS.items():
        if block.get(key) is not None:
            values[field] = r.number(where.split(".", 1)[0], block[key])
    values["original_max_positions"] = _original(r, block)
    truncate = block.get("truncate")
    if truncate is not None and type(truncate) is not bool:
        raise r.wrong("rope_scaling", truncate, "truncate as true or false")
    for key, field in (("short_factor", "factors_short"), ("long_factor", "factors_long")):
        if block.get(key) is not None:
            values[field] = _factors(r, block[key])
    for field in NEEDS.get(name, ()):
        if values.get(field) is None:
            raise r.wrong("rope_scaling", dict(block), f"{field} for rope type {kind!r}")
    return kind, Scaling(kind=name, truncate=truncate, **values)


def _original(r: Reader, block: Mapping[str, Any]) -> int | None:
    value = block.get("original_max_position_embeddings")
    if value is None:
        return r.maybe_integer("original_max_position_embeddings")
    if type(value) not in (int, float) or not 0 < value < 2**40 or value != int(value):
        raise r.wrong("rope_scaling", value, "original_max_position_embeddings as a positive integer")
    return int(value)


def _factors(r: Reader, value: Any) -> tuple[float, ...]:
    if not isinstance(value, list) or len(value) > 4096:
        raise r.wrong("rope_scaling", value, "a list of factors")
    return tuple(r.number("rope_scaling", x, 0.0) for x in value)


def _check_longrope(r: Reader, scaling: Scaling, rotary_dim: int) -> None:
    for factors in (scaling.factors_short, scaling.factors_long):
        if factors is not None and len(factors) != rotary_dim // 2:
            raise r.wrong("rope_scaling", f"{len(factors)} factors", f"{rotary_dim // 2}, half the rotary size")


def _rotary_dim(r: Reader, block: Mapping[str, Any], head_size: int) -> int:
    """Channels that turn: ``rotary_dim`` if it is written, else the factor, applied once, else all."""
    at = f"{PATH}.rotary_dim"
    factor = block.get("partial_rotary_factor")
    if factor is not None:
        r.record_written(at, "rope_parameters.partial_rotary_factor", r.has("rope_parameters"))
        factor = r.number("rope_parameters", factor)
        if r.has("partial_rotary_factor") and r.find("partial_rotary_factor")[0] != factor:
            r.warn("partial_rotary_factor contradicts rope_parameters.partial_rotary_factor; rope_parameters wins")
        r.find("partial_rotary_factor")
    else:
        factor = r.maybe_decimal("partial_rotary_factor", None if r.has("rotary_dim") else at)
    if factor is not None and not 0 < factor <= 1:
        raise r.wrong("partial_rotary_factor", factor, "a number above 0 and up to 1")
    size = head_size if factor is None else int(head_size * factor)
    if r.has("rotary_dim") and r.model_type not in UNREAD_DIM:
        given = r.integer("rotary_dim", at, maximum=head_size)
        if r.has("partial_rotary_factor") and given != size:
            r.warn(f"conflict: rotary_dim={given} and partial_rotary_factor={factor} of head size {head_size} "
                   f"(={size}) contradict each other; rotary_dim wins")  # fmt: skip
        size = given
    if size < 2 or size % 2:
        raise r.wrong(
            "partial_rotary_factor", factor, f"a part of head size {head_size} that is even (it gives {size})"
        )
    if size < head_size and r.model_type in WHOLE_HEAD:
        note = (
            f"the config asks for {size} rotary channels of {head_size}, but transformers' code for {r.model_type} "
            "turns the whole head"
        )
        if note not in r.notes:
            r.notes.append(note)
    return size
