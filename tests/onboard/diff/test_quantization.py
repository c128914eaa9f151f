"""How the weights are stored, as a difference and as a trait."""

from __future__ import annotations

from typing import Any

import pytest

from onboard import catalog
from onboard.diff import diff
from onboard.diff.inspect import inspect
from onboard.facts.api import load, read
from onboard.report import inspect_html, inspect_markdown
from onboard.report.inspect_text import show
from onboard.report.terminal import console

LLAMA, DEEPSEEK = "meta-llama/Llama-3.1-8B", "deepseek-ai/DeepSeek-V3"


def config(name: str) -> dict[str, Any]:
    """The config that a catalog entry stands for, with the block that its quantisation comes from."""
    entry = catalog.entry(name)
    raw: dict[str, Any] = {"model_type": entry.model_type, "architectures": list(entry.architectures), **entry.fields}
    return {**raw, "quantization_config": {"quant_method": entry.quantization}} if entry.quantization else raw


@pytest.mark.parametrize("name", catalog.names())
def test_an_entry_and_its_config_agree(name: str) -> None:
    rows = [row for row in diff(load(name), read(config(name))).rows if row.field == "quantization"]
    assert rows == []


def test_fp8_weights_are_to_write() -> None:
    row = next(r for r in diff(load(LLAMA), load(DEEPSEEK)).rows if r.field == "quantization")
    assert (row.kind, row.a, row.b) == ("semantic", "none", "fp8")
    assert row.a_source == "derived (no quantization_config)"
    assert row.b_source == "explicit (quantization_config.quant_method)"
    assert row.covered_by is None and row.missing is not None and "refuses quantised" in row.missing
    back = next(r for r in diff(load(LLAMA), load(DEEPSEEK), target="a").rows if r.field == "quantization")
    assert back.missing is None


def test_a_block_in_the_decoder_s_section_is_named_there() -> None:
    text = {**config(LLAMA), "quantization_config": {"quant_method": "gptq"}}
    nested = {"model_type": "llava", "architectures": ["LlavaForConditionalGeneration"], "text_config": text}
    row = next(r for r in diff(load(LLAMA), read(nested)).rows if r.field == "quantization")
    assert (row.b, row.b_source) == ("gptq", "explicit (text_config.quantization_config.quant_method)")


def test_inspect_tells_it_in_every_view() -> None:
    model = inspect(load(DEEPSEEK))
    trait = next(t for t in model.to_json()["traits"] if t["field"] == "quantization")
    assert (trait["value"], trait["source"]) == ("fp8", "explicit (quantization_config.quant_method)")
    out = console(to_file=True)
    show(model, out)
    for text in (out.file.getvalue(), inspect_html.render(model), inspect_markdown.render(model)):  # type: ignore[attr-defined]
        assert "quantization" in text and "fp8" in text
    plain = next(t for t in inspect(load(LLAMA)).traits if t[1] == "quantization")
    assert plain[2] == "none"
