"""``ModelFacts`` -> the three Python files of a model, as a person would have written them."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import replace

from onboard.facts.api import ModelFacts, read
from onboard.probe.reference import References
from onboard.probe.tiny import Variant, variants
from onboard.prove.subject import one_way
from onboard.scaffold import roles
from onboard.scaffold.build import Built, build
from onboard.scaffold.calls import Unbound
from onboard.scaffold.code import ModelCode, OpenFeature
from onboard.scaffold.numbers import Hypothesis, hypotheses
from onboard.scaffold.observe import observe
from onboard.scaffold.study import Twin, twins
from onboard.scaffold.table import rows
from onboard.scaffold.tryout import CHECKS, SEED, Tried, leftovers, refuses, temporary, try_out
from onboard.scaffold.wiring import Open
from onboard.scaffold.writer import Writer
from vllm_neuron.errors import ConfigError, UnsupportedError

# Rounds of mending: a model whose facts are wrong in more places than this is better read by a person.
ROUNDS = 4
# The package's name while it is tried.
CANDIDATE = "onboard_candidate"


def model_code(facts: ModelFacts, *, stem: str | None = None, module: str | None = None) -> ModelCode:
    """Render a model's code and hold its blocks against a tiny reference.

    Where a block computes something else than the reference's, other values of its options are tried; one that fits is
    taken and said in ``detected``. What nothing fits is open.

    Args:
        facts: of the model.
        stem: first part of the class names; from the architecture by default.
        module: dotted name of the package that the files go to; from the stem by default.

    Raises:
        ConfigError: a config that transformers can't build a reference from.
    """
    architecture = (facts.architectures or ("",))[0] or _class_of(facts)
    stem = stem or re.sub(r"(ForCausalLM|ForConditionalGeneration|LMHeadModel|Model)$", "", architecture)
    made = variants(facts.model_type or "", dict(facts.text))
    known = twins(facts, [(v.name, v.config) for v in made])
    if len(known) < 2:
        read(made[0].config.to_dict(), name="base")
        raise ConfigError("config", facts.model_type, "a family whose tiny twin can be read")
    maker = _Maker(facts, made, stem, module or stem.lower(), architecture)
    return maker.settled(known)


def _class_of(facts: ModelFacts) -> str:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(facts.model_type or "", "Model")


class _Maker:
    def __init__(self, facts: ModelFacts, made: Sequence[Variant], stem: str, module: str, architecture: str) -> None:
        self.facts, self.made, self.stem, self.module, self.architecture = facts, made, stem, module, architecture
        self.model_type = facts.model_type or ""
        self.references = References(SEED)

    def settled(self, known: Sequence[Twin]) -> ModelCode:
        """The code after the facts were confirmed, mended, or named as open."""
        writer = self._writer(known)
        if writer.open or writer.incomplete:
            return self._with_open(known, writer)
        tried = self._try(writer)
        found: list[Hypothesis] = []
        while tried.failed and tried.blocks and len(found) < ROUNDS:
            better = self._mended(known, tried)
            if better is None:
                break
            hypothesis, known, writer, tried = better
            found.append(hypothesis)
        if tried.failed:
            writer.add_open(self._unfit(tried))
            return self._with_open(known, writer)
        wrong = self._wrong(writer, ("whole",))
        writer = self._writer(known, refused=wrong) if wrong else writer
        writer.add_open(self._let_through(writer))
        by_numbers = tuple(("found by numbers", h.words) for h in found)
        code = writer.code()
        return replace(code, detected=(*code.detected, *by_numbers))

    def _let_through(self, writer: Writer) -> list[Open]:
        """Variants that the code does not hold for and that its config does not refuse: each is named as open."""
        with temporary(writer.code(module=CANDIDATE), CANDIDATE, self.model_type) as package, one_way():
            return [
                Open(f"{twin.name} is not computed", type(twin.config).__name__, twin.name)
                for twin in writer.built.refused
                if not refuses(package, twin.config)
            ]

    def _wrong(self, writer: Writer, checks: Sequence[str]) -> set[str]:
        """Names of the variants of which the code computes something else than the reference."""
        names = {t.name for t in writer.built.twins[2:]}
        code = writer.code(module=CANDIDATE)
        return {
            v.name
            for v in self.made
            if v.name in names and try_out(code, CANDIDATE, self.model_type, [v], self.references, checks).failed
        }

    def _writer(self, known: Sequence[Twin], refused: Collection[str] = ()) -> Writer:
        built: Built = build([t for t in known if t.name not in refused])
        built = replace(built, refused=(*built.refused, *(t for t in known if t.name in refused)))
        observed = observe(built, self.references)
        plain = set(rows(observed.each[0], observed.layout).unknown)
        odd = [
            twin
            for twin, stored in zip(built.twins[2:], observed.each[1:], strict=True)
            if set(rows(stored, observed.layout).unknown) - plain
        ]
        if odd:
            # Variants with tensors that no part takes are refused, as those that no expression says.
            kept = build([t for t in built.twins if t not in odd])
            built = replace(kept, refused=(*built.refused, *kept.refused, *odd))
            observed = observe(built, self.references)
        return Writer(self.facts, built, observed, self.stem, self.module, self.architecture)

    def _try(self, writer: Writer) -> Tried:
        return try_out(
            writer.code(raising=False, module=CANDIDATE), CANDIDATE, self.model_type, self.made, self.references
        )

    def _mended(self, known: Sequence[Twin], tried: Tried) -> tuple[Hypothesis, Sequence[Twin], Writer, Tried] | None:
        """The first other value of an option that makes a failing block fit."""
        for hypothesis in hypotheses(tried.blocks, known[1].spec):
            changed = [replace(t, spec=hypothesis.change(t.spec)) for t in known]
            try:
                writer = self._writer(changed)
            except Unbound:
                continue
            if writer.open or writer.incomplete:
                continue
            after = self._try(writer)
            if len(after.blocks) < len(tried.blocks) or (tried.failed and not after.failed):
                return hypothesis, changed, writer, after
        return None

    def _unfit(self, tried: Tried) -> list[Open]:
        """What differs: the blocks, or what the whole model comes to when each block alone is right."""
        blocks = [c for c in tried.failed if c.what.removeprefix("block ") in tried.blocks]
        found = []
        for check in blocks or tried.failed[:1]:
            title = check.divergence.expected.split(" ", 1)[0] if check.divergence else ""
            expected = title if title[:1].isupper() else ""
            name = check.what.removeprefix("block ").replace("layers.*.", "")
            found.append(Open(f"{name} unlike {expected}" if expected else check.message[:120], expected, name))
        return found

    def _with_open(self, known: Sequence[Twin], writer: Writer) -> ModelCode:
        """Code that names what is missing, and refuses the variants whose other parts it does not compute."""
        code = self._named(writer)
        wrong = set() if writer.incomplete else self._wrong(writer, CHECKS)
        if not wrong:
            return code
        more = self._writer(known, refused=wrong)
        more.open = writer.open
        code = self._named(more)
        left = [] if more.incomplete else self._let_through(more)
        more.add_open(left)
        return more.code() if left else code

    def _named(self, writer: Writer) -> ModelCode:
        """Code that raises for what is missing, in the blocks that differ from the reference's."""
        base = writer.built.twins[1]
        if not writer.incomplete:
            plain = writer.code(raising=False, module=CANDIDATE)
            try:
                unused, unfilled = leftovers(plain, CANDIDATE, self.model_type, base.config, writer.observed.keys)
            except UnsupportedError as error:
                # The code does not read an option that the model's own config sets.
                return self._refusing(writer, error)
            for pattern in dict.fromkeys(map(roles.pattern_of, unused)):
                writer.rows.add("Drop", pattern, "", why="of a feature that is not written yet")
            writer.incomplete = bool(unfilled)
        if not writer.incomplete:
            tried = self._try(writer)
            writer.incomplete = any(check.kind == "config" for check in tried.failed)
            writer.wrapped = tuple(name.removeprefix("layers.*.") for name in tried.blocks if name.count(".") == 2)
        return writer.code()

    def _refusing(self, writer: Writer, error: UnsupportedError) -> ModelCode:
        """Code whose config refuses the model's own settings: the setting is what is open."""
        writer.open = ()
        writer.add_open([Open(f"{error.field.removeprefix('config.')} is not read", where="the whole model")])
        writer.incomplete = True
        return writer.code()


__all__ = ["ModelCode", "OpenFeature", "model_code"]
