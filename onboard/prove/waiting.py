"""Where a package's code waits for a feature: its `raise NotImplementedError("<feature>: ...")` lines."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from onboard.prove.proof import OpenFeature


def open_features(sources: Path, folder: Path, named: Iterable[Mapping[str, Any]]) -> tuple[OpenFeature, ...]:
    """The features that the code still raises ``NotImplementedError`` for.

    A feature of ``onboard.json`` whose line is gone was written meanwhile: it is not open any more.

    Args:
        sources: folder of the package's Python files.
        folder: the package's folder; files are named relative to it.
        named: the ``open`` entries of ``onboard.json``.
    """
    told = {str(entry["feature"]): entry for entry in named}
    tests = list(_tests(folder))
    found = []
    for path in sorted(sources.rglob("*.py")):
        for line, text in _raises(path):
            feature = next((name for name in told if text.startswith(name)), text.partition(":")[0].strip())
            entry = told.get(feature, {})
            source = " ".join(str(entry[key]) for key in ("hf_class", "source", "where") if entry.get(key))
            test = next((name for name, body in tests if feature and feature in body), "")
            found.append(OpenFeature(feature, source, path.relative_to(folder).as_posix(), line, test))
    return tuple(found)


def _parse(path: Path) -> ast.Module | None:
    try:
        return ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        # The import reports it, with its place.
        return None


def _raises(path: Path) -> Iterator[tuple[int, str]]:
    """Line and leading text of each ``raise NotImplementedError(...)``."""
    for node in ast.walk(_parse(path) or ast.Module([], [])):
        if not isinstance(node, ast.Raise) or node.exc is None:
            continue
        raised = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
        if isinstance(raised, ast.Name) and raised.id == "NotImplementedError":
            yield node.lineno, _text(node.exc.args[0]) if isinstance(node.exc, ast.Call) and node.exc.args else ""


def _text(node: ast.expr) -> str:
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _tests(folder: Path) -> Iterator[tuple[str, str]]:
    """``file::function`` and source of each test function of the package."""
    for path in sorted((folder / "tests").glob("test_*.py")):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(_parse(path) or ast.Module([], [])):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test"):
                body = ast.get_source_segment(text, node) or ""
                yield f"{path.relative_to(folder).as_posix()}::{node.name}", body
