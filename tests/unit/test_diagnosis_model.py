"""Tests of job observations, that is of the signals and step statistics of jobs.

An observation must be unchanged after conversion to JSON and back. Malformed or hostile JSON must be
refused. Merging statistics must give the statistics of all values together.
"""

import base64
import json
import math
import zlib
from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples

from slurm_energy.diagnosis.json_codec import (
    MAX_POINTS,
    decode_values,
    encode_values,
    node_from_json,
    node_to_json,
    rank_from_json,
    rank_to_json,
)
from slurm_energy.diagnosis.observation import NodeObservation
from slurm_energy.diagnosis.signals import SIGNALS, ObservedSeries
from slurm_energy.diagnosis.steps import (
    PhaseStatistics,
    RankSteps,
    StepIntervals,
    StepOutlier,
    bin_seconds,
    duration_bin,
)
from slurm_energy.errors import UsageError

names = st.from_regex(r"[a-z][a-z0-9_]{0,20}", fullmatch=True)
singles = st.floats(width=32, allow_infinity=False)
counts = st.floats(0, 2.0**20, width=32)
durations = st.lists(st.floats(1e-6, 1e5), max_size=20)
statistics = durations.map(PhaseStatistics.of)
times = st.floats(0, 1e11)


def columns(values: st.SearchStrategy[float], size: int) -> st.SearchStrategy["array[float]"]:
    return st.lists(values, min_size=size, max_size=size).map(lambda v: array("d", v))


@st.composite
def step_intervals(draw: st.DrawFn) -> StepIntervals:
    size = draw(st.integers(0, 6))
    column = columns(counts, size)
    return StepIntervals(draw(times), draw(st.floats(1e-3, 1e6)), draw(column), draw(column), draw(column))


ranks = st.builds(
    RankSteps,
    node=st.just("n1"),
    rank=st.none() | st.integers(0, 10_000),
    gpu=st.none() | st.integers(0, 15),
    pid=st.integers(1, 2**22),
    phases=st.dictionaries(names, statistics, max_size=4),
    samples=st.none() | st.floats(0, 1e12),
    outlier_count=st.integers(0, 1000),
    outlier_excess_s=st.floats(0, 1e6),
    outliers=st.lists(st.builds(StepOutlier, times, times, times, names), max_size=3).map(tuple),
    intervals=st.none() | step_intervals(),
    hints=st.dictionaries(names, st.integers(0, 512) | st.booleans() | names, max_size=4),
)
series = st.builds(
    ObservedSeries,
    name=st.sampled_from(sorted(SIGNALS)),
    part=st.sampled_from(["", "gpu[0]", "eth0"]),
    node=st.just("n1"),
    source=names,
    start_s=times,
    interval_s=st.floats(1e-3, 1e6),
    values=st.integers(0, 8).flatmap(lambda size: columns(singles, size)),
)
observations = st.builds(
    NodeObservation,
    node=st.just("n1"),
    series=st.lists(series, max_size=4, unique_by=lambda item: (item.name, item.part)).map(tuple),
    ranks=st.lists(ranks, max_size=2).map(tuple),
)


@examples(25)
@given(observations)
def test_observation_survives_json(observation: NodeObservation) -> None:
    text = json.dumps(node_to_json(observation), allow_nan=False)
    assert repr(node_from_json(json.loads(text))) == repr(observation)  # NaN is not equal to itself


json_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@examples(40)
@given(observations, st.data())
def test_altered_observation_is_read_or_refused(observation: NodeObservation, data: st.DataObject) -> None:
    document = node_to_json(observation)
    target: Any = document
    while isinstance(target, dict | list) and target:
        parent = target
        key = data.draw(st.sampled_from(sorted(target) if isinstance(target, dict) else range(len(target))))
        target = target[key]
        if data.draw(st.booleans()):
            break
    parent[key] = data.draw(json_values)
    try:
        node_to_json(node_from_json(document))
    except UsageError as error:
        assert "\n" not in str(error) and len(str(error)) < 300


def column_of(values: int) -> str:
    return base64.b64encode(zlib.compress(bytes(4 * values))).decode()


