"""Tests of the computed saving from deferring jobs.

The saving is the difference to the costs if the jobs had been started at once.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_energy.deferral.counterfactual import FinishedJobs, costs_at_once
from slurm_energy.errors import UsageError
from slurm_energy.signals.signal_series import SignalSeries

HOUR = 3600.0
NAN = float("nan")


def finished(eligible, start, end, joules, queue=NAN, deviation=NAN):
    columns = (eligible, start, end, joules, queue, deviation)
    return FinishedJobs(*(np.array([column], float) for column in columns))


def test_the_saving_is_the_difference_of_the_prices():
    series = SignalSeries(0.0, HOUR, np.array([0.3, 0.1, 0.2]))
    costs = costs_at_once(finished(0, HOUR, 2 * HOUR, 7.2e6), series)
    assert costs.actual == pytest.approx([0.2])
    assert costs.at_once == pytest.approx([0.6])
    assert costs.saving == pytest.approx(0.4)
    assert costs.saving_deviation == 0


def test_an_uncertain_wait_makes_the_saving_uncertain():
    series = SignalSeries(0.0, HOUR, np.array([0.4, 0.1, 0.2, 0.2]))
    costs = costs_at_once(finished(0, 2 * HOUR, 3 * HOUR, 3.6e6, HOUR / 2, HOUR / 4), series)
    assert costs.at_once == pytest.approx([0.25])
    # The price falls by 0.3 over the hour, linearly in the start.
    assert costs.deviation == pytest.approx([0.3 / 4])


def test_unknown_prices_leave_the_job_out():
    series = SignalSeries(0.0, HOUR, np.array([np.nan, 0.1]))
    costs = costs_at_once(finished(0, HOUR, 2 * HOUR, 3.6e6), series)
    assert not costs.known.any()
    assert costs.saving == 0


def test_a_run_of_negative_length_is_refused():
    with pytest.raises(UsageError, match="ends before it starts"):
        costs_at_once(finished(0, HOUR, 0, 1), SignalSeries(0.0, HOUR, np.ones(2)))


@given(
    st.floats(0, 5 * HOUR),
    st.floats(1, 5 * HOUR),
    st.floats(0, 3 * HOUR),
    st.floats(0, HOUR),
    st.floats(-1, 1),
)
def test_with_a_constant_price_nothing_is_saved(eligible, time_s, wait, deviation, price):
    series = SignalSeries(0.0, HOUR, np.full(48, price))
    job = finished(eligible, eligible + 4 * HOUR, eligible + 4 * HOUR + time_s, 1e6, wait, deviation)
    costs = costs_at_once(job, series)
    assert costs.saving == pytest.approx(0, abs=1e-9)
    assert costs.saving_deviation == pytest.approx(0, abs=1e-6)
