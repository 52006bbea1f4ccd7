"""Tests of the deferral of jobs in the simulator.

Jobs must start in cheap time slots, but not later than permitted. Without slack (permitted delay), deferral
must change nothing.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples

from slurm_energy import deferral
from slurm_energy.deferral import DeferralOptions, DeferralReason
from slurm_energy.deferral.planning import immediate_plan
from slurm_energy.deferral.suspension import slot_choice
from slurm_energy.errors import ConfigError, NotFoundError, UsageError
from slurm_energy.scheduling import Queue, policy, register, registry
from slurm_energy.scheduling.ranking import Ranking
from slurm_energy.signals import SignalName
from slurm_energy.signals.feed import SignalFeed, SignalSource
from slurm_energy.signals.forecast import ForecastMode
from slurm_energy.signals.signal_series import SignalSeries
from slurm_energy.simulator import engine, scenario
from slurm_energy.simulator.campaigns import campaign
from slurm_energy.simulator.campaigns.run_result import CampaignTask
from slurm_energy.simulator.cluster import NodeKind
from slurm_energy.simulator.deferral.deferral_schema import split_policy
from slurm_energy.simulator.deferral.signal_costs import signal_costs
from slurm_energy.simulator.kernels import column_engine, fast_path
from slurm_energy.simulator.schedule_settings import Deferral, ScheduleSettings
from slurm_energy.simulator.workloads.workload import workload

HOUR = 3600.0


def feed(prices: list[float], mode: ForecastMode = ForecastMode.PERFECT) -> SignalFeed:
    series = SignalSeries(0.0, HOUR, np.array(prices))
    return SignalFeed({SignalName.PRICE: SignalSource(series, mode)})


def settings_of(name: str, signals: SignalFeed, **options: object) -> ScheduleSettings:
    defaults = dict.fromkeys(
        ("best_share", "min_saving", "uncertainty_weight", "restart_s", "start_margin_s"), 0.0
    )
    rules = DeferralOptions(**{**defaults, **options})  # type: ignore[arg-type]
    return ScheduleSettings(deferral=Deferral(deferral.policy(name), rules), signals=signals)


def jobs_of(submit_s, time_s, slack_s, units=1, **more):
    count = len(submit_s)
    return workload(
        np.arange(count + 1),
        {"submit_s": np.array(submit_s, float), "slack_s": np.array(slack_s, float), **more},
        {
            "time_s": np.array(time_s, float),
            "units": np.full(count, units),
            "power_watts": np.full(count, 1000.0),
        },
    )


def test_a_job_waits_for_the_cheap_hour_and_an_urgent_one_does_not():
    work = jobs_of([60, 60], [HOUR, HOUR], [4 * HOUR, np.nan])
    signals = feed([0.3, 0.3, 0.1, 0.3, 0.3, 0.3, 0.3])
    result = engine.simulate(work, [NodeKind("n", 4, 1)], policy("fcfs"), settings_of("cheapest", signals))
    assert result.accounts.start_s.tolist() == [2 * HOUR, 60]
    costs = signal_costs(result, signals, SignalName.PRICE)
    assert costs is not None
    assert costs.jobs == pytest.approx([0.1, 0.3])
    assert costs.cluster == pytest.approx(0.4)
    assert result.late_starts() == (0, 1)


def test_jobs_share_the_cheap_slots_by_capacity():
    work = jobs_of([60] * 3, [HOUR] * 3, [6 * HOUR] * 3)
    signals = feed([0.3, 0.3, 0.1, 0.2, 0.15, 0.3, 0.3, 0.3])
    result = engine.simulate(work, [NodeKind("n", 1, 1)], policy("fcfs"), settings_of("cheapest", signals))
    assert sorted(result.accounts.start_s.tolist()) == [2 * HOUR, 3 * HOUR, 4 * HOUR]


def test_a_job_that_arrives_at_the_start_of_a_time_slot_is_planned_once():
    slot_s = DeferralOptions().slot_s
    work = jobs_of([0, slot_s], [600, 600], [2 * HOUR, 2 * HOUR])
    series = SignalSeries(0.0, slot_s, np.array([0.1, *[0.01] * 20]))
    signals = SignalFeed({SignalName.PRICE: SignalSource(series, ForecastMode.PERFECT)})
    result = engine.simulate(work, [NodeKind("n", 2, 2)], policy("fcfs"), settings_of("cheapest", signals))
    assert result.accounts.start_s.tolist() == [slot_s, slot_s]
    assert result.accounts.end_s.tolist() == [slot_s + 600, slot_s + 600]


def test_a_job_is_held_for_weeks_after_the_last_arrival():
    day_s = 24 * HOUR
    falling_prices = [0.4 - 0.01 * (hour // 24) for hour in range(24 * 33)]
    rules = settings_of("cheapest", feed(falling_prices), slot_s=day_s)
    work = jobs_of([0], [HOUR], [31 * day_s])
    result = engine.simulate(work, [NodeKind("n", 1, 1)], policy("fcfs"), rules)
    assert result.accounts.start_s.tolist() == [31 * day_s]


def test_a_running_job_with_a_limit_of_years_lengthens_no_plan(monkeypatch):
    """The time slots of a plan are bounded. The bound does not change the planned starts."""
    cheapest, slots, starts = deferral.policy("cheapest"), [], []
    monkeypatch.setattr(deferral.registry, "_policies", {})

    @deferral.register("test-slots")
    def counted(queue, options):
        slots.append(queue.capacity.units.shape[1])
        return cheapest.plan(queue, options)

    rules = settings_of("test-slots", feed([0.3, 0.3, 0.1, 0.2, 0.15, 0.3, 0.3, 0.3]))
    for days in (40, 1000):
        limits_s = {"time_limit_s": np.array([24 * HOUR * days, HOUR, HOUR])}
        work = jobs_of([0, 60, 60], [8 * HOUR, HOUR, HOUR], [np.nan, 6 * HOUR, 6 * HOUR], **limits_s)
        result = engine.simulate(work, [NodeKind("n", 2, 1)], policy("fcfs"), rules)
        starts.append(result.accounts.start_s.tolist())
    assert starts[0] == starts[1] == [0, 2 * HOUR, 4 * HOUR]
    assert max(slots) == 5000


def test_a_checkpointable_job_pauses_in_expensive_hours():
    prices = [0.1, 0.9, 0.1, 0.9, 0.1, 0.9, 0.9, 0.9, 0.9]
    work = jobs_of([0], [3 * HOUR], [4 * HOUR], checkpointable=np.array([1]))
    signals = feed(prices)
    rules = settings_of("cheapest", signals)
    result = engine.simulate(work, [NodeKind("n", 1, 1)], policy("fcfs"), rules)
    costs = signal_costs(result, signals, SignalName.PRICE)
    assert costs is not None
    assert costs.jobs == pytest.approx([0.3])
    assert result.accounts.end_s.tolist() == [5 * HOUR]
    assert result.suspensions == 2
    slow = settings_of("cheapest", signals, restart_s=600.0)
    paused = engine.simulate(work, [NodeKind("n", 1, 1)], policy("fcfs"), slow)
    assert paused.accounts.end_s[0] <= 7 * HOUR
    assert paused.accounts.energy_joules[0] == pytest.approx(1000 * (3 * HOUR + 600 * paused.suspensions))
    off = settings_of("cheapest", signals, suspend=False)
    assert engine.simulate(work, [NodeKind("n", 1, 1)], policy("fcfs"), off).suspensions == 0


@pytest.mark.slow
@examples(15)
@given(
    st.lists(
        st.tuples(st.integers(0, 40_000), st.integers(60, 12_000), st.integers(0, 40_000)),
        min_size=1,
        max_size=12,
    ),
    st.lists(st.integers(-20, 300), min_size=12, max_size=30),
    st.sampled_from(["cheapest", "cedla"]),
    st.sampled_from(list(ForecastMode)),
    st.booleans(),
)
def test_no_job_starts_late_while_nodes_are_free(rows, prices, name, mode, checkpointable):
    submit, time_s, slack = zip(*sorted(rows), strict=True)
    marks = np.full(len(rows), int(checkpointable))
    work = jobs_of(submit, time_s, slack, checkpointable=marks)
    rules = settings_of(name, feed([price / 1000 for price in prices], mode), restart_s=60.0)
    result = engine.simulate(work, [NodeKind("n", len(rows), 1)], policy("fcfs"), rules)
    accounts = result.accounts
    assert len(result.done) == len(rows)
    assert result.late_starts()[0] == 0
    assert np.all(accounts.end_s <= work.submit_s + work.slack_s + work.time_s + 1e-3)
    restarts = accounts.energy_joules / 1000 - work.time_s
    assert np.sum(restarts) == pytest.approx(60 * result.suspensions, abs=1e-3)


def test_minimum_costs_equal_enumeration_of_all_sets_of_slots():
    prices, restart = np.array([3.0, 1, 4, 1, 5, 9, 2, 6]), 0.25
    choice = slot_choice(prices, 4, restart)
    for work in range(1, 5):
        best = np.inf
        for mask in range(1, 2 ** len(prices)):
            on = np.array([bool(mask >> slot & 1) for slot in range(len(prices))])
            if on.sum() != work:
                continue
            begins = np.flatnonzero(on & ~np.concatenate([[False], on[:-1]]))
            best = min(best, prices[on].sum() + restart * prices[begins[1:]].sum())
        assert choice.waiting[0, work] == pytest.approx(best)


@pytest.mark.slow
def test_without_slack_deferral_changes_nothing():
    random = np.random.default_rng(3)
    submit = np.sort(random.uniform(0, 20_000, 200))
    work = jobs_of(submit, random.uniform(60, 4000, 200), np.full(200, np.nan), units=2)
    kinds = [NodeKind("n", 8, 1, idle_watts=50.0)]
    plain = engine.simulate(work, kinds, policy("fcfs"), ScheduleSettings())
    deferred = engine.simulate(work, kinds, policy("fcfs"), settings_of("cheapest", feed([0.3, 0.1, 0.2])))
    np.testing.assert_array_equal(plain.accounts.start_s, deferred.accounts.start_s)
    np.testing.assert_array_equal(plain.accounts.energy_joules, deferred.accounts.energy_joules)
    assert plain.energy_joules == deferred.energy_joules


def test_compiled_engines_leave_deferral_to_the_general_one():
    work = jobs_of([0, 1], [10, 10], [100, 100])
    kinds = [NodeKind("n", 1, 1)]
    rules = settings_of("cheapest", feed([0.1]))
    for module in (fast_path, column_engine):
        assert module.supports(work, kinds, policy("fcfs"), ScheduleSettings())
        assert not module.supports(work, kinds, policy("fcfs"), rules)


def test_costs_of_compiled_engines_equal_those_of_the_general_one():
    random = np.random.default_rng(5)
    submit = np.sort(random.uniform(0, 20_000, 50))
    work = jobs_of(submit, random.uniform(60, 4000, 50), np.full(50, np.nan))
    kinds, signals = [NodeKind("n", 4, 1)], feed(list(random.uniform(0, 0.3, 40)))
    rules = ScheduleSettings(signals=signals)
    general = signal_costs(engine.simulate(work, kinds, policy("fcfs"), rules), signals, SignalName.PRICE)
    quick = signal_costs(fast_path.simulate(work, kinds, rules), signals, SignalName.PRICE)
    assert general is not None
    assert quick is not None
    assert general.jobs == pytest.approx(quick.jobs)


def test_an_unknown_price_makes_the_cost_unknown():
    work = jobs_of([0], [2 * HOUR], [np.nan])
    signals = feed([0.1, np.nan])
    result = engine.simulate(work, [NodeKind("n", 1, 1)], policy("fcfs"), ScheduleSettings(signals=signals))
    costs = signal_costs(result, signals, SignalName.PRICE)
    assert costs is not None
    assert np.isnan(costs.jobs).all()


def test_policies_of_a_site_see_the_signals(monkeypatch):
    registry.names()  # loads the built-in policies
    monkeypatch.setattr(registry, "_policies", dict(registry._policies))
    seen = []

    @register("test-price")
    def by_price(queue: Queue, options) -> Ranking:
        """Scheduling policy for the test: record the price that it sees. Rank the jobs like `fcfs`."""
        assert queue.signals is not None
        seen.append((queue.signals.at("price_per_kwh", queue.now_s), queue.jobs.latest_start_s.tolist()))
        return policy("fcfs").rank(queue, options)

    work = jobs_of([0, HOUR], [60, 60], [7200, np.nan])
    rules = ScheduleSettings(signals=feed([0.1, 0.2]))
    engine.simulate(work, [NodeKind("n", 1, 1)], policy("test-price"), rules)
    assert seen[0] == (0.1, [7200.0])
    assert seen[-1][0] == 0.2


SCENARIO = """
title = "Cheap hours"
[cluster.node]
nodes = 2
[workload]
file = "jobs.csv"
[schedule]
policies = ["fcfs", "fcfs+cheapest", "cheapest", "zeus+cedla"]
[signals]
price_file = "price.csv"
start = "2023-01-01T01:00Z"
[deferral]
share = 1.0
slack_hours = 3
min_saving = 0.0
uncertainty_weight = 0.0
start_margin_s = 0
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "jobs.csv").write_text(
        "submit_s,time_s,units,power_watts,slack_s\n0,3600,1,500,\n0,3600,1,500,0\n"
    )
    rows = [
        f"2023-01-01 {hour:02}:00:00+00:00,x,{price}"
        for hour, price in enumerate([90, 80, 60, 40, 50, 60, 70])
    ]
    head = "Datetime (UTC),Datetime (Local),Price (USD/MWh)"
    (tmp_path / "price.csv").write_text("\n".join([head, *rows]) + "\n")
    return tmp_path


