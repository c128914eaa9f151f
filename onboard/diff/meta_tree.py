"""The child process of ``--structure``: reads a config from stdin, builds it on the meta device, prints its modules.

An exception here is meant to end the process: the parent reports its last line.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def build(request: Mapping[str, Any]) -> Any:
    """A transformers model on the meta device; code from a repository is never run."""
    import torch
    import transformers

    if request["config"] is None:
        fields = {k: v for k, v in request["fields"].items() if k != "model_type"}
        config = transformers.AutoConfig.for_model(request["model_type"], **fields)
    else:
        with tempfile.TemporaryDirectory() as folder:
            raw = {k: v for k, v in request["config"].items() if k != "quantization_config"}
            Path(folder, "config.json").write_text(json.dumps(raw), encoding="utf-8")
            config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=False)
    cls = next((c for n in request["architectures"] if (c := getattr(transformers, n, None)) is not None), None)
    with torch.device("meta"):
        if cls is not None and isinstance(config, cls.config_class):
            return cls(config)
        return transformers.AutoModelForCausalLM.from_config(config, trust_remote_code=False)


def modules(model: Any) -> list[str]:
    """One line a module, indented; equal neighbours (the layers) are told once, with their count."""
    lines: list[str] = [type(model).__name__]

    def walk(module: Any, depth: int) -> list[str]:
        told: list[tuple[str, int, str, list[str]]] = []
        for name, child in module.named_children():
            below = walk(child, depth + 1)
            head = f"{type(child).__name__}{shapes(child)}"
            if told and told[-1][2:] == (head, below) and name.isdigit():
                first, count, *_ = told[-1]
                told[-1] = (first, count + 1, head, below)
            else:
                told.append((name, 1, head, below))
        out = []
        for name, count, head, below in told:
            label = name if count == 1 else f"{name}..{int(name) + count - 1}"
            out += [f"{'  ' * depth}{label}: {head}", *below]
        return out

    return lines + walk(model, 1)


def shapes(module: Any) -> str:
    """The module's own parameters with their shapes."""
    own = [f"{name} {list(p.shape)}" for name, p in module.named_parameters(recurse=False)]
    return f" ({', '.join(own)})" if own else ""


def towers(model: Any, total: int) -> int | None:
    """Parameters outside the language model; 0 when the model is one; None when its part can't be told."""
    text = model.config.get_text_config()
    if text is model.config:
        return 0
    decoder = model.get_decoder() if hasattr(model, "get_decoder") else None
    if decoder is None or decoder is model:
        return None
    inside = {id(p): p.numel() for p in decoder.parameters()}
    head = model.get_output_embeddings()
    if head is not None:
        inside |= {id(p): p.numel() for p in head.parameters()}
    return total - sum(inside.values())


def main() -> None:
    """Read, build, print one line of JSON."""
    request = json.load(sys.stdin)
    answer = sys.stdout
    sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - libraries may print
    model = build(request)
    total = sum(p.numel() for p in model.parameters())
    found = {
        "class": type(model).__name__,
        "params": total,
        "params_towers": None if request["text_only"] else towers(model, total),
    }
    answer.write(json.dumps({**found, "modules": modules(model)}) + "\n")


if __name__ == "__main__":
    main()
