"""A model package as a proof sees it: its factory, imported without installing it, and what its `onboard.json` says."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from onboard.prove.proof import OpenFeature
from onboard.prove.waiting import open_features
from vllm_neuron.errors import ConfigError

FACTS = "onboard.json"
# What a module may raise while it is imported.
BROKEN_IMPORT = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    NameError,
    OSError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
)


@dataclass(frozen=True)
class Package:
    """One model package.

    Attributes:
        name: the module's name, e.g. ``mymodel`` or ``reference_models.llama3``.
        folder: the package's folder, with ``src/``; for an importable module, the module's own folder.
        sources: folder of its Python files.
        architecture: the name in ``architectures``.
        model_type: of the Hugging Face config; "" when only the architecture tells it.
        factory: the class that makes the model.
        given: the decoder's section of the config that the package was generated from, as it was written.
        open: features that the code leaves out by name.
        generated: made by ``onboard new``: has an ``onboard.json``.
    """

    name: str
    folder: Path
    sources: Path
    architecture: str
    model_type: str
    factory: Any
    given: dict[str, Any] | None = None
    open: tuple[OpenFeature, ...] = ()
    generated: bool = False

    @classmethod
    def load(cls, where: str | Path) -> Package:
        """Import a package from its folder, or an importable module such as ``reference_models.llama3``.

        Raises:
            ConfigError: no such package, an ``onboard.json`` that can't be read, or code that does not import; the
                message has the original exception with its file and line.
        """
        folder = Path(where)
        if folder.is_dir():
            return cls._from_folder(folder.resolve())
        name = str(where)
        if not all(part.isidentifier() for part in name.split(".")) or not _exists(name):
            raise ConfigError("PACKAGE", name, "a package's folder, or the name of an importable module; it is neither")
        factory = _import(f"{name}.factory", name, None)
        sources = Path(inspect.getfile(factory)).parent
        made = _factory(factory, None)
        return cls(name, sources, sources, made.__name__, "", made, open=open_features(sources, sources, ()))

    @classmethod
    def _from_folder(cls, folder: Path) -> Package:
        facts = _facts(folder)
        sources = _sources(folder)
        with importable(sources.parent, sources.name):
            factory = _import(f"{sources.name}.factory", sources.name, folder)
        made = _factory(factory, facts.get("architecture"))
        return cls(
            name=sources.name,
            folder=folder,
            sources=sources,
            architecture=facts.get("architecture") or made.__name__,
            model_type=facts.get("model_type") or "",
            factory=made,
            given=facts.get("given"),
            open=open_features(sources, folder, facts.get("open") or ()),
            generated=bool(facts),
        )


def _exists(module: str) -> bool:
    """Whether there is such a module, before its own code runs."""
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def _facts(folder: Path) -> dict[str, Any]:
    path = folder / FACTS
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(str(path), f"{type(error).__name__}: {error}", "what `onboard new` wrote") from error
    if not isinstance(found, dict):
        raise ConfigError(str(path), type(found).__name__, "a JSON object")
    return found


def _sources(folder: Path) -> Path:
    found = sorted(path.parent for path in folder.glob("src/*/factory.py"))
    if len(found) != 1:
        raise ConfigError(
            "PACKAGE",
            str(folder),
            "a folder with exactly one src/<name>/factory.py",
            "Name a folder that `onboard new` made, or an importable module.",
        )
    return found[0]


@contextmanager
def importable(parent: Path, name: str) -> Iterator[None]:
    """Let ``import name`` find the folder in ``parent`` and nothing that was imported under that name before."""
    for loaded in [each for each in sys.modules if each == name or each.startswith(name + ".")]:
        del sys.modules[loaded]
    sys.path.insert(0, str(parent))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(str(parent))


def _import(module: str, package: str, root: Path | None) -> ModuleType:
    try:
        return importlib.import_module(module)
    except BROKEN_IMPORT as error:
        text = error.msg if isinstance(error, SyntaxError) else str(error)
        raise ConfigError(
            f"package {package}",
            f"{type(error).__name__}: {text}{place(error, root)}",
            f"{module} to import",
            "Mend it and run `onboard verify` again.",
        ) from error


def place(error: BaseException, root: Path | None) -> str:
    """`` (file, line N)``: the innermost frame in the package's own files, else the innermost one of all.

    Args:
        error: as it was caught.
        root: the package's folder; its files are named relative to it.
    """
    if isinstance(error, SyntaxError) and error.filename:
        return f" ({_relative(error.filename, root)}, line {error.lineno})"
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith("<")]
    frames = [f for f in frames if f.filename not in (__file__, importlib.__file__)]
    own = [f for f in frames if root is not None and Path(f.filename).is_relative_to(root)]
    return "".join(f" ({_relative(f.filename, root)}, line {f.lineno})" for f in (own or frames)[-1:])


def _relative(file: str, root: Path | None) -> str:
    path = Path(file)
    if root is not None and path.is_relative_to(root):
        return path.relative_to(root).as_posix()
    return "/".join(path.parts[-3:])


def _factory(module: ModuleType, architecture: str | None) -> Any:
    made = {
        name: each
        for name, each in vars(module).items()
        if inspect.isclass(each) and each.__module__ == module.__name__ and hasattr(each, "from_configs")
    }
    if architecture in made:
        return made[architecture]
    if len(made) == 1:
        # A generated package's class has the package's name, whatever the architecture is called.
        return next(iter(made.values()))
    wanted = f"one class, or a class {architecture}," if architecture else "exactly one class"
    raise ConfigError(f"{module.__name__}", sorted(made), f"{wanted} with from_configs")
