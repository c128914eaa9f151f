"""The options of ``neuron_config`` that look into a running model: capture, replacement, input snapshots."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, Self

from vllm_neuron import envs
from vllm_neuron.errors import ConfigError, nearest

Read = Callable[[str, Any], Any]


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value or "\0" in value:
        raise ConfigError(name, value, "a text that is not empty")
    return value


def _texts(name: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not value:
        raise ConfigError(name, value, "a list of texts, at least one")
    return tuple(_text(f"{name}[{i}]", each) for i, each in enumerate(value))


def _number(minimum: int) -> Read:
    def read(name: str, value: Any) -> int:
        if type(value) is not int or value < minimum:
            raise ConfigError(name, value, f"an integer of {minimum} or more")
        return value

    return read


def _numbers(name: str, value: Any) -> tuple[int, ...]:
    if not isinstance(value, list | tuple) or not value:
        raise ConfigError(name, value, "a list of integers of 0 or more, at least one")
    return tuple(sorted({_number(0)(f"{name}[{i}]", each) for i, each in enumerate(value)}))


def _choice(*options: str) -> Read:
    def read(name: str, value: Any) -> str:
        if value not in options:
            raise ConfigError(name, value, " or ".join(options))
        return value

    return read


@dataclass(frozen=True)
class Ranges:
    """Numbers, as ranges with both ends: ``((0, 3), (7, 7))``."""

    ranges: tuple[tuple[int, int], ...]

    def __contains__(self, number: int) -> bool:
        return any(first <= number <= last for first, last in self.ranges)

    @property
    def last(self) -> int:
        """The largest number."""
        return max(last for _, last in self.ranges)

    @classmethod
    def read(cls, name: str, value: Any) -> Self:
        """A list of integers and of texts such as ``"0-3"``.

        Raises:
            ConfigError: anything else.
        """
        expected = 'a list of integers of 0 or more and of ranges such as "0-3", at least one'
        if not isinstance(value, list | tuple) or not value:
            raise ConfigError(name, value, expected)
        found = []
        for i, each in enumerate(value):
            match = re.fullmatch(r"(\d{1,12})(?:-(\d{1,12}))?", str(each)) if type(each) in (int, str) else None
            if match is None or int(match[2] or match[1]) < int(match[1]):
                raise ConfigError(f"{name}[{i}]", each, expected)
            found.append((int(match[1]), int(match[2] or match[1])))
        return cls(tuple(found))


def _how(read: Read, doc: str) -> dict[str, Any]:
    return {"read": read, "doc": doc}


class _Options:
    """Reads a dataclass whose fields say how."""

    @classmethod
    def read(cls, name: str, value: Any) -> Self | None:
        """Read and check a mapping; None for None.

        Raises:
            ConfigError: an unknown or missing key, or a value of the wrong type.
        """
        if value is None or isinstance(value, cls):
            return value
        known = {f.name: f for f in fields(cls)}  # type: ignore[arg-type]
        if not isinstance(value, Mapping):
            raise ConfigError(name, value, f"an object with {', '.join(known)}")
        for key in value:
            if key not in known:
                raise ConfigError(f"{name}.{key}", value[key], "a known option", nearest(str(key), known))
        for key, option in known.items():
            if key not in value and option.default is MISSING:
                raise ConfigError(f"{name}.{key}", None, option.metadata["doc"])
        return cls(**{key: known[key].metadata["read"](f"{name}.{key}", given) for key, given in value.items()})


MODULES = "Names of modules, with * within a part, ** over parts and {0-3} for numbers: layers.{0-3}.attn"
STEPS = 'Numbers of steps since the model was loaded, from 0, warm-up not counted: [0, 5, "10-19"].'
RANKS = "Tensor-parallel ranks that write. Default: all."


@dataclass(frozen=True)
class TensorCapture(_Options):
    """Write what modules are given and give to files; see :mod:`vllm_neuron.snapshot.files`."""

    modules: tuple[str, ...] = field(metadata=_how(_texts, MODULES))
    dir: str = field(metadata=_how(_text, "New or empty folder; each rank writes to rank<N> in it."))
    steps: Ranges | None = field(default=None, metadata=_how(Ranges.read, STEPS + " Default: all."))
    ranks: tuple[int, ...] | None = field(default=None, metadata=_how(_numbers, RANKS))
    tensors: str = field(
        default="both", metadata=_how(_choice("both", "inputs", "outputs"), "both, inputs or outputs.")
    )
    max_bytes: int = field(
        default=1 << 30,
        metadata=_how(_number(1), "A rank stops before it writes more than this, and says so once."),
    )


@dataclass(frozen=True)
class TensorReplacement(_Options):
    """Feed captured tensors at modules and go on; see :mod:`vllm_neuron.snapshot.feeding`."""

    modules: tuple[str, ...] = field(metadata=_how(_texts, MODULES))
    dir: str = field(metadata=_how(_text, "A folder that tensor_capture wrote."))
    at: str = field(
        default="output",
        metadata=_how(_choice("output", "input"), "output, or input for the hidden states a module is given."),
    )
    steps: Ranges | None = field(default=None, metadata=_how(Ranges.read, STEPS + " Default: all that the folder has."))


@dataclass(frozen=True)
class InputSnapshot(_Options):
    """Write the exact inputs of some steps; a step is taken when one of the rules fits.

    Raises:
        ConfigError: no rule.
    """

    dir: str = field(
        metadata=_how(_text, "Folder for step-<number> folders; one with snapshots of an earlier run is an error.")
    )
    steps: Ranges | None = field(default=None, metadata=_how(Ranges.read, STEPS))
    requests: tuple[str, ...] | None = field(
        default=None, metadata=_how(_texts, "Ids of requests, as the client gave them; every step of theirs.")
    )
    tokens: tuple[int, ...] | None = field(
        default=None, metadata=_how(_numbers, "Token ids; every step that runs one of them.")
    )
    max_captures: int = field(default=4, metadata=_how(_number(1), "Steps to take at most."))
    ranks: tuple[int, ...] | None = field(default=None, metadata=_how(_numbers, RANKS))

    def __post_init__(self) -> None:
        if self.steps is None and self.requests is None and self.tokens is None:
            raise ConfigError(
                "neuron_config.input_snapshot", {"dir": self.dir}, "steps, requests or tokens", "Say which steps."
            )

    @classmethod
    def from_environment(cls) -> InputSnapshot | None:
        """What the variables ``VLLM_NEURON_RUNTIME_INPUT_SNAPSHOT_*`` ask for; None unless ``..._ENABLE`` is true.

        Raises:
            ConfigError: a variable that does not parse, or no rule.
        """
        if not envs.VLLM_NEURON_RUNTIME_INPUT_SNAPSHOT_ENABLE:
            return None
        given = {
            "dir": envs.VLLM_NEURON_RUNTIME_INPUT_SNAPSHOT_DIR,
            "steps": _parts(envs.VLLM_NEURON_RUNTIME_INPUT_SNAPSHOT_CAPTURE_AT_CALL),
            "requests": _parts(envs.VLLM_NEURON_RUNTIME_INPUT_SNAPSHOT_CAPTURE_REQUEST),
            "tokens": _integers(envs.VLLM_NEURON_RUNTIME_INPUT_SNAPSHOT_CAPTURE_TOKEN),
            "max_captures": envs.VLLM_NEURON_RUNTIME_INPUT_SNAPSHOT_MAX_CAPTURES,
            "ranks": _integers(envs.VLLM_NEURON_RUNTIME_INPUT_SNAPSHOT_RANKS),
        }
        # Variables that are not set stay at the option's own default.
        return cls.read("VLLM_NEURON_RUNTIME_INPUT_SNAPSHOT", {key: value for key, value in given.items() if value})


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _integers(text: str) -> list[int | str]:
    return [int(part) if part.isdecimal() else part for part in _parts(text)]
