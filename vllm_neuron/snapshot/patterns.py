"""Names of modules by pattern: ``layers.*.attn``, ``layers.{0-3}.mlp``, ``layers.{0,5}.**``."""

from __future__ import annotations

import re
from collections.abc import Sequence

from torch import nn

from vllm_neuron.errors import ConfigError, nearest

TOKENS = re.compile(r"\*\*|\*|\{[^{}]*\}|[^*{}]+")


def compile_pattern(pattern: str, field: str = "modules") -> re.Pattern[str]:
    """A pattern as a regular expression of whole module names.

    ``*`` is any text within one part of a dotted name, ``**`` any text, ``{0-3}`` the numbers 0 to 3, ``{0,5,8-9}`` the
    numbers listed.

    Args:
        pattern: as the user wrote it.
        field: what an error names.

    Raises:
        ConfigError: braces that hold no numbers, or are not closed.
    """
    pieces = TOKENS.findall(pattern)
    if not pattern or "".join(pieces) != pattern:
        raise ConfigError(field, pattern, "a module name with *, ** and {numbers}", "For example layers.{0-3}.attn")
    return re.compile("".join(_piece(piece, pattern, field) for piece in pieces))


def _piece(piece: str, pattern: str, field: str) -> str:
    if piece == "**":
        return ".*"
    if piece == "*":
        return "[^.]*"
    if piece[0] != "{":
        return re.escape(piece)
    numbers: list[str] = []
    for part in piece[1:-1].split(","):
        found = re.fullmatch(r"\s*(\d{1,4})(?:\s*-\s*(\d{1,4}))?\s*", part)
        if found is None or (found[2] and int(found[2]) < int(found[1])):
            raise ConfigError(field, pattern, "numbers such as {0-3} or {0,5} in braces")
        numbers += map(str, range(int(found[1]), int(found[2] or found[1]) + 1))
    return "(?:" + "|".join(numbers) + ")"


def match_modules(model: nn.Module, patterns: Sequence[str], field: str = "modules") -> dict[str, nn.Module]:
    """The modules whose names fit one of the patterns, in the model's order, each once.

    Raises:
        ConfigError: no patterns, or one that fits no module; the message has the nearest name.
    """
    if not patterns:
        raise ConfigError(field, list(patterns), "at least one pattern of module names")
    names = {name: module for name, module in model.named_modules() if name}
    chosen: set[str] = set()
    for pattern in patterns:
        expression = compile_pattern(pattern, field)
        found = {name for name in names if expression.fullmatch(name)}
        if not found:
            hint = nearest(re.sub(r"\{[^}]*\}|\*+", "0", pattern), names)
            if hint.startswith("Known"):
                hint = "Top-level modules: " + ", ".join(name for name, _ in model.named_children()) + "."
            raise ConfigError(field, pattern, "a pattern that fits a module of the model", hint)
        chosen |= found
    return {name: module for name, module in names.items() if name in chosen}
