"""The contract of a model, and the base class that carries what every decoder shares."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self, runtime_checkable

import torch
from torch import Tensor, nn

from vllm_neuron.errors import ConfigError
from vllm_neuron.model.kv_cache import KVBinding, KVSpec
from vllm_neuron.model.loading import LoadReport, Table, load_model
from vllm_neuron.model.neuron_config import NeuronConfig
from vllm_neuron.nn import CachedBlock, Linear, LMHead, Rotary
from vllm_neuron.parallel import get_tp_group
from vllm_neuron.step import Step


@runtime_checkable
class NeuronModel(Protocol):
    """What the runtime asks of a model; :class:`DecoderModel` answers all of it for a decoder."""

    vocab_size: int
    max_position: int | None

    def get_kv_spec(self) -> KVSpec:
        """The cache layers of this rank."""
        ...

    def bind_kv_cache(self, caches: Mapping[str, KVBinding]) -> None:
        """Hand each layer its cache."""
        ...

    def limit_positions(self, positions: int) -> None:
        """Serve at most so many positions of a sequence; said once, before the weights are loaded."""
        ...

    def load_weights(self, folder: Path, dtype: torch.dtype, progress: bool = True) -> LoadReport:
        """Fill this rank's parameters from a checkpoint folder."""
        ...

    def forward(self, step: Step) -> Tensor:
        """Hidden states [T, H] after the last norm."""
        ...

    def compute_logits(self, hidden_RH: Tensor) -> Tensor:
        """float32 logits [R, V], whole on every rank."""
        ...


class DecoderConfig(Protocol):
    """What the frame reads from a model's own config class."""

    @property
    def vocab_size(self) -> int:
        """V."""
        ...

    @property
    def max_position_embeddings(self) -> int:
        """Positions that the model was made for."""
        ...

    @property
    def tie_word_embeddings(self) -> bool:
        """The head shares the embedding's table."""
        ...

    @classmethod
    def from_configs(cls, hf_config: Any, neuron_config: NeuronConfig) -> Self:
        """Read the Hugging Face config."""
        ...


class DecoderModel(nn.Module):
    """Embedding, layers, last norm, head: the frame of a decoder-only model.

    A subclass builds ``embed``, ``layers``, ``norm`` and ``head`` and names its checkpoint table; it overrides
    :meth:`forward` only where the frame itself differs.
    """

    CONFIG: ClassVar[type[DecoderConfig]]
    CHECKPOINT: ClassVar[Table]
    embed: nn.Module
    layers: nn.ModuleList
    norm: nn.Module
    head: LMHead

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.vocab_size = config.vocab_size
        self.max_position: int | None = config.max_position_embeddings
        self.tie_word_embeddings = config.tie_word_embeddings

    @classmethod
    def from_configs(cls, hf_config: Any, neuron_config: NeuronConfig) -> Self:
        """Build the model on the meta device, in torch's default dtype, for the current tensor-parallel group.

        Raises:
            ConfigError, UnsupportedError: naming the field that can't be served and its value.
        """
        config = cls.CONFIG.from_configs(hf_config, neuron_config)
        with torch.device("meta"):
            return cls(config)

    def forward(self, step: Step) -> Tensor:
        """Hidden states [T, H] of a step's tokens, after the last norm."""
        x_TH = self.embed_tokens(step)
        for layer in self.layers:
            x_TH = layer(x_TH, step)
        return self.norm(x_TH)

    def embed_tokens(self, step: Step) -> Tensor:
        """What enters the first layer, [T, H]; a model whose positions are added here overrides it."""
        return self.embed(step.token_ids_T)

    def compute_logits(self, hidden_RH: Tensor) -> Tensor:
        """float32 logits [R, V] of hidden states [R, H], whole on every rank."""
        return self.head(hidden_RH)

    def attentions(self) -> Iterable[CachedBlock]:
        """The attention blocks in layer order."""
        return (module for module in self.modules() if isinstance(module, CachedBlock))

    def get_kv_spec(self) -> KVSpec:
        """What each attention block that has a cache of its own asks of it, on this rank."""
        return KVSpec(tuple(block.spec for block in self.attentions() if block.spec is not None))

    def bind_kv_cache(self, caches: Mapping[str, KVBinding]) -> None:
        """Hand each attention block the cache that it reads, its own or that of the layer it shares with.

        Raises:
            ConfigError: a layer has no cache, a cache has no layer, or a layer shares one that is unlike what it asks.
        """
        names = {layer.name for layer in self.get_kv_spec().layers}
        if names != caches.keys():
            odd = sorted(names ^ caches.keys())
            raise ConfigError("kv_caches", odd, "exactly one cache for each layer of get_kv_spec()")
        owners = {block.reads: block for block in self.attentions() if not block.reads_other}
        for block in self.attentions():
            if block.reads not in caches:
                raise ConfigError("shared_with", block.reads, "a layer with a cache of its own: " + ", ".join(caches))
            owner = owners[block.reads]
            if block.asks != owner.asks:
                raise ConfigError("shared_with", block.asks, f"heads, sizes and window of that layer, {owner.asks}")
            block.bind(caches[block.reads])

    def limit_positions(self, positions: int) -> None:
        """Serve at most so many positions: rotary tables end there, and longrope takes the factors of that length.

        To be said before :meth:`load_weights`, which makes the tables.
        """
        if self.max_position is not None:
            self.max_position = min(self.max_position, positions)
        for module in self.modules():
            if isinstance(module, Rotary):
                module.limit(positions)

    def load_weights(self, folder: Path, dtype: torch.dtype, progress: bool = True) -> LoadReport:
        """Fill this rank's parameters from a checkpoint folder; make what is derived from the config.

        Args:
            folder: a Hugging Face folder with safetensors files.
            dtype: of the parameters, the cache and the activations.
            progress: show progress (first rank, on a terminal).

        Raises:
            ConfigError: the model was built for another dtype.
            CheckpointError: files missing, damaged or incomplete; the message lists keys and parameters.
            UnsupportedError: a quantised checkpoint.
        """
        group = get_tp_group()
        built = {layer.dtype for layer in self.get_kv_spec().layers} - {dtype}
        if built:
            raise ConfigError(
                "load_weights.dtype",
                dtype,
                f"{built.pop()}, which the model was built for",
                "Set torch's default dtype before from_configs.",
            )
        if self.tie_word_embeddings:
            self.head.weight = None
        report = load_model(
            self,
            self.CHECKPOINT,
            folder,
            rank=group.rank,
            world_size=group.world_size,
            dtype=dtype,
            flags={"tie_word_embeddings": self.tie_word_embeddings},
            progress=progress and group.rank == 0,
        )
        if self.tie_word_embeddings:
            self.head.tie(self.embed)  # type: ignore[arg-type]
        for module in self.modules():
            if isinstance(module, Rotary):
                module.build(dtype, torch.device("cpu"))
        return report

    def pack_weights(self) -> None:
        """Re-lay every linear weight for the CPU, one at a time, freeing the plain one."""
        for module in self.modules():
            if isinstance(module, Linear):
                module.pack()

    def lay_out_weights(self) -> None:
        """Transpose every linear weight for NKI kernels, one at a time, freeing the plain one."""
        for module in self.modules():
            if isinstance(module, Linear):
                module.lay_out()
