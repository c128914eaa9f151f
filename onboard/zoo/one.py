"""One model type: a package from its config class's defaults, and its proof. Run as a child process of its own."""

from __future__ import annotations

import json
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from onboard.zoo.decoders import decoders
from onboard.zoo.row import Row
from vllm_neuron.errors import ConfigError, NeuronError, UnsupportedError


def run(model_type: str, folder: Path, *, self_test: bool = False) -> dict[str, Any]:
    """Write a package of a model type and prove it.

    Args:
        model_type: one of :func:`onboard.zoo.decoders.decoders`.
        folder: for the package; one that an earlier run left there is written again.
        self_test: when proved, also flip one thing after the other in the reference; the proof has to find each.

    Returns:
        A :class:`~onboard.zoo.row.Row` as JSON values; never raises for a model that can't be done.
    """
    from onboard.prove.package import Package
    from onboard.prove.run import prove
    from onboard.scaffold.new import make

    begin = time.perf_counter()
    architecture = decoders()[model_type]
    shutil.rmtree(folder, ignore_errors=True)
    row: dict[str, Any] = {"source": "defaults of the config class"}
    try:
        try:
            make(name_of(model_type), model_type, folder, architecture=architecture)
        except (ConfigError, UnsupportedError) as error:
            row |= {"source": f"a tiny config, since the class's defaults are refused: {_line(error)}"}
            make(name_of(model_type), str(_tiny(model_type, folder)), folder, architecture=architecture)
        proof = prove(Package.load(folder))
        row |= told(proof)
        if self_test and row["verdict"] == "proved":
            row |= flips(folder)
    except NeuronError as error:
        row |= {"verdict": "refused", "message": _line(error)}
    return Row(
        model_type, architecture, seconds=round(time.perf_counter() - begin, 1), **row, versions=versions()
    ).to_json()


def told(proof: Any) -> dict[str, Any]:
    """A proof in the fields of a row."""
    failures = [f"{check.name}: {check.message or check.rel_err}" for check in proof.failures]
    return {
        "verdict": proof.verdict.value,
        "worst": proof.to_json()["worst"],
        "open": tuple(dict.fromkeys(feature.feature for feature in proof.open)),
        "refused": tuple(dict.fromkeys(check.variant or check.what for check in proof.refused)),
        "message": _line(failures[0]) if failures else "",
    }


def flips(folder: Path) -> dict[str, tuple[str, ...]]:
    """Flip one thing after the other in the reference and prove again.

    Returns:
        ``found`` and ``missed`` names of :data:`onboard.probe.perturb.PERTURBATIONS`; those that do not apply are in
        neither.
    """
    from onboard.probe.perturb import PERTURBATIONS, flipped
    from onboard.prove.package import Package
    from onboard.prove.run import default_variants, prove

    package = Package.load(folder)
    base = default_variants(package)[:1]
    found: list[str] = []
    missed: list[str] = []
    for name, flip in PERTURBATIONS.items():
        reference = flipped(flip)
        proof = prove(package, base, reference=reference, only=["blocks", "whole"])
        if reference.applied:
            (missed if proof.verdict.value == "proved" else found).append(name)
    return {"found": tuple(found), "missed": tuple(missed)}


def name_of(model_type: str) -> str:
    """A package's name for a model type."""
    return f"zoo_{model_type.replace('-', '_')}"


def versions() -> str:
    """What a result holds for."""
    from importlib.metadata import version

    from onboard import __version__

    return f"transformers {version('transformers')}, onboard {__version__}"


def _tiny(model_type: str, folder: Path) -> Path:
    from onboard.probe.tiny import variants

    source = folder.with_name(f"{folder.name}-config")
    source.mkdir(parents=True, exist_ok=True)
    config = variants(model_type)[0].config
    raw = {**json.loads(config.to_json_string(use_diff=False)), "architectures": [decoders()[model_type]]}
    (source / "config.json").write_text(json.dumps(raw), encoding="utf-8")
    return source


def _line(error: object) -> str:
    return " ".join(str(error).split())[:300]


def main(arguments: list[str]) -> None:
    """``python -m onboard.zoo.one MODEL_TYPE FOLDER RESULT [--self-test]``: the result is there whole or not at all."""
    model_type, folder, result = arguments[0], Path(arguments[1]), Path(arguments[2])
    import torch

    torch.set_num_threads(1)
    row = run(model_type, folder, self_test="--self-test" in arguments[3:])
    partial = result.with_suffix(".part")
    partial.write_text(json.dumps(row, indent=2), encoding="utf-8")
    partial.replace(result)


if __name__ == "__main__":
    main(sys.argv[1:])
