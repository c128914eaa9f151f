"""Every environment variable of the plugin: one typed table, read through attributes.

``envs.VLLM_NEURON_CPU_MODE`` parses the variable at each access, so a test or a parent process can change it; a value
that does not parse raises :class:`vllm_neuron.errors.ConfigError`. Nothing else in the project reads ``os.environ``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from vllm_neuron.errors import ConfigError, nearest

PREFIX = "VLLM_NEURON_"


@dataclass(frozen=True)
class Variable:
    """One environment variable: its type as words, default, parser and meaning."""

    name: str
    kind: str
    default: Any
    parse: Callable[[str], Any]
    doc: str


def _bool(text: str) -> bool:
    lowered = text.strip().lower()
    if lowered in ("1", "true", "yes", "on"):
        return True
    if lowered in ("0", "false", "no", "off", ""):
        return False
    raise ValueError("one of 1, 0, true, false, yes, no, on, off")


def _int(minimum: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise ValueError(f"an integer of {minimum} or more") from None
        if value < minimum:
            raise ValueError(f"an integer of {minimum} or more")
        return value

    return parse


def _choice(*options: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in options:
            raise ValueError("one of " + ", ".join(options))
        return text

    return parse


VARIABLES: dict[str, Variable] = {
    v.name: v
    for v in (
        Variable(
            "VLLM_NEURON_CPU_MODE",
            "bool",
            False,
            _bool,
            "Run the same statically shaped code on this machine's CPU. Without it the plugin needs /dev/neuron*.",
        ),
        Variable(
            "VLLM_NEURON_LOG_LEVEL",
            "choice",
            "INFO",
            _choice("DEBUG", "INFO", "WARNING", "ERROR"),
            "Level of the plugin's own log lines.",
        ),
        Variable(
            "VLLM_NEURON_KERNELS",
            "choice",
            "auto",
            _choice("auto", "off", "simulate", "require"),
            "auto: an operation takes its kernel where it applies, on a device one in NKI, in CPU mode torch's own; "
            "simulate: NKI kernels in CPU mode too; off: plain torch references only; "
            "require: NKI kernels, and a refusal is an error.",
        ),
        Variable(
            "VLLM_NEURON_CPU_THREADS",
            "int",
            0,
            _int(0),
            "Threads for one rank in CPU mode; 0 divides the cores that this process may use among the ranks.",
        ),
        Variable(
            "VLLM_NEURON_CPU_KV_GIB",
            "int",
            0,
            _int(0),
            "KV cache budget of one rank in CPU mode, in GiB; 0 takes gpu_memory_utilization of what is free, "
            "capped at 4 GiB.",
        ),
        Variable(
            "VLLM_NEURON_METRICS_DIR",
            "str",
            "",
            str,
            "Directory in which the processes of a server share their counters for /metrics; made and removed by the "
            "server when unset.",
        ),
        Variable(
            "VLLM_NEURON_GOLDEN_CACHE_DIR",
            "str",
            "",
            str,
            "Folder of the references that validation computed; empty takes neuron-onboard/goldens in the user's "
            "cache folder.",
        ),
        Variable(
            "VLLM_NEURON_GOLDEN_CACHE_GIB",
            "int",
            8,
            _int(0),
            "Size of that folder in GiB; the references used longest ago are removed first. 0 keeps none.",
        ),
        Variable(
            "VLLM_NEURON_MODEL_PACKAGE",
            "str",
            "",
            str,
            "Distribution whose model wins when several register the same architecture.",
        ),
        Variable(
            "VLLM_NEURON_RUNTIME_INPUT_SNAPSHOT_ENABLE",
            "bool",
            False,
            _bool,
            "Take input snapshots by the variables of this prefix; the same as neuron_config.input_snapshot.",
        ),
        Variable(
            "VLLM_NEURON_RUNTIME_INPUT_SNAPSHOT_DIR",
            "str",
            "input-snapshots",
            str,
            "input_snapshot.dir: folder of the snapshots.",
        ),
        Variable(
            "VLLM_NEURON_RUNTIME_INPUT_SNAPSHOT_CAPTURE_AT_CALL",
            "str",
            "",
            str,
            "input_snapshot.steps: numbers and ranges of steps, as 0,5,10-12.",
        ),
        Variable(
            "VLLM_NEURON_RUNTIME_INPUT_SNAPSHOT_CAPTURE_REQUEST",
            "str",
            "",
            str,
            "input_snapshot.requests: ids of requests, with commas.",
        ),
        Variable(
            "VLLM_NEURON_RUNTIME_INPUT_SNAPSHOT_CAPTURE_TOKEN",
            "str",
            "",
            str,
            "input_snapshot.tokens: token ids, with commas.",
        ),
        Variable(
            "VLLM_NEURON_RUNTIME_INPUT_SNAPSHOT_MAX_CAPTURES",
            "int",
            4,
            _int(1),
            "input_snapshot.max_captures: steps to take at most.",
        ),
        Variable(
            "VLLM_NEURON_RUNTIME_INPUT_SNAPSHOT_RANKS",
            "str",
            "",
            str,
            "input_snapshot.ranks: ranks that write, with commas; all when unset.",
        ),
    )
}


def read(name: str) -> Any:
    """The parsed value of one variable, or its default when unset.

    Raises:
        ConfigError: the text does not parse, or no such variable exists.
    """
    variable = VARIABLES.get(name)
    if variable is None:
        raise ConfigError("environment", name, "a variable that vllm_neuron.envs lists", nearest(name, VARIABLES))
    text = os.environ.get(name)
    if text is None:
        return variable.default
    try:
        return variable.parse(text)
    except ValueError as error:
        raise ConfigError(name, text, str(error), f"Set {name} to such a value or unset it.") from None


def problems() -> list[ConfigError]:
    """One error for each set variable with our prefix that is unknown or does not parse."""
    found = []
    for name in sorted(os.environ):
        if name.startswith(PREFIX):
            try:
                read(name)
            except ConfigError as error:
                found.append(error)
    return found


def check_all() -> None:
    """Parse every variable once and refuse unknown names that start with the prefix.

    Raises:
        ConfigError: naming the first wrong variable.
    """
    for error in problems():
        raise error


def __getattr__(name: str) -> Any:
    if name in VARIABLES:
        return read(name)
    raise AttributeError(f"module {__name__!r} has no variable {name!r}. {nearest(name, VARIABLES)}")


def unknown_foreign(prefix: str, known: Container[str]) -> list[str]:
    """Variables that start with ``prefix``, are not ours and are not ``known``, sorted."""
    return sorted(
        name for name in os.environ if name.startswith(prefix) and not name.startswith(PREFIX) and name not in known
    )


def foreign(name: str, default: str = "") -> str:
    """A variable that belongs to another program (``VLLM_PLUGINS``, ``HF_HOME``, ...), as text."""
    return os.environ.get(name, default)


def set_foreign(name: str, value: str, *, only_if_unset: bool = True) -> None:
    """Set another program's variable for this process and its children."""
    if only_if_unset:
        os.environ.setdefault(name, value)
    else:
        os.environ[name] = value


@contextmanager
def changed(changes: Mapping[str, str]) -> Iterator[None]:
    """Set variables of this process and its children, and put them back after the block."""
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def child(changes: Mapping[str, str]) -> dict[str, str]:
    """This process's environment with some variables set, for a child process."""
    return {**os.environ, **changes}
