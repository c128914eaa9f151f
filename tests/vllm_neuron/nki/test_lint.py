"""The linter: each rule by one kernel that breaks it, and what has to pass."""

from __future__ import annotations

from pathlib import Path

import pytest

from vllm_neuron.errors import ConfigError, UnsupportedError
from vllm_neuron.nki import kernels
from vllm_neuron.nki.lint import lint_file, lint_source, parse_version
from vllm_neuron.nki.lint_rules import NEWEST, OLDEST, rules

HEAD = """\
import enum
import numpy as np
import nki
import nki.isa as nisa
import nki.language as nl

class Sizes(nl.NKIObject):
    pass

class Kind(enum.Enum):
    a = 1

"""
KERNELS = Path(kernels.__file__).parent
FILES = sorted(path for path in KERNELS.glob("*.py") if "@nki.jit" in path.read_text())


def kernel(body, signature="x, n=1", before=""):
    lines = "\n".join(f"    {line}" for line in body.splitlines())
    return f"{HEAD}{before}\n@nki.jit\ndef kernel({signature}):\n{lines}\n    return x\n"


BROKEN = {
    "lambda": kernel("f = lambda a: a"),
    "comprehension": kernel("f = [a for a in x]"),
    "try": kernel("try:\n    n = 1\nfinally:\n    n = 2"),
    "raise": kernel("raise ValueError"),
    "yield": kernel("yield n"),
    "async": kernel("async def f():\n    pass"),
    "global": kernel("global n2"),
    "import-inside": kernel("import math"),
    "del": kernel("del n"),
    "match": kernel("match n:\n    case 1:\n        pass"),
    "walrus": kernel("if (m := n):\n    pass"),
    "set": kernel("s = {1, 2}"),
    "class-inside": kernel("class A:\n    pass"),
    "matmul-operator": kernel("y = x @ x"),
    "starred": kernel("print(*x)"),
    "nested-function": kernel("def f(i):\n    pass"),
    "with": kernel("with open('a'):\n    pass"),
    "loop-else": kernel("for i in range(2):\n    pass\nelse:\n    pass"),
    "loop-target": kernel("for i, y in enumerate(x):\n    pass"),
    "keyword-expansion": kernel("nisa.memset(**n)"),
    "varargs": kernel("pass", "*x"),
    "identity": kernel("if n is True:\n    pass"),
    "identity-none": kernel("if n is not None:\n    pass"),
    "keyword-only": kernel("pass", "x, *, n=1"),
    "list-argument": kernel("pass", "x, n=[1, 1]"),
    "dict-key": kernel("d = {1: 2}"),
    "class-base": kernel("s = Other()", before="class Other:\n    pass\n"),
    "decorator": kernel("helper(x)", before="@cache\ndef helper(x):\n    pass\n"),
    "jit-inside": kernel("other(x)", before="@nki.jit\ndef other(x):\n    return x\n"),
    "neuronxcc-namespace": kernel("pass", before="import neuronxcc.nki.isa as old\n"),
    "numpy-inside": kernel("nisa.memset(dst=x, value=np.pi)"),
    "output-buffer": kernel("out = nl.ndarray((1, 1), nl.float32, buffer=nl.hbm)\nif n:\n    return out"),
    "result-used": kernel("y = nisa.reciprocal(x)"),
    "removed-name": kernel("i = nl.arange(4)"),
    "deprecated-name": kernel("for i in nl.affine_range(2):\n    pass"),
    "experimental-name": kernel("y = nl.load(x)"),
    "removed-argument": kernel("nisa.tensor_copy(x, x, mask=n)"),
    "deprecated-argument": kernel("pass").replace("@nki.jit", "@nki.jit(mode='trace')"),
    "string-buffer": kernel("y = nl.ndarray((1, 1), nl.float32, buffer='sbuf')"),
    "integer-enum": kernel("nisa.dma_copy(dst=x, src=x, dge_mode=2)"),
}

CLEAN = kernel(
    '''"""Docstring."""
assert n != None, f"{n!r} of {x.shape}"
tile = nl.ndarray((128, 4), dtype=nl.float32, buffer=nl.sbuf)
sizes = Sizes()
kind = Kind.a
names = {"a": 1}
parts = []
for i in range(0, 4, 2):
    parts.append(tile[:, nl.ds(i, 2)])
    if i == 2 and n in (1, 2):
        continue
    total = 1 if i > 0 else 0
i = 0
while i < 3:
    i += 1
first, second = 1, 2
register = nisa.register_alloc(0)
with nl.no_reorder():
    nisa.dma_copy(dst=tile, src=x, dge_mode=nisa.dge_mode.hwdge)
helper(x, tile)''',
    before="def helper(x, y):\n    nisa.tensor_tensor(dst=x, data1=y, data2=y, op=nl.add)\n",
)


