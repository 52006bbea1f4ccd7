"""Tests that user-chosen text is harmless in terminals and in files for spreadsheets.

Control characters and formulas in the text are escaped.
"""

from __future__ import annotations

import csv
import io
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_energy.profiling import summary
from slurm_energy.safe_text import display_width, escape_controls, escape_csv

ESCAPES = "\x1b[2J\x1b]0;title\x07\x9b31m\u202e\r\n\x08"


def test_no_character_acts_on_a_terminal() -> None:
    assert escape_controls(ESCAPES) == r"\x1b[2J\x1b]0;title\x07\x9b31m\u202e\r\n\x08"
    assert escape_controls("train-résumé 東京 +1") == "train-résumé 東京 +1"
    assert escape_controls("\ud800") == r"\ud800"


@given(st.text())
def test_printable_text_stays_as_it_is(text: str) -> None:
    assert escape_controls(text).isprintable()
    assert escape_controls(escape_controls(text)) == escape_controls(text)
    if text.isprintable():
        assert escape_controls(text) == text


@pytest.mark.parametrize(
    ("text", "columns"), [("", 0), ("abc", 3), ("東京", 4), ("e\u0301", 1), ("résumé", 6)]
)
def test_the_columns_that_a_terminal_uses(text: str, columns: int) -> None:
    assert display_width(text) == columns


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("=cmd|' /C calc'!A0", "'=cmd|' /C calc'!A0"),
        ("+1", "'+1"),
        ("-1+1", "'-1+1"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("\t=1", "'\t=1"),
        ("\n=1", "'\n=1"),
        ("  =1", "'  =1"),
        ("\uff1d1", "'\uff1d1"),
        ("train", "train"),
        (-1.5, -1.5),
        (None, None),
    ],
)
def test_a_spreadsheet_takes_no_text_for_a_formula(value: Any, expected: Any) -> None:
    assert escape_csv(value) == expected


def test_the_csv_of_sections_has_no_formula() -> None:
    line = {
        "path": ["=1+1"],
        "job_id": 1,
        "node": "n1",
        "rank": 0,
        "pid": 7,
        "start": 0.0,
        "seconds": 1.0,
        "energy_joules": {"cpu": 3.0},
        "total_joules": None,
    }
    (row,) = csv.DictReader(io.StringIO(summary.to_csv([line])))
    assert (row["section"], row["joules.cpu"], row["total_joules"]) == ("'=1+1", "3.0", "")
