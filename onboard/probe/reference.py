"""A tiny random model of transformers in float32: the reference of detections and proofs."""

from __future__ import annotations

import contextlib
import copy
import json
import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vllm_neuron.accuracy.origins import origins
from vllm_neuron.errors import UnsupportedError

# Buffers that are learned, though they are not parameters.
LEARNED_BUFFERS = ("e_score_correction_bias", "expert_bias", "layer_scalar", "correction_bias")
# Scores become large enough for soft caps, sinks and windows to show.
QUERY_GAIN = 1.5
# Kin of GELU differ around 2.
GATE_GAIN = 1.6
SMALL_ROWS = slice(3, None, 5)
MOST_PARAMETERS = 12_000_000
# A relative change of the embedding may come out this much larger; rounding in float32 stays well below 1e-5 then.
LARGEST_GROWTH, CHANGE, PROBED, ROUNDS, TIED = 9.0, 1e-4, 64, 7, 100.0
NOISE, STEADY, SHAKES = 1e-5, 3e-3, 3


class Reference:
    """The causal LM of a config with every weight random.

    The forward pass without a cache is what counts: a few families decode differently with their own cache.

    Args:
        config: a transformers config object; no code of a model repository is run.
        seed: of the weights.

    Raises:
        UnsupportedError: transformers has no causal LM for the config.
    """

    def __init__(self, config: Any, seed: int = 0) -> None:
        # Building and saving a model write to its config.
        self.config = copy.deepcopy(config)
        self.model = build(self.config)
        self.model.eval().requires_grad_(False)
        self._settle(seed)
        self._origin: dict[str, tuple[str, ...]] | None = None
        self._shapes: dict[str, tuple[int, ...]] = {}

    def _settle(self, seed: int) -> None:
        """Random weights whose rounding errors don't grow: what amplifies is weakened until it is so, as far as it
        goes."""
        fresh = {name: value.clone() for name, value in self.model.state_dict().items()}
        tried: dict[float, float] = {}

        def weaken(strength: float) -> None:
            self.model.load_state_dict(fresh)
            randomize(self.model, seed, strength)

        for step in range(ROUNDS):
            strength = 0.75**step
            weaken(strength)
            tried[strength] = self.growth(seed)
            if tried[strength] <= LARGEST_GROWTH:
                return
        weaken(min(tried, key=lambda s: tried[s]))

    def growth(self, seed: int = 0) -> float:
        """How much larger a small relative change of the embedded tokens is in the worst token's logits.

        Tokens whose router chose another expert for it are left out: that is a tie, not a growth.
        """
        generator = torch.Generator().manual_seed(seed)
        table = self.model.get_input_embeddings().weight
        ids = torch.randint(3, table.shape[0] - 3, (PROBED,), generator=generator)
        growths = self._moved(ids, CHANGE, generator) / CHANGE
        return float(growths[growths < TIED].max()) if bool((growths < TIED).any()) else math.inf

    def steady(self, ids: Sequence[int] | Tensor) -> bool:
        """Whether a change of the size of rounding errors leaves every token's logits where they are.

        It does not where a router's choice between two experts is a tie.
        """
        generator = torch.Generator().manual_seed(len(ids))
        tokens = torch.as_tensor(ids)
        return all(bool(self._moved(tokens, NOISE, generator).max() < STEADY) for _ in range(SHAKES))

    def _moved(self, ids: Tensor, size: float, generator: torch.Generator) -> Tensor:
        """Relative change [T] of each token's logits when the embedding changes by ``size``."""
        table = self.model.get_input_embeddings().weight
        before, kept = self.logits(ids), table.detach().clone()
        table.copy_(kept * (1 + size * torch.randn(kept.shape, generator=generator)))
        after = self.logits(ids)
        table.copy_(kept)
        return (after - before).norm(dim=-1) / before.norm(dim=-1)

    def logits(self, ids: Sequence[int] | Tensor) -> Tensor:
        """float32 [T, V] of one sequence, without a cache."""
        tokens = torch.as_tensor(ids, dtype=torch.int64).reshape(1, -1)
        with torch.no_grad():
            return self.model(input_ids=tokens, use_cache=False).logits[0].float()

    def save(self, folder: Path) -> None:
        """Write ``config.json`` and safetensors files under the names of the hub's checkpoints."""
        with quiet():
            self.model.save_pretrained(folder, safe_serialization=True)
        _keep_architecture(self.model, folder)

    @property
    def origin(self) -> Mapping[str, tuple[str, ...]]:
        """Key of the saved checkpoint -> the module's own names for the parameters that it holds, found by value."""
        if self._origin is None:
            self._look()
        assert self._origin is not None
        return self._origin

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Key of the saved checkpoint -> the tensor's shape."""
        if self._origin is None:
            self._look()
        return self._shapes

    def _look(self) -> None:
        from safetensors.torch import load_file

        with tempfile.TemporaryDirectory() as folder:
            self.save(Path(folder))
            saved = {k: v for path in sorted(Path(folder).glob("*.safetensors")) for k, v in load_file(path).items()}
        self._origin = origins(self.model, saved)
        self._shapes = {key: tuple(value.shape) for key, value in saved.items()}


