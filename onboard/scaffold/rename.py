"""Put a package's own names into rendered code: its classes and the imports between its files."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Mapping
from dataclasses import replace

from onboard.scaffold.code import ModelCode
from onboard.scaffold.names import Names
from vllm_neuron.errors import ConfigError

SUFFIX = "ForCausalLM"
SIBLINGS = ("config", "model", "factory")


def renamed(code: ModelCode, names: Names) -> ModelCode:
    """The same code with the package's classes (``MyModelConfig``, ``MyModelLayer``, ...) and absolute imports.

    Raises:
        ConfigError: a class would get a name that the code uses for something else, such as ``Attention``.
    """
    texts = {part: getattr(code, f"{part}_py") for part in SIBLINGS}
    defined = {part: _classes(text) for part, text in texts.items()}
    old = code.class_name.removesuffix(SUFFIX)
    table = {
        name: names.stem + name.removeprefix(old)
        for name in set().union(*defined.values())
        if name.startswith(old) and name != code.class_name
    }
    table[code.class_name] = names.class_name
    _refuse_clashes(texts, table, names)
    done = {part: _with_imports(_with_names(text, table), table, defined, names) for part, text in texts.items()}
    return replace(code, **{f"{part}_py": text for part, text in done.items()}, class_name=names.class_name)


def _classes(text: str) -> set[str]:
    return {node.name for node in ast.parse(text).body if isinstance(node, ast.ClassDef)}


def _tokens(text: str) -> list[tokenize.TokenInfo]:
    return list(tokenize.generate_tokens(io.StringIO(text).readline))


def _refuse_clashes(texts: Mapping[str, str], table: Mapping[str, str], names: Names) -> None:
    used = {t.string for text in texts.values() for t in _tokens(text) if t.type == tokenize.NAME} - table.keys()
    clashes = sorted(used & set(table.values()))
    if clashes:
        raise ConfigError(
            "NAME",
            names.typed,
            f"a name whose classes are not called like others in the code ({', '.join(clashes)})",
            f"Try '{names.package}_model'.",
        )


def _with_names(text: str, table: Mapping[str, str]) -> str:
    lines = text.splitlines(keepends=True)
    before = ""
    edits = []
    for token in _tokens(text):
        if token.type == tokenize.NAME and token.string in table and before != ".":
            edits.append(token)
        before = token.string
    for token in reversed(edits):
        row, start = token.start
        line = lines[row - 1]
        lines[row - 1] = line[:start] + table[token.string] + line[start + len(token.string) :]
    return "".join(lines)


def _with_imports(text: str, table: Mapping[str, str], defined: Mapping[str, set[str]], names: Names) -> str:
    lines = text.splitlines(keepends=True)
    for node in ast.parse(text).body:
        part = node.module.rpartition(".")[2] if isinstance(node, ast.ImportFrom) and node.module else ""
        if part in defined and isinstance(node, ast.ImportFrom):
            own = {table.get(name, name) for name in defined[part]}
            if own.issuperset(alias.name for alias in node.names):
                row = node.lineno - 1
                lines[row] = re.sub(r"from\s+\S+", f"from {names.package}.{part}", lines[row], count=1)
    return "".join(lines)
