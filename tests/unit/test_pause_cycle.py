"""Tests of the function that detects whether a program pauses regularly.

The tests also check that speeds are measured over whole cycles of work and pause.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples

from slurm_energy.tuning.progress.pause_cycle import may_become_cycle, pause_cycle
from slurm_energy.tuning.progress.tracker import ProgressTracker


def reports(
    steps: int,
    every: int | None,
    pause_s: float = 3.0,
    step_s: float = 1.0,
    variation: float = 0.0,
    seed: int = 1,
) -> list[tuple[float, float]]:
    """Return the progress reports of a simulated program.

    The program pauses after every `every` steps. Each report is a pair: time in seconds, and number of
    completed steps.
    """
    numbers, now, made = random.Random(seed), 0.0, [(0.0, 0.0)]
    for step in range(1, steps + 1):
        now += step_s * max(0.2, 1 + numbers.gauss(0, variation))
        if every is not None and step > 1 and (step - 1) % every == 0:
            now += pause_s
        made.append((now, float(step)))
    return made


def tracker_with(series: list[tuple[float, float]]) -> ProgressTracker:
    tracker = ProgressTracker()
    for time_s, units in series:
        tracker.report(units, time_s)
    return tracker


@given(
    st.integers(5, 40),
    st.floats(1.5, 8.0),
    st.floats(0.2, 1.2),
    st.floats(0.0, 0.08),
    st.integers(0, 100),
)
@examples(40)
def test_regular_pauses_have_a_cycle(
    every: int, pause_steps: float, step_s: float, variation: float, seed: int
) -> None:
    cycle = pause_cycle(reports(5 * every, every, pause_steps * step_s, step_s, variation, seed))
    assert cycle is not None
    assert cycle.units == every
    assert cycle.seconds == pytest.approx((every + pause_steps) * step_s, rel=0.15)
    assert cycle.pause_s == pytest.approx(pause_steps * step_s, abs=0.3 * step_s + 0.1 * pause_steps * step_s)


@given(st.floats(0.0, 0.1), st.integers(0, 1000))
@examples(40)
def test_steady_steps_have_no_cycle(variation: float, seed: int) -> None:
    assert pause_cycle(reports(300, None, variation=variation, seed=seed)) is None


def test_rare_pauses_and_pauses_that_ended_have_no_cycle() -> None:
    assert pause_cycle(reports(800, 180)) is None, "a measurement would take minutes"
    series = reports(80, 20)
    end_s, units = series[-1]
    assert pause_cycle(series) is not None
    later = [(end_s + step, units + step) for step in range(1, 30)]
    assert pause_cycle(series + later) is None


def test_a_program_that_becomes_slower_does_not_pause() -> None:
    series = reports(40, None)
    end_s, units = series[-1]
    assert pause_cycle(series + [(end_s + 3 * step, units + step) for step in range(1, 40)]) is None


@pytest.mark.parametrize("start_s", [70.5, 75.5, 80.5, 84.5])
def test_the_speed_of_whole_cycles_does_not_depend_on_the_place_of_the_window(start_s: float) -> None:
    tracker = tracker_with(reports(200, 20))
    assert tracker.rate(60.0, 110.0) is not None
    assert tracker.cycle_s == pytest.approx(23.0)
    rate = tracker.rate(start_s, start_s + 26.0)
    assert rate is not None and rate.spans_cycles
    assert rate.units_per_s == pytest.approx(20 / 23)
    assert tracker.rate(start_s, start_s + 15.0) is None


def test_a_time_within_a_pause_is_known_as_such() -> None:
    tracker = tracker_with(reports(100, 20))
    assert tracker.rate(0.0, 90.0) is not None
    assert tracker.is_paused(22.0)
    assert not tracker.is_paused(30.0)


def test_a_pause_is_no_sudden_slowdown_but_slower_steps_are() -> None:
    series = reports(101, 20)
    tracker = tracker_with(series[:-1])
    assert tracker.rate(0.0, series[-2][0]) is not None
    tracker.report(series[-1][1], series[-1][0])
    assert tracker.sudden_slowdown(0.0, series[-1][0] + 2.0) is None
    tracker.report(102.0, series[-1][0] + 2.5)
    slow = tracker.sudden_slowdown(0.0, series[-1][0] + 5.5)
    assert slow is not None and slow.spans_cycles
    assert slow.units_per_s < 0.6


def test_a_second_pause_is_awaited_for_as_long_as_the_first_took() -> None:
    assert not may_become_cycle(reports(20, 20)), "no pause yet"
    assert may_become_cycle(reports(23, 20))
    assert may_become_cycle(reports(45, 20))
    assert not may_become_cycle(reports(70, 20)), "three pauses are a cycle"
    series = reports(23, 20)
    end_s, units = series[-1]
    later = [(end_s + step, units + step) for step in range(1, 30)]
    assert not may_become_cycle(series + later), "a single pause"
    assert not may_become_cycle(reports(203, 200)), "a cycle would be too long"
