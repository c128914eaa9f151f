"""The rows of the coverage table about positions: rotary tables, and what is added to the embedding."""

from __future__ import annotations

import re
from typing import Any

from onboard.arch.blocks import Scaling
from onboard.diff.coverage import ROTARY_KINDS, Answer, Call, Code, Missing, Rule, only, takes

# Field of Scaling -> argument of RotaryConfig, for the kinds that have it.
LLAMA3 = (
    ("low_freq_factor", "low_freq_factor"),
    ("high_freq_factor", "high_freq_factor"),
    ("original_max_positions", "original_max_position"),
)
YARN = (
    ("original_max_positions", "original_max_position"),
    ("beta_fast", "beta_fast"),
    ("beta_slow", "beta_slow"),
    ("truncate", "truncate"),
    ("attention_factor", "attention_factor"),
)
LONGROPE = (("original_max_positions", "original_max_position"), ("attention_factor", "attention_factor"))
ARGUMENTS = {"llama3": LLAMA3, "yarn": YARN, "longrope": LONGROPE}
NOTES = {
    "dynamic": "up to max_position, where the base would begin to grow",
    "longrope": "the long factors where max_position passes the original context",
}
PROPORTIONAL = re.compile(r"proportional: (\S+) of the head turns, exponents over the whole head(?:, factor (\S+))?")


def scaling(value: Scaling | str | None) -> Answer:
    """The kinds of table in nn/frequencies.py, with their own parameters; proportional rope comes as text."""
    if value is None:
        return Call("RotaryConfig", (("kind", "default"),))
    if isinstance(value, str):
        return _proportional(value)
    if value.kind not in ROTARY_KINDS:
        return Missing(f"the {value.kind} table in nn/frequencies.py (it has {', '.join(ROTARY_KINDS)})")
    args: list[tuple[str, Any]] = [("kind", value.kind)]
    args += [("factor", value.factor)] if value.factor is not None and value.kind != "dynamic" else []
    for field, argument in ARGUMENTS.get(value.kind, ()):
        found = getattr(value, field)
        args += [(argument, found)] if found is not None else []
    if value.kind == "longrope":
        args += [(name, Code(f"config.{name}")) for name in ("short_factors", "long_factors")]
    return Call("RotaryConfig", tuple(args), _note(value))


def _note(value: Scaling) -> str:
    if value.kind in ("yarn", "longrope") and value.attention_factor is None:
        derived = "attention_factor as from_parameters derives it"
        return f"{derived}; {NOTES[value.kind]}" if value.kind in NOTES else derived
    return NOTES.get(value.kind, "")


def _proportional(value: str) -> Answer:
    found = PROPORTIONAL.fullmatch(value)
    if found is None:
        return Missing(f"the rotary table of {value}")
    args: list[tuple[str, Any]] = [("kind", "proportional")]
    args += [("rotary_size", Code(f"int({found[1]} * head_size)"))] if found[1] != "1" else []
    args += [("factor", float(found[2]))] if found[2] else []
    return Call("RotaryConfig", tuple(args))


def rotary_part(value: str) -> Answer:
    """All of the head, or a part of its channels."""
    share = None if value == "all" else Code(f"int({value.split(' ')[0]} * head_size)")
    return Call("RotaryConfig", (("rotary_size", share),))


def mrope(value: str | None) -> Answer:
    """The axes of a multimodal rope have one position on text."""
    return Call("RotaryConfig", (), "sections change nothing on text" if value else "")


def added(value: str | None) -> Answer:
    """What the model's forward adds to the embedding."""
    if value is None:
        return Call("VocabDimShardedEmbedding", (), "nothing is added")
    blocks = {"learned": "LearnedPositions", "sinusoidal": "SinusoidalPositions"}
    if value not in blocks:
        return Missing(f"{value} positions that are added to the embedding")
    return Call(blocks[value], (), "added to the embedding, in the model's forward")


POSITIONS: dict[str, Rule] = {
    "attention.positions.base": takes("RotaryConfig", "base"),
    "attention.positions.rotary_dim": rotary_part,
    "attention.positions.interleaved": takes("RotaryConfig", "interleaved"),
    "attention.positions.leading": takes("RotaryConfig", "leading"),
    "attention.positions.reverse": takes("RotaryConfig", "reverse"),
    "attention.positions.dealt": takes("RotaryConfig", "dealt"),
    "attention.positions.frequency_dim": only("rotary width", "RotaryConfig", "exponents over {} in nn/frequencies.py"),
    "attention.positions.scaling": scaling,
    "attention.positions.mrope": mrope,
    "embedding.positions": added,
    "embedding.positions.offset": takes("LearnedPositions", "offset"),
}

# What a field means where the target adds sines and cosines.
SINUSOIDAL: dict[str, Rule] = {"embedding.positions.offset": takes("SinusoidalPositions", "offset")}
