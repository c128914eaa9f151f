"""Views of a diff: hostile text, the layer map's scale, the published schemas."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from importlib import resources
from typing import Any

import pytest

from onboard import catalog
from onboard.diff import Diff, diff
from onboard.diff.inspect import inspect
from onboard.facts.api import ModelFacts, load
from onboard.report import diff_html, diff_markdown, inspect_html
from onboard.report.diff_text import show
from onboard.report.terminal import console
from tests.support.specs import facts, gemma4, llama

HOSTILE = (
    "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>&amp;|`[x](javascript:1)\x1b[31m\u202e\n# h"
    "[bold]rich[/bold]\udcff"
)


class Tags(HTMLParser):
    """All tags and attributes of a document."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def hostile() -> Diff:
    strange: dict[str, Any] = {"model_type": HOSTILE, "architectures": (HOSTILE,), "section": HOSTILE,
                               "notes": (HOSTILE,), "warnings": (HOSTILE,), "location": HOSTILE}  # fmt: skip
    tree = {"class": HOSTILE, "params": 1, "params_towers": None, "modules": [HOSTILE]}
    return diff(facts(llama(), HOSTILE, **strange), facts(gemma4(), HOSTILE + "b"), spelling=True, why=HOSTILE,
                structures=(tree, {"error": HOSTILE}))  # fmt: skip


def pair() -> tuple[ModelFacts, ModelFacts]:
    return load("meta-llama/Llama-3.1-8B"), load("google/gemma-4-31B-it")


def test_html_escapes_everything() -> None:
    for text in (diff_html.render(hostile()), inspect_html.render(inspect(facts(llama(), HOSTILE, notes=(HOSTILE,))))):
        page = Tags(text)
        assert not {"script", "img", "iframe", "link", "object", "a", "b onerror"} & set(page.tags)
        assert not [name for name, _ in page.attributes if name.startswith("on") or name in ("src", "href")]
        assert "<script>alert(1)</script>" in "".join(page.text), "the text itself is shown"
        assert "\x1b" not in text and "\u202e" not in text
        text.encode("utf-8")


def test_html_is_one_file_without_network() -> None:
    text = diff_html.render(diff(*pair()))
    assert not re.search(r"https?://|//[a-z]|url\(|@import|<script", text)
    assert "default-src 'none'" in text and "prefers-color-scheme: dark" in text


def test_the_layer_map_is_drawn_to_scale() -> None:
    text = diff_html.render(diff(*pair()))
    bars = re.findall(r"<svg viewBox=\"0 0 1000 28\".*?</svg>", text)
    assert len(bars) == 2
    cells = [re.findall(r"M([\d.]+) 0h([\d.]+)", bar) for bar in bars]
    assert [len(c) for c in cells] == [32, 60]
    ends = [max(float(x) + float(w) for x, w in c) for c in cells]
    assert ends[0] / ends[1] == pytest.approx(32 / 60, rel=0.01)
    kinds = re.findall(r'<path class="(k\d)" d="([^"]*)"', bars[1])
    assert sum(d.count("M") for k, d in kinds if k == "k0") == 10
    assert sum(d.count("M") for k, d in kinds if k == "k1") == 50


def test_a_thousand_layers_stay_small_in_every_view() -> None:
    deep = diff(facts(llama(1000), "deep"), facts(gemma4(), "wide"))
    assert len(diff_html.render(deep)) < 60_000
    out = console(to_file=True)
    show(deep, out)
    assert "1000 full" in out.file.getvalue()  # type: ignore[attr-defined]


def test_markdown_cells_hold_no_markup() -> None:
    text = diff_markdown.render(hostile())
    outside = "\n".join(line for line in text.splitlines() if not line.startswith("    "))
    assert "<script>" not in outside and "<img" not in outside and "\x1b" not in text and "\n# h" not in text
    text.encode("utf-8")
    head = next(line for line in text.splitlines() if line.startswith("| field"))
    columns = len(re.findall(r"(?<!\\)\|", head))
    body = [line for line in text.splitlines() if line.startswith("| attention.")]
    assert body and all(len(re.findall(r"(?<!\\)\|", line)) == columns for line in body)


def test_the_terminal_obeys_no_value() -> None:
    out = console(to_file=True)
    show(hostile(), out)
    text = out.file.getvalue()  # type: ignore[attr-defined]
    assert "\x1b" not in text and "\u202e" not in text
    assert "[bold]rich[/bold]" in text.replace("\n", ""), "rich markup in a value is text"
    text.encode("utf-8")


