"""Checks of vLLM's plugin discovery and of the model packages: the rules are vLLM 0.32's `plugins` and `platforms`."""

from __future__ import annotations

from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import EntryPoint, entry_points

from onboard.checks import child
from onboard.checks.finding import Finding, error, ok, warn
from vllm_neuron import envs

PLATFORM_GROUP = "vllm.platform_plugins"
GENERAL_GROUP = "vllm.general_plugins"
MODEL_GROUP = "vllm_neuron.models"
OURS = {PLATFORM_GROUP: "neuron", GENERAL_GROUP: "neuron_general"}
DISTRIBUTION = "neuron-onboard"
REINSTALL = "Install the package again: pip install neuron-onboard (or `pip install -e .` in a clone)."
_UNSET = "\0unset"


def allowed() -> list[str] | None:
    """Names in `VLLM_PLUGINS`, or None when the variable is unset and every plugin may load."""
    text = envs.foreign("VLLM_PLUGINS", _UNSET)
    return None if text == _UNSET else text.split(",")


def check_filter() -> Finding:
    """`VLLM_PLUGINS` is one allow-list for all groups, so it must hold both of our names."""
    check, names = "VLLM_PLUGINS", allowed()
    if names is None:
        return ok(check, "unset: every installed plugin may load")
    missing = [name for name in OURS.values() if name not in names]
    if not missing:
        return ok(check, f"lists {' and '.join(OURS.values())}")
    wanted = ",".join([*(n for n in names if n and n != "none"), *missing])
    return error(
        check,
        f"is {','.join(names)!r}, which keeps out {' and '.join(missing)}: vLLM loads only the plugins it lists",
        f"Set VLLM_PLUGINS={wanted} or unset it.",
    )


def check_target() -> Finding:
    """`VLLM_TARGET_DEVICE=cpu` makes vLLM take its own CPU platform without asking any plugin."""
    value = envs.foreign("VLLM_TARGET_DEVICE")
    if value.lower() == "cpu":
        return error(
            "VLLM_TARGET_DEVICE",
            "is 'cpu': vLLM takes its own CPU platform and does not ask any plugin",
            "Unset VLLM_TARGET_DEVICE. For CPU mode of this plugin set VLLM_NEURON_CPU_MODE=1 instead.",
        )
    return ok("VLLM_TARGET_DEVICE", f"is {value!r}, which leaves plugins on" if value else "unset")


def check_platforms() -> list[Finding]:
    """Ask each allowed platform plugin, in a child process, what vLLM would ask it."""
    points = [p for p in entry_points(group=PLATFORM_GROUP) if _may_load(p)]
    if not any(_is_ours(p) for p in entry_points(group=PLATFORM_GROUP)):
        missing = f"no entry point {OURS[PLATFORM_GROUP]!r} in the group {PLATFORM_GROUP}"
        return [error("platform plugin", missing, REINSTALL)]
    findings, active = [], []
    for point, outcome in zip(points, _each(points, child.CALL), strict=True):
        name = f"platform plugin {point.name}"
        if not outcome.succeeded:
            findings.append(_broken(name, point, outcome))
        elif outcome.answer in ("None", ""):
            if _is_ours(point):
                findings.append(_declined(name))
        else:
            active.append(point.name)
            findings.append(ok(name, f"active: {outcome.answer}"))
    if len(active) > 1:
        findings.append(
            error(
                "platform plugins",
                f"{' and '.join(active)} are active at once, which vLLM refuses",
                f"Set VLLM_PLUGINS={','.join(OURS.values())} to keep the others out, or uninstall one.",
            )
        )
    return findings


def _may_load(point: EntryPoint) -> bool:
    names = allowed()
    return names is None or point.name in names


def _is_ours(point: EntryPoint) -> bool:
    return point.name == OURS.get(point.group)


def _each(points: list[EntryPoint], code: str) -> list[child.Outcome]:
    with ThreadPoolExecutor(max_workers=2) as pool:
        return list(pool.map(lambda p: child.run(code, p.group, p.name, p.value), points))


