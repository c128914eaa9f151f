"""What of vLLM's configuration and of a request is not supported, refused by name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from vllm.exceptions import VLLMClientError

from vllm_neuron.errors import ConfigError, UnsupportedError, nearest
from vllm_neuron.model.inspection_config import InputSnapshot
from vllm_neuron.model.neuron_config import NeuronConfig

# Fields of vLLM 0.32's SamplingParams that only its own second-generation runner honours.
UNSUPPORTED_IN_A_REQUEST = (
    "prompt_logprob_token_ids",
    "prompt_logprob_start",
    "thinking_token_budget",
    "watermarking",
    "trace_decode_token_ids",
)


class RequestError(UnsupportedError, VLLMClientError, ValueError):
    """A request that can't be served.

    vLLM 0.32 hands a ``VLLMClientError`` through to its server, which answers a ``ValueError`` with status 400; any
    other exception would become a 500 without a text.
    """


def neuron_config(vllm_config: Any) -> NeuronConfig:
    """``additional_config["neuron_config"]``, checked; input snapshots may be asked for by the environment.

    Raises:
        ConfigError, UnsupportedError: naming the key.
    """
    additional = vllm_config.additional_config or {}
    if not isinstance(additional, dict):
        raise ConfigError("additional_config", additional, "an object")
    for key in additional:
        if key != "neuron_config":
            raise ConfigError(
                f"additional_config.{key}", additional[key], "neuron_config only", nearest(key, ["neuron_config"])
            )
    config = NeuronConfig.from_dict(additional.get("neuron_config"))
    snapshot = InputSnapshot.from_environment()
    if snapshot is None:
        return config
    if config.input_snapshot is not None:
        name = "VLLM_NEURON_RUNTIME_INPUT_SNAPSHOT_ENABLE"
        raise ConfigError(name, True, "unset beside neuron_config.input_snapshot", "Keep one of the two.")
    return replace(config, input_snapshot=snapshot)


def refuse_unsupported(vllm_config: Any) -> None:
    """Stop at the first engine option that would otherwise be ignored.

    Raises:
        UnsupportedError: naming the option and its value.
    """
    for name, value, accepted in _options(vllm_config):
        if value not in accepted:
            raise UnsupportedError(name, value, " or ".join(repr(a) for a in accepted), "It is not supported yet.")


def _options(c: Any) -> Iterator[tuple[str, Any, tuple[Any, ...]]]:
    p = c.parallel_config
    yield "pipeline_parallel_size", p.pipeline_parallel_size, (1,)
    yield "data_parallel_size", p.data_parallel_size, (1,)
    yield "decode_context_parallel_size", p.decode_context_parallel_size, (1,)
    yield "prefill_context_parallel_size", p.prefill_context_parallel_size, (1,)
    yield "enable_expert_parallel", p.enable_expert_parallel, (False,)
    yield "enable_lora", c.lora_config is not None, (False,)
    yield "speculative_config", c.speculative_config and c.speculative_config.method, (None,)
    yield "kv_transfer_config", c.kv_transfer_config and c.kv_transfer_config.kv_connector, (None,)
    yield "profiler_config", c.profiler_config and c.profiler_config.profiler, (None,)
    yield "kv_cache_dtype", c.cache_config.cache_dtype, ("auto", "bfloat16", "float16", "float32")
    cache, offload = c.cache_config, c.offload_config
    yield "cpu_offload_gb", offload.uva.cpu_offload_gb, (0,)
    yield "offload_group_size", offload.prefetch.offload_group_size, (0,)
    yield "kv_offloading_size", cache.kv_offloading_size, (None,)
    yield "kv_cache_dtype_skip_layers", cache.kv_cache_dtype_skip_layers, ([],)
    yield "kv_sharing_fast_prefill", cache.kv_sharing_fast_prefill, (False,)
    yield "attention_backend", c.attention_config.backend, (None, *_backends_of_vllm(c.model_config))
    yield "weight_transfer_config", c.weight_transfer_config and c.weight_transfer_config.backend, (None,)
    yield "model_loader_extra_config", c.load_config.model_loader_extra_config, ({},)
    yield "ignore_patterns", c.load_config.ignore_patterns, (["original/**/*"], [])
    yield "enable_layerwise_nvtx_tracing", c.observability_config.enable_layerwise_nvtx_tracing, (False,)
    yield "load_format", c.load_config.load_format, ("auto", "safetensors", "hf")
    m = c.model_config
    if m is None:
        return
    yield "runner", m.runner_type, ("generate",)
    yield "quantization", m.quantization, (None,)
    yield "enable_prompt_embeds", m.enable_prompt_embeds, (False,)
    yield "enable_sleep_mode", m.enable_sleep_mode, (False,)
    yield "multimodal model", m.is_multimodal_model, (False,)
    if c.cache_config.cache_dtype not in ("auto", str(m.dtype).removeprefix("torch.")):
        yield "kv_cache_dtype", c.cache_config.cache_dtype, ("auto", str(m.dtype).removeprefix("torch."))


def _backends_of_vllm(model: Any) -> tuple[Any, ...]:
    """Backends that vLLM 0.32 fills in by itself for an architecture; a user's own choice of them looks the same."""
    from vllm.model_executor.models.config import MODELS_CONFIG_MAP, Gemma4Config
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    names = () if model is None else model.architectures
    if any(MODELS_CONFIG_MAP.get(name) is Gemma4Config for name in names):
        return (AttentionBackendEnum.TRITON_ATTN,)
    return ()


def refuse_request(params: Any) -> None:
    """Stop a request that asks for what is not supported.

    Raises:
        RequestError: naming the parameter; vLLM's server answers 400 with the text.
    """
    from vllm.pooling_params import PoolingParams

    if isinstance(params, PoolingParams):
        raise RequestError("task", params.task, "text generation")
    for name in UNSUPPORTED_IN_A_REQUEST:
        value = getattr(params, name, None)
        if value is not None and value is not False:
            raise RequestError(name, value, "to be left out", "It is not supported yet.")
