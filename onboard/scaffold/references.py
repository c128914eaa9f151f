"""The reference models: which model of the catalog each is rendered from, and its files."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from onboard.facts import api
from onboard.scaffold.render import model_code
from vllm_neuron.errors import ConfigError, nearest


@dataclass(frozen=True)
class Reference:
    """One reference model: its name in ``reference_models``, its source, and the first part of its class names."""

    name: str
    source: str
    stem: str


REFERENCES: dict[str, Reference] = {
    r.name: r
    for r in (
        Reference("llama3", "meta-llama/Llama-3.1-8B", "Llama"),
        Reference("gemma3", "google/gemma-3-27b-it", "Gemma3"),
        Reference("gemma4", "google/gemma-4-E2B-it", "Gemma4"),
        Reference("qwen3", "Qwen/Qwen3-8B", "Qwen3"),
        Reference("qwen3_moe", "Qwen/Qwen3-30B-A3B", "Qwen3Moe"),
        Reference("gpt_oss", "openai/gpt-oss-20b", "GptOss"),
        Reference("mixtral", "mistralai/Mixtral-8x7B-v0.1", "Mixtral"),
        Reference("olmo2", "allenai/OLMo-2-1124-7B-Instruct", "Olmo2"),
        Reference("phi3", "microsoft/Phi-3.5-mini-instruct", "Phi3"),
        Reference("glm4", "zai-org/GLM-4-9B-0414", "Glm4"),
        Reference("granite", "ibm-granite/granite-3.3-8b-instruct", "Granite"),
        Reference("cohere2", "CohereLabs/c4ai-command-r7b-12-2024", "Cohere2"),
    )
}


def files(name: str) -> dict[str, str]:
    """File name -> text of one reference model, as ``onboard new`` renders it.

    Raises:
        ConfigError: no such reference model.
    """
    if name not in REFERENCES:
        raise ConfigError("reference model", name, "one of " + ", ".join(REFERENCES), nearest(name, REFERENCES))
    one = REFERENCES[name]
    code = model_code(api.load(one.source), stem=one.stem, module=f"reference_models.{name}")
    return {"__init__.py": "", "config.py": code.config_py, "factory.py": code.factory_py, "model.py": code.model_py}


def write(root: Path, *names: str) -> None:
    """Render reference models (all of them by default) below ``root``."""
    for name in names or REFERENCES:
        folder = root / "reference_models" / name
        folder.mkdir(parents=True, exist_ok=True)
        for file, text in files(name).items():
            (folder / file).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1] if len(sys.argv) > 1 else "."), *sys.argv[2:])
