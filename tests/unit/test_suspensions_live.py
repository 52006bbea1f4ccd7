"""Tests of the suspension of running jobs by senergyctld.

The tests cover the time and number of suspensions, and the state after kill -9 at any point.
"""

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
from deferral_site import CHEAP_S, HOUR, NOW, Site, Slurm
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples

from slurm_energy.accounting.decisions import Decision
from slurm_energy.config import Config, parse
from slurm_energy.controller.deferral.jobs import restored_jobs
from slurm_energy.controller.deferral.signals import signal_columns
from slurm_energy.controller.deferral.suspended_jobs import restored_suspensions
from slurm_energy.deferral import DeferralOptions
from slurm_energy.deferral.suspension import CheckpointableJobs, plan_suspensions
from slurm_energy.errors import UnavailableError, UsageError
from slurm_energy.grid.series import GridSeries, SeriesSource
from slurm_energy.policies.flags import validate_flags
from slurm_energy.policies.policy_file import policy_file_text
from slurm_energy.reports.acct.fields import Style
from slurm_energy.reports.queue.deferral_text import deferral_change, deferral_lines
from slurm_energy.signals import SignalColumns, SignalForecast, SignalName
from slurm_energy.slurm.queue.columns import PENDING, RUNNING
from slurm_energy.slurm.queue.job_update import UpdateResult

SUSPEND = "suspend = true\nmin_run_s = 600\nmin_suspension_s = 1800\n"
RAN_S = 1200.0
STEP_S = 600.0
TIME_S = 2.0 * HOUR
"""Predicted run time: without history, half of the time limit."""


def add_running(slurm: Slurm, slack: str = "12h", restart: str = "5m", **more: Any) -> int:
    """Add a checkpointable job that has run for `RAN_S` and is predicted to run for `TIME_S`."""
    job = slurm.add(slack, time_limit_s=2 * TIME_S, **more)
    slurm.now_s = NOW
    slurm.change(job, state=RUNNING, submit_s=NOW - RAN_S, start_s=NOW - RAN_S, eligible_s=NOW - RAN_S)
    if restart:
        flags = {"ENERGY_SLACK": slack, "ENERGY_CHECKPOINTABLE": restart}
        slurm.change(job, flags={name: value for name, value in flags.items() if value})
    slurm.change(job, **more)
    return job


def kinds(stored: list[Decision]) -> list[str]:
    return [one.kind for one in stored]


def state(site: Site, job: int) -> dict[str, Any]:
    return next(one for one in site.slurm.jobs if one["job_id"] == job)


def test_a_job_is_requeued_in_an_expensive_hour_and_continues_in_the_cheap_one() -> None:
    site = Site(SUSPEND)
    job = add_running(site.slurm)
    site.cycle()
    assert kinds(site.stored) == ["suspend"] and state(site, job)["restart_count"] == 1
    facts = site.stored[0].details
    assert facts["work_s"] == RAN_S and facts["suspensions"] == 1
    assert CHEAP_S - 900.0 < facts["planned_start_s"] < CHEAP_S + 900.0
    assert facts["signal_now"] == pytest.approx(0.12) and facts["cost_planned"] < facts["cost_now"]
    assert site.slurm.begin(job) == NOW + 300.0
    site.cycle(CHEAP_S - 60.0)
    assert site.slurm.begin(job) == CHEAP_S
    site.cycle(CHEAP_S + 120.0)
    assert site.slurm.begin(job) == CHEAP_S and site.planner.held == 0
    assert kinds(site.stored) == ["suspend", "defer", "release"]
    assert site.stored[1].details["suspensions"] == 1
    assert site.stored[1].details["predicted_s"] == pytest.approx(TIME_S - RAN_S + 300.0)


