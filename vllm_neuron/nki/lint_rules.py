"""What a kernel may not contain, by NKI version, and where that is known from.

Up to NKI 0.6 a kernel is parsed, not run: its front end takes a subset of Python. From 0.7 on it is traced by Python
itself, and only the rules about the API stay. Sources, all public, each rule naming its own:

- ``guide``: the NKI language guide; ``migration``: the NKI migration guides, 0.1 to 0.7, of the Neuron documentation;
- ``front end``: the open-source front end of the NKI compiler (leanprover/KLR, ``KLR/NKI/Simplify.lean`` and
  ``interop/klr/gather.c``), whose parser has no such construct;
- ``unsure``: seen in public kernels to be avoided, stated nowhere; always a warning.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Literal

Version = tuple[int, int]
OLDEST: Version = (0, 3)
NEWEST: Version = (0, 7)
PARSED: tuple[Version, Version] = (OLDEST, (0, 6))
ALWAYS: tuple[Version, Version] = (OLDEST, NEWEST)


@dataclass(frozen=True)
class Rule:
    """One thing a kernel may not contain.

    Attributes:
        id: what reports and tests call it.
        text: what is wrong, one clause; ``{name}`` stands for what was found.
        action: what to write in its place.
        severity: ``error`` when a compiler of ``versions`` refuses it, else ``warning``.
        versions: first and last NKI version that it holds for, of those this linter knows.
        source: see the module.
    """

    id: str
    text: str
    action: str
    severity: Literal["error", "warning"] = "error"
    versions: tuple[Version, Version] = PARSED
    source: Literal["guide", "migration", "front end", "unsure"] = "front end"


def _construct(id: str, what: str, action: str) -> Rule:
    return Rule(id, f"{what} is not in the subset of Python that NKI parses", action)


_COMPREHENSION = _construct("comprehension", "a comprehension", "Write a for loop that appends to a list.")
_ASYNC = _construct("async", "asynchronous code", "Remove it.")
_SCOPE = _construct("global", "global or nonlocal", "Pass the value as an argument and return it.")
_IMPORT = _construct("import-inside", "an import inside a function", "Import at the top of the file.")
_TRY = _construct("try", "exception handling", "Check with an assert before the call.")
_YIELD = _construct("yield", "a generator", "Return a list.")

# Statements and expressions refused wherever they stand in a kernel or in a function that it calls.
NODES: dict[type[ast.AST], Rule] = {
    ast.Lambda: _construct("lambda", "a lambda", "Name a function at the top of the file."),
    ast.ListComp: _COMPREHENSION,
    ast.SetComp: _COMPREHENSION,
    ast.DictComp: _COMPREHENSION,
    ast.GeneratorExp: _COMPREHENSION,
    ast.Try: _TRY,
    ast.TryStar: _TRY,
    ast.Raise: _construct("raise", "raise", "Use an assert with a message."),
    ast.Yield: _YIELD,
    ast.YieldFrom: _YIELD,
    ast.Await: _ASYNC,
    ast.AsyncFor: _ASYNC,
    ast.AsyncWith: _ASYNC,
    ast.AsyncFunctionDef: _ASYNC,
    ast.Global: _SCOPE,
    ast.Nonlocal: _SCOPE,
    ast.Import: _IMPORT,
    ast.ImportFrom: _IMPORT,
    ast.Delete: _construct("del", "del", "Let the name go out of use."),
    ast.Match: _construct("match", "match", "Use if and elif."),
    ast.NamedExpr: _construct("walrus", "an assignment inside an expression", "Assign on a line of its own."),
    ast.Set: _construct("set", "a set", "Use a tuple or a list."),
    ast.ClassDef: _construct("class-inside", "a class inside a function", "Define it at the top of the file."),
    ast.Starred: _construct("starred", "tuple expansion with *", "Write the items out."),
}

MATMUL_OPERATOR = _construct("matmul-operator", "the operator @", "Call nisa.nc_matmul.")
NESTED_FUNCTION = Rule(
    "nested-function",
    "a function inside a function is parsed from NKI 0.6 on only",
    "Move it to the top of the file and pass what it reads as arguments.",
    versions=(OLDEST, (0, 5)),
    source="migration",
)
WITH = _construct("with", "with, other than nl.no_reorder()", "Write the block without it.")
LOOP_ELSE = _construct("loop-else", "else on a loop", "Test a flag after the loop.")
LOOP_TARGET = _construct("loop-target", "a loop over several names at once", "Loop over an index and look the rest up.")
KEYWORD_EXPANSION = _construct("keyword-expansion", "keyword expansion with **", "Write the arguments out.")
VARARGS = _construct("varargs", "*args or **kwargs in a signature", "Name each argument.")
IDENTITY = Rule(
    "identity",
    "is and is not do not exist in a kernel",
    "Use == and !=.",
    source="migration",
)
# The migration guide refuses it; the front end takes it with None, and public kernels have it.
IDENTITY_NONE = Rule(
    "identity-none",
    "is None is refused by the guide, though the front end takes it",
    "Use == None and != None.",
    severity="warning",
    source="migration",
)
KEYWORD_ONLY = Rule(
    "keyword-only",
    "keyword-only arguments of a kernel are refused",
    "Remove the * of the signature, and put arguments with defaults last.",
    source="migration",
)
LIST_DEFAULT = Rule(
    "list-argument",
    "a list as a kernel argument is refused",
    "Use a tuple.",
    source="migration",
)
DICT_KEY = Rule("dict-key", "dictionary keys are string literals only", "Use strings, or a list.", source="guide")
CLASS_BASE = Rule(
    "class-base",
    "class {name} is used in a kernel and inherits from something other than NKIObject",
    "Inherit from nl.NKIObject, or from Enum or NamedTuple, and from nothing else.",
    source="guide",
)
DECORATOR = _construct("decorator", "this decorator", "Remove it; nki.jit, dataclass and staticmethod are known.")
JIT_INSIDE = Rule(
    "jit-inside",
    "{name} is called from a kernel and is itself under nki.jit",
    "Remove its decorator, and write nki.jit(f) where it is launched alone.",
    severity="warning",
    source="migration",
)
OLD_NAMESPACE = Rule(
    "neuronxcc-namespace",
    "{name} is the namespace of NKI 0.1, and in a kernel an error since 0.4",
    "Import nki, nki.language and nki.isa.",
    versions=ALWAYS,
    source="migration",
)
NUMPY = Rule(
    "numpy-inside",
    "{name} of NumPy inside a kernel",
    "Use the name of nki.language.",
    severity="warning",
    versions=PARSED,
    source="unsure",
)
OUTPUT_BUFFER = Rule(
    "output-buffer",
    "{name} is returned and is not in nl.shared_hbm",
    "Allocate outputs with buffer=nl.shared_hbm.",
    versions=ALWAYS,
    source="migration",
)
RESULT_USED = Rule(
    "result-used",
    "{name} returns nothing: it writes to dst",
    "Allocate a tensor, and pass it as dst.",
    versions=ALWAYS,
    source="migration",
)


def _removed(what: str, action: str) -> Rule:
    return Rule("removed-name", f"{what} was removed", action, versions=ALWAYS, source="migration")


def _deprecated(what: str, action: str) -> Rule:
    return Rule("deprecated-name", f"{what} is deprecated", action, "warning", ALWAYS, "migration")


def _experimental(what: str, action: str) -> Rule:
    return Rule("experimental-name", f"{what} is experimental since NKI 0.3", action, "warning", ALWAYS, "migration")


_SLICE = "Use slices, nl.ds or .ap()."
_RANGE = "Use range: every loop but a dynamic one is unrolled."
_AP = "Use nisa.tensor_copy with .ap() and scalar_offset."
_SIMULATE = "Use nki.simulate."

# By name: nl is nki.language, nisa is nki.isa.
NAMES: dict[str, Rule] = {
    "nl.arange": _removed("nl.arange", _SLICE),
    "nl.mgrid": _removed("nl.mgrid", _SLICE),
    "nl.par_dim": _removed("nl.par_dim", "Put the partition dimension first."),
    "nl.loop_reduce": _removed("nl.loop_reduce", "Accumulate in a tensor."),
    "nisa.tensor_copy_dynamic_src": _removed("nisa.tensor_copy_dynamic_src", _AP),
    "nisa.tensor_copy_dynamic_dst": _removed("nisa.tensor_copy_dynamic_dst", _AP),
    "nki.baremetal": _removed("nki.baremetal", _SIMULATE),
    "nki.benchmark": _removed("nki.benchmark", "Use the profiler."),
    "nki.simulate_kernel": _removed("nki.simulate_kernel", _SIMULATE),
    "nl.affine_range": _deprecated("nl.affine_range", _RANGE),
    "nl.sequential_range": _deprecated("nl.sequential_range", _RANGE),
    "nl.static_range": _deprecated("nl.static_range", _RANGE),
    "nl.dynamic_range": _deprecated("nl.dynamic_range", "Use nl.fori_loop."),
    "nl.tile_size.total_available_sbuf_size": _deprecated(
        "nl.tile_size.total_available_sbuf_size", "Use nl.tile_size.sbuf_fmax_bytes."
    ),
    "nisa.vector_engine": _deprecated("nisa.vector_engine", "Use nisa.engine.vector."),
    "nisa.scalar_engine": _deprecated("nisa.scalar_engine", "Use nisa.engine.scalar."),
    "nisa.gpsimd_engine": _deprecated("nisa.gpsimd_engine", "Use nisa.engine.gpsimd."),
    "nisa.tensor_engine": _deprecated("nisa.tensor_engine", "Use nisa.engine.tensor."),
    "nl.load": _experimental("nl.load", "Use nisa.dma_copy."),
    "nl.store": _experimental("nl.store", "Use nisa.dma_copy."),
}


def _keyword(what: str, action: str) -> Rule:
    return Rule("removed-argument", f"{what} was removed", action, versions=ALWAYS, source="migration")


# By (function, keyword); "nisa.*" is any function of nki.isa.
KEYWORDS: dict[tuple[str, str], Rule] = {
    ("nisa.*", "mask"): _keyword("mask", "Cut the slice at the end of the tensor with min()."),
    ("nisa.dma_copy", "dst_rmw_op"): _keyword("dst_rmw_op", "Use nisa.dma_compute with reduce_op."),
    ("nisa.dma_copy", "unique_indices"): _keyword("unique_indices", "Use nisa.dma_compute."),
    ("nisa.sendrecv", "use_gpsimd_dma"): _keyword("use_gpsimd_dma", "Use dma_engine=nisa.dma_engine.gpsimd_dma."),
    ("nisa.register_move", "imm"): _keyword("imm", "Pass src, a register with that value."),
    ("nki.jit", "platform_target"): _keyword("platform_target", "Set NEURON_PLATFORM_TARGET_OVERRIDE."),
    ("nki.jit", "mode"): Rule(
        "deprecated-argument", "mode is ignored", "Remove it.", "warning", versions=ALWAYS, source="migration"
    ),
}

STRING_BUFFER = Rule(
    "string-buffer",
    "buffer names as strings are refused",
    "Use nl.sbuf, nl.psum or nl.shared_hbm.",
    versions=ALWAYS,
    source="migration",
)
INTEGER_ENUM = Rule(
    "integer-enum",
    "an integer for {name} is refused",
    "Use the named member of nki.isa.",
    versions=ALWAYS,
    source="migration",
)
ENUM_KEYWORDS = frozenset({"dge_mode", "engine", "oob_mode", "reduce_cmd", "dma_engine"})

# Functions of nki.isa that do return something.
RETURNING = frozenset({"register_alloc", "get_nc_version"})
KNOWN_BASES = frozenset({"NKIObject", "Enum", "NamedTuple"})
KNOWN_DECORATORS = frozenset({"nki.jit", "dataclass", "dataclasses.dataclass", "staticmethod"})


def rules() -> list[Rule]:
    """Every rule, each once, in the order of this file."""
    tables = [*NODES.values(), *NAMES.values(), *KEYWORDS.values()]
    alone = [value for value in globals().values() if isinstance(value, Rule)]
    return list(dict.fromkeys([*alone, *tables]))
