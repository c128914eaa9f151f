"""The views of a validation: parsed, escaped, linked, small."""

from __future__ import annotations

import math
import re
from html.parser import HTMLParser

import pytest

from onboard.report import accuracy_html, accuracy_markdown, accuracy_svg, accuracy_text
from onboard.report.terminal import console
from tests.support.accuracy import NASTY, failing, passing, prompt
from vllm_neuron.accuracy.results import EXPLAINED, LevelResult, Report

VOID = {"meta", "br"}


class Page(HTMLParser):
    """Tags in balance, ids, links, and what the page would load."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.loads: list[str] = []
        self.tags: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        values = dict(attrs)
        if "id" in values:
            self.ids.append(values["id"])
        if "href" in values:
            self.links.append(values["href"])
        self.loads += [values[name] for name in ("src", "srcset", "data", "action", "xlink:href") if name in values]
        self.loads += [name for name in values if name.startswith("on")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag):
        assert self.open and self.open[-1] == tag, (tag, self.open[-5:])
        self.open.pop()

    def handle_data(self, data):
        self.text += data


@pytest.mark.parametrize("make", [passing, failing])
def test_html_is_one_well_formed_file_that_loads_nothing(make):
    text = accuracy_html.render(make())
    page = Page(text)
    assert page.loads == [] and "script" not in page.tags and "url(" not in text
    assert all(link.startswith("#") for link in page.links) and "http://" not in text.replace("http://evil", "")
    assert len(page.ids) == len(set(page.ids))
    assert {link[1:] for link in page.links} <= set(page.ids)
    assert "default-src 'none'" in text


def test_html_escapes_every_name():
    page = Page(accuracy_html.render(failing(NASTY)))
    assert page.text.count("<script src=") > 8 and "\x1b" not in page.text and "\u202e" not in page.text


def test_html_leads_from_the_summary_to_the_failing_position():
    page = Page(accuracy_html.render(failing()))
    assert {"#level-2", "#prompt-0", "#prompt-0-token-37", "#prompt-0-layer-1-kv"} <= set(page.links)
    assert "refused: prompt ids differ at 0" in page.text and "asked for" in page.text
    assert "partial" in page.text and "layer 1, attn (decode)" in page.text


def test_html_of_many_long_prompts_stays_under_five_megabytes():
    prompts = tuple(prompt(f"p{i}", 2048, depth=32) for i in range(10))
    report = Report(EXPLAINED, "m", "p", "t", "r", (LevelResult(EXPLAINED, 2, prompts=prompts),))
    assert len(accuracy_html.render(report).encode()) < 5_000_000


def test_markdown_holds_every_verdict_and_no_markup_of_names():
    text = accuracy_markdown.render(failing(NASTY))
    assert "<script" not in text and "&lt;script" in text and "\x1b" not in text
    for words in ("Level 3, modules: fail", "refused: prompt ids differ at 0", "layer 1, attn"):
        assert words in text
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert all(line.endswith("|") for line in rows)


def test_text_ends_with_the_verdict(capsys):
    made = console(to_file=True)
    accuracy_text.show(failing(), made)
    lines = made.file.getvalue().splitlines()
    assert "tiny: fail: at layer 1, attn (decode)" in "".join(lines[-6:])
    assert "\x1b" not in made.file.getvalue()
    made = console(to_file=True)
    accuracy_text.show(passing(), made)
    assert f"tiny: {EXPLAINED}" in made.file.getvalue() and "not covered: window" in made.file.getvalue()


def test_a_report_survives_json_and_renders_the_same():
    report = failing()
    again = Report.from_json(report.to_json())
    assert accuracy_html.render(again) == accuracy_html.render(report)


@pytest.mark.parametrize(
    ("ratio", "expected"),
    [(0.0, "0"), (1.0, "1"), (1.01, "2"), (5.0, "5"), (5.1, "6"), (math.inf, "6"), (math.nan, "none")],
)
def test_steps_of_the_heat_map(ratio, expected):
    assert accuracy_svg.step(ratio) == expected


def test_bins_keep_the_largest():
    assert accuracy_svg.binned([1.0, 5.0, 2.0, math.nan, math.nan, math.nan], 3)[:2] == [5.0, 2.0]
    assert math.isnan(accuracy_svg.binned([math.nan, math.nan], 1)[0])


def test_a_curve_keeps_to_its_frame_and_leaves_gaps():
    drawn = accuracy_svg.curves(
        [accuracy_svg.Series("a", 0, [1e-30, 1.0, math.nan, 2.0, 0.0])], start=5, label="a < b",
        marks=[accuracy_svg.Mark(3, "there", "x & y", True)],
    )  # fmt: skip
    path = re.search(r'class="line[^"]*" d="([^"]*)"', drawn).group(1)
    numbers = [float(n) for n in re.findall(r"[\d.]+", path)]
    assert (
        path.count("M") == 2 and all(0 <= x <= 960 for x in numbers[::2]) and all(0 <= y <= 220 for y in numbers[1::2])
    )
    assert 'href="#there"' in drawn and "x &amp; y" in drawn and "a &lt; b" in drawn
    assert accuracy_svg.curves([accuracy_svg.Series("a", 0, [0.0, math.nan])], start=0, label="") == ""
