"""Tests of the deferral of pending jobs in senergyctld.

The tests cover held jobs, begin times, changes by users, and faults.
"""

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from deferral_site import CHEAP_S, CONFIG, HOUR, NOW, Site, Slurm, prices
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples

from slurm_energy.config.loader import parse_source
from slurm_energy.controller.deferral.begin_holds import BeginTimeHolds
from slurm_energy.controller.deferral.jobs import restored_jobs
from slurm_energy.grid.series import GridSeries, SeriesSource
from slurm_energy.priority.scheduling_tables import waiting_since, with_waiting_since
from slurm_energy.reports.acct.fields import Style
from slurm_energy.reports.queue.deferral_text import deferral_lines
from slurm_energy.slurm.queue.columns import RUNNING
from slurm_energy.validation import deferral
from slurm_energy.validation.check_context import CheckContext
from slurm_energy.validation.host import this_host


def test_a_job_waits_for_the_cheap_hours_and_not_longer() -> None:
    site = Site()
    job, urgent = site.slurm.add("12h"), site.slurm.add("")
    site.cycle()
    assert site.slurm.begin(job) == NOW + 300 and site.slurm.begin(urgent) == NOW
    site.run_until(CHEAP_S - 100.0)
    assert site.slurm.begin(job) == CHEAP_S  # the exact start of the slot: it needs no further change
    site.run_until(CHEAP_S + 60.0)
    assert site.slurm.begin(job) == CHEAP_S and site.planner.held == 0
    assert [one.kind for one in site.stored] == ["defer", "release"]
    facts = site.stored[0].details
    assert facts["planned_start_s"] == CHEAP_S and facts["signal_now"] == pytest.approx(0.12)
    assert facts["cost_now"] == pytest.approx(4 * facts["cost_planned"])


@pytest.mark.slow
@examples(8)
@given(st.floats(0.0, 300.0), st.integers(5, 60))
def test_no_job_begins_before_its_slot_whenever_senergyctld_plans(first_s: float, interval_s: int) -> None:
    site = Site()
    job = site.slurm.add("12h")
    site.cycle()
    site.slurm.now_s = CHEAP_S - 1200.0 + first_s
    site.slurm.change(job, eligible_s=site.slurm.now_s + 1.0)
    while site.slurm.begin(job) > site.slurm.now_s:
        site.cycle(site.slurm.now_s + interval_s)
    assert CHEAP_S - 1.0 <= site.slurm.begin(job) <= CHEAP_S  # Slurm's times are whole seconds


@pytest.mark.parametrize("slack", ["30s", "10m", "45m", "100m"])
def test_no_begin_time_lies_beyond_the_slack(slack: str) -> None:
    site = Site()
    job = site.slurm.add(slack)
    latest = NOW + {"30s": 30, "10m": 600, "45m": 2700, "100m": 6000}[slack]
    begins = []
    for second in range(0, 7200, 60):
        site.cycle(NOW + second)
        begins.append(site.slurm.begin(job))
    assert max(begins) <= latest


def test_begin_times_pass_by_themselves_after_senergyctld_has_died() -> None:
    site = Site()
    job = site.slurm.add("12h")
    for second in range(0, 2000, 60):
        site.cycle(NOW + second)
        assert site.slurm.begin(job) <= NOW + second + 300


def test_a_restarted_process_continues_the_holds_without_more_slack() -> None:
    slurm = Slurm()
    before = Site(slurm=slurm)
    job = slurm.add("8h")
    before.run_until(NOW + 900.0)
    after = Site(slurm=slurm)
    after.planner.jobs = restored_jobs(before.stored)
    after.cycle(NOW + 930.0)
    assert after.planner.held == 1 and after.stored == []
    assert after.planner.jobs[job].latest_start_s == NOW + 8 * HOUR
    assert slurm.begin(job) > NOW + 930.0
    after.series = {}
    after.cycle(NOW + 960.0)  # released, but not before the begin time that it found
    assert after.planner.held == 0 and slurm.begin(job) <= NOW + 930.0 + 300.0


def test_nothing_is_held_without_a_current_signal() -> None:
    site = Site()
    job = site.slurm.add("12h")
    site.cycle()
    assert site.slurm.begin(job) > NOW
    stale = [sample for sample in prices().samples if sample[1] <= NOW]
    site.series = {"price_per_kwh": GridSeries(SeriesSource("csv"), stale, HOUR)}
    site.cycle(NOW + 30.0)
    assert site.slurm.begin(job) == NOW + 30.0
    assert site.planner.held == 0


