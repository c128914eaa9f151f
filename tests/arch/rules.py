"""The design rules as functions: each returns its violations as "path[:name]"."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("onboard", "vllm_neuron", "reference_models")
FILE_LINES, KERNEL_LINES, MODEL_LINES, FUNCTION_LINES = 400, 800, 250, 60
MACHINE_PATH = re.compile(r"(?<![\w.])/(?:work|tmp|root|home|farm|Users)/[A-Za-z0-9_.-]+")
NEIGHBOUR = "/".join(("..", "shared"))  # a folder beside the checkout: the project stands alone
EXAMPLE_PATH = re.compile(r"/home/(?:user|you)\b")


@cache
def tracked() -> tuple[Path, ...]:
    """Text files of the project, without what git ignores."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    paths = (ROOT / name for name in listed)
    return tuple(
        p for p in paths if p.is_file() and p.suffix in {".py", ".md", ".toml", ".yml", ".yaml", ".txt", ".sh", ""}
    )


def sources() -> list[Path]:
    """Python files of the packages (not tests, not benchmarks)."""
    return [p for p in tracked() if p.suffix == ".py" and p.relative_to(ROOT).parts[0] in PACKAGES]


def short(path: Path) -> str:
    """The path as the rules write it."""
    return path.relative_to(ROOT).as_posix()


@cache
def tree(path: Path) -> ast.Module:
    """The parsed file."""
    return ast.parse(path.read_text(), filename=str(path))


def long_files() -> Iterator[str]:
    """Files over their limit of lines."""
    for path in tracked():
        if path.suffix != ".py":
            continue
        name = short(path)
        limit = FILE_LINES
        if name.startswith("vllm_neuron/nki/kernels/"):
            limit = KERNEL_LINES
        elif re.fullmatch(r"reference_models/\w+/model\.py", name):
            limit = MODEL_LINES
        if len(path.read_text().splitlines()) > limit:
            yield name


def long_functions() -> Iterator[str]:
    """Functions over 60 lines, decorators not counted; kernels may be longer."""
    for path in sources():
        if short(path).startswith("vllm_neuron/nki/kernels/"):
            continue
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno is not None
                if node.end_lineno - node.lineno + 1 > FUNCTION_LINES:
                    yield f"{short(path)}:{node.name}"


def environment_reads() -> Iterator[str]:
    """os.environ, os.getenv and os.putenv outside vllm_neuron/envs.py."""
    for path in sources():
        if short(path) == "vllm_neuron/envs.py":
            continue
        for node in ast.walk(tree(path)):
            attribute = isinstance(node, ast.Attribute) and node.attr in {"environ", "getenv", "putenv"}
            imported = isinstance(node, ast.ImportFrom) and node.module == "os"
            if attribute or (imported and {a.name for a in node.names} & {"environ", "getenv"}):
                yield short(path)


def bare_exceptions() -> Iterator[str]:
    """`except:`, `except Exception`, `except BaseException` (unless it tidies and re-raises) and `raise Exception`."""
    broad = {"Exception", "BaseException"}
    for path in sources():
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ExceptHandler) and not _reraises(node):
                kinds = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
                if any(kind is None or (isinstance(kind, ast.Name) and kind.id in broad) for kind in kinds):
                    yield f"{short(path)}:{node.lineno}"
            elif isinstance(node, ast.Raise):
                raised = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
                if isinstance(raised, ast.Name) and raised.id in broad:
                    yield f"{short(path)}:{node.lineno}"


def _reraises(handler: ast.ExceptHandler) -> bool:
    last = handler.body[-1]
    return isinstance(last, ast.Raise) and last.exc is None


def missing_docstrings() -> Iterator[str]:
    """Public modules, classes, functions and methods without a docstring; overrides of a documented base are exempt
    only when they carry `@override` or are `forward`."""
    for path in sources():
        module = tree(path)
        if module.body and ast.get_docstring(module) is None:
            yield short(path)
        for owner, node in _public(module):
            if ast.get_docstring(node) is None and not _inherits(node):
                yield f"{short(path)}:{owner}{node.name}"


Documented = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def _public(module: ast.Module) -> Iterator[tuple[str, Documented]]:
    for node in module.body:
        if isinstance(node, Documented) and not node.name.startswith("_"):
            yield "", node
            if isinstance(node, ast.ClassDef):
                for member in node.body:
                    if isinstance(member, ast.FunctionDef) and not member.name.startswith("_"):
                        yield f"{node.name}.", member


def _inherits(node: Documented) -> bool:
    if isinstance(node, ast.ClassDef):
        return False
    marks = {d.id if isinstance(d, ast.Name) else getattr(d, "attr", "") for d in node.decorator_list}
    return node.name == "forward" or bool(marks & {"override", "setter", "overload"})


def machine_paths() -> Iterator[str]:
    """Paths that exist on one machine only."""
    for path in tracked():
        if short(path) == "tests/arch/rules.py":
            continue
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            if MACHINE_PATH.search(EXAMPLE_PATH.sub("", line)) or NEIGHBOUR in line:
                yield f"{short(path)}:{number}"


def vllm_imports() -> Iterator[str]:
    """Imports of vLLM outside its room, also those inside functions."""
    for path in sources():
        if short(path).startswith("vllm_neuron/vllm/"):
            continue
        if any(name.split(".")[0] == "vllm" for name in _imports(ast.walk(tree(path)))):
            yield short(path)


def heavy_cli_imports() -> Iterator[str]:
    """torch, transformers, vllm, numpy or rich at the top of a module of the command line."""
    heavy = {"torch", "transformers", "vllm", "numpy", "rich"}
    for path in sources():
        if short(path).startswith("onboard/cli/") and any(
            name.split(".")[0] in heavy for name in _imports(iter(tree(path).body))
        ):
            yield short(path)


def _imports(nodes: Iterator[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module


RULES = {
    "long-file": long_files,
    "long-function": long_functions,
    "environment": environment_reads,
    "bare-exception": bare_exceptions,
    "docstring": missing_docstrings,
    "machine-path": machine_paths,
    "vllm-import": vllm_imports,
    "heavy-cli": heavy_cli_imports,
}
