"""Names of a new package: what the user typed -> folder, module and classes, or a refusal that says what would do."""

from __future__ import annotations

import builtins
import importlib.util
import keyword
import re
import sys
import unicodedata
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from importlib.metadata import packages_distributions as distributions
from pathlib import Path

from onboard.facts.families.table import FAMILIES
from vllm_neuron.errors import ConfigError

MODELS = "vllm_neuron.models"
OURS = "neuron-onboard"
LONGEST = 64
# Names of folders that a Python project has beside its package.
TAKEN = {"build", "dist", "docs", "src", "test", "tests"}
_TYPED = re.compile(r"[A-Za-z][A-Za-z0-9]*(?:[-_.]?[A-Za-z0-9]+)*")
_ARCHITECTURE = re.compile(r"[A-Za-z][A-Za-z0-9_]*")


@dataclass(frozen=True)
class Names:
    """Every name of one new package.

    Attributes:
        typed: as given; the folder has it.
        package: the module, e.g. ``my_model``.
        distribution: as pip knows it, e.g. ``my-model``.
        stem: what its classes begin with, e.g. ``MyModel``.
        warnings: things that are allowed and may surprise.
    """

    typed: str
    package: str
    distribution: str
    stem: str
    warnings: tuple[str, ...] = ()

    @property
    def class_name(self) -> str:
        """The factory's class."""
        return f"{self.stem}ForCausalLM"


def names(typed: str, folder: Path | None = None) -> Names:
    """The names that follow from what the user typed.

    Args:
        typed: letters, digits, ``-``, ``_`` and ``.``, beginning with a letter.
        folder: where the package is or will be; a module that is importable from there is no stranger.

    Raises:
        ConfigError: empty, a path, no identifier, a keyword, or the name of a module that Python already has.
    """
    _refuse_unwritable(typed)
    package = re.sub(r"[-.]", "_", typed).lower()
    if keyword.iskeyword(package) or keyword.issoftkeyword(package) or package in TAKEN or hasattr(builtins, package):
        raise _no(typed, "a name that Python and its tools don't use themselves", f"{package}_model")
    if package in sys.stdlib_module_names:
        raise _no(typed, "a name that no module of Python's own library has", f"{package}_model")
    stranger = _stranger(package, folder)
    if stranger:
        raise _no(typed, f"a name that no installed module has ({stranger})", f"{package}_model")
    stem = "".join(piece[0].upper() + piece[1:] for piece in re.split(r"[-_.]", typed))
    return Names(typed, package, package.replace("_", "-"), stem, _family_warning(package))


def _refuse_unwritable(typed: str) -> None:
    if not typed.strip():
        raise ConfigError("NAME", typed, "a name for the package", "Give one, e.g. `onboard new mymodel`.")
    if re.search(r"[/\\\x00]", typed) or typed.startswith((".", "~")):
        raise ConfigError("NAME", typed, "a name without parts of a path", "Give the folder with --output.")
    if not typed.isascii():
        plain = unicodedata.normalize("NFKD", typed).encode("ascii", "ignore").decode()
        raise _no(typed, "ASCII letters, as package indexes want it", plain)
    if typed[0].isdigit():
        raise _no(typed, "a name that begins with a letter", f"m{typed}")
    if len(typed) > LONGEST:
        raise _no(typed, f"at most {LONGEST} characters", typed[:LONGEST])
    if not _TYPED.fullmatch(typed):
        words = re.findall(r"[A-Za-z0-9]+", typed.lstrip("0123456789-_. "))
        raise _no(typed, "letters, digits and single - or _ between them", "_".join(words))


def _no(typed: str, expected: str, instead: str) -> ConfigError:
    fits = bool(_TYPED.fullmatch(instead)) and not keyword.iskeyword(instead.lower())
    return ConfigError("NAME", typed, expected, f"Try {instead!r}." if fits else "Try 'mymodel'.")


def _stranger(package: str, folder: Path | None) -> str:
    """Where an importable module of that name comes from; "" when there is none, or it is the package itself."""
    try:
        found = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return "one that does not import"
    if found is None:
        return ""
    places = [p for p in (found.origin, *(found.submodule_search_locations or ())) if p]
    if folder is not None and any(Path(p).resolve().is_relative_to(folder.resolve()) for p in places):
        return ""
    if found.origin is None:
        # A plain folder of that name on the path, such as the one that is about to be made here.
        return ""
    owners = distributions().get(package)
    return f"it is of {', '.join(sorted(set(owners)))}" if owners else "it can be imported here"


def _family_warning(package: str) -> tuple[str, ...]:
    if package not in FAMILIES:
        return ()
    return (
        f"{package!r} is also the name of a model family in transformers, and public packages may have it too: "
        f"never `pip install {package}` by name, install the folder.",
    )


def architecture(name: str) -> str:
    """The architecture's name, checked: it becomes an entry point.

    Raises:
        ConfigError: no identifier.
    """
    if not _ARCHITECTURE.fullmatch(name) or keyword.iskeyword(name):
        raise ConfigError(
            "architectures", name, "a class name", "Mend config.json, or give the class with --architecture."
        )
    return name


def claims(architecture: str, distribution: str) -> tuple[str, ...]:
    """Warnings about others who registered the architecture, as vLLM's processes would find them.

    Args:
        architecture: the name in ``architectures``.
        distribution: the new package's own, which may be installed from an earlier run.
    """
    owners = {_owner(point) for point in entry_points(group=MODELS) if point.name == architecture}
    rivals = sorted(owners - {OURS, distribution, ""})
    if rivals:
        return (
            f"{architecture} is registered by {', '.join(rivals)} too: once this package is installed, uninstall the "
            f"other or set VLLM_NEURON_MODEL_PACKAGE={distribution}.",
        )
    if OURS in owners:
        return (f"{architecture} has a reference model in {OURS}: once installed, this package is served instead.",)
    return ()


def _owner(point: EntryPoint) -> str:
    return re.sub(r"[-_.]+", "-", point.dist.name).lower() if point.dist is not None else ""