def test_the_begin_time_of_the_user_is_respected() -> None:
    site = Site()
    later = CHEAP_S + 4 * HOUR
    own = site.slurm.add("2h", eligible_s=later)
    within = site.slurm.add("12h", eligible_s=NOW + HOUR)
    site.run_until(NOW + 600.0)
    assert site.slurm.begin(own) == later  # its slack counts from its own begin time
    assert site.slurm.begin(within) == NOW + HOUR
    site.run_until(NOW + HOUR + 60.0)
    assert site.slurm.begin(within) > NOW + HOUR  # held before it could start
    site.series = {}
    site.cycle(NOW + HOUR + 90.0)
    assert site.slurm.begin(within) == NOW + HOUR + 90.0


def test_a_user_who_moves_the_begin_time_back_starts_at_once_and_stays_so() -> None:
    site = Site()
    job = site.slurm.add("12h")
    site.run_until(NOW + 60.0)
    site.slurm.change(job, eligible_s=NOW + 70.0)  # scontrol update StartTime=now
    site.run_until(NOW + 600.0)
    assert site.slurm.begin(job) == NOW + 70.0
    assert site.planner.held == 0


def test_a_user_may_ask_for_a_later_begin() -> None:
    site = Site()
    job = site.slurm.add("12h")
    site.run_until(NOW + 60.0)
    site.slurm.change(job, eligible_s=NOW + 50 * HOUR)
    site.run_until(NOW + 600.0)
    assert site.slurm.begin(job) == NOW + 50 * HOUR


def test_jobs_that_must_not_wait_are_left_alone() -> None:
    site = Site()
    left = [
        site.slurm.add("12h", held=True),
        site.slurm.add("12h", restart_count=1),
        site.slurm.add("soon"),
        site.slurm.add("12h", state=RUNNING, start_s=NOW - 10.0),
    ]
    site.run_until(NOW + 90.0)
    assert site.slurm.moves == []
    assert [site.slurm.begin(job) for job in left] == [NOW] * 4


def test_a_deadline_leaves_room_for_the_full_time_limit_and_a_margin() -> None:
    deadline_s = CHEAP_S + 4 * HOUR
    site = Site()
    job = site.slurm.add("", deadline_s=deadline_s)
    both = site.slurm.add("12h", deadline_s=NOW + 2 * HOUR)
    site.cycle()
    assert site.planner.jobs[job].latest_start_s == deadline_s - HOUR - 1800.0
    assert both not in site.planner.jobs  # 30 minutes are left, in which nothing is cheaper
    without = Site("deadline_is_slack = false\n")
    without.slurm.add("", deadline_s=deadline_s)
    limited = without.slurm.add("12h", deadline_s=deadline_s)
    without.cycle()
    assert list(without.planner.jobs) == [limited]
    assert without.planner.jobs[limited].latest_start_s == deadline_s - HOUR - 1800.0


@pytest.mark.slow
def test_an_array_and_a_heterogeneous_job_are_held_as_one() -> None:
    site = Site()
    array = {"array_job_id": 100, "array_task_id": -1, "array_tasks": "3-9", "tasks": 7}
    site.slurm.add("12h", **array)
    parts = [site.slurm.add("12h" if part == 0 else "", het_job_id=101) for part in range(2)]
    site.cycle()
    ((names, begin_s),) = site.slurm.moves
    assert sorted(names) == ["100_[3-9]", "101", "102"] and begin_s == int(NOW + 300)
    assert {site.slurm.begin(part) for part in parts} == {NOW + 300}
    site.run_until(CHEAP_S + 60.0)
    begins = {site.slurm.begin(part) for part in (100, *parts)}
    assert len(begins) == 1 and CHEAP_S - 60.0 <= begins.pop() <= CHEAP_S


def test_other_holds_and_deferral_share_a_begin_time() -> None:
    site = Site()
    job = site.slurm.add("12h")
    quota = BeginTimeHolds(site.slurm, site.times)
    quota.set_names({job: str(job)})
    site.cycle()
    begin = {job: site.slurm.begin(job)}
    quota.hold([job], begin, NOW)
    site.series = {}
    site.cycle(NOW + 30.0)
    assert site.slurm.begin(job) == NOW + 300  # the quota still holds it
    quota.release(None, NOW + 40.0)
    assert site.slurm.begin(job) == NOW + 30.0  # scontrol's `now`
    assert not site.times.moved


def test_a_job_held_by_a_quota_is_not_released_by_its_plan() -> None:
    site = Site()
    job = site.slurm.add("12h", eligible_s=NOW)
    quota = BeginTimeHolds(site.slurm, site.times)
    quota.set_names({job: str(job)})
    quota.hold([job], {job: NOW}, NOW - 5.0)
    site.run_until(NOW + 60.0)
    assert site.planner.jobs[job].latest_start_s == NOW + 12 * HOUR
    quota.release([job], NOW + 70.0)
    site.run_until(NOW + 400.0)
    assert site.slurm.begin(job) > NOW + 400.0  # still deferred