def _declined(name: str) -> Finding:
    return error(
        name,
        "declines: no /dev/neuron* device, and CPU mode is off",
        "Set VLLM_NEURON_CPU_MODE=1 for CPU mode, or run on a machine with Neuron devices.",
    )


def _broken(name: str, point: EntryPoint, outcome: child.Outcome) -> Finding:
    text = f"{point.value} fails: {outcome.failure()}. vLLM hides this and goes on without the plugin"
    if _is_ours(point):
        return error(name, text, "Mend the error shown, then run `onboard doctor` again.")
    return warn(name, text, f"Mend or uninstall {_distribution(point)}.")


def check_general() -> Finding:
    """Our general plugin must load in every process that vLLM starts."""
    name = OURS[GENERAL_GROUP]
    points = [p for p in entry_points(group=GENERAL_GROUP) if _is_ours(p)]
    if not points:
        return error("general plugin", f"no entry point {name!r} in the group {GENERAL_GROUP}", REINSTALL)
    outcome = child.run(child.LOAD, *_address(points[0]))
    if not outcome.succeeded:
        return _broken(f"general plugin {name}", points[0], outcome)
    return ok(f"general plugin {name}", f"loads: {points[0].value}")


def _address(point: EntryPoint) -> tuple[str, str, str]:
    return point.group, point.name, point.value


def _distribution(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else "its package"


def check_models() -> list[Finding]:
    """Every registered model package must import; an architecture may have one owner only."""
    points = list(entry_points(group=MODEL_GROUP))
    if not points:
        return [error("models", f"no entry points in the group {MODEL_GROUP}", REINSTALL)]
    findings = []
    for point, outcome in zip(points, _each(points, child.LOAD), strict=True):
        name, owner = f"model {point.name}", _distribution(point)
        if outcome.succeeded:
            findings.append(ok(name, f"{point.value} of {owner}"))
        else:
            action = f"Mend or uninstall {owner}; until then vLLM can't serve {point.name}."
            findings.append(error(name, f"{point.value} of {owner} fails to import: {outcome.failure()}", action))
    return findings + _duplicates(points)


def _duplicates(points: list[EntryPoint]) -> list[Finding]:
    owners: dict[str, set[str]] = defaultdict(set)
    for point in points:
        owners[point.name].add(_distribution(point))
    findings = []
    preferred = envs.foreign("VLLM_NEURON_MODEL_PACKAGE")
    everyone = sorted(set().union(*owners.values()))
    if preferred and preferred not in everyone:
        wrong = f"is {preferred!r}, which is none of {', '.join(everyone)}"
        findings.append(error("VLLM_NEURON_MODEL_PACKAGE", wrong, "Set it to one of these, or unset it."))
    for architecture, names in sorted(owners.items()):
        # The registry's rule: the chosen package, else a user's own before ours; two of a user's own are unclear.
        theirs = names - {DISTRIBUTION}
        if len(names) > 1 and len(theirs) == 1 and preferred not in names:
            findings.append(ok(f"model {architecture}", f"served by {theirs.pop()}, which wins over {DISTRIBUTION}"))
        elif len(names) > 1 and preferred not in names:
            findings.append(
                error(
                    f"model {architecture}",
                    f"registered by {', '.join(sorted(names))}: it is not clear which one serves it",
                    f"Set VLLM_NEURON_MODEL_PACKAGE={sorted(names)[0]} (or another of them), or uninstall the others.",
                )
            )
    return findings


def check_architectures(architectures: list[str]) -> Finding:
    """Whether a model's architecture has a registered model package."""
    known = sorted({p.name for p in entry_points(group=MODEL_GROUP)})
    for architecture in architectures:
        if architecture in known:
            return ok("architecture", f"{architecture} is registered")
    return error(
        "architecture",
        f"none of {', '.join(architectures) or '(no architectures in config.json)'} is registered",
        f"Registered: {', '.join(known) or 'none'}. A model package registers itself by an entry point in the group "
        f"{MODEL_GROUP}, e.g. {architectures[0] if architectures else 'MyModelForCausalLM'} = "
        '"my_model.factory:MyModelForCausalLM"; install it with pip so that worker processes see it too.',
    )