@pytest.mark.parametrize(
    "text", [None, 5, "%", "", column_of(MAX_POINTS + 1), column_of(10_000_000), column_of(9)[:-8]]
)
def test_column_that_is_malformed_or_too_long_is_refused(text: Any) -> None:
    with pytest.raises(UsageError):
        decode_values(text)


def test_values_outside_32_bit_floats_are_unknown() -> None:
    values = decode_values(encode_values(array("d", [1e300, -1e300, math.inf, math.nan, 0.5])))
    assert all(math.isnan(value) for value in values[:4]) and values[4] == 0.5


STEPS: dict[str, Any] = {"pid": 5, "phases": {"step": {"count": 1, "sum_s": 1.0, "sum_squares_s2": 1.0}}}


@pytest.mark.parametrize(
    "change",
    [
        {"pid": -1},
        {"pid": None},
        {"rank": True},
        {"rank": 2**60},
        {"samples": math.nan},
        {"samples": 10**400},
        {"phases": {f"p{i}": {} for i in range(33)}},
        {"phases": {"a\x1b[2J": {"count": 0, "sum_s": 0, "sum_squares_s2": 0}}},
        {"phases": {"step": {"count": 2, "sum_s": 1, "sum_squares_s2": 1, "histogram": {"0": 1}}}},
        {"phases": {"step": {"count": 1, "sum_s": 1, "sum_squares_s2": 1, "histogram": {"161": 1}}}},
        {"phases": {"step": {"count": 1, "sum_s": 1, "sum_squares_s2": 1, "histogram": {"١": 1}}}},
        {"hints": {"batch_size": [1]}},
        {"outliers": [[1, 2, 3]]},
        {"outliers": [[0, 1, 1, ""]] * 65},
    ],
)
def test_hostile_steps_are_refused(change: dict[str, Any]) -> None:
    good = {**STEPS, "phases": {"step": {**STEPS["phases"]["step"], "histogram": {"0": 1}}}}
    assert rank_to_json(rank_from_json(good, "n1"))["pid"] == 5
    with pytest.raises(UsageError):
        rank_from_json({**good, **change}, "n1")


def test_node_of_steps_is_not_taken_from_their_text() -> None:
    assert rank_from_json({"pid": 1, "node": "other"}, "n1").node == "n1"


@examples(30)
@given(durations, durations, durations)
def test_merge_is_associative_free_of_order_and_equal_to_all_durations(
    a: list[float], b: list[float], c: list[float]
) -> None:
    left = PhaseStatistics.of(a).merged(PhaseStatistics.of(b)).merged(PhaseStatistics.of(c))
    right = PhaseStatistics.of(c).merged(PhaseStatistics.of(b).merged(PhaseStatistics.of(a)))
    whole = PhaseStatistics.of(a + b + c)
    for merged in (left, right):
        assert merged.count == whole.count and merged.histogram == whole.histogram
        assert merged.sum_s == pytest.approx(whole.sum_s)
        assert merged.sum_squares_s2 == pytest.approx(whole.sum_squares_s2)


@examples(40)
@given(st.lists(st.floats(1e-5, 1e5), min_size=1, max_size=50), st.floats(1, 100))
def test_percentile_is_within_the_bins_accuracy(values: list[float], percent: float) -> None:
    exact = sorted(values)[max(1, math.ceil(len(values) * percent / 100)) - 1]
    assert PhaseStatistics.of(values).percentile_s(percent) == pytest.approx(exact, rel=0.0443)


@examples(40)
@given(st.floats(0, 1e300))
def test_every_duration_has_a_bin(duration_s: float) -> None:
    number = duration_bin(duration_s)
    if 1e-6 <= duration_s <= 1e5:
        assert bin_seconds(number) == pytest.approx(duration_s, rel=0.0443)


def test_statistics_of_nothing_are_unknown() -> None:
    nothing = PhaseStatistics()
    assert (nothing.mean_s, nothing.deviation_s, nothing.percentile_s(50)) == (None, None, None)


@examples(20)
@given(step_intervals())
def test_coarser_intervals_hold_the_same_steps(intervals: StepIntervals) -> None:
    coarse = intervals.coarsened()
    assert coarse.interval_s == 2 * intervals.interval_s
    assert math.fsum(coarse.steps) == pytest.approx(math.fsum(intervals.steps))
    assert len(coarse.steps) == (len(intervals.steps) + 1) // 2
