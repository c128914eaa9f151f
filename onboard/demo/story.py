"""The whole way on real weights: compare, generate, prove, install, serve, ask."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onboard.demo.convert import Written, write
from onboard.demo.installed import environment, install
from onboard.demo.run import Shown, serve_and_ask
from onboard.demo.server import Server
from onboard.demo.sources import SOURCES
from onboard.errors import RunError
from onboard.report.console import Progress
from onboard.report.mode import PROOF, Mode

if TYPE_CHECKING:
    from onboard.diff.rows import Diff
    from onboard.prove import Proof
    from onboard.scaffold.new import Made

KNOWN = SOURCES["smollm2"]
PORTED = SOURCES["gemma3-270m"]
PACKAGE = "gemma3-port"
INSTALLED = f"{PACKAGE}-installed"


@dataclass(frozen=True)
class Story:
    """What the demonstration did; `seconds` are of the whole."""

    weights: tuple[Written, Written]
    diff: Diff
    made: Made
    proof: Proof
    served: Shown
    served_by: str
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        """For JSON output."""
        return {
            "weights": [written.as_dict() for written in self.weights],
            "diff": self.diff.to_json(),
            "package": self.made.to_json(),
            "proof": self.proof.to_json(),
            "served": {**self.served.as_dict(), "served_by": self.served_by},
            "seconds": round(self.seconds, 2),
        }


@dataclass(frozen=True)
class Teller:
    """Prints a heading before each step and its duration after it."""

    say: Callable[[str], None]
    steps: int = 6

    @contextmanager
    def step(self, number: int, text: str) -> Iterator[None]:
        """One step of :attr:`steps`."""
        self.say(f"{number}/{self.steps} {text}\n")
        begin = time.monotonic()
        yield
        self.say(f"    {time.monotonic() - begin:.1f} s\n\n")

    def line(self, text: str) -> None:
        """One line below a heading."""
        self.say(f"    {text}".rstrip() + "\n")


def tell(models: Path, current: Mode, say: Callable[[str], None]) -> Story:
    """Run the whole demonstration.

    Args:
        models: the folder that holds the model folders; the generated package and its installation go there too.
        current: what `choose_mode` returned.
        say: gets progress and the streamed answer as text; line ends are part of it.

    Raises:
        NeuronError: the weights are missing, the package is not proved, or the server or its answer failed.
    """
    begin = time.monotonic()
    teller = Teller(say)
    known, ported, package = models / KNOWN.name, models / PORTED.name, models / PACKAGE
    with teller.step(1, "real weights, from installed packages"):
        weights = (_weights(KNOWN.name, known, teller), _weights(PORTED.name, ported, teller))
    with teller.step(2, f"onboard diff {known} {ported}"):
        diff = _diff(known, ported, teller)
    with teller.step(3, f"onboard new {PACKAGE} --from {ported} --output {package} --no-verify --force"):
        made = _new(ported, package, teller)
    with teller.step(4, f"onboard verify {package} --checkpoint {ported}"):
        proof = _verify(package, ported, teller)
    target = models / INSTALLED
    with teller.step(5, f"pip install --no-deps --target {target} {package}"):
        install(package, target)
        teller.line("for the demonstration only: the server below gets this folder as its PYTHONPATH")
    with teller.step(6, f"vllm serve {ported}"):
        served, owner = _serve(ported, made, target, current, say)
    return Story(weights, diff, made, proof, served, owner, time.monotonic() - begin)


def _weights(name: str, folder: Path, teller: Teller) -> Written:
    written = write(SOURCES[name], folder, force=False, progress=Progress())
    how = "found in" if written.reused else "written to"
    teller.line(f"{written.source.model} ({written.source.architecture}): {how} {folder}")
    return written


def _diff(known: Path, ported: Path, teller: Teller) -> Diff:
    from onboard.diff.session import compare
    from onboard.diff.show import text

    diff = compare((str(known), None, None), (str(ported), None, None))
    teller.line(diff.sentence)
    for row in diff.rows:
        if row.counts:
            teller.line(f"{row.field:<24} {text(row.a)} -> {text(row.b)}")
    return diff


def _new(ported: Path, package: Path, teller: Teller) -> Made:
    from onboard.scaffold.new import make

    made = make(PACKAGE, str(ported), package, force=True)
    for feature, value in made.answers.code.detected:
        teller.line(f"{feature}: {value}")
    for item in made.answers.code.open:
        teller.line(f"open: {item.feature} ({item.hf_class})")
    for warning in made.warnings:
        teller.line(f"note: {warning}")
    models = [name for name in made.files if name.endswith("model.py")]
    lines = sum(len((package / name).read_text(encoding="utf-8").splitlines()) for name in models)
    teller.line(f"written: {package} ({len(made.files)} files; {', '.join(models)} has {lines} lines)")
    return made


def _verify(package: Path, ported: Path, teller: Teller) -> Proof:
    from onboard.prove import Package, prove
    from onboard.prove.evidence import write_evidence
    from onboard.report import proof_text
    from onboard.report.terminal import console

    teller.line(PROOF.words)
    with Progress().track() as progress:
        loaded = Package.load(package)
        proof = prove(loaded, checkpoint=ported, progress=progress)
    write_evidence(loaded, proof)
    made = console()
    with made.capture() as captured:
        proof_text.show(proof, made)
    for line in captured.get().rstrip().splitlines():
        teller.line(line)
    if proof.verdict.value != "proved":
        raise RunError(f"proof of {package}", proof.verdict.value, "proved", f"Run: onboard verify {package}")
    return proof


def _serve(ported: Path, made: Made, target: Path, current: Mode, say: Callable[[str], None]) -> tuple[Shown, str]:
    own = made.answers.names.distribution
    say("    starting ...\n")
    owners: list[str] = []

    def ready(server: Server) -> None:
        owners.append(served_by(server.log, PORTED.architecture, own))
        say(f"    {PORTED.architecture} is served by {own}, the package made above, not by the reference model\n    ")

    shown = serve_and_ask(PORTED, ported, current, say, environment=environment(target, own), ready=ready)
    return shown, owners[0]


def served_by(log: Path, architecture: str, expected: str) -> str:
    """Which package serves, by what the registry wrote into the server's log.

    Raises:
        RunError: it does not say so, or it is another package than `expected`.
    """
    said = rf"\b{re.escape(architecture)} is served by ([^\s,]+), not by "
    owners = sorted(set(re.findall(said, log.read_text(errors="replace"))))
    if owners != [expected]:
        found = ", ".join(owners) or "nothing in the server's log"
        raise RunError(f"package that serves {architecture}", found, expected, "Run `onboard doctor`.")
    return expected
