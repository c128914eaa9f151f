"""The renderer's answer without the renderer: the reference Llama's own files."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import reference_models.llama3
from onboard.facts.api import ModelFacts
from onboard.scaffold.code import ModelCode, OpenFeature
from onboard.scaffold.names import Names

LLAMA = Path(reference_models.llama3.__file__).parent
OPEN = OpenFeature("altup", "Gemma3nTextAltUp", "models/gemma3n/modeling_gemma3n.py", "each layer")
WAITING = '        raise NotImplementedError("altup: see Gemma3nTextAltUp")\n'


def model_code(facts: ModelFacts, names: Names) -> ModelCode:
    """The Llama, whatever the facts; the architecture is the facts' own."""

    def text(part: str) -> str:
        renamed = re.sub(
            r"(?<!transformers\.)\bLlama(?=Config|Layer|ForCausalLM|\b)", names.stem, (LLAMA / part).read_text()
        )
        return renamed.replace("reference_models.llama3", names.package)

    config, model, factory = map(text, ("config.py", "model.py", "factory.py"))
    rows = (("layers", str(facts.arch.layers)), ("vocabulary", str(facts.text.get("vocab_size"))))
    architecture = facts.architectures[0] if facts.architectures else "LlamaForCausalLM"
    return ModelCode(config, model, factory, names.class_name, architecture, rows)


def model_code_with_open(facts: ModelFacts, names: Names) -> ModelCode:
    """The same with a feature that is left out."""
    code = model_code(facts, names)
    marker = "        super().__init__(c)\n"
    assert marker in code.model_py
    return replace(code, model_py=code.model_py.replace(marker, WAITING + marker), open=(OPEN,))