@pytest.mark.parametrize("rule", sorted(BROKEN))
def test_each_rule(rule):
    found = lint_source(BROKEN[rule]).findings
    assert [f.rule for f in found] == [rule]
    severities = {r.severity for r in rules() if r.id == rule}
    assert {found[0].severity} == severities


def test_every_rule_is_tried():
    assert {rule.id for rule in rules()} == set(BROKEN)


def test_what_the_language_guide_shows_passes():
    report = lint_source(CLEAN)
    assert report.findings == () and report.kernels == ("kernel",) and set(report.functions) == {"kernel", "helper"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_our_kernels_are_in_the_subset(path):
    report = lint_file(path)
    assert report.findings == ()
    assert report.elsewhere == ()


def test_all_kernel_files_are_looked_at():
    assert {"rmsnorm", "rotary", "mlp", "qkv", "o_proj", "linear", "kv_write"} <= {path.stem for path in FILES}
    mlp = lint_file(KERNELS / "mlp.py")
    assert {"mlp_kernel", "accumulate", "load_weights"} <= set(mlp.functions), "helpers of tiles.py are checked too"


def test_position_and_function():
    found = lint_source("import nki\n@nki.jit\ndef k(x):\n    if x:\n        y = lambda: 1\n    return x\n").findings[0]
    assert (found.line, found.column, found.function, found.path) == (5, 13, "k", "<kernel>")


def test_code_that_no_kernel_calls_is_left_alone():
    assert lint_source(kernel("pass", before="def host():\n    return [i for i in range(3)]\n")).findings == ()


def test_a_kernel_made_by_a_call():
    report = lint_source("import nki\ndef k(x):\n    raise x\nlaunched = nki.jit(k)\n")
    assert report.kernels == ("k",) and [f.rule for f in report.findings] == ["raise"]


@pytest.mark.parametrize(
    "imports, call",
    [("import nki.isa as i", "i.memset"), ("from nki import isa", "isa.memset"), ("import nki.isa", "nki.isa.memset"),
     ("from vllm_neuron.nki.api import nisa", "nisa.memset"), ("from nki.isa import memset", "memset")],
)  # fmt: skip
def test_names_however_they_are_imported(imports, call):
    source = f"import nki\n{imports}\n@nki.jit\ndef k(x):\n    y = {call}(x, 1)\n    return x\n"
    assert [f.rule for f in lint_source(source).findings] == ["result-used"]


def test_the_version_decides():
    traced = lint_source(BROKEN["comprehension"], parse_version("0.7.0"))
    assert traced.findings == ()
    assert lint_source(BROKEN["comprehension"], parse_version("0.6")).errors == 1
    assert lint_source(BROKEN["nested-function"], (0, 6)).findings == ()
    assert lint_source(BROKEN["nested-function"], (0, 5)).errors == 1
    assert lint_source(BROKEN["removed-name"], (0, 7)).errors == 1


@pytest.mark.parametrize("text", ["0.2", "0.8", "1", "x.y", "", "0.-6"])
def test_unknown_versions_are_refused(text):
    with pytest.raises(ConfigError, match=r"a version from 0\.3 to 0\.7"):
        parse_version(text)


def test_rules_hold_for_versions_that_are_known():
    for rule in rules():
        assert OLDEST <= rule.versions[0] <= rule.versions[1] <= NEWEST
        assert rule.severity == "warning" or rule.source != "unsure"


def test_calls_into_other_files_are_followed(tmp_path):
    package = tmp_path / "package"
    package.mkdir()
    (package / "helpers.py").write_text(
        "from .deeper import deep\ndef help(x):\n    deep(x)\ndef unused():\n    yield\n"
    )
    (package / "deeper.py").write_text("def deep(x):\n    return [a for a in x]\n")
    main = package / "main.py"
    main.write_text(
        "import nki\nfrom package.helpers import help\nfrom gone import lost\n"
        "@nki.jit\ndef k(x):\n    help(x)\n    lost(x)\n    return x\n"
    )
    report = lint_file(main)
    assert [(Path(f.path).name, f.line, f.rule) for f in report.findings] == [("deeper.py", 2, "comprehension")]
    assert report.elsewhere == ("gone.lost",) and set(report.functions) == {"k", "help", "deep"}


@pytest.mark.parametrize(
    "text, expected",
    [("x = 1\n", "a function under @nki.jit"), ("", "a function under @nki.jit"), ("def f(:\n", "a Python file")],
)
def test_what_is_no_kernel_says_so(tmp_path, text, expected):
    path = tmp_path / "file.py"
    path.write_text(text)
    with pytest.raises(UnsupportedError, match=expected):
        lint_file(path)


def test_bytes_that_are_no_text(tmp_path):
    path = tmp_path / "kernel.py"
    path.write_bytes(b"\xff\xfe\x00nki")
    with pytest.raises(UnsupportedError, match="UTF-8"):
        lint_file(path)
