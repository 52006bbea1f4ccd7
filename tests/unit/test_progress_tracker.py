"""Tests of the progress tracker, which measures the speed of a job.

The tests check the units that a job reports, the proxies that replace missing reports after a validation,
and the choice between these sources.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_energy.tuning.progress.estimate import relative_error_of_mean
from slurm_energy.tuning.progress.tracker import ProgressTracker
from slurm_energy.tuning.progress_window import ProgressSource


def report_steps(
    tracker: ProgressTracker,
    steps: int,
    step_s: float,
    start_s: float = 0.0,
    process: str = "",
    done: int = 0,
) -> None:
    for step in range(steps + 1):
        tracker.report(done + step, start_s + step * step_s, process)


def test_a_rate_is_counted_between_the_ends_of_units() -> None:
    tracker = ProgressTracker()
    report_steps(tracker, 100, 0.3)
    rate = tracker.rate(0.1, 29.9)
    assert rate is not None
    assert rate.units_per_s == pytest.approx(1 / 0.3)
    assert rate.source is tracker.source is ProgressSource.REPORTED
    assert 0 < rate.relative_error < 0.01
    assert tracker.unit_s == pytest.approx(0.3)


def test_a_window_without_two_reports_has_no_rate() -> None:
    tracker = ProgressTracker()
    report_steps(tracker, 3, 40.0)
    assert tracker.rate(41.0, 79.0) is None
    assert tracker.rate(0.0, 80.0) is not None
    assert tracker.window_s >= 7 * 40


def test_the_slowest_rank_is_the_speed_of_the_job() -> None:
    tracker = ProgressTracker()
    report_steps(tracker, 100, 0.5, process="rank0")
    report_steps(tracker, 100, 0.6, process="rank1")
    rate = tracker.rate(0.0, 50.0)
    assert rate is not None
    assert rate.units_per_s == pytest.approx(1 / 0.6)


def test_an_ended_program_with_long_units_does_not_lengthen_windows() -> None:
    tracker = ProgressTracker()
    report_steps(tracker, 9, 60.0, process="preparation")
    assert tracker.unit_s == pytest.approx(60.0)
    report_steps(tracker, 200, 0.5, start_s=600.0, process="training")
    assert tracker.unit_s == pytest.approx(60.0)  # the next report may follow
    report_steps(tracker, 600, 0.5, start_s=700.0, process="training", done=200)
    assert tracker.unit_s == pytest.approx(0.5)
    assert tracker.window_s < 10.0


def test_ended_processes_make_room_for_further_processes() -> None:
    tracker = ProgressTracker()
    for number in range(1030):
        report_steps(tracker, 3, 1.0, start_s=10.0 * number, process=f"step{number}")
    rate = tracker.rate(10_290.0, 10_300.0)
    assert rate is not None
    assert rate.units_per_s == pytest.approx(1.0)


def test_an_ended_rank_does_not_count() -> None:
    tracker = ProgressTracker()
    report_steps(tracker, 4, 1.0, process="rank0")
    report_steps(tracker, 60, 1.0, process="rank1")
    rate = tracker.rate(20.0, 60.0)
    assert rate is not None
    assert rate.units_per_s == pytest.approx(1.0)


def test_a_total_that_decreases_starts_a_new_series() -> None:
    tracker = ProgressTracker()
    report_steps(tracker, 10, 1.0, done=1000)
    report_steps(tracker, 10, 2.0, start_s=11.0)
    rate = tracker.rate(0.0, 40.0)
    assert rate is not None
    assert rate.units_per_s == pytest.approx(0.5)


def test_a_checkpoint_is_a_pause() -> None:
    tracker = ProgressTracker()
    report_steps(tracker, 20, 1.0)
    report_steps(tracker, 20, 1.0, start_s=30.0, done=21)
    rate = tracker.rate(0.0, 50.0)
    assert rate is not None
    assert rate.units_per_s == pytest.approx(1.0)
    assert rate.paused_share == pytest.approx(10 / 50)


def test_a_slower_half_is_no_pause() -> None:
    tracker = ProgressTracker()
    report_steps(tracker, 20, 1.0)
    report_steps(tracker, 5, 4.0, start_s=24.0, done=21)
    rate = tracker.rate(0.0, 44.0)
    assert rate is not None
    assert rate.paused_share == 0
    assert rate.units_per_s < 0.7


@pytest.mark.parametrize("variation", [0.01, 0.03, 0.1])
@pytest.mark.parametrize("correlation", [0.0, 0.5])
def test_the_standard_error_is_honest(variation: float, correlation: float) -> None:
    """The tracker does not report too small a standard error of the speed.

    In 400 random series of steps, the mean squared error of the speed is at most 1.5 times the mean
    reported variance.
    """
    numbers = random.Random(7)
    squares = errors = 0.0
    for _ in range(400):
        tracker, now, deviation = ProgressTracker(), 0.0, 0.0
        for step in range(60):
            tracker.report(step, now)
            noise = numbers.gauss(0, 1) * (1 - correlation**2) ** 0.5
            deviation = correlation * deviation + noise
            now += max(0.1, 1 + variation * deviation)
        rate = tracker.rate(0.0, now)
        assert rate is not None
        squares += (rate.units_per_s - 1.0) ** 2
        errors += rate.relative_error**2
    assert squares < 1.5 * errors


@given(st.lists(st.tuples(st.floats(), st.floats(), st.sampled_from(("a", "b")))))
def test_no_report_raises_or_gives_a_negative_rate(reports: list[tuple[float, float, str]]) -> None:
    tracker = ProgressTracker()
    for units, time_s, process in reports:
        tracker.report(units, time_s, process)
    rate = tracker.rate(-1e9, 1e9)
    assert rate is None or (rate.units_per_s > 0 and rate.relative_error >= 0)


@given(st.lists(st.floats(min_value=1e-3, max_value=1e3), min_size=1, max_size=50))
def test_the_error_of_a_mean_is_positive_and_finite(values: list[float]) -> None:
    assert 0 < relative_error_of_mean(values) < 1e3


def sampled(
    tracker: ProgressTracker, start_s: float, speed: float, instructions: float, **activity: float
) -> None:
    """Pass samples of 20 s at 2 Hz to the progress tracker of a simulated job.

    The job runs at the relative `speed`.
    """
    for index in range(41):
        now = start_s + index / 2
        tracker.sample(
            now, 300.0, 1.0, instructions * (start_s + index / 2), {k: v * speed for k, v in activity.items()}
        )


def test_activity_counts_without_reports() -> None:
    tracker = ProgressTracker()
    sampled(tracker, 0.0, 1.0, 1e9, compute=700.0, memory=3e11)
    sampled(tracker, 30.0, 0.8, 1e9, compute=700.0, memory=3e11)
    first, second = tracker.rate(0.0, 20.0), tracker.rate(30.0, 50.0)
    assert first is not None and second is not None
    assert first.source is second.source is ProgressSource.ACTIVITY
    assert second.units_per_s / first.units_per_s == pytest.approx(0.8)


def test_long_units_are_awaited_before_another_signal_is_used() -> None:
    tracker = ProgressTracker()
    sampled(tracker, 0.0, 1.0, 1e9, compute=700.0)
    tracker.report(1, 15.0)
    assert tracker.rate(0.0, 20.0) is None and tracker.awaits_report(20.0)
    tracker.report(2, 30.0)
    assert tracker.rate(0.0, 31.0).source is ProgressSource.REPORTED  # type: ignore[union-attr]


def test_a_single_report_does_not_keep_other_signals_waiting_for_long() -> None:
    tracker = ProgressTracker()
    tracker.report(1, 0.0)
    sampled(tracker, 60.0, 1.0, 1e9, compute=700.0)
    assert tracker.rate(60.0, 80.0).source is ProgressSource.ACTIVITY  # type: ignore[union-attr]


def test_kinds_of_work_that_disagree_are_not_trusted() -> None:
    tracker = ProgressTracker()
    sampled(tracker, 0.0, 1.0, 1e9, compute=700.0, memory=3e11)
    sampled(tracker, 30.0, 1.0, 1e9, compute=600.0, memory=3e11)
    assert tracker.rate(0.0, 20.0) is not None
    assert tracker.rate(30.0, 50.0) is None


def test_instructions_alone_are_never_progress() -> None:
    tracker = ProgressTracker()
    for start_s in (0.0, 30.0, 60.0, 90.0):
        sampled(tracker, start_s, 1.0, 1e9)
        assert tracker.rate(start_s, start_s + 20) is None
    assert tracker.source is ProgressSource.NONE


def run_windows(tracker: ProgressTracker, instructions_per_unit: list[float], speeds: list[float]) -> None:
    counted = units = 0.0
    for window, (speed, per_unit) in enumerate(zip(speeds, instructions_per_unit, strict=True)):
        for index in range(41):
            now = window * 30 + index / 2
            tracker.sample(now, 300.0, None, counted)
            tracker.report(units, now)
            units += speed
            counted += speed * per_unit
        tracker.rate(window * 30, window * 30 + 20)


@pytest.mark.parametrize(("wasted", "trusted"), [(1.0, True), (1.3, False)])
def test_instructions_count_after_validation_only(wasted: float, trusted: bool) -> None:
    tracker = ProgressTracker()
    run_windows(tracker, [1e9, 1e9, 1e9 * wasted, 1e9 * wasted], [10, 10, 8, 8])
    for start_s in (200.0, 230.0, 260.0, 290.0):  # the reports end
        sampled(tracker, start_s, 1.0, 1e10)
        rate = tracker.rate(start_s, start_s + 20)
    assert (rate is not None) is trusted
    assert rate is None or rate.source is ProgressSource.INSTRUCTIONS


def test_the_source_does_not_alternate() -> None:
    """After a job has reported progress, a measurement window without reports has no progress rate.

    The tracker does not use a proxy, such as counted instructions, for this window, because the proxy would
    have another unit.
    """
    tracker = ProgressTracker()
    report_steps(tracker, 20, 1.0)
    sampled(tracker, 0.0, 1.0, 1e9, compute=700.0)
    sampled(tracker, 30.0, 1.0, 1e9, compute=700.0)
    assert tracker.rate(0.0, 20.0).source is ProgressSource.REPORTED  # type: ignore[union-attr]
    assert tracker.rate(30.0, 50.0) is None
    report_steps(tracker, 20, 1.0, start_s=60.0, done=21)
    assert tracker.rate(60.0, 80.0).source is ProgressSource.REPORTED  # type: ignore[union-attr]


def slowing_tracker(lengths: list[float]) -> tuple[ProgressTracker, float]:
    """Return a progress tracker with one report per step, and the time of the last report.

    Args:
        lengths: seconds of each step.
    """
    tracker, now = ProgressTracker(), 0.0
    tracker.report(0, now)
    for count, length in enumerate(lengths, 1):
        now += length
        tracker.report(count, now)
    tracker.rate(0.0, now)
    return tracker, now


def test_two_slow_steps_are_a_slowdown() -> None:
    tracker, now = slowing_tracker([1.0, 1.02, 0.98, 1.01, 1.0, 1.3, 1.3])
    slow = tracker.sudden_slowdown(0.0, now)
    assert slow is not None
    assert slow.units_per_s == pytest.approx(1 / 1.3)


def test_a_slow_step_and_an_open_one_are_a_slowdown() -> None:
    tracker, now = slowing_tracker([1.0, 1.02, 0.98, 1.01, 1.0, 1.3])
    assert tracker.sudden_slowdown(0.0, now) is None
    assert tracker.sudden_slowdown(0.0, now + 1.05) is None
    assert tracker.sudden_slowdown(0.0, now + 1.25) is not None


@pytest.mark.parametrize(
    "lengths",
    [
        [1.0, 1.0, 1.0, 1.0, 5.0, 1.0],  # a pause
        [1.0, 1.2, 0.8, 1.1, 0.9, 1.25, 1.2],  # steps that vary
        [2.0, 2.0, 2.0, 1.0, 1.0],  # faster
        [1.0, 1.3, 1.3],  # too few steps to know the usual length
    ],
)
def test_other_changes_are_no_slowdown(lengths: list[float]) -> None:
    tracker, now = slowing_tracker(lengths)
    assert tracker.sudden_slowdown(0.0, now) is None


def test_a_slowdown_counts_from_the_last_change_of_a_setting() -> None:
    tracker, now = slowing_tracker([1.0, 1.0, 1.0, 1.0, 1.3, 1.3])
    assert tracker.sudden_slowdown(0.0, now) is not None
    assert tracker.sudden_slowdown(4.0, now) is None