def test_a_scenario_defers_jobs_and_states_their_cost(folder):
    read = scenario.parse(SCENARIO, folder / "s.toml")
    results = {
        result.policy: result.summary for result in campaign.campaign(read, campaign.tasks(read), jobs=1)
    }
    assert results["fcfs"]["job_cost"] == pytest.approx(0.08)
    for name in ("fcfs+cheapest", "cheapest", "zeus+cedla"):
        assert results[name]["job_cost"] == pytest.approx(0.5 * (0.08 + 0.04))
        assert results[name]["late_start_rate"] == 0
    assert "carbon_kg" not in results["fcfs"]


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ('start = "2023-01-01T01:00Z"', 'start = "soon"', ConfigError),
        ('start = "2023-01-01T01:00Z"', 'forecast = "crystal"', ConfigError),
        ('start = "2023-01-01T01:00Z"', "pue = [1.0]", ConfigError),
        ("share = 1.0", 'policy = "cheapst"', NotFoundError),
        ("share = 1.0", "share = 2.0", ConfigError),
        ("share = 1.0", 'policy = "cleanest"', ConfigError),  # there is no carbon_file
    ],
)
def test_wrong_keys_are_refused(folder, old, new, error):
    with pytest.raises(error):
        scenario.parse(SCENARIO.replace(old, new), folder / "s.toml")


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("fcfs+cleanest", r"^policy fcfs\+cleanest: needs carbon_file in \[signals\]"),
        ("kairos", "^weights: 'excss' belongs to no policy: known: .*excess"),
    ],
)
def test_a_policy_without_its_signal_and_a_weight_of_no_policy_are_refused(folder, name, fault):
    text = SCENARIO.replace("[signals]", "weights = { excss = 2.0 }\n[signals]")
    read = scenario.parse(text, folder / "s.toml")
    with pytest.raises(UsageError, match=fault):
        campaign.run(read, CampaignTask(name, 0))


def test_names_of_policies_with_deferral():
    assert split_policy("zeus+cheapest") == ("zeus", "cheapest")
    assert split_policy("cedla") == ("fcfs", "cedla")
    assert split_policy("zeus") == ("zeus", "")
    assert split_policy("off") == ("fcfs", "off")


def test_a_slack_gains_no_priority(monkeypatch):
    # The deferred job is released after an hour, when the urgent one already waits for the node.
    monkeypatch.setattr(deferral.registry, "_policies", {})

    @deferral.register("test-second-hour")
    def second_hour(queue, options):
        plan = immediate_plan(queue, DeferralReason.DEFERRED, SignalName.PRICE)
        plan.start_s[queue.deferrable] = np.maximum(HOUR, queue.now_s)
        return plan

    work = jobs_of([0, 0, 1800], [2 * HOUR, HOUR, HOUR], [np.nan, 2 * HOUR, np.nan])
    rules = settings_of("test-second-hour", feed([0.3] * 6))
    starts = engine.simulate(work, [NodeKind("n", 1, 1)], policy("fcfs"), rules).accounts.start_s
    assert starts.tolist() == [0.0, 3 * HOUR, 2 * HOUR]
