"""Why the plugin is active here, or why it is not."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onboard.checks import plugins, stack
from onboard.checks.finding import Finding, error, failed, ok
from onboard.report.mode import Mode, mode
from vllm_neuron import envs
from vllm_neuron.errors import ConfigError


@dataclass(frozen=True)
class Diagnosis:
    """The mode and all findings; `active` when vLLM would run models through the plugin."""

    mode: Mode
    findings: tuple[Finding, ...]

    @property
    def active(self) -> bool:
        """No finding is an error."""
        return not failed(self.findings)

    def as_dict(self) -> dict[str, Any]:
        """For JSON output."""
        return {
            "active": self.active,
            "mode": self.mode.name,
            "mode_words": self.mode.words,
            "findings": [finding.as_dict() for finding in self.findings],
        }


def check_environment() -> list[Finding]:
    """Every variable with our prefix is known and parses."""
    wrong = envs.problems()
    if wrong:
        return [error(e.field if e.field != "environment" else str(e.value), str(e), e.action) for e in wrong]
    return [ok("environment", f"every {envs.PREFIX}* variable that is set parses")]


def architectures(model: Path) -> list[str]:
    """The `architectures` of a model folder's config.json.

    Raises:
        ConfigError: the config can't be read, or the entry is no list of names.
    """
    from onboard.facts import rawjson

    path = model if model.is_file() else model / "config.json"
    names = rawjson.read(path).get("architectures") or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ConfigError(f"{path}: architectures", names, "a list of class names", "Mend config.json.")
    return names


def diagnose(model: Path | None = None) -> Diagnosis:
    """Look at everything that decides whether the plugin works.

    Args:
        model: optional model folder (or its config.json) whose architecture is looked up as well.

    Raises:
        NeuronError: the model can't be read.
    """
    try:
        current = mode()
    except ConfigError as wrong:
        current = Mode("inactive", f"unknown: {wrong}")
    findings = [stack.check_machine(), stack.check_vllm(), *stack.check_libraries()]
    findings += [stack.check_neuron_stack(), stack.check_torchvision()]
    findings += [*check_environment(), plugins.check_target(), plugins.check_filter()]
    findings += [*plugins.check_platforms(), plugins.check_general(), *plugins.check_models()]
    if model is not None:
        findings.append(plugins.check_architectures(architectures(model)))
    return Diagnosis(current, tuple(findings))
