"""Rotary positions: the table of one kind, made from the config and read by every layer of that kind."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor, nn

import vllm_neuron.functional as NF
from vllm_neuron.errors import ConfigError, UnsupportedError, nearest
from vllm_neuron.nn.frequencies import KINDS

# Keys that change no table: the axes of a multimodal rope, whose positions are all the same on text; what the growth of
# the queries (QueryGrowth) reads; and repetitions of what stands elsewhere.
NEUTRAL = ("type", "mrope_section", "mrope_interleaved", "llama_4_scaling_beta", "max_position_embeddings")

STRETCHED = ("llama3", "yarn", "longrope")
# Settings that not every kind takes, and the kinds that do.
KINDS_OF: dict[str, tuple[str, ...]] = {
    "factor": ("linear", "proportional", *STRETCHED),
    "original_max_position": STRETCHED,
    "low_freq_factor": ("llama3",),
    "high_freq_factor": ("llama3",),
    "beta_fast": ("yarn",),
    "beta_slow": ("yarn",),
    "truncate": ("yarn",),
    "short_factors": ("longrope",),
    "short_attention_factor": ("longrope",),
    "long_factors": ("longrope",),
}
# What Hunyuan's configs carry beside ``alpha``, and its code does not read.
BESIDE_ALPHA = ("factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim")


@dataclass(frozen=True)
class RotaryConfig:
    """One kind of rotary position embedding.

    Attributes:
        head_size: D.
        base: theta, the base of the frequencies.
        max_position: positions that the table covers.
        kind: a name of :data:`vllm_neuron.nn.frequencies.KINDS`.
        factor: stretch of the context.
        low_freq_factor, high_freq_factor: bounds of the llama3 blend.
        original_max_position: context before the stretch (llama3, yarn, longrope).
        beta_fast, beta_slow, truncate: bounds of the yarn blend in turns, rounded to whole channels or not.
        short_factors, long_factors: longrope's factor of each frequency.
        attention_factor: factor on cosine and sine.
        short_attention_factor: the same where longrope's short factors hold; ``attention_factor`` by default.
        rotary_size: elements of a head that are turned; all of them by default. For ``proportional``: those that move.
        interleaved: pairs are neighbours (GPT-J), not halves (Llama).
        leading: the turned elements are the first ones, else the last ones.
        reverse: turned by minus the angle (NanoChat).
        dealt: the first so many frequencies are reordered, even indices before odd ones (Cohere Compass).

    Raises:
        UnsupportedError: a kind of another name.
        ConfigError: a rotary width that is odd or wider than the head; longrope's lists, or ``dealt``, of another
            length than there are frequencies; a base or factor that isn't positive; a missing original context; a
            setting that the kind does not take.
    """

    head_size: int
    base: float
    max_position: int
    kind: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = 0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    short_factors: tuple[float, ...] = ()
    long_factors: tuple[float, ...] = ()
    attention_factor: float = 1.0
    short_attention_factor: float | None = None
    rotary_size: int | None = None
    interleaved: bool = False
    leading: bool = True
    reverse: bool = False
    dealt: int | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise _unknown(self.kind)
        if self.live % 2 or not 0 <= self.live <= self.head_size or not self.width:
            raise ConfigError("rotary_size", self.live, f"an even number up to head_size {self.head_size}")
        self._check_settings()
        for name in ("short_factors", "long_factors") if self.kind == "longrope" else ():
            if len(getattr(self, name)) != self.width // 2:
                raise ConfigError(name, len(getattr(self, name)), f"{self.width // 2} numbers, half the rotary width")
        if self.dealt is not None and not 0 <= self.dealt <= self.width // 2:
            raise ConfigError("dealt", self.dealt, f"at most {self.width // 2}, half the rotary width")

    def _check_settings(self) -> None:
        for f in fields(self):
            value, kinds = getattr(self, f.name), KINDS_OF.get(f.name)
            if kinds is not None and self.kind not in kinds and value != f.default:
                raise ConfigError(f.name, value, f"{f.default}: the kind {self.kind} does not take it")
        needed = ["base", "factor", "max_position", "attention_factor"]
        needed += ["original_max_position"] if self.kind in STRETCHED else []
        for name in needed:
            if not 0 < getattr(self, name) < math.inf:
                raise ConfigError(name, getattr(self, name), "a positive number")

    @property
    def live(self) -> int:
        """Elements of a head whose position shows."""
        return self.head_size if self.rotary_size is None else self.rotary_size

    @property
    def width(self) -> int:
        """R, elements of a head that go through the rotation."""
        return self.head_size if self.kind == "proportional" else self.live

    @property
    def long(self) -> bool:
        """Whether longrope's long factors hold: for all positions, when the table goes past the original context."""
        return self.max_position > self.original_max_position

    @property
    def size(self) -> float:
        """Factor on cosine and sine for this table."""
        short = self.short_attention_factor
        return self.attention_factor if short is None or self.long else short

    def limited(self, positions: int) -> RotaryConfig:
        """The same for a table of at most so many positions; longrope's factors are those of that length."""
        return replace(self, max_position=min(self.max_position, positions))

    @staticmethod
    def from_parameters(
        parameters: Mapping[str, Any],
        head_size: int,
        max_position: int | None,
        *,
        interleaved: bool = False,
        rotary_size: int | None = None,
        leading: bool = True,
        reverse: bool = False,
        dealt: int | None = None,
    ) -> RotaryConfig:
        """Read a Hugging Face ``rope_parameters`` block (transformers 5; older spellings are folded into it there).

        Args:
            parameters: the block; its ``partial_rotary_factor`` says the same as ``rotary_size``, and counts once.
            head_size: D.
            max_position: positions that the model is made for.
            interleaved, rotary_size, leading, reverse, dealt: what the block does not say, see the class.

        Raises:
            UnsupportedError: a rope type that has no table here; nothing falls back to another type.
            ConfigError: a key that the type doesn't take, one that it needs and that is missing, or a
                ``rotary_size`` that the block contradicts.
        """
        if max_position is None:
            raise ConfigError("max_position_embeddings", None, "the positions that the rotary table covers")
        given = {k: v for k, v in parameters.items() if v is not None and k not in NEUTRAL}
        kind = given.pop("rope_type", None) or parameters.get("type") or "default"
        if kind not in KINDS:
            raise _unknown(kind)
        if kind == "dynamic" and given.get("alpha"):
            kind = "default"
            given = {k: v for k, v in given.items() if k not in BESIDE_ALPHA}
            share = given.get("partial_rotary_factor", 1.0)
            if share != 1.0:
                raise ConfigError("rope_parameters.partial_rotary_factor", share, "1 with alpha")
            given["rope_theta"] = _stretched_base(given, head_size)
        partial = _optional(given, "partial_rotary_factor")
        settings: dict[str, Any] = {"base": _number(given, "rope_theta"), "kind": kind}
        if partial is not None and partial != 1.0:
            share = 2 * int(partial * head_size // 2) if kind == "proportional" else int(head_size * partial)
            if rotary_size not in (None, share):
                raise ConfigError("rotary_size", rotary_size, f"{share}, as partial_rotary_factor {partial} says")
            rotary_size = share
        settings |= _READERS[kind](given, max_position)
        given.pop("original_max_position_embeddings", None)
        if given:
            name = next(iter(given))
            raise ConfigError(f"rope_parameters.{name}", given[name], f"a key of type {kind}", nearest(name, _KEYS))
        return RotaryConfig(
            head_size=head_size,
            max_position=max_position,
            rotary_size=rotary_size,
            interleaved=interleaved,
            leading=leading,
            reverse=reverse,
            dealt=dealt,
            **settings,
        )

    def inverse_frequencies(self) -> Tensor:
        """float32 [R/2], radians a position."""
        inverse = KINDS[self.kind](self)
        if self.dealt is None:
            return inverse
        first = inverse[: self.dealt]
        return torch.cat((first[0::2], first[1::2], inverse[self.dealt :]))


def _unknown(kind: str) -> UnsupportedError:
    return UnsupportedError("rope_type", kind, "one of " + ", ".join(KINDS), "Write its table in nn/frequencies.py.")


def _stretched_base(given: dict[str, Any], head_size: int) -> float:
    """Hunyuan's ``dynamic`` with an ``alpha`` is a fixed larger base."""
    alpha = _number(given, "alpha")
    return _number(given, "rope_theta") * alpha ** (head_size / (head_size - 2))


def _number(given: dict[str, Any], name: str) -> float:
    value = given.pop(name, None)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(f"rope_parameters.{name}", value, "a number")
    return float(value)


def _optional(given: dict[str, Any], name: str) -> float | None:
    return _number(given, name) if name in given else None


def _or(value: float | None, otherwise: float) -> float:
    return otherwise if value is None else value


def _flag(given: dict[str, Any], name: str, otherwise: bool) -> bool:
    value = given.pop(name, otherwise)
    if not isinstance(value, bool):
        raise ConfigError(f"rope_parameters.{name}", value, "true or false")
    return value


def _original(given: dict[str, Any]) -> int:
    return int(_number(given, "original_max_position_embeddings"))


def _factors(given: dict[str, Any], name: str) -> tuple[float, ...]:
    value = given.pop(name, None)
    numbers = isinstance(value, list | tuple) and all(isinstance(v, int | float) and v > 0 for v in value)
    if not numbers or not value:
        raise ConfigError(f"rope_parameters.{name}", value, "a list of positive numbers")
    return tuple(float(v) for v in value)


def _read_default(given: dict[str, Any], max_position: int) -> dict[str, Any]:
    return {}


def _read_factor(given: dict[str, Any], max_position: int) -> dict[str, Any]:
    return {"factor": _number(given, "factor")}


def _read_proportional(given: dict[str, Any], max_position: int) -> dict[str, Any]:
    return {"factor": _or(_optional(given, "factor"), 1.0)}


def _read_dynamic(given: dict[str, Any], max_position: int) -> dict[str, Any]:
    """The base grows with the sequence past ``max_position``, which no cache can follow; the table ends there."""
    _number(given, "factor")
    return {}


def _read_llama3(given: dict[str, Any], max_position: int) -> dict[str, Any]:
    return {
        "factor": _number(given, "factor"),
        "low_freq_factor": _number(given, "low_freq_factor"),
        "high_freq_factor": _number(given, "high_freq_factor"),
        "original_max_position": _original(given),
    }


def _magnitude(factor: float, scale: float = 1.0) -> float:
    return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0


def _read_yarn(given: dict[str, Any], max_position: int) -> dict[str, Any]:
    original = _original(given)
    factor = _or(_optional(given, "factor"), max_position / original)
    attention = _optional(given, "attention_factor")
    mscale, over_all = _optional(given, "mscale"), _optional(given, "mscale_all_dim")
    if attention is None:
        attention = _magnitude(factor)
        if mscale and over_all:
            attention = _magnitude(factor, mscale) / _magnitude(factor, over_all)
    return {
        "factor": factor,
        "original_max_position": original,
        "attention_factor": attention,
        "beta_fast": _or(_optional(given, "beta_fast"), 32.0),
        "beta_slow": _or(_optional(given, "beta_slow"), 1.0),
        "truncate": _flag(given, "truncate", True),
    }


def _read_longrope(given: dict[str, Any], max_position: int) -> dict[str, Any]:
    original = _original(given)
    factor = _or(_optional(given, "factor"), max_position / original)
    attention = _optional(given, "attention_factor")
    short, long, size = _factors(given, "short_factor"), _factors(given, "long_factor"), None
    if attention is None:
        attention = 1.0 if factor <= 1.0 else math.sqrt(1 + math.log(factor) / math.log(original))
    if "short_mscale" in given or "long_mscale" in given:
        # Phi-3.5 MoE in transformers 5.19: these are the size, and the short factors turn sequences of any length.
        size, attention, long = _number(given, "short_mscale"), _number(given, "long_mscale"), short
    return {
        "factor": factor,
        "original_max_position": original,
        "attention_factor": attention,
        "short_attention_factor": size,
        "short_factors": short,
        "long_factors": long,
    }


_READERS: dict[str, Callable[[dict[str, Any], int], dict[str, Any]]] = {
    "default": _read_default,
    "linear": _read_factor,
    "dynamic": _read_dynamic,
    "proportional": _read_proportional,
    "llama3": _read_llama3,
    "yarn": _read_yarn,
    "longrope": _read_longrope,
}
_KEYS = (
    "rope_theta",
    "rope_type",
    "factor",
    "low_freq_factor",
    "high_freq_factor",
    "beta_fast",
    "beta_slow",
    "mscale",
    "mscale_all_dim",
    "attention_factor",
    "truncate",
    "short_factor",
    "long_factor",
    "short_mscale",
    "long_mscale",
    "alpha",
    "original_max_position_embeddings",
    "partial_rotary_factor",
)


class Rotary(nn.Module):
    """The table of one rotary kind, shared by the layers that use it.

    The table is a buffer [max_position, 2 * R] in the activations' dtype, made in float32 by :meth:`build` after the
    weights are loaded; it is never read from a checkpoint.
    """

    table: Tensor

    def __init__(self, config: RotaryConfig) -> None:
        super().__init__()
        self.config = config
        self.register_buffer("table", torch.empty(0), persistent=False)

    def limit(self, positions: int) -> None:
        """Serve at most so many positions; to be said before :meth:`build`."""
        self.config = self.config.limited(positions)

    def build(self, dtype: torch.dtype, device: torch.device) -> None:
        """Make the table on ``device``."""
        c = self.config
        # The outer block of a model may be under torch.device("meta"); the table is always made for real.
        with torch.device("cpu"):
            inverse = c.inverse_frequencies()
            table = NF.rotary_table(
                -inverse if c.reverse else inverse, c.max_position, scale=c.size, interleaved=c.interleaved
            )
        self.table = table.to(device=device, dtype=dtype)

    def forward(self, positions_T: Tensor, x_TND: Tensor) -> Tensor:
        """Turn heads [T, N, D], queries and keys side by side, by the tokens' positions int64 [T]."""
        c = self.config
        rows = torch.index_select(self.table, 0, positions_T)
        if c.leading or c.width == x_TND.shape[-1]:
            return NF.rotary(x_TND, rows, interleaved=c.interleaved)
        still, turning = x_TND.split((x_TND.shape[-1] - c.width, c.width), dim=-1)
        return torch.cat((still, NF.rotary(turning, rows, interleaved=c.interleaved)), dim=-1)