def schema(name: str) -> Any:
    jsonschema = pytest.importorskip("jsonschema")
    text = (resources.files("onboard.report") / f"{name}.schema.json").read_text(encoding="utf-8")
    found = json.loads(text)
    jsonschema.Draft202012Validator.check_schema(found)
    return jsonschema.Draft202012Validator(found)


def valid(validator: Any, value: Any) -> None:
    parsed = json.loads(json.dumps(value, allow_nan=False))
    errors = [f"{'/'.join(map(str, e.path))}: {e.message[:200]}" for e in validator.iter_errors(parsed)]
    assert errors == []


def test_diff_json_fits_the_schema_for_the_whole_catalog() -> None:
    validator = schema("diff")
    base = load("meta-llama/Llama-3.1-8B")
    for name in catalog.names():
        valid(validator, diff(base, load(name), spelling=True).to_json())
    valid(validator, hostile().to_json())


def test_inspect_json_fits_the_schema_for_the_whole_catalog() -> None:
    validator = schema("inspect")
    for name in catalog.names():
        valid(validator, inspect(load(name)).to_json())


def test_the_schema_refuses_another_shape() -> None:
    validator = schema("diff")
    good = json.loads(json.dumps(diff(*pair()).to_json()))
    for change in ({"extra": 1}, {"rows": [{}]}, {"summary": {}}):
        assert list(validator.iter_errors({**good, **change}))


def test_every_view_tells_of_a_failed_structure() -> None:
    trees = ({"error": "no transformers here"}, {"error": "refused"})
    found = diff(*pair(), structures=trees)
    assert "no transformers here" in diff_html.render(found) and "refused" in diff_markdown.render(found)
    out = console(to_file=True)
    show(found, out)
    assert "no transformers here" in out.file.getvalue()  # type: ignore[attr-defined]
    assert found.to_json()["a"]["structure"]["error"] == "no transformers here"


def shown(found: Diff) -> str:
    out = console(to_file=True)
    show(found, out)
    return out.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def test_field_names_wrap_between_words() -> None:
    found = diff(*pair(), spelling=True)
    first = [line[:22].rstrip() for line in shown(found).splitlines()]
    for row in found.of_kind("spelling"):
        pieces = [piece for piece in re.split(r"(?<=[._])", row.field) if piece]
        lines, starts = [""], [i for i, line in enumerate(first) if line and row.field.startswith(line)]
        assert any("".join(first[i : i + n]) == row.field for i in starts for n in (1, 2, 3)), row.field
        for piece in pieces:
            lines[-1:] = [lines[-1] + piece] if len(lines[-1] + piece) <= 21 else [lines[-1], piece]
        assert all(line in first for line in lines), lines


def test_keys_that_nothing_read_are_told_once() -> None:
    strange = facts(llama(), "strange", unknown_keys=("foo", "bar"))
    assert inspect(strange).side.warnings == ("not understood: foo, bar",)
    said = facts(llama(), "strange", unknown_keys=("foo", "bar"), warnings=("not understood: text_config.foo",))
    assert inspect(said).side.warnings == ("not understood: text_config.foo", "not understood: bar")
    for text in (shown(diff(strange, strange)), diff_html.render(diff(strange, strange)),
                 diff_markdown.render(diff(strange, strange))):  # fmt: skip
        assert text.count("not understood") == 1


def test_a_window_longer_than_all_positions_is_a_full_layer() -> None:
    for name, layers in (("microsoft/Phi-3.5-mini-instruct", 32), ("microsoft/Phi-4-mini-instruct", 32)):
        side = inspect(load(name)).side
        assert side.layers == ((layers, "full"),) and set(side.kv_bytes_by_kind) == {"full"}
        assert any("never bites" in note for note in side.notes)
    bites = inspect(load("mistralai/Mistral-7B-v0.1")).side
    assert bites.layers == ((32, "sliding"),) and set(bites.kv_bytes_by_kind) == {"sliding"}
    assert not any("never bites" in note for note in bites.notes)


def test_factors_of_a_rope_keep_every_digit() -> None:
    phi = load("microsoft/Phi-3.5-mini-instruct")
    attention = phi.arch.kinds[0].attention
    assert attention and attention.positions.scaling and attention.positions.scaling.factors_long
    found = diff(load("meta-llama/Llama-3.1-8B"), phi).to_json()
    row = next(row for row in found["rows"] if row["field"] == "attention.positions.scaling")
    told = row["b"].partition("factors long ")[2].split(", ")
    factors = attention.positions.scaling.factors_long
    assert [float(value) for value in told[: len(factors)]] == list(factors)
