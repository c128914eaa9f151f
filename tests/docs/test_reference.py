"""The generated pages are what the code generates now."""

from __future__ import annotations

from pathlib import Path

import pytest

from onboard.report import reference

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("name", sorted(reference.pages()))
def test_page_is_up_to_date(name):
    written = (ROOT / reference.FOLDER / name).read_text()
    assert written == reference.pages()[name], "run `make docs` and commit the result"


def test_no_page_is_left_over():
    assert {p.name for p in (ROOT / reference.FOLDER).iterdir()} == set(reference.pages())


def test_pages_do_not_depend_on_the_terminal(monkeypatch):
    before = reference.cli_page()
    monkeypatch.setenv("COLUMNS", "40")
    assert reference.cli_page() == before


def test_cells_with_bars_stay_one_cell():
    assert reference.table(("a",), [("x | y",)]).splitlines()[-1] == "| x \\| y |"
