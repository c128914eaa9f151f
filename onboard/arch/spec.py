"""``ArchSpec``: a whole language model, with its layers as a list of distinct kinds and an index for each layer.

A thousand layers of three kinds cost three :class:`Layer` values and a tuple of a thousand small integers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from onboard.arch.blocks import Layer, Norm, Positions


@dataclass(frozen=True)
class Embedding:
    """The token table [vocab, size], times ``multiplier``; ``norm``: normalised after it; ``project``: a matrix
    [size, hidden] follows when the table is narrower; ``positions``: a table or encoding that is added here, after the
    multiplier. ``extra_rows``: rows of the table past the vocabulary, for which the head has no logit."""

    vocab: int
    size: int
    multiplier: float = 1.0
    norm: Norm | None = None
    project: bool = False
    positions: Positions | None = None
    extra_rows: int = 0


@dataclass(frozen=True)
class PerLayerInput:
    """Extra embeddings, one of ``size`` for each layer and token (Gemma 3n and 4), from a table of ``vocab`` rows and
    from a projection of the ordinary embedding, normalised."""

    vocab: int
    size: int
    norm: Norm


@dataclass(frozen=True)
class HyperConnections:
    """``streams`` parallel residual streams, mixed around each block and collapsed before the head (DeepSeek V4)."""

    streams: int
    sinkhorn_iterations: int
    eps: float


@dataclass(frozen=True)
class Head:
    """The output projection. ``multiplier`` multiplies the logits; ``softcap`` c gives ``c * tanh(x / c)``;
    ``normalized``: the rows of its weight are scaled to length 1 first (Baichuan 2)."""

    tied: bool
    bias: bool = False
    multiplier: float = 1.0
    softcap: float | None = None
    normalized: bool = False


@dataclass(frozen=True)
class Tower:
    """A vision or audio part, opaque: its kind, the sizes that the config states, and its parameters when they are
    known (else None, never guessed; the projector to the language model is included)."""

    name: str
    kind: str | None = None
    hidden: int | None = None
    layers: int | None = None
    params: int | None = None


@dataclass(frozen=True)
class Beyond:
    """What a model computes that no field of the spec can say.

    ``feature``: its short name ("altup", "differential attention"). ``hf_class``: the class of transformers that does
    it ("Gemma3nTextAltUp"). ``where``: the layers or the place, in words; "" for the whole model. ``params``: the
    parameters of all of it in the model.
    """

    feature: str
    hf_class: str
    where: str = ""
    params: int = 0


@dataclass(frozen=True)
class ArchSpec:
    """The language model of one checkpoint.

    Attributes:
        hidden: width H of the residual.
        kinds: the distinct layers, in order of first use.
        layer_kinds: for each layer, its index in ``kinds``.
        final_norm: the norm before the head, or None.
        max_positions: longest sequence that the config states, else None.
        dtype: dtype of the checkpoint as written ("bfloat16"), else None: unspecified.
        predict_layers: extra next-token-prediction layers of the checkpoint; not counted anywhere.
        residual_dtype: "float32" when the residual is kept wider than the rest.
        beyond: what the other fields can't say.
    """

    hidden: int
    embedding: Embedding
    kinds: tuple[Layer, ...]
    layer_kinds: tuple[int, ...]
    final_norm: Norm | None
    head: Head
    max_positions: int | None = None
    dtype: str | None = None
    per_layer_input: PerLayerInput | None = None
    hyper_connections: HyperConnections | None = None
    predict_layers: int = 0
    residual_dtype: str | None = None
    towers: tuple[Tower, ...] = ()
    beyond: tuple[Beyond, ...] = ()

    @property
    def layers(self) -> int:
        """How many layers."""
        return len(self.layer_kinds)

    def layer(self, index: int) -> Layer:
        """The layer at ``index``."""
        return self.kinds[self.layer_kinds[index]]

    def __iter__(self) -> Iterator[Layer]:
        return (self.kinds[k] for k in self.layer_kinds)

    def count_of(self, kind: int) -> int:
        """How many layers are of ``kinds[kind]``."""
        return self.layer_kinds.count(kind)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; parts that are None or at their default are left out; ``layer_kinds`` is run-length
        coded as ``[[count, kind], ...]``. :meth:`from_json` gives an equal spec back."""
        from onboard.arch import codec

        return codec.encode(self)

    @staticmethod
    def from_json(value: Any) -> ArchSpec:
        """The spec that :meth:`to_json` wrote.

        Raises:
            ConfigError: an unknown key (with the nearest name), a missing one, or a value of the wrong type.
        """
        from onboard.arch import codec

        return codec.decode(value)
