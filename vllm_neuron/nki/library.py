"""The public kernel library (``nkilib``): which call of it serves which operation, in which layout, from which version.

Where it is installed it goes before our own kernels. Names, layouts and limits are those of its public documentation
and sources; hardware has not seen these calls from here. Shapes by our legend, N and D as the library groups them.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import inspect
from dataclasses import dataclass
from functools import cache
from typing import Any

from vllm_neuron.nki.bind import function_of

DISTRIBUTIONS = ("nki-library", "nkilib")
# The first release with the calls below under these names, as the public plugin asks for.
FLOOR = (1, 0, 14244)
PARTITIONS = 128


@dataclass(frozen=True)
class LibraryCall:
    """One function of the library.

    Attributes:
        operation: ours that it serves.
        module, function: where it is.
        arguments: those that are passed.
        layout: of the arguments and the result, for people.
        limits: what it takes, for people; the rule itself is beside the call.
    """

    operation: str
    module: str
    function: str
    arguments: tuple[str, ...]
    layout: str
    limits: str

    def problem(self) -> tuple[str, str, str] | None:
        """Why it can't be used on this machine, as field, value and limit; None when it can."""
        if importlib.util.find_spec("nkilib") is None:
            return "nkilib", "not installed", "the public kernel library"
        found = _version()
        if found is None or _numbers(found) < FLOOR:
            return "nkilib version", found or "unknown", ".".join(map(str, FLOOR)) + " or later"
        try:
            kernel = getattr(importlib.import_module(self.module), self.function)
        except (ImportError, AttributeError, SyntaxError) as error:
            return f"{self.module}.{self.function}", f"{type(error).__name__}: {error}", "a function that imports"
        missing = sorted(set(self.arguments) - set(inspect.signature(function_of(kernel)).parameters))
        if missing:
            return f"{self.module}.{self.function}", f"no argument {', '.join(missing)}", "the documented signature"
        return None

    def load(self) -> Any:
        """The function; :meth:`problem` is None."""
        return getattr(importlib.import_module(self.module), self.function)


def _version() -> str | None:
    for name in DISTRIBUTIONS:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def _numbers(version: str) -> tuple[int, ...]:
    found = []
    for part in version.split("+")[0].split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        found.append(int(digits))
    return tuple(found)


QKV = LibraryCall(
    "qkv_proj",
    "nkilib.core.qkv.qkv",
    "qkv",
    ("input", "fused_qkv_weights", "output_layout", "bias"),
    "input [1, T, H], weights [H, F], bias [1, F] -> [1, T, F] (BSD)",
    "H a multiple of 128, at most 24,576; F at most 4,096, and at most H (the library is known wrong above)",
)
O_PROJ_PREFILL = LibraryCall(
    "o_proj",
    "nkilib.core.output_projection.output_projection_cte",
    "output_projection_cte",
    ("attention", "weight", "bias"),
    "attention [1, N, 128, T], weight [N * 128, H], bias [1, H] -> [1, T, H]",
    "512 tokens to 131,072, N * 128 inputs with N at most 17, H even and at most 20,705",
)
O_PROJ_DECODE = LibraryCall(
    "o_proj",
    "nkilib.core.output_projection.output_projection_tkg",
    "output_projection_tkg",
    ("attention", "weight", "bias"),
    "attention [128, 1, N, T], weight [N * 128, H], bias [1, H] -> [T, H]",
    "at most 128 tokens, N * 128 inputs, H a multiple of 128",
)
CALLS = (QKV, O_PROJ_PREFILL, O_PROJ_DECODE)

# What the library has for an operation of ours and why it is not called; everything else it has not.
NOT_CALLED = {
    "flash_attention": "attention_cte takes causality, a window or bounds; our operation takes any mask, and a pack of "
    "requests needs one",
    "attention_decode": "attention_tkg reads keys and values from two caches; ours lie side by side, so that one DMA "
    "fetches a token",
    "kv_write": "the library writes the cache inside qkv, into its own layout",
    "mlp": "mlp takes gate and up as two matrices; ours are one, and splitting it copies the weights at each step",
    "moe_experts": "moe_tkg takes [E, H, 2, I] weights; ours are [E, 2 * I, H], as checkpoints store them",
    "rotary": "rope_hf turns queries and keys in two tensors, heads before tokens; ours lie side by side, tokens first",
    "route": "router_topk imports a module that NKI no longer has",
    "argmax": "what cascaded_max gives back is not in the documentation that we have",
    "topk": "what rotational_topk gives back is not in the documentation that we have",
}


@cache
def problem_of(call: LibraryCall) -> tuple[str, str, str] | None:
    """:meth:`LibraryCall.problem`, asked once."""
    return call.problem()
