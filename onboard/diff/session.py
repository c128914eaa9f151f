"""From names on a command line to a diff or an inspection, module trees included."""

from __future__ import annotations

from onboard.diff import structure
from onboard.diff.compare import diff
from onboard.diff.inspect import Inspection, inspect
from onboard.diff.nearest import choose
from onboard.diff.rows import Diff
from onboard.facts import locate
from onboard.facts.api import ModelFacts, load
from vllm_neuron.errors import ConfigError

Wanted = tuple[str, str | None, str | None]


def compare(a: Wanted, b: Wanted | None, spelling: bool = False, structures: bool = False) -> Diff:
    """The diff of two models, each given as ``(name, revision, architecture)``; without B, the nearest reference model
    takes its place.

    Raises:
        ConfigError, UnsupportedError: a model can't be found, read or understood.
    """
    first = _load(*a)
    if b is None:
        second, why = choose(first)
        target = "a"
    else:
        second, why, target = _load(*b), None, "b"
    trees = structure.trees((first, second)) if structures else [None, None]
    return diff(first, second, target=target, spelling=spelling, why=why, structures=(trees[0], trees[1]))


def look(model: Wanted, structures: bool = False) -> Inspection:
    """One model; errors as :func:`compare`."""
    facts = _load(*model)
    return inspect(facts, structure.trees((facts,))[0] if structures else None)


def _load(name: str, revision: str | None, architecture: str | None) -> ModelFacts:
    if revision is not None and locate.is_path(name):
        raise ConfigError("--revision", revision, f"no revision, since {name!r:.80} is a path", "Leave it out.")
    return load(name, revision, architecture)