@pytest.mark.parametrize(
    ("toml", "more"),
    [
        (SUSPEND.replace("true", "false"), {}),
        (SUSPEND, {"restart": ""}),
        (SUSPEND, {"slack": ""}),
        (SUSPEND, {"slack": "1h"}),
        (SUSPEND, {"requeue": False}),
        (SUSPEND, {"array_job_id": 7, "array_task_id": 1}),
        (SUSPEND, {"het_job_id": 7}),
        (SUSPEND, {"restart_count": 1}),
        (SUSPEND, {"restart": "4h"}),
        (SUSPEND, {"restart": "soon"}),
        (SUSPEND + "max_slack_s = 3600\n", {}),
        (SUSPEND.replace("600", "2000"), {}),
        (SUSPEND.replace("1800", "40000"), {}),
        (SUSPEND, {"deadline_s": NOW + 2 * TIME_S + HOUR}),
    ],
)
def test_other_jobs_run_on(toml: str, more: dict[str, Any]) -> None:
    site = Site(toml)
    job = add_running(site.slurm, **more)
    site.cycle(NOW + 300.0)
    assert state(site, job)["state"] == RUNNING and "suspend" not in kinds(site.stored)


def test_a_job_is_suspended_only_if_it_finds_its_cpus_again() -> None:
    site = Site(SUSPEND, cpus=4)
    job = add_running(site.slurm)
    long = site.slurm.add("", cpus=4, time_limit_s=8 * HOUR)
    site.cycle()
    assert state(site, job)["state"] == RUNNING  # the waiting job would take its place for eight hours
    site.slurm.change(long, time_limit_s=HOUR)
    site.slurm.change(job, time_limit_s=2 * (RAN_S + 3 * HOUR))
    falls = [(NOW + HOUR * h, NOW + HOUR * (h + 1), 0.2 if h < 2 else 0.1) for h in range(-24, 48)]
    site.series = {"price_per_kwh": GridSeries(SeriesSource("csv"), falls, HOUR)}
    site.cycle(NOW + 30.0)
    assert state(site, job)["state"] == PENDING  # its own CPUs, which it releases, are free when it resumes
    assert site.stored[-1].details["planned_start_s"] < NOW + 3 * HOUR


def test_a_deadline_leaves_room_for_the_full_time_limit() -> None:
    site = Site(SUSPEND)
    add_running(site.slurm, deadline_s=CHEAP_S + HOUR + 2 * TIME_S)
    site.cycle()
    facts = site.stored[0].details
    assert facts["resume_by_s"] == facts["deadline_start_s"] == CHEAP_S + HOUR - 1800.0


@pytest.mark.parametrize("is_known", [True, False])
def test_a_suspension_lasts_for_its_minimum_although_the_price_falls_or_is_missing(is_known: bool) -> None:
    site = Site(SUSPEND)
    job = add_running(site.slurm)
    site.cycle()
    low = [(start, end, 0.01) for start, end, _ in site.series["price_per_kwh"].samples]
    site.series = {"price_per_kwh": GridSeries(SeriesSource("csv"), low, HOUR)} if is_known else {}
    site.cycle(NOW + 120.0)
    assert site.slurm.begin(job) > NOW + 120.0
    site.cycle(NOW + 1700.0)
    assert site.slurm.begin(job) == NOW + 1800.0
    site.cycle(NOW + 1860.0)
    assert site.planner.held == 0


def test_few_jobs_are_suspended_at_once_and_the_largest_saving_is_first() -> None:
    site = Site(SUSPEND)
    jobs = [add_running(site.slurm, cpus=4 + number) for number in range(6)]
    site.cycle()
    assert [one.job_id for one in site.stored] == jobs[:1:-1]
    site.cycle(NOW + 30.0)
    assert [one.job_id for one in site.stored if one.kind == "suspend"] == [*jobs[:1:-1], jobs[1], jobs[0]]


def test_a_job_that_slurm_does_not_requeue_runs_on_and_is_not_tried_again() -> None:
    site = Site(SUSPEND)
    add_running(site.slurm)
    tries = []

    def refuse(names: Any) -> UpdateResult:
        tries.append(dict(names))
        return UpdateResult(refused=dict.fromkeys(names, "disabled"))

    site.slurm.requeue = refuse  # type: ignore[method-assign]
    now_s = NOW
    cycle = site.planner.plan(signal_columns(site.config, site.series, now_s), now_s)
    assert site.planner.apply(cycle)[1] == ("job 100 cannot be suspended: disabled",)
    site.cycle(NOW + 30.0)
    assert len(tries) == 1 and site.slurm.moves == []


