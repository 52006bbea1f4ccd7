"""Tests of the statistics of training steps.

The tests check that sums are exact, that outliers are found by their definition, and that the use of
memory is bounded.
"""

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples

from slurm_energy.diagnosis.json_codec import MAX_PHASES, rank_from_json, rank_to_json
from slurm_energy.diagnosis.steps import RankSteps
from slurm_energy.profiling.step_recorder import fitting_json
from slurm_energy.profiling.step_statistics import GPU, StepStatistics, TimedPhase, phase_name

MS = 1_000_000
NAN = math.nan


def result(statistics_: StepStatistics) -> RankSteps:
    return statistics_.result(node="n1", rank=3, gpu=0, pid=7, hints={"batch_size": 8})


def steps_of(durations_ms: list[int], **options: float) -> StepStatistics:
    collected, now = StepStatistics(0), 0
    for duration in durations_ms:
        collected.add(TimedPhase("step", now, now + duration * MS, options.get("samples", NAN), 1))
        now += duration * MS
    return collected


def expected_outliers(durations: list[int]) -> list[int]:
    """Return the indexes of outliers among durations, computed directly from the definition.

    The tests compare this simple computation with the product's faster one.
    """
    window: list[float] = []
    outliers = []
    for index, duration in enumerate(durations):
        entry = float(duration)
        if len(window) >= 20:
            limit = statistics.fmean(window) + 3 * statistics.pstdev(window)
            if duration > limit + 1e-6:
                outliers.append(index)
                entry = limit
        window = [*window, entry][-50:]
    return outliers


@examples(25)
@given(st.lists(st.integers(90, 110) | st.integers(100, 400), min_size=15, max_size=120))
def test_outliers_are_those_of_the_definition(durations: list[int]) -> None:
    found = result(steps_of(durations))
    expected = expected_outliers(durations)
    assert found.outlier_count == len(expected)
    starts = [sum(durations[:index]) / 1000 for index in expected]
    if len(expected) <= 32:
        assert [outlier.at_s for outlier in found.outliers] == pytest.approx(starts)


def test_a_lasting_change_stops_being_an_outlier() -> None:
    found = result(steps_of([10, 11] * 50 + [20, 21] * 100))
    assert 0 < found.outlier_count < 50


def test_only_the_largest_outliers_are_kept_in_order_of_time() -> None:
    durations = ([100, 101] * 30 + [200]) * 40 + ([100, 101] * 30 + [900])
    found = result(steps_of(durations))
    assert found.outlier_count == 41
    assert len(found.outliers) == 32
    assert found.outliers[-1].duration_s == 0.9
    assert [o.at_s for o in found.outliers] == sorted(o.at_s for o in found.outliers)
    assert found.outlier_excess_s == pytest.approx(40 * 0.1 + 0.8, abs=0.1)


def test_the_phase_that_explains_an_outlier_is_named() -> None:
    collected, now = StepStatistics(0), 0
    for number in range(60):
        data = 500 if number == 40 else 5
        forward = 500 if number == 50 else 90
        end = now + (data + forward) * MS
        collected.add(TimedPhase("data", now, now + data * MS, NAN, 1))
        collected.add(TimedPhase("forward", now + data * MS, end, NAN, 1))
        collected.add(TimedPhase("step", now, end + number % 2 * MS, NAN, 1))
        now = end + number % 2 * MS
    assert [outlier.phase for outlier in result(collected).outliers] == ["data", "forward"]