def build(config: Any) -> Any:
    """The causal LM of a config, in float32 with eager attention.

    Raises:
        UnsupportedError: transformers has none.
    """
    cls = causal_class(config)
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"
    with torch.device("meta"):
        count = sum(p.numel() for p in cls(config).parameters())
    if count > MOST_PARAMETERS:
        raise UnsupportedError("parameters", count, f"a tiny reference of at most {MOST_PARAMETERS}")
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        with torch.random.fork_rng():
            return cls(config).float()
    finally:
        torch.set_default_dtype(before)


def causal_class(config: Any) -> Any:
    """The causal LM class of a config.

    Raises:
        UnsupportedError: transformers has none.
    """
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    found: Any = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    if found is None:
        # The text part of a model with other inputs too.
        wider = (c for c in MODEL_FOR_CAUSAL_LM_MAPPING if type(config) in getattr(c, "sub_configs", {}).values())
        models: Iterator[Any] = (MODEL_FOR_CAUSAL_LM_MAPPING[c] for c in wider)
        found = next((m for m in models if m.config_class is type(config)), None)
    if found is None:
        raise UnsupportedError("model_type", config.model_type, "a causal LM of the installed transformers")
    return found


def _keep_architecture(model: Any, folder: Path) -> None:
    """The class's name stands in ``architectures``, as on the hub."""
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config["architectures"] = [type(model).__name__]
    path.write_text(json.dumps(config, indent=2), encoding="utf-8")


def randomize(model: nn.Module, seed: int, strength: float = 1.0) -> None:
    """Give every parameter and learned buffer random values that hide nothing.

    Norm weights spread around the value that they start with, matrices keep the size of what passes through them,
    biases are not small. Queries and keys are amplified and some tokens are so small that eps shows: less so with
    less ``strength``.
    """
    generator = torch.Generator().manual_seed(seed)
    seen: set[int] = set()
    for name, parameter in sorted(model.named_parameters()):
        if id(parameter) not in seen:
            seen.add(id(parameter))
            parameter.copy_(_values(name, parameter, generator, strength))
    for name, buffer in sorted(model.named_buffers()):
        if name.rsplit(".", 1)[-1] in LEARNED_BUFFERS:
            buffer.copy_(0.3 * torch.randn(buffer.shape, generator=generator) + (1.0 if "scalar" in name else 0.0))


def _values(name: str, parameter: Tensor, generator: torch.Generator, strength: float) -> Tensor:
    noise = torch.randn(parameter.shape, generator=generator)
    last = name.rsplit(".", 1)[-1]
    if parameter.dim() >= 2 and "norm" not in name.lower():
        return _matrix(name, parameter, noise, strength)
    if last == "bias" or "bias" in last:
        return 0.3 * noise
    if parameter.numel() and parameter.float().std(correction=0) == 0:
        spread = parameter.float().flatten()[0] + 0.3 * noise
        if _of_queries_or_keys(name):
            return (spread + 0.2) * strength
        return spread * strength if "post_" in name else spread
    return parameter.float() + 0.1 * noise


def _of_queries_or_keys(name: str) -> bool:
    return any(part in name for part in ("q_norm", "k_norm", "query_norm", "key_norm", "q_layernorm", "k_layernorm"))


def _matrix(name: str, parameter: Tensor, noise: Tensor, strength: float) -> Tensor:
    lowered = name.lower()
    if "embed" in lowered or lowered.endswith(("wte.weight", "wpe.weight")):
        # Inputs this small show the eps of the first norms.
        noise[SMALL_ROWS] *= 1.0 - 0.98 * strength
        return noise * 0.5
    if "experts" in lowered and parameter.dim() == 3:
        return noise / math.sqrt(min(parameter.shape[1:]))
    return noise * _gain(lowered, strength) / math.sqrt(parameter.shape[-1])


def _gain(name: str, strength: float) -> float:
    if any(part in name for part in ("q_proj", "k_proj", "query", "q_b_proj")):
        return QUERY_GAIN * strength
    return max(1.0, GATE_GAIN * strength) if "gate_proj" in name else 1.0


class References:
    """The references of configs, each made once.

    Args:
        seed: of the weights of all of them.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._made: dict[int, tuple[Any, Reference]] = {}

    def __call__(self, config: Any, seed: int | None = None) -> Reference:
        """The reference of this very config object; its seed is always the same."""
        if id(config) not in self._made:
            self._made[id(config)] = (config, Reference(config, self.seed))
        return self._made[id(config)][1]


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """No progress bars and warnings of transformers inside."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
