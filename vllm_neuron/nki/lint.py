"""Find in a kernel what the NKI compiler would refuse, without it: the stand-in runs any Python, the compiler does not.

Checked are the functions under ``nki.jit`` (or passed to it) and the functions that they call, in this file and in
files that it imports by name and that are found around it. Other calls are listed, not checked. Rules and their
sources: :mod:`vllm_neuron.nki.lint_rules`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm_neuron.errors import ConfigError, UnsupportedError
from vllm_neuron.nki import lint_rules as R
from vllm_neuron.nki.lint_reach import File, Function, Reach, parse, read
from vllm_neuron.nki.lint_rules import Rule, Version


@dataclass(frozen=True, order=True)
class Finding:
    """One place where a rule is broken; ``line`` and ``column`` count from 1."""

    path: str
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
    """What the linter found in one file, and in the functions of other files that its kernels call.

    Attributes:
        path: the file.
        kernels: names of its kernels.
        functions: names of the functions that were checked, kernels included.
        findings: by file and line.
        elsewhere: names that kernels call and whose files were not found: not checked.
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
    """Check one file, and what its kernels call in files that it imports and that lie beside it or in its package.

    Args:
        path: a Python file with kernels.
        version: the NKI version to check for; None: every version that the rules know.

    Raises:
        UnsupportedError: not Python, or no kernel in it.
        OSError: it can't be read.
    """
    return _report(read(path), version)


def lint_source(source: str, version: Version | None = None) -> Report:
    """Check Python text that belongs to no file; see :func:`lint_file`."""
    return _report(parse(source, None), version)


def _report(file: File, version: Version | None) -> Report:
    if not file.kernels:
        raise UnsupportedError(
            file.name, "no kernel", "a function under @nki.jit", "Decorate the kernel, or give the file that has it."
        )
    reach = Reach()
    for kernel in file.kernels.values():
        reach.function(file, kernel)
    findings = [_finding(*f) for f in _check(file, reach) if version is None or _holds(f[2], version)]
    names = [function.name for _, function in reach.functions.values()]
    return Report(
        file.name, tuple(file.kernels), tuple(names), tuple(sorted(set(findings))), tuple(sorted(reach.elsewhere))
    )


def _show(version: Version) -> str:
    return f"{version[0]}.{version[1]}"


def _holds(rule: Rule, version: Version) -> bool:
    return rule.versions[0] <= version <= rule.versions[1]


def _finding(file: File, node: Any, rule: Rule, name: str, function: str) -> Finding:
    first, last = rule.versions
    versions = f"{_show(first)} and later" if last == R.NEWEST else f"{_show(first)} to {_show(last)}"
    text = rule.text.format(name=name) if name else rule.text
    where = node.lineno, node.col_offset + 1
    return Finding(file.name, *where, rule.id, rule.severity, text, rule.action, rule.source, versions, function)


Found = tuple[Any, Rule, str]


def _check(file: File, reach: Reach) -> Iterator[tuple[File, Any, Rule, str, str]]:
    for statement, name in file.old:
        yield file, statement, R.OLD_NAMESPACE, name, ""
    for kernel in file.kernels.values():
        for found in _kernel_signature(kernel):
            yield file, *found, kernel.name
    for where, function in reach.functions.values():
        for found in _function(where, function):
            yield where, *found, function.name
    for where, kind in reach.classes.values():
        bases = {where.dotted(base).rsplit(".", 1)[-1] for base in kind.bases}
        if not bases or bases - R.KNOWN_BASES:
            yield where, kind, R.CLASS_BASE, kind.name, ""


def _kernel_signature(kernel: Function) -> Iterator[Found]:
    arguments = kernel.args
    if arguments.kwonlyargs:
        yield arguments.kwonlyargs[0], R.KEYWORD_ONLY, ""
    for default in [*arguments.defaults, *arguments.kw_defaults]:
        if isinstance(default, ast.List):
            yield default, R.LIST_DEFAULT, ""


def _function(file: File, function: Function) -> Iterator[Found]:
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


def _node(file: File, node: ast.AST) -> Iterator[Found]:
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
                yield node, R.IDENTITY_NONE if _with_none(node) else R.IDENTITY, ""
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


def _with_none(node: ast.Compare) -> bool:
    return len(node.ops) == 1 and isinstance(node.comparators[0], ast.Constant) and node.comparators[0].value is None


def _loop(node: ast.For | ast.While) -> Iterator[Found]:
    if node.orelse:
        yield node, R.LOOP_ELSE, ""
    if isinstance(node, ast.For) and not isinstance(node.target, ast.Name):
        yield node.target, R.LOOP_TARGET, ""


def _call(file: File, call: ast.Call) -> Iterator[Found]:
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


def _name(file: File, node: ast.Name | ast.Attribute) -> Iterator[Found]:
    name = file.dotted(node)
    if (rule := R.NAMES.get(name)) is not None:
        yield node, rule, ""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and name.startswith("numpy."):
        yield node, R.NUMPY, f"{node.value.id}.{node.attr}"
    if name.startswith("neuronxcc."):
        yield node, R.OLD_NAMESPACE, name


def _result(file: File, node: ast.Assign | ast.AnnAssign | ast.AugAssign) -> Iterator[Found]:
    if isinstance(node.value, ast.Call):
        module, _, function = file.dotted(node.value.func).partition(".")
        if module == "nisa" and function and "." not in function and function not in R.RETURNING:
            yield node.value, R.RESULT_USED, f"nisa.{function}"


def _outputs(file: File, kernel: Function) -> Iterator[Found]:
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
