"""A whole model and its steps as fake tensors: shapes and types of one rank, without weights and without memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from onboard.facts import api
from onboard.prove.checkpoint import PlannedGroup
from onboard.prove.package import Package
from onboard.scaffold.study import config_of
from vllm_neuron.errors import ConfigError, UnsupportedError
from vllm_neuron.model.interface import DecoderModel
from vllm_neuron.model.kv_cache import KVBinding, LayerSpec, begins_with_window, blocks_needed
from vllm_neuron.model.neuron_config import NeuronConfig
from vllm_neuron.model.registry import resolve
from vllm_neuron.nn import Rotary
from vllm_neuron.parallel import use_tp_group
from vllm_neuron.step import KVView, Phase, Step
from vllm_neuron.vllm.worker.buckets import Buckets, Shape, plan

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


@dataclass(frozen=True)
class Limits:
    """What the server would be started with.

    Attributes:
        tp: ranks.
        max_model_len, max_num_batched_tokens, max_num_seqs: vLLM's limits.
        block_size: tokens of a cache block.
        dtype: of weights, activations and cache, by torch's name.
    """

    tp: int = 1
    max_model_len: int = 4096
    max_num_batched_tokens: int = 2048
    max_num_seqs: int = 8
    block_size: int = 32
    dtype: str = "bfloat16"


class DryGroup(PlannedGroup):
    """The first of some ranks that do not exist; collectives give tensors of the right shape."""

    def all_gather(self, x: Tensor, dim: int) -> Tensor:
        """See :class:`vllm_neuron.parallel.Group`."""
        return torch.cat([x] * self.world_size, dim)

    def reduce_scatter(self, x: Tensor, dim: int) -> Tensor:
        """See :class:`vllm_neuron.parallel.Group`."""
        return x.chunk(self.world_size, dim)[self.rank]

    def all_to_all(self, x: Tensor, split_dim: int, concat_dim: int) -> Tensor:
        """See :class:`vllm_neuron.parallel.Group`."""
        return torch.cat([x.chunk(self.world_size, split_dim)[0]] * self.world_size, concat_dim)


@dataclass(frozen=True)
class Reach:
    """Which keys a group of layers sees."""

    window: int | None
    chunk: int | None


class DryModel:
    """One rank of a model, and steps of any shape for it.

    Args:
        model: id, folder or config.json.
        package: a package's folder or module; the registered one of the architecture when None.
        limits: of the server.

    Raises:
        ConfigError, UnsupportedError: a config that can't be read or that the package refuses, no package, or ranks
            that do not divide the model.
    """

    def __init__(self, model: str, package: str | None, limits: Limits) -> None:
        facts = api.load(model)
        self.name, self.limits = facts.name, limits
        self.fake = FakeTensorMode(allow_non_fake_inputs=True)
        self.architecture = facts.architectures[0] if facts.architectures else ""
        factory: Any = Package.load(package).factory if package else _registered(self.architecture)
        self.package = factory.__module__.rpartition(".")[0]
        group = DryGroup(0, limits.tp)
        with use_tp_group(group):
            self.model = self._build(factory, config_of(facts), DTYPES[limits.dtype])
        self.reaches = self._bind()
        self.buckets: Buckets = plan(
            NeuronConfig(),
            max_tokens=limits.max_num_batched_tokens,
            max_rows=limits.max_num_seqs,
            max_model_len=limits.max_model_len,
            block_sizes=[limits.block_size],
        )

    def _build(self, factory: Any, config: Any, dtype: torch.dtype) -> DecoderModel:
        before = torch.get_default_dtype()
        torch.set_default_dtype(dtype)
        try:
            model = factory.from_configs(config, NeuronConfig())
        finally:
            torch.set_default_dtype(before)
        if not isinstance(model, DecoderModel):
            raise ConfigError("package", type(model).__name__, "a DecoderModel, whose steps this knows how to make")
        if model.max_position is not None and self.limits.max_model_len > model.max_position:
            raise ConfigError("--max-model-len", self.limits.max_model_len, f"at most {model.max_position}")
        model.limit_positions(self.limits.max_model_len)
        with self.fake:
            _fill(model)
            if model.tie_word_embeddings:
                model.head.tie(model.embed)  # type: ignore[arg-type]
            for module in model.modules():
                if isinstance(module, Rotary):
                    rows = (module.config.max_position, 2 * module.config.width)
                    module.table = torch.empty(rows, dtype=dtype, device="cpu")
            model.lay_out_weights()
        return model.eval()

    def _bind(self) -> list[Reach]:
        layers = self.model.get_kv_spec().layers
        reaches = list(dict.fromkeys(_reach(layer) for layer in layers))
        blocks = 1 + self.limits.max_num_seqs * -(-self.limits.max_model_len // self.limits.block_size)
        with self.fake:
            self.model.bind_kv_cache(
                {
                    layer.name: KVBinding(
                        torch.empty(blocks, self.limits.block_size, layer.token_width, dtype=layer.dtype),
                        reaches.index(_reach(layer)),
                    )
                    for layer in layers
                }
            )
        return reaches

    def step(self, shape: Shape) -> Step:
        """A step of that shape, of fake tensors; call inside ``fake``."""
        rows = shape.size if shape.phase is Phase.DECODE else 1
        views = tuple(self._view(shape, rows, reach) for reach in self.reaches)
        ids = torch.empty(shape.size, dtype=torch.int64)
        return Step(shape.phase, ids, torch.empty(shape.size, dtype=torch.int64), views, rows)

    def _view(self, shape: Shape, rows: int, reach: Reach) -> KVView:
        slots = torch.empty(shape.size, dtype=torch.int64)
        queries = shape.size // rows
        if shape.phase is Phase.PREFILL:
            mask = torch.empty(1, queries, queries, dtype=torch.bool)
            return KVView(slots, None, mask, causal=True, window=reach.window)
        block_size = self.limits.block_size
        window, chunk = reach.window, reach.chunk
        blocks = blocks_needed(shape.context, queries, block_size=block_size, window=window, chunk=chunk)
        declared = shape.phase is Phase.EXTEND and begins_with_window(
            shape.context, queries, block_size=block_size, window=window, chunk=chunk
        )
        return KVView(
            slots,
            torch.empty(rows, blocks, dtype=torch.int64),
            torch.empty(rows, queries, blocks * block_size, dtype=torch.bool),
            torch.empty(rows, dtype=torch.int64),
            window=window if declared else None,
        )

    @contextmanager
    def running(self) -> Iterator[None]:
        """Where steps are made and run."""
        with torch.no_grad(), self.fake:
            yield

    def run(self, shape: Shape) -> None:
        """The layers on a step of that shape, and the head on the rows that need a token."""
        step = self.step(shape)
        hidden_TH = self.model.forward(step)
        if shape.phase is Phase.DECODE:
            self.model.compute_logits(hidden_TH)


def _registered(architecture: str) -> Any:
    try:
        return resolve(architecture)
    except UnsupportedError as error:
        action = "Name the package that serves it: --package FOLDER, or a module such as reference_models.gemma3."
        raise UnsupportedError(error.field, error.value, error.expected, action) from error


def _reach(layer: LayerSpec) -> Reach:
    return Reach(layer.sliding_window_size, layer.chunk_size)


def _fill(model: nn.Module) -> None:
    """Every meta parameter and buffer becomes a fake one on the CPU, where kernels look for them; ties stay."""
    made: dict[int, Tensor] = {}

    def fresh(tensor: Tensor) -> Tensor:
        if id(tensor) not in made:
            made[id(tensor)] = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
        return made[id(tensor)]

    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                module._parameters[name] = nn.Parameter(fresh(parameter), requires_grad=False)
        for name, buffer in module._buffers.items():
            if buffer is not None and buffer.device.type == "meta":
                module._buffers[name] = fresh(buffer)
