"""Rotary positions: the table of one kind, made from the config and read by every layer of that kind."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import vllm_neuron.functional as NF
from vllm_neuron.errors import ConfigError, UnsupportedError, nearest

KINDS = ("default", "linear", "llama3")


@dataclass(frozen=True)
class RotaryConfig:
    """One kind of rotary position embedding.

    Attributes:
        head_size: D.
        base: theta, the base of the frequencies.
        max_position: positions that the table covers.
        kind: ``default``, ``linear`` or ``llama3``.
        factor: stretch of the context (``linear``, ``llama3``).
        low_freq_factor, high_freq_factor, original_max_position: bounds of the llama3 blend.
        rotary_size: R, elements of a head that are turned; all of them by default.
        interleaved: pairs are neighbours (GPT-J), not halves (Llama).
    """

    head_size: int
    base: float
    max_position: int
    kind: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = 0
    rotary_size: int | None = None
    interleaved: bool = False

    @staticmethod
    def from_parameters(parameters: Mapping[str, Any], head_size: int, max_position: int) -> RotaryConfig:
        """Read a Hugging Face ``rope_parameters`` block (transformers 5; older spellings are folded into it there).

        Raises:
            UnsupportedError: a rope type that has no table here; nothing falls back to another type.
            ConfigError: a key that the type doesn't take, or one that it needs and that is missing.
        """
        given = dict(parameters)
        kind = given.pop("rope_type", given.pop("type", "default"))
        given.pop("type", None)
        if kind not in KINDS:
            raise UnsupportedError("rope_type", kind, "one of " + ", ".join(KINDS), "Write its table in nn/rotary.py.")
        partial = given.pop("partial_rotary_factor", None)
        fields: dict[str, Any] = {"base": _number(given, "rope_theta"), "kind": kind}
        if partial is not None and partial != 1.0:
            fields["rotary_size"] = int(head_size * partial)
        if kind != "default":
            fields["factor"] = _number(given, "factor")
        if kind == "llama3":
            fields["low_freq_factor"] = _number(given, "low_freq_factor")
            fields["high_freq_factor"] = _number(given, "high_freq_factor")
            fields["original_max_position"] = int(_number(given, "original_max_position_embeddings"))
        given.pop("original_max_position_embeddings", None)
        if given:
            known = ("rope_theta", "rope_type", "factor", "low_freq_factor", "high_freq_factor")
            name = next(iter(given))
            raise ConfigError(f"rope_parameters.{name}", given[name], f"a key of type {kind}", nearest(name, known))
        return RotaryConfig(head_size=head_size, max_position=max_position, **fields)

    def inverse_frequencies(self) -> Tensor:
        """float32 [R/2], radians a position. Formulas as in transformers 5.19, modeling_rope_utils."""
        size = self.rotary_size or self.head_size
        exponents = torch.arange(0, size, 2, dtype=torch.int64).float() / size
        inverse = 1.0 / (self.base**exponents)
        if self.kind == "linear":
            return inverse / self.factor
        if self.kind == "llama3":
            return self._llama3(inverse)
        return inverse

    def _llama3(self, inverse: Tensor) -> Tensor:
        low_wavelength = self.original_max_position / self.low_freq_factor
        high_wavelength = self.original_max_position / self.high_freq_factor
        wavelength = 2 * math.pi / inverse
        slow = torch.where(wavelength > low_wavelength, inverse / self.factor, inverse)
        smooth = (self.original_max_position / wavelength - self.low_freq_factor) / (
            self.high_freq_factor - self.low_freq_factor
        )
        blended = (1 - smooth) * slow / self.factor + smooth * slow
        between = ~(wavelength < high_wavelength) & ~(wavelength > low_wavelength)
        return torch.where(between, blended, slow)


def _number(given: dict[str, Any], name: str) -> float:
    value = given.pop(name, None)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(f"rope_parameters.{name}", value, "a number")
    return float(value)


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

    def build(self, dtype: torch.dtype, device: torch.device) -> None:
        """Make the table on ``device``."""
        c = self.config
        # The outer block of a model may be under torch.device("meta"); the table is always made for real.
        with torch.device("cpu"):
            table = NF.rotary_table(c.inverse_frequencies(), c.max_position, interleaved=c.interleaved)
        self.table = table.to(device=device, dtype=dtype)

    def forward(self, positions_T: Tensor, x_TND: Tensor) -> Tensor:
        """Turn heads [T, N, D], queries and keys side by side, by the tokens' positions int64 [T]."""
        rows = torch.index_select(self.table, 0, positions_T)
        return NF.rotary(x_TND, rows, interleaved=self.config.interleaved)
