"""Placement of jobs among several clusters: cost and choice of a cluster, and expected load."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_energy.errors import UsageError
from slurm_energy.placement.assignment import PlacementRequest, place
from slurm_energy.placement.choice import POLICIES, PlacementOptions, choose, options_of
from slurm_energy.placement.expected_load import ExpectedLoad
from slurm_energy.placement.scores import score, signal_mean
from slurm_energy.placement.sites import NO_HOME, PlacementJobs, Site
from slurm_energy.placement.sunlight import sunlight
from slurm_energy.signals import SignalColumns, SignalForecast, SignalName, constant_forecast

HOUR = 3600.0


def signals(price=None, carbon=None, deviation=0.0, start_s=0.0):
    def column(values):
        if values is None:
            return None
        mean = np.asarray(values, np.float64)
        return SignalForecast(mean, np.full(len(mean), deviation), "test")

    return SignalColumns(start_s, HOUR, column(price), column(carbon))


def request(m=2, units=1.0, run_s=HOUR, watts=1000.0, home=0, data_bytes=0.0):
    return PlacementRequest(np.full(m, units), np.full(m, run_s), np.full(m, watts), home, data_bytes)


def loads(*units):
    return [ExpectedLoad(count, 0.0) for count in units]


def test_cost_is_energy_times_the_price_while_the_job_runs():
    site = Site("a", signals(price=[0.1, 0.3, 0.5]), pue=1.5)
    jobs = PlacementJobs(*(np.array([[x]]) for x in (HOUR, 2000.0, 0.5 * HOUR)), np.array([0]), np.zeros(1))
    figures = score(jobs, [site], 0.0)
    assert figures.kwh[0, 0] == pytest.approx(3.0)
    assert figures.cost[0, 0] == pytest.approx(3.0 * 0.2)
    assert figures.end_s[0, 0] == 1.5 * HOUR


def test_transfer_delays_the_start_and_costs_at_both_ends():
    home = Site("a", signals(price=[0.5] * 9), bandwidth_bytes_per_s=1e6, transfer_kwh_per_gb=0.02)
    away = Site("b", signals(price=[0.1] * 9), bandwidth_bytes_per_s=5e6, transfer_kwh_per_gb=0.01)
    jobs = PlacementJobs(
        np.full((1, 2), HOUR),
        np.full((1, 2), 1000.0),
        np.array([[0.0, 60.0]]),
        np.zeros(1, int),
        np.array([1e9]),
    )
    figures = score(jobs, [home, away], 0.0)
    assert figures.transfer_s.tolist() == [[0.0, 1000.0]]
    assert figures.start_s.tolist() == [[0.0, 1000.0]]
    assert figures.kwh[0, 1] == pytest.approx(1.03)
    assert figures.cost[0, 1] == pytest.approx(1.0 * 0.1 + 0.01 * 0.1 + 0.02 * 0.5)


@given(
    st.lists(st.floats(-5, 5) | st.just(math.nan), min_size=1, max_size=12),
    st.floats(-20, 20),
    st.floats(0, 20),
)
def test_the_mean_of_a_signal_lies_between_its_values(values, start, length):
    known = [value for value in values if not math.isnan(value)]
    mean, deviation = signal_mean(
        signals(price=values), SignalName.PRICE, start * HOUR, (start + length) * HOUR
    )
    if not known:
        assert math.isnan(mean)
    else:
        assert min(known) - 1e-9 <= mean <= max(known) + 1e-9
        assert deviation >= 0


def test_policies_choose_by_their_quantity():
    sites = [
        Site(
            "dear", signals(price=[0.4] * 30, carbon=[50.0] * 30), latitude_degrees=0, longitude_degrees=180
        ),
        Site(
            "dirty", signals(price=[0.1] * 30, carbon=[500.0] * 30), latitude_degrees=0, longitude_degrees=0
        ),
    ]
    noon = 12 * HOUR
    chosen = {
        name: place(request(), sites, [ExpectedLoad(1, noon) for _ in sites], options_of(name, {}), noon).site
        for name in POLICIES
    }
    assert chosen == {
        "home": 0, "cheapest": 1, "cleanest": 0, "least-energy": 0, "fastest": 0, "follow-the-sun": 1,
    }  # fmt: skip


def test_a_burst_does_not_rush_to_one_cluster():
    sites = [Site("a", signals(price=[0.5] * 99)), Site("b", signals(price=[0.1] * 99))]
    options = options_of("cheapest", {}, max_delay_s=2 * HOUR)
    state = loads(4, 4)
    placed = [place(request(), sites, state, options, 0.0).site for _ in range(24)]
    assert placed[:4] == [1, 1, 1, 1]
    assert 4 <= placed.count(0) <= 12


def test_a_job_stays_for_a_small_or_uncertain_saving():
    def where(price, deviation, **more):
        sites = [Site("a", signals([0.30] * 9, deviation=deviation)), Site("b", signals([price] * 9))]
        return place(request(), sites, loads(1, 1), options_of("cheapest", {}, **more), 0.0)

    assert where(0.29, 0.0).site == 0
    assert where(0.20, 0.0).site == 1
    assert where(0.20, 0.15).site == 0
    assert "uncertainty" in where(0.20, 0.15).reason
    assert where(0.20, 0.15, confidence=0.0).site == 1


def test_unknown_prices_do_not_move_a_job():
    sites = [Site("a"), Site("b", signals([0.1] * 9))]
    assert place(request(), sites, loads(1, 1), options_of("cheapest", {}), 0.0).site == 0
    assert place(request(home=1), sites, loads(1, 1), options_of("cheapest", {}), 0.0).site == 1
    assert place(request(home=NO_HOME), sites, loads(1, 1), options_of("cheapest", {}), 0.0).site == 1


def test_a_job_goes_only_where_it_fits():
    sites = [Site("a"), Site("b")]
    assert place(request(units=8), sites, loads(4, 8), options_of("home", {}), 0.0).site == 1
    assert place(request(units=9), sites, loads(4, 8), options_of("fastest", {}), 0.0).site == -1


def test_unknown_policies_and_terms_are_refused():
    with pytest.raises(UsageError, match="cheepest"):
        options_of("cheepest", {})
    with pytest.raises(UsageError, match="money"):
        options_of("weighted", {"money": 1.0})


@given(st.data())
def test_the_choice_is_possible_and_never_too_late(data):
    m = data.draw(st.integers(1, 4))
    column = st.lists(st.floats(0, 1e6) | st.just(math.nan), min_size=m, max_size=m)
    run_s, wait_s = np.array([data.draw(column)]), np.array([data.draw(column)])
    home = data.draw(st.integers(NO_HOME, m - 1))
    sites = [Site(str(at), signals([data.draw(st.floats(-1, 1))] * 3)) for at in range(m)]
    policy = data.draw(st.sampled_from(list(POLICIES)))
    delay = data.draw(st.floats(0, 1e6))
    jobs = PlacementJobs(run_s, np.full((1, m), 500.0), wait_s, np.array([home]), np.zeros(1))
    scores = score(jobs, sites, 0.0)
    chosen = int(choose(scores, jobs.home, options_of(policy, {}, max_delay_s=delay), 0.0).site[0])
    possible = np.isfinite(run_s[0]) & np.isfinite(wait_s[0])
    assert (chosen >= 0) == possible.any()
    if chosen >= 0:
        assert possible[chosen]
        end_s = scores.end_s[0]
        reference = end_s[home] if home >= 0 and possible[home] else np.nanmin(end_s)
        assert end_s[chosen] <= reference + delay


@given(
    st.integers(1, 8),
    st.lists(st.tuples(st.integers(1, 9), st.floats(0.1, 50), st.floats(0, 20)), max_size=20),
)
def test_expected_load_never_exceeds_the_cluster(units, jobs):
    load, taken = ExpectedLoad(units, 0.0), []
    for count, run_s, from_s in jobs:
        start_s = load.earliest_start_s(count, run_s, from_s)
        assert (start_s == math.inf) == (count > units)
        if start_s < math.inf:
            assert start_s >= from_s
            load.add(count, start_s, run_s)
            taken.append((start_s, start_s + run_s, count))
    for edge, _, _ in taken:
        assert sum(count for start, end, count in taken if start <= edge < end) <= units


def test_expected_load_fills_a_gap_and_forgets_the_past():
    load = ExpectedLoad(4, 0.0, [(100.0, 3)])
    load.add(4, load.earliest_start_s(4, 50.0, 0.0), 50.0)
    assert load.earliest_start_s(1, 100.0, 0.0) == 0.0
    assert load.earliest_start_s(1, 101.0, 0.0) == 150.0
    load.advance(120.0)
    assert load.earliest_start_s(1, 1.0, 0.0) == 150.0


def test_the_sun_is_highest_at_noon_and_absent_at_night():
    hours = np.arange(0, 24) * HOUR
    light = sunlight(hours, 45.0, 0.0)
    assert int(np.argmax(light)) == 12
    assert light[0] == 0.0
    assert int(np.argmax(sunlight(hours, 45.0, -120.0))) == 20


def test_weights_are_per_unit():
    sites = [Site("a", SignalColumns(0.0, HOUR, constant_forecast(0.2, 9), constant_forecast(400.0, 9)))]
    options = PlacementOptions({"cost": 1.0, "carbon": 0.1, "time": 2.0, "energy": 0.5})
    placed = place(request(m=1), sites, loads(1), options, 0.0)
    assert placed.score[0] == pytest.approx(0.2 + 0.1 * 0.4 + 2.0 + 0.5)


def test_a_copy_of_a_load_is_independent():
    load = ExpectedLoad(4, 0.0, [(100.0, 4)])
    copy = load.copy()
    copy.add(4, 100.0, 50.0)
    copy.advance(120.0)
    assert (copy.earliest_start_s(1, 10.0, 120.0), load.earliest_start_s(4, 10.0, 0.0)) == (150.0, 100.0)


@pytest.mark.parametrize("weights", [{}, {"cost": 0.0}])
def test_a_weighted_choice_needs_weights(weights):
    with pytest.raises(UsageError, match="there are no weights"):
        options_of("weighted", weights)
    assert options_of("cheapest", weights).weights == POLICIES["cheapest"]
