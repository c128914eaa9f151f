"""Find in a kernel what the NKI compiler would refuse, without it: the stand-in runs any Python, the compiler does not.

Checked are the functions under ``nki.jit`` (or passed to it) and the functions of the same file that they call. What
they call in other files is listed, not checked. Rules and their sources: :mod:`vllm_neuron.nki.lint_rules`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vllm_neuron.errors import ConfigError, UnsupportedError
from vllm_neuron.nki import lint_rules as R
from vllm_neuron.nki.lint_rules import Rule, Version

MODULES = {"nki.language": "nl", "nki.isa": "nisa", "neuronxcc.nki.language": "nl", "neuronxcc.nki.isa": "nisa"}
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, order=True)
class Finding:
    """One place where a rule is broken; ``line`` and ``column`` count from 1."""

    line: int
    column: int
    rule: str
    severity: str
    text: str
    action: str
    source: str
    versions: str
    function: str


@dataclass(frozen=True)
class Report:
    """What the linter found in one file.

    Attributes:
        path: the file.
        kernels: names of its kernels.
        functions: names of the functions that were checked, kernels included.
        findings: in the order of the file.
        elsewhere: names that kernels call and that other files define: not checked.
    """

    path: str
    kernels: tuple[str, ...]
    functions: tuple[str, ...]
    findings: tuple[Finding, ...]
    elsewhere: tuple[str, ...]

    @property
    def errors(self) -> int:
        """How many findings are errors."""
        return sum(f.severity == "error" for f in self.findings)

    @property
    def warnings(self) -> int:
        """How many findings are warnings."""
        return len(self.findings) - self.errors


def parse_version(text: str) -> Version:
    """``0.6`` or ``0.6.0`` as a pair.

    Raises:
        ConfigError: not a version that the rules know.
    """
    parts = text.split(".")
    known = f"a version from {_show(R.OLDEST)} to {_show(R.NEWEST)}, as 0.6"
    if len(parts) < 2 or not all(p.isdecimal() for p in parts):
        raise ConfigError("nki version", text, known)
    version = int(parts[0]), int(parts[1])
    if not R.OLDEST <= version <= R.NEWEST:
        raise ConfigError("nki version", text, known)
    return version


def lint_file(path: Path, version: Version | None = None) -> Report:
    """Check one file.

    Args:
        path: a Python file with kernels.
        version: the NKI version to check for; None: every version that the rules know.

    Raises:
        UnsupportedError: not Python, or no kernel in it.
        OSError: it can't be read.
    """
    try:
        source = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UnsupportedError(str(path), str(error), "a Python file in UTF-8", "Give a kernel's .py file.") from error
    return lint_source(source, str(path), version)


def lint_source(source: str, path: str = "<kernel>", version: Version | None = None) -> Report:
    """Check Python text; see :func:`lint_file`."""
    try:
        tree = ast.parse(source, filename=path)
    except SyntaxError as error:
        at = f"{path}:{error.lineno}:{error.offset}"
        raise UnsupportedError(at, error.msg, "a Python file", "Give a kernel's .py file.") from error
    file = _File(tree)
    if not file.kernels:
        raise UnsupportedError(
            path, "no kernel", "a function under @nki.jit", "Decorate the kernel, or give the file that has it."
        )
    findings = [f for f in _check(file) if version is None or _holds(f[1], version)]
    shown = sorted({_finding(*f) for f in findings})
    return Report(path, tuple(file.kernels), tuple(file.reached), tuple(shown), tuple(sorted(file.elsewhere)))


def _show(version: Version) -> str:
    return f"{version[0]}.{version[1]}"


def _holds(rule: Rule, version: Version) -> bool:
    return rule.versions[0] <= version <= rule.versions[1]


def _finding(node: Any, rule: Rule, name: str, function: str) -> Finding:
    first, last = rule.versions
    versions = f"{_show(first)} and later" if last == R.NEWEST else f"{_show(first)} to {_show(last)}"
    text = rule.text.format(name=name) if name else rule.text
    where = node.lineno, node.col_offset + 1
    return Finding(*where, rule.id, rule.severity, text, rule.action, rule.source, versions, function)


@dataclass
class _File:
    """A parsed file: its imports, its functions and classes, and which of them a kernel reaches."""

    tree: ast.Module
    aliases: dict[str, str] = field(default_factory=dict)
    old: list[tuple[ast.stmt, str]] = field(default_factory=list)
    functions: dict[str, Function] = field(default_factory=dict)
    classes: dict[str, ast.ClassDef] = field(default_factory=dict)
    kernels: dict[str, Function] = field(default_factory=dict)
    reached: dict[str, Function] = field(default_factory=dict)
    used_classes: dict[str, ast.ClassDef] = field(default_factory=dict)
    elsewhere: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                self._import(node)
            elif isinstance(node, ast.ImportFrom) and node.module is not None:
                self._import_from(node, node.module)
        for statement in self.tree.body:
            if isinstance(statement, Function):
                self.functions[statement.name] = statement
            elif isinstance(statement, ast.ClassDef):
                self.classes[statement.name] = statement
        self._find_kernels()
        for kernel in self.kernels.values():
            self._reach(kernel)

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
            else:
                whole = f"{module}.{name.name}"
                self.aliases[here] = MODULES.get(whole, f"{MODULES.get(module, module)}.{name.name}")

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

    def _find_kernels(self) -> None:
        for name, function in self.functions.items():
            if any(self.called(d) == "nki.jit" for d in function.decorator_list):
                self.kernels[name] = function
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Call) and self.dotted(node.func) == "nki.jit":
                for argument in node.args:
                    if isinstance(argument, ast.Name) and argument.id in self.functions:
                        self.kernels[argument.id] = self.functions[argument.id]

    def _reach(self, function: Function) -> None:
        if function.name in self.reached:
            return
        self.reached[function.name] = function
        for node in ast.walk(function):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                if node.id in self.functions:
                    self._reach(self.functions[node.id])
                elif node.id in self.classes:
                    self.used_classes[node.id] = self.classes[node.id]
            if isinstance(node, ast.Call):
                self._note_elsewhere(node)

    def _note_elsewhere(self, call: ast.Call) -> None:
        root = call.func
        while isinstance(root, ast.Attribute):
            root = root.value
        if isinstance(root, ast.Name) and root.id in self.aliases:
            name = self.dotted(call.func)
            if name.split(".")[0] not in ("nki", "nl", "nisa", "numpy"):
                self.elsewhere.add(name)


Found = tuple[Any, Rule, str, str]


def _check(file: _File) -> Iterator[Found]:
    for statement, name in file.old:
        yield statement, R.OLD_NAMESPACE, name, ""
    for kernel in file.kernels.values():
        yield from _kernel_signature(kernel)
    for function in file.reached.values():
        yield from ((node, rule, name, function.name) for node, rule, name in _function(file, function))
    for node in file.used_classes.values():
        bases = {file.dotted(base).rsplit(".", 1)[-1] for base in node.bases}
        if not bases or bases - R.KNOWN_BASES:
            yield node, R.CLASS_BASE, node.name, ""


def _kernel_signature(kernel: Function) -> Iterator[Found]:
    arguments = kernel.args
    if arguments.kwonlyargs:
        yield arguments.kwonlyargs[0], R.KEYWORD_ONLY, "", kernel.name
    for default in [*arguments.defaults, *arguments.kw_defaults]:
        if isinstance(default, ast.List):
            yield default, R.LIST_DEFAULT, "", kernel.name


def _function(file: _File, function: Function) -> Iterator[tuple[Any, Rule, str]]:
    for extra in (function.args.vararg, function.args.kwarg):
        if extra is not None:
            yield extra, R.VARARGS, ""
    for decorator in function.decorator_list:
        if file.called(decorator) not in R.KNOWN_DECORATORS:
            yield decorator, R.DECORATOR, ""
        if isinstance(decorator, ast.Call):
            yield from _call(file, decorator)
    for statement in function.body:
        for node in ast.walk(statement):
            yield from _node(file, node)
    if function.name in file.kernels:
        yield from _outputs(file, function)


def _node(file: _File, node: ast.AST) -> Iterator[tuple[Any, Rule, str]]:
    if (rule := R.NODES.get(type(node))) is not None:
        yield node, rule, ""
    match node:
        case ast.FunctionDef():
            yield node, R.NESTED_FUNCTION, ""
        case ast.With():
            if any(file.called(item.context_expr) != "nl.no_reorder" for item in node.items):
                yield node, R.WITH, ""
        case ast.For() | ast.While():
            yield from _loop(node)
        case ast.Compare():
            if any(isinstance(op, ast.Is | ast.IsNot) for op in node.ops):
                yield node, R.IDENTITY, ""
        case ast.BinOp(op=ast.MatMult()) | ast.AugAssign(op=ast.MatMult()):
            yield node, R.MATMUL_OPERATOR, ""
        case ast.Dict():
            if any(not (isinstance(k, ast.Constant) and isinstance(k.value, str)) for k in node.keys):
                yield node, R.DICT_KEY, ""
        case ast.Call():
            yield from _call(file, node)
        case ast.Name() | ast.Attribute():
            yield from _name(file, node)
        case ast.Assign() | ast.AnnAssign() | ast.AugAssign():
            yield from _result(file, node)


def _loop(node: ast.For | ast.While) -> Iterator[tuple[Any, Rule, str]]:
    if node.orelse:
        yield node, R.LOOP_ELSE, ""
    if isinstance(node, ast.For) and not isinstance(node.target, ast.Name):
        yield node.target, R.LOOP_TARGET, ""


def _call(file: _File, call: ast.Call) -> Iterator[tuple[Any, Rule, str]]:
    name = file.dotted(call.func)
    if isinstance(call.func, ast.Name) and call.func.id in file.kernels and name == call.func.id:
        yield call, R.JIT_INSIDE, name
    for keyword in call.keywords:
        if keyword.arg is None:
            yield keyword.value, R.KEYWORD_EXPANSION, ""
            continue
        for pattern in (name, f"{name.split('.')[0]}.*"):
            if (rule := R.KEYWORDS.get((pattern, keyword.arg))) is not None:
                yield keyword, rule, ""
        value = keyword.value
        if not name.startswith(("nl.", "nisa.")) or not isinstance(value, ast.Constant):
            continue
        if keyword.arg == "buffer" and isinstance(value.value, str):
            yield keyword, R.STRING_BUFFER, ""
        if keyword.arg in R.ENUM_KEYWORDS and type(value.value) is int:
            yield keyword, R.INTEGER_ENUM, keyword.arg


def _name(file: _File, node: ast.Name | ast.Attribute) -> Iterator[tuple[Any, Rule, str]]:
    name = file.dotted(node)
    if (rule := R.NAMES.get(name)) is not None:
        yield node, rule, ""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and name.startswith("numpy."):
        yield node, R.NUMPY, f"{node.value.id}.{node.attr}"
    if name.startswith("neuronxcc."):
        yield node, R.OLD_NAMESPACE, name


def _result(file: _File, node: ast.Assign | ast.AnnAssign | ast.AugAssign) -> Iterator[tuple[Any, Rule, str]]:
    if isinstance(node.value, ast.Call):
        module, _, function = file.dotted(node.value.func).partition(".")
        if module == "nisa" and function and "." not in function and function not in R.RETURNING:
            yield node.value, R.RESULT_USED, f"nisa.{function}"


def _outputs(file: _File, kernel: Function) -> Iterator[tuple[Any, Rule, str]]:
    """Names that the kernel returns and that it made with nl.ndarray in another buffer than shared HBM."""
    made: dict[str, str] = {}
    for node in ast.walk(kernel):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            if file.dotted(node.value.func) != "nl.ndarray":
                continue
            buffers = [file.dotted(k.value) for k in node.value.keywords if k.arg == "buffer"]
            positional = [file.dotted(a) for a in node.value.args[2:3]]
            for target in node.targets:
                if isinstance(target, ast.Name):
                    made[target.id] = next(iter([*buffers, *positional]), "nl.sbuf")
    for node in ast.walk(kernel):
        if isinstance(node, ast.Return) and node.value is not None:
            values = node.value.elts if isinstance(node.value, ast.Tuple | ast.List) else [node.value]
            for value in values:
                if isinstance(value, ast.Name) and made.get(value.id, "nl.shared_hbm") in ("nl.hbm", "nl.private_hbm"):
                    yield value, R.OUTPUT_BUFFER, value.id
