"""Tests of the parsing and formatting of power, energy and durations.

The module also tests the arithmetic of counters that wrap.
"""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_energy.errors import UsageError
from slurm_energy.quantities import (
    counter_delta,
    format_duration,
    format_scaled,
    parse_watts,
    shown,
)


@pytest.mark.parametrize(
    ("text", "watts"), [("200", 200), ("200W", 200), ("1.6kW", 1600), ("0.5", 0.5), ("2MW", 2e6)]
)
def test_watts_are_read_with_and_without_unit(text, watts):
    assert parse_watts(text) == watts


@pytest.mark.parametrize(
    "text",
    [
        "",
        "15Wh",
        "-5",
        "1e400",
        "1e3",
        "nan",
        "inf",
        "0",
        "0.0W",
        " 200",
        "200 W",
        "1.W",
        ".5",
        "200w",
        "٢٠٠",
        "9" * 10000,
        "200W\n",
        "200\x00",
    ],
)
def test_anything_else_is_refused_in_one_printable_line(text):
    with pytest.raises(UsageError) as caught:
        parse_watts(text, "--energy-cap")
    message = str(caught.value)
    assert message.startswith("--energy-cap: '")
    assert message.isprintable()
    assert len(message) < 150


@given(st.text(max_size=30))
def test_the_parser_returns_a_finite_number_or_refuse(text):
    try:
        value = parse_watts(text)
    except UsageError:
        return
    assert math.isfinite(value) and value >= 0


@given(st.text())
def test_shown_text_fits_one_line(text):
    assert len(shown(text)) <= 40
    assert shown(text).isprintable()


@given(
    start=st.integers(0, 2**32 - 1),
    steps=st.lists(st.integers(0, 2**32 - 1), max_size=20),
    modulus=st.just(2**32),
)
def test_counter_sum_survives_wraps(start, steps, modulus):
    total, position = 0, start
    for step in steps:
        following = (position + step) % modulus
        total += counter_delta(position, following, modulus)
        position = following
    assert total == sum(steps)


def test_counter_range_must_be_positive():
    with pytest.raises(ValueError, match="positive"):
        counter_delta(0, 1, 0)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""),
        (0, "0"),
        (999, "999"),
        (101630, "101.63K"),
        (2.5e6, "2.5M"),
        (1e15, "1P"),
        (1e19, "10000P"),
    ],
)
def test_energy_is_scaled_as_sacct_does(value, text):
    assert format_scaled(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, ""), (0, "00:00:00"), (59.6, "00:01:00"), (3661, "01:01:01"), (90061, "1-01:01:01")],
)
def test_durations_look_like_slurms(seconds, text):
    assert format_duration(seconds) == text