@pytest.mark.parametrize("reply", ["gone", "remaining", "refused", "not reached"])
def test_a_suspension_that_did_not_take_place_is_corrected_and_forgotten(reply: str) -> None:
    site = Site(SUSPEND)
    job = add_running(site.slurm)

    def fail(names: Any) -> UpdateResult:
        if reply == "not reached":
            raise UnavailableError("scontrol", "no answer")
        return UpdateResult(
            **{reply: dict.fromkeys(names, "disabled") if reply == "refused" else tuple(names)}
        )

    site.slurm.requeue = fail  # type: ignore[method-assign]
    cycle = site.planner.plan(signal_columns(site.config, site.series, NOW), NOW)
    site.stored = [one.decision() for one in cycle.suspended]
    with pytest.raises(UnavailableError) if reply == "not reached" else nullcontext():
        site.planner.apply(cycle)
    del site.slurm.requeue
    site.slurm.change(job, flags={"ENERGY_SLACK": "12h"})  # it is not suspended again
    site.cycle(NOW + 31.0)
    site.cycle(NOW + 62.0)
    assert kinds(site.stored) == ["suspend", "not_suspended"]
    assert site.stored[1].details == {"since_s": NOW}
    assert restored_suspensions(site.stored) == []
    site.slurm.now_s = NOW + 300.0  # a node fails
    site.slurm.requeue({job: str(job)})
    site.cycle(NOW + 330.0)
    assert site.planner.held == 0 and site.slurm.moves == []


def test_a_request_without_a_known_result_is_not_repeated_at_once() -> None:
    site = Site(SUSPEND)
    job = add_running(site.slurm)
    site.slurm.requeue = lambda names: UpdateResult(remaining=tuple(names))  # type: ignore[method-assign]
    for after_s in (0.0, 10.0, 20.0):
        site.cycle(NOW + after_s)
    assert kinds(site.stored) == ["suspend"]
    del site.slurm.requeue
    site.cycle(NOW + 31.0)
    assert kinds(site.stored) == ["suspend", "not_suspended", "suspend"]
    assert state(site, job)["state"] == PENDING
    assert [one.since_s for one in restored_suspensions(site.stored)] == [NOW + 31.0]


def restarted(before: Site, stored: list[Decision]) -> Site:
    """Return a simulated site after senergyctld was killed with kill -9 and started again.

    The new senergyctld knows only the decisions in the audit trail.
    """
    after = Site(SUSPEND, slurm=before.slurm)
    after.planner.jobs = restored_jobs(stored)
    after.planner.suspensions.note(restored_suspensions(stored))
    return after


@pytest.mark.parametrize("point", ["before the requeue", "before the begin time", "before the first hold"])
def test_kill_between_the_steps_neither_loses_nor_blocks_the_job(point: str) -> None:
    site = Site(SUSPEND)
    job = add_running(site.slurm)
    cycle = site.planner.plan(signal_columns(site.config, site.series, NOW), NOW)
    stored = [one.decision() for one in cycle.suspended]
    if point == "before the begin time":
        site.slurm.requeue({job: str(job)})
    elif point == "before the first hold":
        site.planner.apply(cycle)
    assert site.slurm.begin(job) <= NOW + 300.0  # nobody is needed for its start
    after = restarted(site, stored)
    after.cycle(NOW + 60.0)
    assert state(after, job)["restart_count"] == 1
    after.cycle(NOW + 120.0)
    assert after.planner.held == 1 and after.planner.jobs[job].suspensions == 1
    assert after.planner.jobs[job].latest_start_s == pytest.approx(stored[0].details["resume_by_s"], abs=60.0)
    after.cycle(CHEAP_S - 60.0)
    assert site.slurm.begin(job) == CHEAP_S


@pytest.mark.parametrize(("deadline_s", "made"), [(np.nan, ["suspend", "defer"]), (NOW + 20 * HOUR, [])])
def test_a_job_with_a_deadline_and_without_a_time_limit_runs_on(deadline_s: float, made: list[str]) -> None:
    site = Site(SUSPEND)
    falls = [(NOW + HOUR * h, NOW + HOUR * (h + 1), 0.9 if h < 6 else 0.01) for h in range(-24, 96)]
    site.series = {"price_per_kwh": GridSeries(SeriesSource("csv"), falls, HOUR)}
    job = add_running(site.slurm, "20h", deadline_s=deadline_s)
    site.slurm.change(job, time_limit_s=np.nan)
    site.cycle()
    site.cycle(NOW + 60.0)
    assert kinds(site.stored) == made