def test_checkpoints_and_evaluations_inside_a_step_do_not_lengthen_it() -> None:
    collected = StepStatistics(0)
    collected.add(TimedPhase("checkpoint", 20 * MS, 70 * MS, NAN, 1))
    collected.add(TimedPhase("evaluation", 70 * MS, 80 * MS, NAN, 1))
    collected.add(TimedPhase("checkpoint", 0, 100 * MS, NAN, 2))  # in the background
    collected.add(TimedPhase("step", 10 * MS, 100 * MS, NAN, 1))
    collected.add(TimedPhase("checkpoint", 100 * MS, 150 * MS, NAN, 1))  # between steps
    collected.add(TimedPhase("step", 150 * MS, 180 * MS, NAN, 1))
    found = result(collected)
    assert found.phases["step"].sum_s == pytest.approx(0.03 + 0.03)
    assert found.phases["checkpoint"].count == 3


def test_a_timed_step_stands_for_those_before_it() -> None:
    collected = StepStatistics(0)
    collected.add(TimedPhase("forward", 0, 4 * MS, NAN, 1, 8))
    collected.add(TimedPhase("forward", 0, 6 * MS, NAN, 1, 2))
    forward = result(collected).phases["forward"]
    assert (forward.count, forward.sum_s) == (10, pytest.approx(0.044))
    assert forward.sum_squares_s2 == pytest.approx(8 * 0.004**2 + 2 * 0.006**2)
    assert sorted(forward.histogram.values()) == [2, 8]


def test_samples_are_added_up_and_unknown_ones_stay_unknown() -> None:
    assert result(steps_of([1, 1, 1], samples=4)).samples == 12
    assert result(steps_of([1, 1, 1])).samples is None


@examples(25)
@given(st.lists(st.integers(1, 40_000), min_size=1, max_size=400))
def test_intervals_hold_all_steps_in_at_most_720(durations: list[int]) -> None:
    collected, now = StepStatistics(5_000 * MS), 0
    for duration in durations:
        collected.add(TimedPhase("data", now, now + 1 * MS, NAN, 1))
        collected.add(TimedPhase("step", now, now + duration * MS, NAN, 1))
        now += duration * MS
    intervals = result(collected).intervals
    assert intervals is not None
    assert len(intervals.steps) == len(intervals.data_seconds) <= 720
    assert intervals.start_s == 5
    assert sum(intervals.steps) == len(durations)
    assert sum(intervals.step_seconds) == pytest.approx(sum(durations) / 1000)
    assert sum(intervals.data_seconds) == pytest.approx(len(durations) / 1000)
    assert intervals.interval_s * len(intervals.steps) < 2 * max(720, now / 1e9) + 1


def test_names_are_bounded_and_standard_ones_always_have_room() -> None:
    collected = StepStatistics(0)
    for number in range(200):
        collected.add(TimedPhase(f"mine {number}", 0, MS, NAN, 1))
    for name in ("data", "copy", "forward", "backward", "optimizer", "communication", "checkpoint"):
        collected.add(TimedPhase(name, 0, MS, NAN, 1))
    collected.add(TimedPhase("evaluation", 0, MS, NAN, GPU))
    collected.add(TimedPhase("step", 0, MS, NAN, 1))
    phases = result(collected).phases
    assert len(phases) == MAX_PHASES
    assert phases["other"].count == 200 - (MAX_PHASES - 10)
    assert phases["step"].count == 1
    assert phase_name("a\nb" + "x" * 99) == "a?b" + "x" * 61
    assert phase_name("") == "other"


def test_the_agent_takes_the_document_and_its_length_is_limited() -> None:
    collected = steps_of(([100, 101] * 30 + [900]) * 40)
    for number in range(22):
        for exponent in range(30):
            collected.add(TimedPhase(f"mine {number}", 0, 2**exponent, NAN, 1))
    steps = result(collected)
    whole = rank_from_json(rank_to_json(steps), "n1")
    assert (whole.rank, whole.gpu, whole.pid, whole.hints) == (3, 0, 7, {"batch_size": 8})
    assert whole.phases["step"] == steps.phases["step"]
    for limit in (48 * 1024, 8 * 1024, 3 * 1024, 1024):
        text = fitting_json(steps, limit)
        assert text is not None
        assert len(text) <= limit
    assert fitting_json(steps, 10) is None
