"""Tests of the detection of a period in a job's power.

The test data are series of programs whose period is known, and series without a valid period.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from power_series import FITTED, HELD_OUT, sample

from slurm_energy.tuning.progress.period import detect_period
from slurm_energy.tuning.progress.tracker import ProgressTracker
from slurm_energy.tuning.progress_window import ProgressSource

FAMILIES = {**FITTED, **HELD_OUT}


def irregular_times(seconds: float, interval_s: float = 0.1, seed: int = 5) -> np.ndarray:
    rng = np.random.default_rng(seed)
    intervals = interval_s * (1 + rng.uniform(-0.2, 0.2, int(seconds / interval_s)))
    return np.cumsum(intervals)


def steps(times: np.ndarray, period_s: float, duty: float = 0.7) -> np.ndarray:
    return 200 + 100 * ((times / period_s) % 1 < duty)


@pytest.mark.parametrize("period_s", [0.63, 1.0, 1.37, 2.5, 5.2, 7.0])
def test_steps_are_found(period_s: float) -> None:
    times = irregular_times(60)
    found = detect_period(list(times), list(steps(times, period_s))).period
    assert found is not None
    assert found.seconds == pytest.approx(period_s, rel=0.01)
    assert found.relative_error < 0.02
    assert found.count == pytest.approx(60 / period_s, rel=0.03)


@pytest.mark.parametrize("period_s", [0.09, 0.11, 0.12, 0.21, 0.9, 1.1])
def test_steps_shorter_than_the_sampling_interval_are_refused(period_s: float) -> None:
    interval_s = 0.1 if period_s < 0.5 else 1.0
    times = irregular_times(600 * interval_s, interval_s)
    assert detect_period(list(times), list(steps(times, period_s))).period is None


@pytest.mark.parametrize("interval_s", [0.1, 1.0])
def test_regular_sampling_is_refused_with_the_reason(interval_s: float) -> None:
    times = interval_s * np.arange(300)
    found = detect_period(list(times), list(steps(times, 9.0 * interval_s)))
    assert found.period is None
    assert "regular sampling" in found.reason


@pytest.mark.parametrize(
    "values",
    [[250.0] * 200, [math.nan] * 200, [250.0, math.nan] * 100, [1e308, -1e308] * 100, [0.0] * 200],
)
def test_useless_values_have_no_period(values: list[float]) -> None:
    assert detect_period(list(irregular_times(20)), values).period is None


def test_too_few_samples_and_periods_are_refused() -> None:
    times = irregular_times(60)
    assert detect_period([], []).period is None
    assert detect_period(list(times[:40]), list(steps(times, 0.5)[:40])).period is None
    assert detect_period(list(times), list(steps(times, 17.0))).period is None


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(0.001, 10), st.floats() | st.integers(0, 3)), max_size=120))
def test_no_series_raises(pairs: list[tuple[float, float]]) -> None:
    times = list(np.cumsum([pair[0] for pair in pairs]))
    found = detect_period(times, [float(pair[1]) for pair in pairs])
    assert found.period is None or math.isfinite(found.period.seconds)


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_no_random_program_has_a_wrong_period(name: str) -> None:
    """The period detection finds no wrong period in the power series of random programs.

    This is a small part of benchmarks/period.py.
    """
    for index in range(6):
        series = sample(np.random.default_rng([11, index]), FAMILIES[name], 10.0, regular=False)
        found = detect_period(series.times_s, series.watts).period
        if found is not None:
            assert series.error_of(found.seconds) < 0.05, index


@pytest.mark.parametrize(
    ("family", "key", "hertz", "reason"),
    [
        ("micro_batches", (9001, 20), 10.0, "the period is a part of a longer step"),
        ("evaluation", (9001, 23), 1.0, "the period varies"),
        ("two_loops", (120, 3), 10.0, "another loop is periodic too"),
        ("two_kinds_of_step", (122, 0), 1.0, "another loop is periodic too"),
        ("checkpoints", (121, 27), 10.0, "too few periods of short pauses"),
    ],
)
def test_programs_that_once_had_a_wrong_period_have_none(
    family: str, key: tuple[int, int], hertz: float, reason: str
) -> None:
    """The period detection finds no period in programs for which it once found a wrong period.

    The seeds and indices of these programs are those of benchmarks/period.py.
    """
    rng = np.random.default_rng([*key, int.from_bytes(family.encode()[:7], "little"), int(hertz)])
    series = sample(rng, FAMILIES[family], hertz, regular=False)
    assert detect_period(series.times_s, series.watts).reason == reason


def test_the_common_cycle_of_two_loops_is_no_period() -> None:
    times = irregular_times(120)
    both = steps(times, 1.4, 0.4) + steps(times, 2.1, 0.6)
    assert detect_period(list(times), list(both)).reason == "only parts of the period are periodic"


def follow(tracker: ProgressTracker, start_s: float, period_s: float) -> None:
    for time_s in irregular_times(40.0, seed=int(start_s)):
        now = start_s + float(time_s)
        tracker.sample(now, 200.0 + 100.0 * ((now / period_s) % 1 < 0.7))


def test_the_tracker_counts_periods_per_second() -> None:
    tracker = ProgressTracker()
    follow(tracker, 0.0, 1.5)
    follow(tracker, 50.0, 1.8)
    first, second = tracker.rate(0.0, 41.0), tracker.rate(50.0, 91.0)
    assert first is not None
    assert second is not None
    assert first.source is second.source is ProgressSource.PERIOD
    assert first.units_per_s / second.units_per_s == pytest.approx(1.2, rel=0.02)
    assert tracker.unit_s == pytest.approx(1.5, rel=0.02)


def test_another_loop_needs_two_windows() -> None:
    """The tracker accepts a new period of a program only after repeated agreeing measurements.

    In the test, the period of the program changes from 1.5 s to 3.3 s, which is about twice as long.
    Measurements in the first and in the second window after the change give no rate of progress, because
    such a window may show only a harmonic. A longer measurement that starts at the same time as an
    earlier one does not count as another window. The measurement in the third window gives the rate.
    """
    tracker = ProgressTracker()
    follow(tracker, 0.0, 1.5)
    assert tracker.rate(0.0, 41.0) is not None
    for window in range(3):
        follow(tracker, 100.0 * (window + 1), 3.3)
    assert tracker.rate(100.0, 135.0) is None
    assert tracker.rate(100.0, 141.0) is None
    assert tracker.rate(200.0, 241.0) is None
    third = tracker.rate(300.0, 341.0)
    assert third is not None
    assert third.units_per_s == pytest.approx(1 / 3.3, rel=0.02)


def test_without_numpy_there_is_no_period(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [
        module for module in sys.modules if module.startswith("slurm_energy.tuning.progress.period")
    ]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "numpy", None)
    tracker = ProgressTracker()
    follow(tracker, 0.0, 1.5)
    assert tracker.rate(0.0, 41.0) is None


def test_utilisation_with_another_period_is_distrusted() -> None:
    tracker = ProgressTracker()
    for time_s in irregular_times(40.0):
        now = float(time_s)
        tracker.sample(now, 200.0 + 100.0 * (now / 1.5 % 1 < 0.7), 0.5 + 0.5 * (now / 1.1 % 1 < 0.5))
    assert tracker.rate(0.0, 41.0) is None