def test_users_get_the_same_share_of_the_held_jobs() -> None:
    site = Site("max_held_jobs = 4\n")
    for _ in range(20):
        site.slurm.add("12h", uid=1, user="greedy")
    modest = [site.slurm.add("12h", uid=2, user="modest") for _ in range(2)]
    site.cycle()
    held = [job["job_id"] for job in site.slurm.jobs if job["eligible_s"] > NOW]
    assert len(held) == 4 and set(modest) <= set(held)


@pytest.mark.slow
def test_a_hold_does_not_count_as_waiting_and_loses_no_age() -> None:
    site = Site()
    job = site.slurm.add("12h", submit_s=NOW - 600.0, eligible_s=NOW - 600.0)
    plain = site.slurm.add("", submit_s=NOW - 600.0, eligible_s=NOW - 600.0)
    site.run_until(CHEAP_S + 30.0)
    now_s = CHEAP_S + 630.0
    since = {one: facts.waiting_since_s(now_s) for one, facts in site.planner.jobs.items()}
    queue = with_waiting_since(site.slurm.read(), since)
    waited = dict(zip(queue.job_id.tolist(), (now_s - waiting_since(queue, now_s)).tolist(), strict=True))
    assert waited[plain] == now_s - NOW + 600.0
    assert 1200.0 <= waited[job] <= 1320.0  # ten minutes before the hold, ten after it


def waited_s(site: Site, job: int, now_s: float) -> float:
    """Return the waiting time that determines the age of a job."""
    site.slurm.now_s = now_s
    since = {one: facts.waiting_since_s(now_s) for one, facts in site.planner.jobs.items()}
    queue = with_waiting_since(site.slurm.read(), since)
    return now_s - float(waiting_since(queue, now_s)[queue.job_id.tolist().index(job)])


def test_the_time_before_a_requested_begin_time_is_no_hold() -> None:
    site = Site()
    begin_s = CHEAP_S - HOUR
    job = site.slurm.add("6h", eligible_s=begin_s)
    site.run_until(CHEAP_S + 60.0, 60.0)
    facts = site.planner.jobs[job]
    assert facts.total_held_s(CHEAP_S + 60.0) == pytest.approx(HOUR, abs=61)
    assert waited_s(site, job, CHEAP_S + 660.0) == pytest.approx(660.0, abs=61)


def test_the_wait_of_a_deferred_job_that_its_user_held_counts_from_the_release() -> None:
    site = Site()
    job = site.slurm.add("12h")
    site.run_until(CHEAP_S + 120.0, 60.0)
    site.slurm.change(job, held=True, eligible_s=float("nan"))
    later_s = CHEAP_S + 50 * HOUR
    site.cycle(later_s)
    assert waited_s(site, job, later_s) == 0.0
    site.slurm.change(job, held=False, eligible_s=later_s)
    site.cycle(later_s + 60.0)
    assert waited_s(site, job, later_s + 600.0) == 600.0


def test_a_hold_by_a_quota_after_a_deferral_loses_no_age() -> None:
    site = Site()
    job = site.slurm.add("12h")
    site.run_until(CHEAP_S + 120.0)
    hold_by_quota(site, job, range(3, 60)).release(None, site.slurm.now_s)
    site.cycle(CHEAP_S + HOUR)
    assert site.planner.held == 0 and site.slurm.begin(job) > CHEAP_S + 120.0
    assert waited_s(site, job, CHEAP_S + 2 * HOUR) == pytest.approx(2 * HOUR, abs=61)


def test_a_hold_by_a_quota_across_a_restart_loses_no_age() -> None:
    site = Site()
    job = site.slurm.add("12h")
    site.run_until(CHEAP_S + 120.0)
    hold_by_quota(site, job, range(3, 30))
    after = Site(slurm=site.slurm)
    after.planner.jobs = restored_jobs(site.stored)
    after.cycle(CHEAP_S + 30 * 60.0)  # the deferral plans before the quotas
    hold_by_quota(after, job, range(31, 60)).release(None, site.slurm.now_s)
    after.cycle(CHEAP_S + HOUR)
    assert waited_s(after, job, CHEAP_S + 2 * HOUR) == pytest.approx(2 * HOUR, abs=61)


