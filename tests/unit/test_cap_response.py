"""Tests of the conversion of a run's time and watts from one power cap to another.

The converted power must not exceed the cap. A higher cap must yield more watts and less time. Nothing must
change if both caps are equal.
"""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_energy.oracle.history import History, HistoryOracle, ObservedRun
from slurm_energy.oracle.history.cap_response import Caps, caps_of, convert_run
from slurm_energy.oracle.history.queue_forecast import predict_many
from slurm_energy.oracle.prediction import PredictionRequest

NOW = 1_800_000_000.0
WATTS = st.floats(1.0, 1e4)
CAP = st.floats(10.0, 2e4) | st.just(math.inf)
BOTH = st.builds(Caps, CAP, CAP)
JOB = {"user": "alice", "name": "train", "nodes": 1, "cpus": 4, "gpus": 1, "time_limit_s": 36_000.0}


def runs(count=20, watts=300.0, seconds=600.0, gpu_joules=None, **more):
    history = History()
    for number in range(count):
        joules = None if gpu_joules is None else gpu_joules * seconds
        history.learn(
            ObservedRun(NOW + number, seconds, energy_joules=watts * seconds, gpu_joules=joules, **JOB | more)
        )
    return history


def request_for(history, **more):
    return HistoryOracle(history, clock=lambda: NOW).predict(PredictionRequest(**JOB | more))


def test_a_cap_limits_watts_and_extends_the_time():
    history = runs()
    free, capped = request_for(history), request_for(history, gpu_cap_watts=100.0)
    assert free.power_watts.mean == pytest.approx(300.0)
    assert capped.power_watts.high <= 100.0
    assert capped.power_watts.mean == pytest.approx(100.0, rel=0.05)
    assert capped.duration_s.mean > 1.5 * free.duration_s.mean
    assert capped.notes == ("20 runs under other caps: time and watts are converted",)


def test_a_node_cap_limits_watts_too():
    capped = request_for(runs(gpus=0, watts=500.0), gpus=0, cap_watts=200.0)
    assert capped.power_watts.high <= 200.0
    assert capped.duration_s.mean > 600.0


def test_a_cap_above_the_watts_changes_nothing():
    history = runs()
    assert request_for(history, gpu_cap_watts=310.0).duration_s == request_for(history).duration_s
    assert request_for(history, gpu_cap_watts=310.0).power_watts.mean == request_for(history).power_watts.mean


def test_runs_under_the_same_cap_count_as_they_are():
    history = runs(watts=99.0, gpu_cap_watts=100.0)
    prediction = request_for(history, gpu_cap_watts=100.0)
    assert prediction.duration_s.mean == pytest.approx(600.0, rel=0.01)
    assert prediction.power_watts.mean == pytest.approx(99.0, rel=0.01)
    assert prediction.notes == ()


def test_raising_a_reached_cap_raises_watts_and_shortens_time():
    history = runs(watts=99.0, gpu_cap_watts=100.0)
    lifted = request_for(history)
    assert 99.0 < lifted.power_watts.mean <= 2 * 99.0
    assert lifted.duration_s.mean < 600.0
    assert request_for(runs(watts=60.0, gpu_cap_watts=100.0)).power_watts.mean == pytest.approx(
        60.0, rel=0.01
    )


def test_a_gpu_cap_does_not_limit_the_hosts_watts():
    history = runs(watts=300.0, gpu_joules=200.0)
    assert request_for(history, gpu_cap_watts=100.0).power_watts.mean == pytest.approx(200.0, rel=0.05)


@given(WATTS, st.floats(0, 1), BOTH, BOTH, BOTH)
def test_watts_rise_and_time_falls_with_the_cap(watts, gpu_share, before, one, other):
    low = Caps(min(one.gpu_watts, other.gpu_watts), min(one.unit_watts, other.unit_watts))
    high = Caps(max(one.gpu_watts, other.gpu_watts), max(one.unit_watts, other.unit_watts))
    gpu_watts = gpu_share * watts
    less, longer = convert_run(watts, gpu_watts, before, low)
    more, shorter = convert_run(watts, gpu_watts, before, high)
    assert less <= more * (1 + 1e-9)
    assert longer >= shorter * (1 - 1e-9)
    assert less <= low.unit_watts * (1 + 1e-9)
    assert less <= (watts - gpu_watts) * 2 + low.gpu_watts * 2  # a cap of the GPU does not reduce the rest
    same, time = convert_run(watts, gpu_watts, before, before)
    allowed = min(watts - gpu_watts + min(gpu_watts, before.gpu_watts), before.unit_watts)
    assert time == 1.0 and same == pytest.approx(allowed)


@given(
    st.lists(st.tuples(st.floats(1, 1e5), WATTS, st.none() | st.floats(50, 500)), min_size=1, max_size=12),
    st.floats(50, 1000),
    st.floats(50, 1000),
    st.sampled_from(["gpu_cap_watts", "cap_watts"]),
)
def test_predictions_never_exceed_the_cap_and_are_monotone(observed, one, other, which):
    history = History()
    for number, (seconds, watts, cap) in enumerate(observed):
        caps = {which: cap}
        history.learn(ObservedRun(NOW + number, seconds, energy_joules=watts * seconds, **JOB | caps))
    low, high = sorted((one, other))
    strict, mild = request_for(history, **{which: low}), request_for(history, **{which: high})
    for part in ("low", "mean", "high"):
        assert getattr(strict.power_watts, part) <= low * (1 + 1e-9)
        assert getattr(strict.power_watts, part) <= getattr(mild.power_watts, part) * (1 + 1e-9)
        assert getattr(strict.duration_s, part) >= getattr(mild.duration_s, part) * (1 - 1e-9)


def test_queue_forecasts_are_equal():
    history = runs()
    jobs = {name: [value] * 2 for name, value in JOB.items()} | {"gpu_cap_watts": [None, 100.0]}
    result = predict_many(history, jobs)
    for row, cap in enumerate(jobs["gpu_cap_watts"]):
        prediction = request_for(history, gpu_cap_watts=cap)
        assert result.power_watts[row] == pytest.approx(prediction.power_watts.mean)
        assert result.duration_s[row] == pytest.approx(prediction.duration_s.mean)


def test_a_gpu_cap_is_ignored_without_gpus():
    assert caps_of(None, 100.0, 1, 0) == Caps()
    assert caps_of(400.0, 100.0, 2, 4) == Caps(100.0, 200.0)
