"""Which functions and classes the kernels of a file use, in that file and in files that it imports."""

from __future__ import annotations

import ast
from pathlib import Path

from vllm_neuron.errors import UnsupportedError

MODULES = {"nki.language": "nl", "nki.isa": "nisa", "neuronxcc.nki.language": "nl", "neuronxcc.nki.isa": "nisa"}
Function = ast.FunctionDef | ast.AsyncFunctionDef


class File:
    """A parsed file: what its names stand for, its functions, classes and kernels."""

    def __init__(self, tree: ast.Module, path: Path | None) -> None:
        self.tree, self.path = tree, path
        self.name = "<kernel>" if path is None else str(path)
        self.aliases: dict[str, str] = {}
        self.sources: dict[str, tuple[str, int, str]] = {}
        self.old: list[tuple[ast.stmt, str]] = []
        self.functions = {s.name: s for s in tree.body if isinstance(s, Function)}
        self.classes = {s.name: s for s in tree.body if isinstance(s, ast.ClassDef)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                self._import(node)
            elif isinstance(node, ast.ImportFrom):
                self._import_from(node, node.module or "")
        made = self._made_kernels()
        self.kernels = {
            name: function
            for name, function in self.functions.items()
            if name in made or any(self.called(d) == "nki.jit" for d in function.decorator_list)
        }

    def _import(self, node: ast.Import) -> None:
        for name in node.names:
            if name.name.split(".")[0] == "neuronxcc":
                self.old.append((node, name.name))
            if name.asname:
                self.aliases[name.asname] = MODULES.get(name.name, name.name.removeprefix("neuronxcc."))

    def _import_from(self, node: ast.ImportFrom, module: str) -> None:
        if module.split(".")[0] == "neuronxcc":
            self.old.append((node, module))
        for name in node.names:
            here = name.asname or name.name
            if module == "vllm_neuron.nki.api" and name.name in ("nki", "nl", "nisa"):
                self.aliases[here] = name.name
                continue
            whole = f"{module}.{name.name}"
            self.aliases[here] = MODULES.get(whole, f"{MODULES.get(module, module)}.{name.name}")
            self.sources[here] = (module, node.level, name.name)

    def dotted(self, node: ast.AST) -> str:
        """The full name that an expression spells (``nl.load``), or nothing."""
        if isinstance(node, ast.Name):
            return self.aliases.get(node.id, node.id)
        if isinstance(node, ast.Attribute):
            base = self.dotted(node.value)
            if not base:
                return ""
            whole = f"{base}.{node.attr}"
            return MODULES.get(whole, whole)
        return ""

    def called(self, decorator: ast.expr) -> str:
        """The name of a decorator, with or without a call."""
        return self.dotted(decorator.func if isinstance(decorator, ast.Call) else decorator)

    def _made_kernels(self) -> set[str]:
        """Names of functions that are passed to ``nki.jit``."""
        return {
            argument.id
            for node in ast.walk(self.tree)
            if isinstance(node, ast.Call) and self.dotted(node.func) == "nki.jit"
            for argument in node.args
            if isinstance(argument, ast.Name)
        }

    def find(self, module: str, level: int) -> Path | None:
        """The file of a module that this one imports, beside it or in a package around it."""
        if self.path is None:
            return None
        parts = module.split(".") if module else []
        around = self.path.resolve().parents
        for base in around[level - 1 : level] if level else around:
            for candidate in (base.joinpath(*parts).with_suffix(".py"), base.joinpath(*parts, "__init__.py")):
                if parts and candidate.is_file():
                    return candidate
        return None


class Reach:
    """The functions and classes that kernels use, followed from file to file.

    Attributes:
        functions: (file, name) -> its file and definition, kernels first.
        classes: (file, name) -> the same of classes.
        elsewhere: what is called in files that were not found.
    """

    def __init__(self) -> None:
        self.functions: dict[tuple[str, str], tuple[File, Function]] = {}
        self.classes: dict[tuple[str, str], tuple[File, ast.ClassDef]] = {}
        self.elsewhere: set[str] = set()
        self._files: dict[Path, File] = {}

    def function(self, file: File, function: Function) -> None:
        """Add a function and what it uses."""
        if (file.name, function.name) in self.functions:
            return
        self.functions[file.name, function.name] = file, function
        for node in ast.walk(function):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                self._name(file, node.id)
            if isinstance(node, ast.Call):
                self._call(file, node)

    def _name(self, file: File, name: str) -> None:
        """Add what a name of a file stands for, when that is a function or a class."""
        if name in file.functions:
            self.function(file, file.functions[name])
        elif name in file.classes:
            self.classes[file.name, name] = file, file.classes[name]
        elif name in file.sources:
            module, level, original = file.sources[name]
            other = self._other(file, module, level)
            if other is not None:
                self._name(other, original)

    def _other(self, file: File, module: str, level: int) -> File | None:
        if module.split(".")[0] in ("nki", "neuronxcc", "typing", "dataclasses", "enum") and not level:
            return None
        path = file.find(module, level)
        if path is None:
            return None
        if path not in self._files:
            self._files[path] = read(path)
        return self._files[path]

    def _call(self, file: File, call: ast.Call) -> None:
        root: ast.expr = call.func
        while isinstance(root, ast.Attribute):
            root = root.value
        if not isinstance(root, ast.Name) or root.id not in file.aliases:
            return
        name = file.dotted(call.func)
        if name.split(".")[0] in ("nki", "nl", "nisa", "numpy"):
            return
        source = file.sources.get(root.id)
        if source is None or self._other(file, source[0], source[1]) is None:
            self.elsewhere.add(name)


def read(path: Path) -> File:
    """Parse a file.

    Raises:
        UnsupportedError: not Python, or not text.
        OSError: it can't be read.
    """
    try:
        return parse(path.read_text(encoding="utf-8"), path)
    except UnicodeDecodeError as error:
        raise UnsupportedError(str(path), str(error), "a Python file in UTF-8", "Give a kernel's .py file.") from error


def parse(source: str, path: Path | None) -> File:
    """Parse text; see :func:`read`."""
    name = "<kernel>" if path is None else str(path)
    try:
        return File(ast.parse(source, filename=name), path)
    except SyntaxError as error:
        at = f"{name}:{error.lineno}:{error.offset}"
        raise UnsupportedError(at, error.msg, "a Python file", "Give a kernel's .py file.") from error