@pytest.mark.parametrize("ahead_s", [-200.0, 200.0])
def test_a_suspension_continues_although_the_clock_of_slurmctld_differs(ahead_s: float) -> None:
    site = Site(SUSPEND)
    job = add_running(site.slurm)
    site.cycle()
    site.slurm.change(job, submit_s=NOW + ahead_s)
    site.cycle(NOW + 240.0)
    assert site.planner.held == 1 and site.slurm.begin(job) == NOW + 540.0


def test_a_requeue_by_others_is_no_suspension() -> None:
    site = Site(SUSPEND)
    job = add_running(site.slurm)
    cycle = site.planner.plan(signal_columns(site.config, site.series, NOW), NOW)
    stored = [one.decision() for one in cycle.suspended]
    site.slurm.now_s = NOW + 2 * HOUR  # killed before the requeue; a node fails two hours later
    site.slurm.requeue({job: str(job)})
    after = restarted(site, stored)
    after.cycle(NOW + 2 * HOUR + 60.0)
    assert after.planner.held == 0 and after.slurm.moves == []
    site.slurm.change(job, restart_count=2, submit_s=NOW + 60.0)  # its user requeued it after our requeue
    after.cycle(NOW + 2 * HOUR + 120.0)
    assert after.planner.held == 0 and after.slurm.moves == []


def test_a_user_who_moves_the_begin_time_back_is_not_suspended_again() -> None:
    site = Site(SUSPEND)
    job = add_running(site.slurm)
    site.cycle()
    site.cycle(NOW + 120.0)
    site.slurm.change(job, eligible_s=NOW + 130.0)
    site.cycle(NOW + 150.0)
    assert site.slurm.begin(job) == NOW + 130.0 and site.planner.held == 0
    start_later(site, job, NOW + 160.0)
    site.cycle(NOW + 1500.0)
    assert state(site, job)["state"] == RUNNING


def start_later(site: Site, job: int, now_s: float) -> None:
    """Start a job whose nodes must boot first.

    The job is absent from the queue while its nodes boot.
    """
    jobs, site.slurm.jobs = site.slurm.jobs, []
    site.cycle(now_s)
    site.slurm.jobs = jobs
    site.slurm.start(job)


def test_a_job_is_suspended_a_limited_number_of_times() -> None:
    site = Site(SUSPEND + "max_suspensions = 2\n")
    days = [(NOW + HOUR * h, NOW + HOUR * (h + 1), 0.2 if h % 3 else 0.02) for h in range(-24, 48)]
    site.series = {"price_per_kwh": GridSeries(SeriesSource("csv"), days, HOUR)}
    job = add_running(site.slurm, "20h", "1m")
    for now_s in (NOW + 1.1 * HOUR, NOW + 4.1 * HOUR, NOW + 7.1 * HOUR):
        site.cycle(now_s)
        site.cycle(now_s + 1.8 * HOUR)
        start_later(site, job, now_s + 2 * HOUR)
        site.slurm.change(job, time_limit_s=4 * TIME_S + site.slurm.now_s - NOW)  # it never ends
    facts = [one.details for one in site.stored if one.kind == "suspend"]
    assert [one["suspensions"] for one in facts] == [1, 2] and state(site, job)["restart_count"] == 2
    assert [one["work_s"] for one in facts] == [RAN_S + 1.1 * HOUR, RAN_S + 2.1 * HOUR - 60.0]


def test_no_job_is_suspended_beyond_the_limit_on_held_jobs() -> None:
    site = Site(SUSPEND + "max_held_jobs = 1\n")
    add_running(site.slurm), add_running(site.slurm)
    site.cycle()
    site.cycle(NOW + 30.0)
    assert kinds(site.stored).count("suspend") == 1


