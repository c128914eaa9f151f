"""The plugin's own configuration: ``additional_config["neuron_config"]``, strict.

vLLM's own options (parallel sizes, lengths, dtype, ...) stay where they are; here is only what vLLM has no place for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from vllm_neuron.errors import ConfigError, UnsupportedError, nearest
from vllm_neuron.model.inspection_config import InputSnapshot, TensorCapture, TensorReplacement

# Options that are objects with options of their own.
NESTED: Mapping[str, Any] = {
    "tensor_capture": TensorCapture,
    "tensor_replacement": TensorReplacement,
    "input_snapshot": InputSnapshot,
}

# Options that people know from other Neuron plugins and that this one does not honour yet.
NOT_YET = (
    "all2all_backend",
    "attention_dp_size",
    "debug_logits_dir",
    "embedding_dp_size",
    "enable_structured_outputs",
    "ep_degree",
    "fp8_packed_kv",
    "kv_segment_size_buckets",
    "lm_head_dp_size",
    "max_logprobs",
    "mlp_dp_size",
    "modules_to_not_convert",
    "on_device_sampling_config",
    "quantization",
)


def _buckets(doc: str) -> Any:
    return field(default=None, metadata={"doc": doc})


@dataclass(frozen=True)
class NeuronConfig:
    """Buckets, strictness and compilation. Every field has a default; an unknown key is an error."""

    num_batched_tokens_buckets: tuple[int, ...] | None = _buckets(
        "Token counts that prefill work is padded to, ascending; the last is max_num_batched_tokens. "
        "Default: powers of two."
    )
    num_seqs_buckets: tuple[int, ...] | None = _buckets(
        "Row counts that decode work is padded to, ascending; the last is max_num_seqs. Default: powers of two."
    )
    decode_context_length_buckets: tuple[int, ...] | None = _buckets(
        "Context lengths that cached work looks at, ascending multiples of the block size; the last covers "
        "max_model_len. Default: powers of two."
    )
    strict_shapes: bool = field(
        default=True,
        metadata={"doc": "After warm-up, a shape that no bucket has is an error; false logs it once and runs it."},
    )
    warmup: str = field(
        default="auto",
        metadata={
            "doc": "all: warm-up runs every bucket; sample: it runs the smallest and registers the rest; auto: what "
            "the target needs (all where graphs are compiled, sample in CPU mode without compile_layers)."
        },
    )
    compile_layers: bool = field(
        default=False,
        metadata={"doc": "Compile one decoder-layer function with torch.compile and share it between all layers."},
    )
    tensor_capture: TensorCapture | None = field(
        default=None, metadata={"doc": "Write what modules are given and give to files, step by step."}
    )
    tensor_replacement: TensorReplacement | None = field(
        default=None, metadata={"doc": "Feed captured tensors at modules in place of their own."}
    )
    input_snapshot: InputSnapshot | None = field(
        default=None, metadata={"doc": "Write the exact inputs of some steps, for `onboard replay`."}
    )

    def __post_init__(self) -> None:
        """Raises ConfigError: capture or replacement beside ``compile_layers``, whose graphs call no hooks."""
        for name in ("tensor_capture", "tensor_replacement"):
            if self.compile_layers and getattr(self, name) is not None:
                raise ConfigError(
                    f"neuron_config.{name}", "set", "no compile_layers beside it", "Set compile_layers to false."
                )

    @classmethod
    def from_dict(cls, given: Mapping[str, Any] | None) -> NeuronConfig:
        """Read and check the mapping.

        Raises:
            ConfigError: an unknown key, or a value of the wrong type.
            UnsupportedError: a known option that is not honoured yet.
        """
        if given is None:
            return cls()
        if not isinstance(given, Mapping):
            raise ConfigError("neuron_config", given, "an object", 'Write {"neuron_config": {...}}.')
        known = {f.name for f in fields(cls)}
        values: dict[str, Any] = {}
        for key, value in given.items():
            if key in NOT_YET:
                raise UnsupportedError(f"neuron_config.{key}", value, "to be left out: it is not supported yet")
            if key not in known:
                raise ConfigError(f"neuron_config.{key}", value, "a known option", nearest(str(key), known))
            values[key] = _typed(key, value)
        return cls(**values)


def _typed(key: str, value: Any) -> Any:
    name = f"neuron_config.{key}"
    if key in NESTED:
        return NESTED[key].read(name, value)
    if key.endswith("_buckets"):
        if value is None:
            return None
        if not isinstance(value, list | tuple) or not value or any(type(v) is not int or v < 1 for v in value):
            raise ConfigError(name, value, "a list of positive integers")
        if list(value) != sorted(set(value)):
            raise ConfigError(name, value, "ascending numbers, each once")
        return tuple(value)
    if key == "warmup":
        if value not in ("auto", "all", "sample"):
            raise ConfigError(name, value, "auto, all or sample")
        return value
    if not isinstance(value, bool):
        raise ConfigError(name, value, "true or false")
    return value
