"""Demo models served through the plugin and asked a question each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onboard.checks import plugins
from onboard.checks.finding import Status
from onboard.demo.ask import Answer, ask
from onboard.demo.convert import write
from onboard.demo.server import Server, serving
from onboard.demo.sources import Source
from onboard.errors import RunError
from onboard.report.console import Progress
from onboard.report.mode import Mode, mode
from vllm_neuron import envs

QUESTIONS = {
    True: "What is the capital of France?",
    False: "The capital of Germany is Berlin. The capital of France is",
}
MAX_TOKENS = 32
SERVE_OPTIONS = ("--max-model-len", "1024", "--max-num-seqs", "4")


@dataclass(frozen=True)
class Shown:
    """One model's part of the demonstration."""

    source: Source
    folder: Path
    mode: Mode
    start_s: float
    answer: Answer

    def as_dict(self) -> dict[str, Any]:
        """For JSON output."""
        return {
            "model": self.source.model,
            "folder": str(self.folder),
            "mode": self.mode.name,
            "mode_words": self.mode.words,
            "server_ready_s": round(self.start_s, 2),
            **self.answer.as_dict(),
        }


def choose_mode() -> Mode:
    """The mode for this process and its children: Neuron devices if there are any, else CPU mode is switched on."""
    envs.set_foreign("HF_HUB_OFFLINE", "1")
    envs.set_foreign("VLLM_NO_USAGE_STATS", "1")
    # Server, engine and client share the cores here: threads that wait by spinning would stall one another.
    envs.set_foreign("OMP_WAIT_POLICY", "passive")
    if mode().name == "inactive":
        envs.set_foreign("VLLM_NEURON_CPU_MODE", "1", only_if_unset=False)
    return mode()


def require_plugin() -> None:
    """Refuse to demonstrate another platform than ours: vLLM would serve with its own CPU backend without a word.

    Raises:
        RunError: something keeps the plugin out; it names the first reason and what to set.
    """
    findings = [plugins.check_target(), plugins.check_filter(), *plugins.check_platforms()]
    for finding in findings:
        if finding.status is Status.ERROR:
            raise RunError(finding.check, finding.message, "the neuron plugin to be active", finding.action)


def demonstrate(source: Source, models: Path, current: Mode, say: Callable[[str], None]) -> Shown:
    """Write one model below `models` (unless it is there), serve it with its reference model, and ask it.

    Args:
        source: which demo model.
        models: the folder that holds the model folders.
        current: what `choose_mode` returned.
        say: gets progress and the streamed answer as text; line ends are part of it.

    Raises:
        NeuronError: the weights are missing, or the server or its answer failed.
    """
    folder = models / source.name
    written = write(source, folder, force=False, progress=Progress())
    say(f"{source.model}: {'found in' if written.reused else 'written to'} {folder}. Starting vllm serve ...\n")
    shown = serve_and_ask(source, folder, current, say)
    say("\n")
    return shown


def serve_and_ask(
    source: Source,
    folder: Path,
    current: Mode,
    say: Callable[[str], None],
    *,
    environment: Mapping[str, str] | None = None,
    ready: Callable[[Server], None] | None = None,
) -> Shown:
    """Serve a demo model's folder, ask it its question, and stop the server.

    Args:
        source: which demo model.
        folder: where it is.
        current: what `choose_mode` returned.
        say: gets the question and the streamed answer.
        environment: variables of the server beside this process's own.
        ready: called with the server once it is healthy.

    Raises:
        NeuronError: the server or its answer failed.
    """
    with serving(folder, *SERVE_OPTIONS, environment=environment) as server:
        if ready is not None:
            ready(server)
        question = QUESTIONS[source.chat]
        say(f"ready in {server.seconds:.1f} s\n> {question}\n")
        answer = ask(server, question, chat=source.chat, max_tokens=MAX_TOKENS, show=say)
    say(
        f"\n[{answer.tokens} tokens, {answer.tokens_per_second:.1f} tokens/s, "
        f"first token after {answer.first_token_s:.2f} s]\n"
    )
    return Shown(source, folder, current, server.seconds, answer)
