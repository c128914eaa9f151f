"""How a config class makes its rotary settings: from the config's own block of settings where that gives the same
frequencies as the architecture, else from single values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onboard.arch.blocks import Positions
from onboard.scaffold.calls import Arg, Call, Tree, Unbound, Unifier
from onboard.scaffold.expressions import Example
from onboard.scaffold.study import Twin
from onboard.scaffold.wiring import Wiring


@dataclass(frozen=True)
class Settings:
    """The ``rotary`` field of a config class.

    Attributes:
        text: the expression that makes it; reads ``hf_config`` and local names.
        keyed: one entry for each layer type.
        helpers: functions of ``vllm_neuron.model.hf_config`` that it calls.
        fields: config fields that it reads.
    """

    text: str
    keyed: bool
    helpers: tuple[str, ...]
    fields: tuple[str, ...]


def keys_of(twin: Twin) -> tuple[str, ...]:
    """For each layer the name of its block of rotary settings; () when there is one block for all."""
    settings = getattr(twin.config, "rope_parameters", None)
    kinds = twin.env.get("layer_types")
    if isinstance(settings, Mapping) and kinds and all(isinstance(v, Mapping) for v in settings.values()):
        return tuple(kinds) if set(kinds) <= set(settings) else ()
    distinct = {
        layer.attention.positions
        for layer in twin.spec
        if layer.attention is not None and layer.attention.positions.kind == "rotary"
    }
    return tuple(kinds) if len(distinct) > 1 and kinds else ()


def settings(unifier: Unifier, twins: Sequence[Twin], wirings: Sequence[Wiring]) -> Settings | None:
    """The expression, or None for a model without rotary positions.

    Raises:
        Unbound: a setting that no expression gives.
    """
    keys = sorted({key for w in wirings for key in w.positions})
    if not keys:
        return None
    made = {key: _one(unifier, twins, wirings, key) for key in keys}
    fields = tuple(f for s in made.values() for f in s.fields)
    helpers = tuple(h for s in made.values() for h in s.helpers)
    if keys == [""]:
        return Settings(made[""].text, False, helpers, fields)
    general = {s.text.replace(repr(key), "kind") for key, s in made.items()}
    if len(general) == 1 and "kind" in next(iter(general)):
        text = f"{{kind: {general.pop()} for kind in sorted(set(require(hf_config, 'layer_types')))}}"
        return Settings(text, True, (*helpers, "require"), (*fields, "layer_types"))
    entries = ", ".join(f"{key!r}: {s.text}" for key, s in made.items())
    return Settings(f"{{{entries}}}", True, helpers, fields)


def _one(unifier: Unifier, twins: Sequence[Twin], wirings: Sequence[Wiring], key: str) -> Settings:
    chosen = [(t, w.positions[key]) for t, w in zip(twins, wirings, strict=True) if key in w.positions]
    examples = [t.example() for t, _ in chosen]
    head = _head_size(unifier, examples, [size for _, (_, size) in chosen], key)
    length = unifier.unify(examples, [t.spec.max_positions for t, _ in chosen], "max_positions")
    positions = [p for _, (p, _) in chosen]
    options, option_fields = _options(unifier, examples, positions)
    if all(_given(t, p, size, key) for t, (p, size) in chosen):
        block = (
            f"rope_parameters(hf_config, {key!r})" if _has_block(chosen[0][0], key) else "rope_parameters(hf_config)"
        )
        text = f"RotaryConfig.from_parameters({block}, {head.text}, {length.text}{options})"
        return Settings(_local(text), False, ("rope_parameters",), (*head.fields, *length.fields, *option_fields))
    call = [direct(p, size, t.spec.max_positions) for t, (p, size) in chosen]
    tree = unifier.unify(examples, call, "attention.positions")
    return Settings(_local(tree.text), False, (), tree.fields)


def _head_size(unifier: Unifier, examples: Sequence[Example], sizes: Sequence[int], key: str) -> Tree:
    """The size of a head in the layers of one kind."""
    try:
        return unifier.unify(examples, sizes, "attention.head_size_k")
    except Unbound:
        for name in unifier.search.names:
            values = [(e.env[name], e.env.get("layer_types"), size) for e, size in zip(examples, sizes, strict=True)]
            if all(
                isinstance(v, tuple) and kinds and key in kinds and v[kinds.index(key)] == size
                for v, kinds, size in values
            ):
                return Tree(f"c.{name}[c.layer_types.index({key!r})]", (name, "layer_types"))
        raise


def _has_block(twin: Twin, key: str) -> bool:
    found = getattr(twin.config, "rope_parameters", None)
    return bool(key) and isinstance(found, Mapping) and key in found


def _local(text: str) -> str:
    """Fields of ``c`` are local names while the config is being read."""
    return text.replace("c.", "")


def _options(
    unifier: Unifier, examples: Sequence[Example], positions: Sequence[Positions]
) -> tuple[str, tuple[str, ...]]:
    """Arguments that the config's own settings don't carry, and the fields that they read."""
    text = ""
    fields: list[str] = []
    for name, values, default in (
        ("interleaved", [p.interleaved for p in positions], False),
        ("leading", [p.leading for p in positions], True),
        ("reverse", [p.reverse for p in positions], False),
        ("dealt", [p.dealt for p in positions], None),
    ):
        if any(v != default for v in values):
            tree = unifier.unify(examples, values, f"attention.positions.{name}")
            text += f", {name}={tree.text}"
            fields += tree.fields
    return _local(text), tuple(fields)


def _given(twin: Twin, positions: Positions, size: int, key: str) -> bool:
    """Whether the config's own block of settings gives the frequencies that the architecture asks for."""
    from vllm_neuron.errors import NeuronError
    from vllm_neuron.model.hf_config import rope_parameters
    from vllm_neuron.nn import RotaryConfig

    try:
        block: Any = rope_parameters(twin.config, key if _has_block(twin, key) else None)
        made = RotaryConfig.from_parameters(block, size, twin.spec.max_positions, **given_options(positions))
        wanted = rotary_config(positions, size, twin.spec.max_positions)
    except (NeuronError, TypeError):
        return False
    return _same_table(made, wanted)


