"""Tests of the forecast of how many units (GPUs or CPUs) jobs that arrive later will need.

The forecast has a mean and a standard deviation for each time. Values that cannot be forecast are
unknown.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from fake_controller import timezone
from hypothesis import given
from hypothesis import strategies as st

from slurm_energy.accounting.history.arrivals import PastArrival
from slurm_energy.controller.deferral.capacity import ResourceKinds, expected_demand
from slurm_energy.deferral.arrival_demand import ArrivalHistory, arrival_demand
from slurm_energy.signals import SignalColumns, SignalForecast

HOUR = 3600.0
DAY = 24 * HOUR


def history(count=100, span_s=DAY, time_s=HOUR, units=2.0, slack_s=0.0, kind=0):
    """Return a synthetic history of jobs that arrived at equal distances during a time span.

    The span begins at 0.
    """
    submit_s = np.linspace(0.0, span_s, count + 1)[:-1] + span_s / count / 2
    columns = (np.full(count, value, np.float64) for value in (time_s, units))
    return ArrivalHistory(
        0.0, submit_s, *columns, np.full(count, kind), np.full(count, slack_s), np.ones(count)
    )


def test_demand_rises_to_rate_times_work():
    mean, deviation, _ = arrival_demand(history(), DAY, 900.0, 16, 1)
    # 100 jobs a day of 2 units and an hour keep 8.33 units busy; after half an hour a half of them.
    assert mean[0, 1] == pytest.approx(0.5 * 200 / 24)
    assert mean[0, -1] == pytest.approx(200 / 24)
    assert deviation[0, -1] == pytest.approx(np.sqrt(400 / 24))
    assert np.all(np.diff(mean[0]) >= -1e-9)


def test_deferrable_arrivals_count_later():
    mean, *_ = arrival_demand(history(slack_s=4 * HOUR), DAY, 900.0, 16, 1)
    assert np.all(mean[0, :4] == 0)
    assert mean[0, -1] == pytest.approx(200 / 24)


def test_kinds_of_hardware_are_apart():
    mean, *_ = arrival_demand(history(kind=1), DAY, 900.0, 8, 3)
    assert np.all(mean[[0, 2]] == 0) and np.all(mean[1] > 0)


def test_few_arrivals_show_no_rate():
    mean, deviation, _ = arrival_demand(history(count=9), DAY, 900.0, 8, 1)
    assert not mean.any() and not deviation.any()
    later = arrival_demand(history(), -1.0, 900.0, 8, 1)
    assert not later[0].any()


def test_a_busy_hour_of_the_day_counts_more():
    submit_s = np.sort(np.concatenate([day * DAY + np.linspace(9, 10, 20) * HOUR for day in range(8)]))
    ones = np.ones(len(submit_s))
    jobs = ArrivalHistory(0.0, submit_s, HOUR * ones, ones, np.zeros(len(ones), np.int64), 0 * ones, ones)
    mean, *_ = arrival_demand(jobs, 8 * DAY + 8 * HOUR, 900.0, 24, 1)
    assert mean[0, 6] > 5 * mean[0, 0] and mean[0, 6] > 2 * mean[0, 20]


def test_busy_hours_keep_their_local_time_when_summer_time_begins():
    zone = ZoneInfo("Europe/Berlin")
    mornings = [datetime(2026, 3, 21, 9, tzinfo=zone) + timedelta(days=day) for day in range(8)]
    submits = [day.timestamp() + 180.0 * number for day in mornings for number in range(20)]
    arrivals = [PastArrival("", submit_s, HOUR, "cpu=1", 0.0) for submit_s in submits]
    now_s = datetime(2026, 3, 29, 8, tzinfo=zone).timestamp()  # summer time has begun at 2:00
    empty = np.zeros(0)
    queued = ArrivalHistory(now_s, empty, empty, empty, empty.astype(np.int64), empty, empty)
    signals = SignalColumns(now_s, HOUR, SignalForecast(np.ones(4), np.zeros(4)))
    with timezone("Europe/Berlin"):
        mean = expected_demand(arrivals, queued, ResourceKinds({}, ("", "*")), signals, now_s).mean
    assert np.argmax(mean[0]) == 1


@given(
    st.lists(
        st.tuples(st.floats(0, DAY), st.floats(1, DAY), st.integers(0, 64), st.floats(0, DAY)), max_size=40
    ),
    st.integers(1, 40),
    st.floats(0, 2 * DAY),
)
def test_demand_is_between_zero_and_the_work_of_all_arrivals(rows, slots, now_s):
    columns = np.array(rows, np.float64).reshape(-1, 4).T
    kinds, ones = np.zeros(len(rows), np.int64), np.ones(len(rows))
    jobs = ArrivalHistory(0.0, columns[0], columns[1], columns[2], kinds, columns[3], ones)
    mean, deviation, _ = arrival_demand(jobs, now_s, 900.0, slots, 1)
    assert mean.shape == deviation.shape == (1, slots)
    assert np.all(np.isfinite(mean)) and np.all(mean >= -1e-9) and np.all(deviation >= 0)
    if now_s > 1:
        work = np.sum(columns[2] * (columns[1] + 900.0))
        assert np.all(mean <= work / now_s * (1 + 1e-9) + 1e-9)


def test_the_time_for_which_a_unit_is_held_counts_by_units():
    short, long = history(), history()
    jobs = ArrivalHistory(
        0.0,
        np.concatenate([short.submit_s, long.submit_s]),
        np.concatenate([np.full(len(short.time_s), HOUR), np.full(len(long.time_s), 3 * HOUR)]),
        np.concatenate([np.full(len(short.units), 3.0), np.full(len(long.units), 1.0)]),
        np.concatenate([short.hardware, long.hardware]),
        np.concatenate([short.slack_s, long.slack_s]),
        np.ones(200),
    )
    assert arrival_demand(jobs, DAY, 900.0, 4, 2).hold_s.tolist() == pytest.approx(
        [1.5 * HOUR, np.nan], nan_ok=True
    )
    assert np.isnan(arrival_demand(history(count=9), DAY, 900.0, 4, 1).hold_s[0])


@given(
    st.lists(
        st.tuples(st.floats(0, 20 * DAY), st.floats(1, DAY), st.integers(0, 64), st.integers(1, 30)),
        max_size=12,
    ),
    st.floats(1, 20 * DAY),
)
def test_tasks_in_one_row_count_like_rows_of_one_task(rows, now_s):
    submit_s, time_s, units, count = np.array(rows, np.float64).reshape(-1, 4).T

    def demand(rows_of, counts):
        kinds, slack_s = np.zeros(len(rows_of), np.int64), np.zeros(len(rows_of))
        columns = submit_s[rows_of], time_s[rows_of], units[rows_of], kinds, slack_s
        return arrival_demand(ArrivalHistory(0.0, *columns, counts), now_s, 900.0, 8, 1)

    each = np.repeat(np.arange(len(rows)), count.astype(np.int64))
    expected = demand(each, np.ones(len(each)))
    for value, wanted in zip(demand(np.arange(len(rows)), count), expected, strict=True):
        assert value == pytest.approx(wanted, rel=1e-6, abs=1e-3, nan_ok=True)
