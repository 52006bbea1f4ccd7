"""Test the daily KPIs of a study.

The tests check how amounts are distributed over days, and how fairness, waiting times and unknown values are
computed.
"""

from __future__ import annotations

import math
from datetime import date

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples
from study_examples import IDLE_WATTS, MONDAY, NODES, begin_s, node_energy, week_jobs

from slurm_energy.grid.series import GridSeries, SeriesSource
from slurm_energy.study.data.days import date_of, spread, study_days
from slurm_energy.study.data.jobs_table import concatenated, jobs_table
from slurm_energy.study.data.kpis import EnergyPrices, EnergySeries, account_kpis, daily_kpis, jain_index

DAY_S = 86400.0
TWO_DAYS = study_days(MONDAY, date(2026, 3, 3))
T0 = begin_s()


def two_jobs() -> dict[str, list[object]]:
    """One job over midnight with 2 nodes and 7.2 MJ, and one of the second day with 1 node and 3.6 MJ."""
    return {
        "job_id": ["1", "2"],
        "account": ["a", "b"],
        "nodes": [2.0, 1.0],
        "submit_s": [T0 + DAY_S - 7200, T0 + DAY_S],
        "start_s": [T0 + DAY_S - 3600, T0 + DAY_S + 3600],
        "end_s": [T0 + DAY_S + 3600, T0 + DAY_S + 7200],
        "energy_joules": [7.2e6, 3.6e6],
    }


def test_energy_and_work_belong_to_the_days_of_the_run() -> None:
    values = daily_kpis(jobs_table(**two_jobs()), TWO_DAYS).values
    assert values["energy_kwh"] == pytest.approx([1.0, 2.0])
    assert values["node_hours_per_hour"] == pytest.approx([2 / 24, 3 / 24])
    assert values["energy_per_work_kwh"] == pytest.approx([0.5, 2 / 3])
    assert values["jobs_per_hour"] == pytest.approx([0, 2 / 24])
    assert values["mean_jct_s"] == pytest.approx([math.nan, 9000.0], nan_ok=True)
    assert values["edp_joule_seconds"] == pytest.approx([math.nan, 7.2e6 * 9000], nan_ok=True)
    assert values["peak_power_watts"] == pytest.approx([1000.0, 1000.0])
    assert np.all(np.isnan(values["cost"]))


def test_unknown_energy_of_a_job_makes_the_energy_of_its_days_unknown() -> None:
    columns = two_jobs() | {"energy_joules": [None, 3.6e6]}
    daily = daily_kpis(jobs_table(**columns), TWO_DAYS)
    assert np.all(np.isnan(daily.values["energy_kwh"]))
    assert daily.coverage == pytest.approx([0, 1 / 3])
    assert daily.values["energy_per_work_kwh"][1] == pytest.approx(1.0)  # of the known job only


def test_energy_of_nodes_includes_idle_nodes_and_its_gaps_are_unknown() -> None:
    hours = T0 + 3600.0 * np.arange(49)
    joules = np.full(48, 3.6e6)
    joules[40] = math.nan
    energy = EnergySeries(hours[:-1], hours[1:], joules, "meter")
    daily = daily_kpis(jobs_table(**two_jobs()), TWO_DAYS, energy)
    assert daily.values["energy_kwh"] == pytest.approx([24.0, math.nan], nan_ok=True)
    assert daily.values["peak_power_watts"] == pytest.approx([1000.0, math.nan], nan_ok=True)
    assert daily.energy_source == "meter"


def test_cost_and_carbon_follow_the_hour() -> None:
    cheap = GridSeries(SeriesSource("csv"), [(T0, T0 + DAY_S, 0.1), (T0 + DAY_S, T0 + 2 * DAY_S, 0.3)])
    prices = EnergyPrices(cheap, GridSeries.constant(SeriesSource("constant"), 500.0), 1.5)
    values = daily_kpis(jobs_table(**two_jobs()), TWO_DAYS, None, prices).values
    assert values["cost"] == pytest.approx([1.0 * 0.1 * 1.5, 2.0 * 0.3 * 1.5])
    assert values["carbon_kg"] == pytest.approx([0.75, 1.5])