def _same_table(a: Any, b: Any) -> bool:
    import torch

    first, second = a.inverse_frequencies(), b.inverse_frequencies()
    if first.shape != second.shape or not math.isclose(a.size, b.size, rel_tol=1e-6):
        return False
    return bool(torch.allclose(first, second, rtol=1e-6, atol=0.0))


def direct(p: Positions, size: int, length: int | None) -> Call:
    """``RotaryConfig(...)`` with each setting as a value."""
    s = p.scaling
    args = [
        Arg("", size, "attention.head_size_k"),
        Arg("base", p.base, "attention.positions.base"),
        Arg("max_position", length, "max_positions"),
        Arg("rotary_size", None if p.rotary_dim == size else p.rotary_dim, "attention.positions.rotary_dim", None),
        Arg("interleaved", p.interleaved, "attention.positions.interleaved", False),
        Arg("leading", p.leading, "attention.positions.leading", True),
        Arg("reverse", p.reverse, "attention.positions.reverse", False),
        Arg("dealt", p.dealt, "attention.positions.dealt", None),
    ]
    if s is not None:
        raise Unbound("attention.positions.scaling", [s])
    return Call("RotaryConfig", tuple(args))


def rotary_config(p: Positions, size: int, length: int | None) -> Any:
    """The settings object that an architecture's positions mean."""
    from vllm_neuron.nn import RotaryConfig

    parameters: dict[str, Any] = {"rope_type": "default", "rope_theta": p.base}
    if p.scaling is not None:
        s = p.scaling
        named = {
            "factor": s.factor,
            "original_max_position_embeddings": s.original_max_positions,
            "low_freq_factor": s.low_freq_factor,
            "high_freq_factor": s.high_freq_factor,
            "beta_fast": s.beta_fast,
            "beta_slow": s.beta_slow,
            "mscale": s.mscale,
            "mscale_all_dim": s.mscale_all_dim,
            "attention_factor": s.attention_factor,
            "truncate": s.truncate,
            "short_factor": s.factors_short,
            "long_factor": s.factors_long,
        }
        parameters |= {"rope_type": s.kind, **{k: v for k, v in named.items() if v is not None}}
    if p.rotary_dim is not None and p.rotary_dim != size and p.leading:
        parameters["partial_rotary_factor"] = p.rotary_dim / size
    return RotaryConfig.from_parameters(parameters, size, length, **given_options(p))


def given_options(p: Positions) -> dict[str, Any]:
    """Options that the config's settings don't carry, where they are not the usual ones."""
    options = {
        "interleaved": (p.interleaved, False),
        "leading": (p.leading, True),
        "reverse": (p.reverse, False),
        "dealt": (p.dealt, None),
    }
    return {name: value for name, (value, usual) in options.items() if value != usual}
