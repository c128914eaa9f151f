"""All checks of one variant of the reference's config."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from onboard.prove.blocks import Compared, compare_blocks, compare_head, end_elsewhere, grouped
from onboard.prove.proof import BAR, Check, Divergence, Status
from onboard.prove.ranks import on_ranks, rank_divergence, refusal_of_ranks
from onboard.prove.reference import HFReference
from onboard.prove.subject import RAISED, Subject, Way, chunks, one_piece, run, tokens, whole, words
from onboard.prove.walk import Walk
from vllm_neuron.accuracy.calls import Capture
from vllm_neuron.accuracy.compare import rel_err
from vllm_neuron.accuracy.pairs import find_pairs
from vllm_neuron.errors import ConfigError, NeuronError, NonFiniteError, ShapeError, UnsupportedError

RANKS = (1, 2, 4)
WAYS: tuple[tuple[str, str, Way], ...] = (
    ("whole", "whole model without a cache", whole),
    ("cache", "cache, prefill in one piece", one_piece),
    ("cache", "cache, uneven chunks with padding", chunks),
    ("cache", "cache, token by token", tokens),
)
OWN = {"blocks", "whole", "cache", "ranks"}
STEPS = 1 + len(WAYS) + len(RANKS)
LONGEST = 512
DRAWS = 12


@dataclass
class Measured:
    """What one comparison gave."""

    rel_err: float
    divergence: Divergence | None = None
    problem: str = ""


@dataclass
class VariantProof:
    """The checks of one variant, run one after the other.

    Attributes:
        name: of the variant.
        subject: the package on the variant's saved checkpoint.
        reference: the model that wrote it.
        seed: of the inputs.
        only: kinds of checks to run; all when empty.
        optional: the package may refuse the variant by name.
        step: called before each check with its name.
        loaded: the package's model took the checkpoint.
    """

    name: str
    subject: Subject
    reference: HFReference
    seed: int
    only: Collection[str] = ()
    optional: bool = True
    step: Callable[[str], None] = lambda what: None
    checks: list[Check] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    loaded: bool = False

    def run(self) -> None:
        """Run what was asked for; `checks` has the answers."""
        model = self._model()
        self.loaded = model is not None
        if model is None or (self.only and not set(self.only) & OWN):
            return
        try:
            self.ids = self._ids(model)
            head = _output_head(self.reference)
            self.pairs, self.alone = find_pairs(model, self.subject.sources(model), self.reference)
            names = {pair.theirs for pair in self.pairs} | ({head} if head else set())
            self.capture = Capture(self.reference, self.ids, sorted(names))
        except RAISED as error:
            self._add("reference", "the reference", 0.0, Status.FAILED, words(error, self.subject.package))
            return
        self.skip: set[str] = set()
        if self._wanted("blocks"):
            self._blocks(model, head)
        for kind, what, way in WAYS:
            if self._wanted(kind):
                self._attempt(kind, what, lambda way=way: self._logits(model, way))  # type: ignore[misc]
        for ranks in RANKS if self._wanted("ranks") else ():
            what = f"loaded from the checkpoint on {ranks} rank{'s' if ranks > 1 else ''}"
            self._attempt("ranks", what, lambda ranks=ranks: self._ranks(ranks))  # type: ignore[misc]

    def _wanted(self, kind: str) -> bool:
        return not self.only or kind in self.only

    def _add(
        self,
        kind: str,
        what: str,
        seconds: float,
        status: Status,
        message: str = "",
        rel_err: float | None = None,
        divergence: Divergence | None = None,
    ) -> None:
        self.checks.append(Check(self.name, kind, what, rel_err, seconds, status, message, divergence))

    def _model(self) -> Any | None:
        """The model with its weights, or None with the reason among the checks."""
        begin, package = time.perf_counter(), self.subject.package
        refusals: tuple[type[NeuronError], ...] = (ConfigError, UnsupportedError)
        what = "the config is read"
        try:
            built = self.subject.build()
            refusals, what = (UnsupportedError,), "the checkpoint is loaded"
            return self.subject.load(built)
        except NotImplementedError as error:
            self._add("config", what, time.perf_counter() - begin, Status.NOT_RUN, words(error, package))
        except RAISED as error:
            refused = self.optional and isinstance(error, refusals)
            status = Status.REFUSED if refused else Status.FAILED
            self._add("config", what, time.perf_counter() - begin, status, words(error, package))
        return None

    def _ids(self, model: Any) -> list[int]:
        """Tokens past every window and past the original context, as far as the model has positions."""
        config = self.reference.config
        spans = [32, *_spans(getattr(config, "rope_parameters", None))]
        spans += [layer.sliding_window_size or layer.chunk_size or 0 for layer in model.get_kv_spec().layers]
        wanted = min(2 * max(spans), LONGEST)
        length = min(wanted, model.max_position or LONGEST)
        if length < min(wanted, getattr(config, "max_position_embeddings", None) or LONGEST):
            self.notes.append(f"{self.name}: compared up to position {length}, which is all that the model takes")
        generator = torch.Generator().manual_seed(self.seed)
        for _ in range(DRAWS):
            ids = torch.randint(3, model.vocab_size, (length,), generator=generator)
            # A tie between two experts is decided by rounding: it says nothing of the package.
            if self.reference.steady(ids):
                break
        return ids.tolist()

    def _attempt(self, kind: str, what: str, work: Callable[[], Measured]) -> None:
        """Run one comparison and record how it ended; no exception of the package gets out."""
        self.step(f"{self.name}: {what}")
        begin = time.perf_counter()
        try:
            found = work()
        except NotImplementedError as error:
            status, message = Status.NOT_RUN, words(error, self.subject.package)
        except RAISED as error:
            refused = kind == "ranks" and isinstance(error, ConfigError) and refusal_of_ranks(error)
            status = Status.REFUSED if refused else Status.FAILED
            message = words(error, self.subject.package)
        else:
            status = Status.PASSED if found.rel_err <= BAR else Status.FAILED
            message = " ".join(filter(None, (found.problem, found.divergence.words() if found.divergence else "")))
            number = None if found.problem else found.rel_err
            self._add(kind, what, time.perf_counter() - begin, status, message, number, found.divergence)
            return
        self._add(kind, what, time.perf_counter() - begin, status, message)

    def _logits(self, model: Any, way: Way) -> Measured:
        return self._measured(
            run(model, way, self.ids), lambda: Walk(model, self.pairs).first(way, self.capture, self.skip)
        )

    def _ranks(self, ranks: int) -> Measured:
        logits = on_ranks(self.subject, ranks, self.ids)
        return self._measured(logits, lambda: rank_divergence(self.subject, ranks, self.pairs, self.capture, self.skip))

    def _measured(self, logits: Tensor, walk: Callable[[], Divergence | None]) -> Measured:
        """The logits' error; over the bar (or no number at all), the first block that differs."""
        problem, error = "", float("inf")
        try:
            error = rel_err(logits, self.capture.logits, "logits")
        except (NonFiniteError, ShapeError) as met:
            problem = str(met)
        if error <= BAR:
            return Measured(error)
        return Measured(error, walk() or Divergence(None, "head", "the reference's logits", error), problem)

    def _blocks(self, model: Any, head: str | None) -> None:
        self.step(f"{self.name}: blocks")
        begin = time.perf_counter()
        try:
            compared, missing = compare_blocks(model, self.capture, self.pairs)
            if head is not None and self.capture.call(head) is not None:
                compared.append(compare_head(model, self.capture, head))
        except NotImplementedError as error:
            self._add(
                "blocks", "blocks", time.perf_counter() - begin, Status.NOT_RUN, words(error, self.subject.package)
            )
            return
        except RAISED as error:
            self._add(
                "blocks", "blocks", time.perf_counter() - begin, Status.FAILED, words(error, self.subject.package)
            )
            return
        self.skip = end_elsewhere(compared, self._whole_passes(model))
        seconds = time.perf_counter() - begin
        groups = grouped(sorted(compared, key=_outermost_last))
        for pattern, each in groups.items():
            self._block_check(pattern, each, seconds / len(groups))
        if missing:
            self._add("blocks", "blocks not reached", 0.0, Status.NOT_RUN, missing)
        if not any(each.pair.whole for each in compared) and not missing:
            self.notes.append(f"{self.name}: no layer could be compared by itself; the whole model's logits cover them")

    def _whole_passes(self, model: Any) -> bool:
        try:
            return rel_err(run(model, whole, self.ids), self.capture.logits, "logits") <= BAR
        except RAISED:
            return False

    def _block_check(self, pattern: str, compared: list[Compared], seconds: float) -> None:
        ends = [each for each in compared if each.pair.ours in self.skip]
        own = [each for each in compared if each.pair.ours not in self.skip]
        what = f"block {pattern}"
        if ends and not own:
            title = self.capture.title(ends[0].pair.theirs)
            message = f"{title} ends elsewhere; compared as a part of its layer"
            self.notes.append(f"{self.name}: {what}: {message}")
            return
        wrong = next((each for each in own if each.failed), None)
        error = max(each.worst for each in own)
        if wrong is None:
            self._add("blocks", what, seconds, Status.PASSED, "", error)
            return
        pair = wrong.pair
        found = Divergence(pair.layer, pair.ours, self.capture.title(pair.theirs), wrong.worst)
        message = wrong.problem or f"{found.words()}{_scales(wrong.errors)}"
        self._add("blocks", what, seconds, Status.FAILED, message, None if wrong.problem else error, found)


def _outermost_last(compared: Compared) -> int:
    """In the order of the model, whole layers after the blocks in them."""
    pair = compared.pair
    return {"embed": 0, "norm": 3, "head": 4}.get(pair.ours, 2 if pair.whole else 1)


def _scales(errors: Mapping[float, float]) -> str:
    """Tells inputs apart when some of them agree."""
    if all(error > BAR for error in errors.values()):
        return ""
    return "; by scale of the input: " + ", ".join(f"{scale:g}: {error:.1e}" for scale, error in errors.items())


def _spans(parameters: Any) -> Iterator[int]:
    """Original context lengths anywhere in the rotary settings."""
    if isinstance(parameters, Mapping):
        for key, value in parameters.items():
            if key == "original_max_position_embeddings" and value:
                yield int(value)
            else:
                yield from _spans(value)


def _output_head(reference: HFReference) -> str | None:
    head = reference.model.get_output_embeddings()
    return next((name for name, module in reference.model.named_modules() if module is head), None)


def read_subject(package: Any, reference: HFReference, folder: Path) -> Subject:
    """Save the reference in its hub layout and read it back as a subject."""
    folder.mkdir(parents=True, exist_ok=True)
    reference.save(folder)
    return Subject.read(package, folder)