@examples(6)
@given(st.floats(1.5, 4.0), st.integers(60, 600), st.lists(st.booleans(), min_size=12, max_size=12))
def test_waits_suspensions_and_restarts_stay_within_the_slack(
    slack_h: float, restart_s: int, cheap: list[bool]
) -> None:
    toml = SUSPEND.replace("1800", "900") + "max_suspensions = 2\n"
    site = Site(toml)
    samples = [(NOW + HOUR * (h - 1), NOW + HOUR * h, 0.02 if low else 0.2) for h, low in enumerate(cheap)]
    site.series = {"price_per_kwh": GridSeries(SeriesSource("csv"), samples, HOUR)}
    slack_s = int(slack_h * HOUR)
    job = add_running(site.slurm, f"{slack_s}s", f"{restart_s}s")
    start_s, work_s, now_s = NOW - RAN_S, RAN_S, NOW
    starts = 1
    while work_s < TIME_S and now_s < NOW + 20 * HOUR:
        now_s += STEP_S
        site.cycle(now_s)
        one = state(site, job)
        if one["state"] == PENDING and one["eligible_s"] <= now_s:
            site.slurm.start(job)
            starts += 1
        if one["state"] == RUNNING:
            work_s += STEP_S if now_s - one["start_s"] >= (restart_s if starts > 1 else 0.0) else 0.0
    assert starts <= 3
    delay_s = now_s - start_s - TIME_S
    assert delay_s <= slack_s + starts * 2 * STEP_S  # steps of this test; a restart takes part of one
    assert work_s >= TIME_S


def prices(values: list[float]) -> SignalColumns:
    mean = np.array(values, np.float64)
    source = np.zeros(len(mean), np.int64)
    return SignalColumns(0.0, 900.0, SignalForecast(mean, np.zeros(len(mean)), source))


def test_the_decision_keeps_the_minimum_run_and_suspension() -> None:
    def decide(**options: float) -> tuple[list[bool], list[float]]:
        one, ran = np.full(1, 1800.0), np.full(1, 1000.0)
        jobs = CheckpointableJobs(0.0, one, np.full(1, 7200.0), np.zeros(1, np.int64), np.full(1, 90.0), ran)
        plan = plan_suspensions(
            jobs, prices([9, 9, 1, 1, 3, 3, 3, 3]), SignalName.PRICE, DeferralOptions(**options)
        )
        return plan.suspend.tolist(), plan.resume_s.tolist()

    assert decide() == ([True], [1800.0])
    assert decide(min_run_s=1001.0)[0] == [False]
    assert decide(min_suspension_s=3600.0) == ([True], [3600.0])
    assert decide(min_suspension_s=7200.0)[0] == [False]


def test_texts_of_suspended_jobs() -> None:
    style = Style()
    facts = {
        "planned_start_s": CHEAP_S,
        "latest_start_s": CHEAP_S + HOUR,
        "suspensions": 1,
        "unit": "currency",
    }
    assert deferral_lines({"deferral": facts}, style)[0].startswith("suspended  until ")
    facts |= {
        "currency": "EUR",
        "signal_now": 0.12,
        "signal_planned": 0.03,
        "cost_now": 2.0,
        "cost_planned": 1.0,
    }
    assert deferral_change({"kind": "not_suspended", "since_s": 1.0}, style) == "not suspended"
    line = deferral_change({"kind": "suspend", "work_s": 1200.0, **facts}, style)
    assert line.startswith("suspended after 00:20:00 of work, until ")
    assert "price forecast 30 against 120 EUR/MWh now; expected saving 1.00 EUR (50 %)" in line


def test_the_flag_is_checked_and_keys_without_effect_are_reported() -> None:
    config = parse('[deferral]\npolicy = "cheapest"\nsuspend = true\nmax_slack_s = 3600\n')
    validate_flags({"ENERGY_CHECKPOINTABLE": "5m"}, config)
    with pytest.raises(UsageError, match="--energy-checkpointable: 'soon' is not a duration"):
        validate_flags({"ENERGY_CHECKPOINTABLE": "soon"}, config)
    with pytest.raises(UsageError, match="--energy-checkpointable: '2h' is out of bounds: 1 to 3600 s"):
        validate_flags({"ENERGY_CHECKPOINTABLE": "2h"}, config)
    validate_flags({"ENERGY_CHECKPOINTABLE": "2h"}, parse(""))
    assert deferral_text(config) == "restart_s 1 3600"
    assert deferral_text(parse('[deferral]\npolicy = "cheapest"\n')) == "restart_s 0 0"


def deferral_text(config: Config) -> str:
    """Return the line of the policy file that starts with `restart_s`, the duration of a restart."""
    return next(line for line in policy_file_text(config).splitlines() if line.startswith("restart_s"))