def hold_by_quota(site: Site, job: int, minutes: range) -> BeginTimeHolds:
    """Let a quota hold a job in each of the given minutes after the start of the cheap hours."""
    quota = BeginTimeHolds(site.slurm, site.times)
    quota.set_names({job: str(job)})
    for minute in minutes:
        site.slurm.now_s = CHEAP_S + 60.0 * minute
        quota.hold([job], {job: site.slurm.begin(job)}, site.slurm.now_s)
        site.cycle()
    return quota


def test_release_all_releases_what_is_held() -> None:
    site = Site()
    jobs = [site.slurm.add("12h") for _ in range(3)]
    site.cycle()
    ended, problems = site.planner.release_all(NOW)
    assert problems == () and [one.job_id for one in ended] == jobs
    assert [site.slurm.begin(job) for job in jobs] == [NOW] * 3


def test_damaged_entries_of_the_audit_trail_are_skipped() -> None:
    site = Site()
    site.slurm.add("12h")
    site.cycle()
    good = site.stored[0]
    bad = replace(good, details={"eligible_s": 1.0})
    assert restored_jobs([bad]) == {}
    assert list(restored_jobs([bad, good])) == [good.job_id]


# Configuration and text


@pytest.mark.parametrize(
    ("toml", "words"),
    [
        ('[deferral]\npolicy = "cheapest"\n', "deferral.policy: 'cheapest' needs price.provider"),
        ('[deferral]\npolicy = "cleanest"\n', "'cleanest' defers nothing: carbon.provider is 'yearly'"),
        ('[deferral]\npolicy = "cheap"\n', "'cheap' is not one of off, cheapest, cleanest, cedla"),
        ("[deferral]\nslot_s = 60\n", "deferral.slot_s: has no effect: deferral.policy is 'off'"),
        (CONFIG + "min_run_s = 60\n", "deferral.min_run_s: has no effect: deferral.suspend is false"),
        ('[signals]\noutside_file = "/x"\n', "signals.outside_file: has no effect"),
    ],
)
def test_a_configuration_without_effect_is_told(toml: str, words: str) -> None:
    context = CheckContext(parse_source(toml), this_host())
    lines = [finding.text for finding in deferral.check(context)]
    assert any(words in line for line in lines), lines


def test_prio_explains_until_when_and_why() -> None:
    site = Site()
    site.slurm.add("12h")
    site.cycle()
    facts = site.planner.jobs[100].to_json()
    style = Style(time_format="%H:%M", now=datetime.fromtimestamp(NOW, UTC))
    (line,) = deferral_lines({"deferral": facts}, style)
    until, latest = (datetime.fromtimestamp(at, UTC).strftime("%H:%M") for at in (CHEAP_S, NOW + 12 * HOUR))
    assert line == (
        f"deferred   until {until}, price forecast 30 against 120 EUR/MWh now, at the latest {latest}; "
        "expected saving 0.0013 EUR (75 %)"
    )
    assert deferral_lines({"deferral": None}, style) == []


def test_a_dependent_job_waits_for_its_plan() -> None:
    site = Site()
    job = site.slurm.add("12h", dependent=True)
    site.cycle()
    assert site.planner.jobs[job].planned_start_s == CHEAP_S
    assert site.slurm.begin(job) == NOW + 300


@pytest.mark.parametrize("dependent", [True, False])
def test_a_satisfied_dependency_or_a_release_grants_no_further_slack(dependent: bool) -> None:
    site = Site()
    nan = float("nan")
    job = site.slurm.add("2h", dependent=dependent, held=not dependent, eligible_s=nan)
    site.cycle()
    late_s = NOW + 2.2 * HOUR
    site.slurm.change(job, dependent=False, held=False, eligible_s=late_s)  # as slurmctld sets it
    site.cycle(late_s + 10.0)
    assert site.planner.held == 0


def test_slack_counts_from_a_requested_begin_time_also_after_it_has_passed() -> None:
    site = Site()
    begin_s = NOW + HOUR
    job = site.slurm.add("4h", eligible_s=begin_s)
    varying = site.series["price_per_kwh"]
    site.series["price_per_kwh"] = GridSeries.constant(SeriesSource("constant"), 0.1)
    site.cycle()  # the job may start at its begin time
    site.series["price_per_kwh"] = varying
    site.cycle(begin_s + 60.0)
    assert site.planner.jobs[job].latest_start_s == begin_s + 4 * HOUR
    other = site.slurm.add("1h", submit_s=NOW, eligible_s=begin_s + 2 * HOUR)
    site.cycle()
    site.slurm.change(other, eligible_s=begin_s + 60.0)  # scontrol update starttime=now
    site.cycle(begin_s + 120.0)
    assert other not in site.planner.jobs