def test_slowed_jobs_do_less_work_per_hour() -> None:
    columns = two_jobs() | {"speed": [0.8, None]}
    work = daily_kpis(jobs_table(**columns), TWO_DAYS).values["node_hours_per_hour"] * 24
    assert work == pytest.approx([1.6, 2.6])


def test_starved_jobs_show_in_the_worst_wait_only() -> None:
    waiting = jobs_table(job_id=["3"], account=["c"], nodes=[1.0], submit_s=[T0])
    jobs = concatenated([jobs_table(**two_jobs()), waiting])
    values = daily_kpis(jobs, TWO_DAYS).values
    assert values["worst_wait_s"] == pytest.approx([DAY_S, 2 * DAY_S])
    assert values["mean_jct_s"][1] == 9000.0
    cancelled = jobs.with_columns(end_s=[*jobs.end_s[:2], T0 + 7200.0])
    assert daily_kpis(cancelled, TWO_DAYS).values["worst_wait_s"] == pytest.approx([7200, 3600])


def test_fairness_is_lower_if_one_account_waits() -> None:
    jobs = week_jobs(7)
    days = study_days(MONDAY, date(2026, 3, 8))
    before = daily_kpis(jobs, days).values["fairness"]
    delay_s = np.where(jobs.account == "physics", 36000.0, 0.0)
    delayed = jobs.with_columns(start_s=jobs.start_s + delay_s, end_s=jobs.end_s + delay_s)
    after = daily_kpis(delayed, days).values["fairness"]
    assert np.all(after[1:] < before[1:])


def test_accounts_by_themselves_add_up() -> None:
    jobs, days = week_jobs(7), study_days(MONDAY, date(2026, 3, 8))
    total = daily_kpis(jobs, days).values["energy_kwh"]
    parts = account_kpis(jobs, days)
    assert set(parts) == {"physics", "biology", "chemistry"}
    assert sum(part.values["energy_kwh"] for part in parts.values()) == pytest.approx(total)


def test_days_follow_the_clock_of_the_time_zone() -> None:
    days = study_days(date(2026, 3, 28), date(2026, 3, 30), "Europe/Paris")
    assert days.hours == pytest.approx([24, 23, 24])
    assert date_of(days.edges_s[1], "Europe/Paris") == date(2026, 3, 29)
    assert days.day_of(np.array([days.edges_s[1] - 1, math.nan, days.edges_s[3]])).tolist() == [0, -1, -1]


def test_energy_per_work_with_idle_nodes() -> None:
    jobs, days = week_jobs(7), study_days(MONDAY, date(2026, 3, 8))
    kwh = daily_kpis(jobs, days, node_energy(jobs, 7)).values["energy_kwh"]
    values = daily_kpis(jobs, days).values
    idle_hours = 24 * (NODES - values["node_hours_per_hour"])
    assert kwh - values["energy_kwh"] == pytest.approx(idle_hours * IDLE_WATTS / 1000)


intervals = st.lists(
    st.tuples(st.floats(-1e5, 1e6), st.floats(1, 1e5), st.floats(0, 1e9)), min_size=1, max_size=30
)


@examples(20)
@given(intervals)
def test_spreading_conserves_amounts(rows: list[tuple[float, float, float]]) -> None:
    start, length, amount = (np.array(column) for column in zip(*rows, strict=True))
    inside = spread(start, start + length, amount, np.array([-1e6, 0.0, 2e5, 5e5, 1e7]))
    assert inside.sum() == pytest.approx(amount.sum(), rel=1e-6, abs=1e-3)
    part = spread(start, start + length, amount, np.array([0.0, 1e4]))[0]
    overlap = np.clip(np.minimum(start + length, 1e4) - np.maximum(start, 0), 0, None) / length
    assert part == pytest.approx(float((amount * overlap).sum()), rel=1e-6, abs=1.0)


@examples(20)
@given(st.lists(st.floats(0.1, 1e6), min_size=2, max_size=20))
def test_jains_index_is_between_one_nth_and_one(values: list[float]) -> None:
    column = np.array(values).reshape(-1, 1)
    assert 1 / len(values) - 1e-9 <= jain_index(column)[0] <= 1 + 1e-9
    assert jain_index(np.ones((len(values), 1)))[0] == pytest.approx(1)
    assert math.isnan(jain_index(column[:1])[0])
