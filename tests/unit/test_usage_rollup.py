"""Tests of the stored sums from which `senergy report` is computed.

The sums equal direct sums over the energy periods, records and job facts. The order in which these data
arrive does not matter.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from fractions import Fraction
from pathlib import Path
from typing import Any

import period_examples as periods
import pytest
import store_examples as stored
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples
from sqlalchemy import select

from slurm_energy.accounting import retention
from slurm_energy.accounting.engine import connect
from slurm_energy.accounting.records import job_facts, record_store
from slurm_energy.accounting.records.job_facts import JobLookup
from slurm_energy.accounting.records.node_coverage import missing_node_seconds, off_energy
from slurm_energy.accounting.records.off_periods import OffPeriod, store_off_periods
from slurm_energy.accounting.records.periods import DeliveredPeriod, store_periods
from slurm_energy.accounting.records.plausibility import PlausibilityCheck
from slurm_energy.accounting.records.record_selection import Visibility
from slurm_energy.accounting.schema import migrations, tables, usage_tables
from slurm_energy.accounting.usage import whole_periods
from slurm_energy.accounting.usage.groups import COVERAGE, IDLE, JOB, UNATTRIBUTED, GroupKey
from slurm_energy.accounting.usage.sum_changes import SUM_COLUMNS
from slurm_energy.accounting.usage.usage_queries import (
    UsageQuery,
    WindowUsage,
    read_usage,
    visible_groups,
)
from slurm_energy.accounting.usage.usage_rollup import UsageRollup, uncounted_periods
from slurm_energy.controller.records.usage_document import GridRates, usage_rows
from slurm_energy.grid.factor import GridFactor
from slurm_energy.grid.footprint import GridFactors
from slurm_energy.grid.series import GridSeries, SeriesSource
from slurm_energy.slurm.job_accounting import JobFacts

HOUR = 3600
T0 = 1_699_999_200  # a full hour
END = T0 + 6 * HOUR
TOTAL = SUM_COLUMNS.index("total_uj")
CPU_SECONDS = SUM_COLUMNS.index("cpu_seconds")


class Rollup:
    """Test object: a database with the sums of energy and time for usage reports.

    The object delivers data and updates the sums as the controller does.
    """

    def __init__(self, path: Path | str) -> None:
        migrations.prepare(path)
        self._stack = ExitStack()
        self.connection = self._stack.enter_context(connect(path))
        self._rollup = UsageRollup()

    def close(self) -> None:
        self._stack.close()

    def deliver_record(self, **more: Any) -> None:
        items, refusals = record_store.read_items([stored.item(**more)])
        assert not refusals
        record_store.store(self.connection, items, stored.NOW)

    def deliver_period(self, **more: Any) -> None:
        period = DeliveredPeriod(0, periods.period(**more), "{}")
        _, refusals = store_periods(self.connection, [period], stored.NOW)
        assert not refusals

    def learn(self, *facts: JobFacts, now: float = stored.NOW) -> None:
        answer: dict[int, list[JobFacts]] = {}
        for one in facts:
            answer.setdefault(one.job_id, []).append(one)
        job_facts.store(self.connection, answer, self.lookups(), now)

    def lookups(self) -> list[JobLookup]:
        return job_facts.pending_lookups(self.connection, 0.0)

    def advance(self) -> None:
        while self._rollup.advance(self.connection, stored.NOW):
            pass
        assert uncounted_periods(self.connection) == 0

    def usage(self, *edges: int, **more: Any) -> WindowUsage:
        return read_usage(self.connection, UsageQuery(edges or (T0, END), **more))

    def sums(self, *edges: int, **more: Any) -> dict[GroupKey, tuple[int, ...]]:
        usage = self.usage(*edges, **more)
        return {usage.groups[key]: tuple(sums) for key, sums in usage.intervals[0].sums.items()}

    def energies(self, *edges: int, **more: Any) -> dict[tuple[str, str, str], int]:
        """Return the sums of energy in microjoules, by kind of energy, account and user."""
        result: dict[tuple[str, str, str], int] = {}
        for key, sums in self.sums(*edges, **more).items():
            if sums[TOTAL]:
                name = (key.kind, key.account, key.user)
                result[name] = result.get(name, 0) + sums[TOTAL]
        return result

    def cpu_seconds(self, *edges: int) -> dict[str, int]:
        result: dict[str, int] = {}
        for key, sums in self.sums(*edges).items():
            if sums[CPU_SECONDS]:
                result[key.account] = result.get(key.account, 0) + sums[CPU_SECONDS]
        return result


@pytest.fixture
def rollup(tmp_path: Path) -> Iterator[Rollup]:
    rollup = Rollup(tmp_path / "a.db")
    yield rollup
    rollup.close()


def facts(job_id: int = 1, start: float = T0 + 600, end: float | None = T0 + 4200, **more: Any) -> JobFacts:
    state, elapsed_s = ("RUNNING", None) if end is None else ("COMPLETED", float(end - start))
    return stored.job(
        job_id,
        submit=start - 10,
        start=start,
        end=end,
        **{"state": state, "elapsed_s": elapsed_s, "allocated": "cpu=4,node=1"} | more,
    )


def test_idle_jobs_and_unattributed_energy_add_up_to_the_meter(rollup: Rollup) -> None:
    rollup.deliver_period(start=T0, jobs={(1, 0): {"cpu": 5_000_000}}, unattributed={"cpu": 700})
    rollup.advance()
    assert rollup.energies() == {
        (JOB, "", ""): 5_000_000,
        (IDLE, "", ""): 1_000_000,
        (UNATTRIBUTED, "", ""): 700,
    }


def test_late_facts_move_the_energy_to_the_account(rollup: Rollup) -> None:
    rollup.deliver_period(start=T0)
    rollup.deliver_period(start=T0 + HOUR)
    rollup.advance()
    assert rollup.energies(T0, T0 + HOUR)[JOB, "", ""] == 3_000_000
    rollup.deliver_record(start=T0 + 600.5, end=T0 + 4200.5, tag="t", user="alice")
    rollup.advance()
    assert rollup.energies()[JOB, "", "alice"] == 6_000_000
    rollup.learn(facts())
    rollup.advance()
    assert rollup.energies()[JOB, "physics", "alice"] == 6_000_000
    assert rollup.cpu_seconds(T0, T0 + HOUR) == {"physics": 4 * 3000}
    assert rollup.cpu_seconds(T0 + HOUR, END) == {"physics": 4 * 600}
    (key,) = [key for key in rollup.sums() if key.kind == JOB]
    assert (key.policy, key.tag, key.partition, key.cpus, key.uid) == ("edp", "t", "cpu", 4, 1000)


def test_facts_that_did_not_change_are_not_stored_again(rollup: Rollup) -> None:
    changed = select(usage_tables.usage_changed_jobs.c.job_id)
    updated = select(tables.jobs.c.updated)
    rollup.deliver_record(job_id=1, start=T0 + 600.0, end=T0 + 4200.0)
    rollup.advance()
    for later_s, is_stored in ((2.0, True), (4.0, False), (100.0, True), (200.0, False)):
        rollup.learn(facts(), now=T0 + 4200 + later_s)
        assert bool(rollup.connection.execute(changed).all()) is is_stored
        assert (rollup.connection.execute(updated).scalar() == T0 + 4200 + later_s) is is_stored
        rollup.advance()


def test_cpu_time_is_exact_in_any_window(rollup: Rollup) -> None:
    rollup.deliver_record(start=T0 + 600.5, end=T0 + 4200.5)
    rollup.learn(facts())  # 4 CPUs from T0 + 600 to T0 + 4200
    rollup.advance()
    for start, end in ((0, 599), (0, 601), (700, 900), (3500, 3700), (600, 3600), (600, 4199), (1, 9000)):
        seconds = max(0, min(end, 4200) - max(start, 600))
        assert sum(rollup.cpu_seconds(T0 + start, T0 + end).values()) == 4 * seconds
    assert rollup.cpu_seconds(T0 + 4200, END) == {}


def test_time_in_which_a_job_was_suspended_does_not_count(store_location: str) -> None:
    """The time in which a job was suspended does not count as usage.

    The time in which the job ran is distributed evenly over the period from its start to its end. The
    usage in adjacent time windows adds up to the time in which the job ran.
    """
    rollup = Rollup(store_location)
    rollup.deliver_record(start=T0 + 600.5, end=T0 + 2 * HOUR + 1000.5)
    length_s, elapsed_s = 2 * HOUR + 400, 3001
    rollup.learn(facts(end=T0 + 2 * HOUR + 1000, elapsed_s=float(elapsed_s)))
    rollup.learn(facts(2, elapsed_s=0.0))  # suspended as soon as it ran
    rollup.advance()
    assert rollup.cpu_seconds() == {"physics": 4 * elapsed_s}
    edges = (T0, T0 + 700, T0 + 701, T0 + 1999, T0 + HOUR, T0 + HOUR + 3, T0 + 2 * HOUR + 999, END)
    parts = [
        sum(sums[CPU_SECONDS] for sums in interval.sums.values())
        for interval in rollup.usage(*edges).intervals
    ]
    ran_s = [min(max(edge - T0 - 600, 0), length_s) * elapsed_s // length_s for edge in edges]
    assert parts == [4 * (after - before) for before, after in itertools.pairwise(ran_s)]
    rollup.close()


def test_a_suspended_job_keeps_its_time_until_it_continues(rollup: Rollup) -> None:
    rollup.deliver_period(start=T0, jobs={(7, 0): {"cpu": 5}})
    rollup.advance()
    seconds = []
    for state, later_s, elapsed_s in (
        ("RUNNING", 995, 990.0),  # sacct was asked 5 s before
        ("SUSPENDED", 2000, 1500.0),
        ("SUSPENDED", 3000, 1500.0),
        ("RUNNING", 4000, 2500.0),
    ):
        known = facts(7, T0, None, state=state, elapsed_s=elapsed_s)
        rollup.learn(known, now=T0 + later_s)
        rollup.advance()
        seconds.append(rollup.cpu_seconds()["physics"])
    assert seconds == [4 * 995, 4 * 1500, 4 * 1500, 4 * 2500]


def test_slurm_is_asked_about_running_jobs(rollup: Rollup) -> None:
    rollup.deliver_period(start=T0, jobs={(7, 0): {"cpu": 5}})
    rollup.advance()
    assert rollup.lookups() == [JobLookup("c1", 7, True)]
    rollup.learn(facts(7, T0 + 10, None), now=T0 + HOUR + 100)
    rollup.advance()
    assert rollup.energies()[JOB, "physics", "alice"] == 5
    assert rollup.cpu_seconds() == {"physics": 4 * (HOUR + 90)}
    assert rollup.lookups() == [JobLookup("c1", 7, False)]  # now as a job that has not finished


def test_jobs_that_slurm_never_knows_are_dropped(rollup: Rollup) -> None:
    rollup.deliver_period(start=T0, jobs={(7, 0): {"cpu": 5}})
    rollup.advance()
    assert [lookup.job_id for lookup in rollup.lookups()] == [7]
    rollup.deliver_period(start=T0 + HOUR, jobs={(8, 0): {"cpu": 5}})
    UsageRollup().advance(rollup.connection, stored.NOW + 9 * 86400)
    assert [lookup.job_id for lookup in rollup.lookups()] == [8]


def test_a_reused_job_id_belongs_to_the_job_of_that_time(rollup: Rollup) -> None:
    year = T0 + 366 * 24 * HOUR
    for start, account in ((T0, "old"), (year, "new")):
        rollup.deliver_period(start=start)
        rollup.deliver_record(start=start + 100.0, end=start + 200.0)
        rollup.learn(facts(1, start + 100, start + 200, account=account))
    rollup.advance()
    assert rollup.energies()[JOB, "old", "alice"] == 3_000_000
    assert rollup.energies(year, year + HOUR)[JOB, "new", "alice"] == 3_000_000


def test_a_day_of_another_time_zone_has_no_group_that_used_nothing_in_it(rollup: Rollup) -> None:
    """The usage sums of a day contain only groups of jobs that used energy on this day.

    The test uses a day of another time zone. The sums of such a day are computed from the sums of UTC days,
    minus the hours outside the day. A group whose remainder is 0 must not appear.
    """
    midnight = T0 + 2 * HOUR
    edges = (midnight - HOUR, midnight + 23 * HOUR)
    rollup.deliver_period(start=midnight, jobs={}, idle={"cpu": 7})
    rollup.deliver_period(start=edges[1], jobs={(1, 0): {"cpu": 5}}, idle={"cpu": 11})
    rollup.advance()
    assert rollup.energies(*edges) == {(IDLE, "", ""): 7}
    assert {key.kind for key in rollup.sums(*edges)} == {IDLE, COVERAGE, UNATTRIBUTED}


def test_edges_inside_a_period_divide_it_without_loss(rollup: Rollup) -> None:
    rollup.deliver_period(start=T0, jobs={}, idle={"cpu": 1_000_003})
    rollup.advance()
    edges = (T0 - 50, T0 + 7, T0 + 1800, T0 + 3599, T0 + HOUR + 9)
    usage = rollup.usage(*edges)
    parts = [sum(sums[TOTAL] for sums in interval.sums.values()) for interval in usage.intervals]
    assert sum(parts) == 1_000_003
    assert parts[1] == 1_000_003 * 1800 // HOUR - 1_000_003 * 7 // HOUR
    assert [interval.prorated for interval in usage.intervals] == [True] * 4
    assert not rollup.usage(T0, T0 + HOUR).intervals[0].prorated


def test_a_period_of_many_hours_is_divided(rollup: Rollup) -> None:
    rollup.deliver_period(start=T0, end=T0 + 50 * HOUR, jobs={}, idle={"cpu": 50_000})
    rollup.advance()
    assert rollup.energies(T0 + 30 * HOUR, T0 + 31 * HOUR) == {(IDLE, "", ""): 1000}


def test_a_job_that_ran_for_less_than_a_second_is_not_counted(rollup: Rollup) -> None:
    for job_id, end, suspended_s in ((1, T0 + 4200, 0), (2, T0 + 600, 0), (3, T0 + 601, 0), (4, T0 + 605, 5)):
        rollup.deliver_record(job_id=job_id, start=T0 + 600.2, end=end + 0.4)
        rollup.learn(facts(job_id, end=end, elapsed_s=float(end - T0 - 600 - suspended_s)))
    rollup.advance()
    usage = rollup.usage(count_jobs=True)
    assert sum(usage.intervals[0].jobs.values()) == 2


@pytest.mark.slow
@given(
    spans=st.lists(st.tuples(st.integers(0, 100), st.integers(1, 60)), min_size=1, max_size=8),
    cuts=st.sets(st.integers(-5, 170), min_size=2, max_size=6),
)
@examples(15)
def test_windows_of_days_have_the_energy_of_their_periods(
    tmp_path_factory: pytest.TempPathFactory, spans: list[tuple[int, int]], cuts: set[int]
) -> None:
    """For long time windows, energy is summed by day, with the same result as by hour.

    This also holds for periods of energy that reach across midnight.
    """
    rollup = Rollup(tmp_path_factory.mktemp("rollup") / "a.db")
    hours = [(T0 + start * HOUR, T0 + (start + length) * HOUR) for start, length in spans]
    for index, (start, end) in enumerate(hours):
        rollup.deliver_period(
            start=start, end=end, node=f"n{index}", jobs={}, idle={"cpu": 7 * (end - start)}
        )
    rollup.advance()
    edges = sorted(T0 + cut * HOUR for cut in cuts)
    usage = rollup.usage(*edges, rates=lambda start, end: [1.0, None])
    for interval in usage.intervals:
        inside = [min(end, interval.end) - max(start, interval.start) for start, end in hours]
        energy = 7 * sum(seconds for seconds in inside if seconds > 0)
        assert sum(sums[TOTAL] for sums in interval.sums.values()) == energy
        weighted = interval.weighted or [{}, {}]
        assert (sum(weighted[0].values()), weighted[1]) == (energy, {})
        assert not energy or interval.unknown == [set(), set(weighted[0])]
    rollup.close()


@pytest.mark.slow
@given(
    spans=st.lists(
        st.tuples(
            st.integers(0, 60), st.sampled_from([0, 0, 0, 900]), st.sampled_from([3600, 3600, 1800, 7200])
        ),
        min_size=1,
        max_size=12,
    ),
    cuts=st.sets(st.integers(-2, 130), min_size=2, max_size=5),
    shift_s=st.sampled_from([0, 1800]),
)
@examples(40)
def test_emissions_follow_the_intensity_of_each_period(
    tmp_path_factory: pytest.TempPathFactory,
    spans: list[tuple[int, int, int]],
    cuts: set[int],
    shift_s: int,
) -> None:
    """Emissions of an interval equal the sum of energy times carbon intensity over its periods.

    This holds for whole hours, for other periods and for parts of periods.
    """

    def rate(start: int, end: int) -> float | None:
        hour = start // HOUR
        return None if hour % 11 == 3 else 1.0 + hour % 7

    rollup = Rollup(tmp_path_factory.mktemp("rollup") / "a.db")
    times = [(T0 + hour * HOUR + late_s, length_s) for hour, late_s, length_s in spans]
    for index, (start, length_s) in enumerate(times):
        idle = {"cpu": 7 * length_s}
        rollup.deliver_period(start=start, end=start + length_s, node=f"n{index}", jobs={}, idle=idle)
    rollup.advance()
    edges = sorted(T0 + cut * HOUR + shift_s for cut in cuts)
    usage = rollup.usage(*edges, rates=lambda start, end: [rate(start, end), 1.0])
    for interval in usage.intervals:
        expected, energy, is_unknown = 0.0, 0, False
        for start, length_s in times:
            inside = max(start, interval.start), min(start + length_s, interval.end)
            if inside[0] >= inside[1]:
                continue
            energy += 7 * (inside[1] - inside[0])
            of_part = rate(*inside)
            is_unknown |= of_part is None
            expected += 7 * (inside[1] - inside[0]) * (of_part or 0.0)
        weighted, unknown = interval.weighted or [{}, {}], interval.unknown or [set(), set()]
        assert (sum(weighted[0].values()), sum(weighted[1].values())) == (expected, energy)
        assert (bool(unknown[0]), bool(unknown[1])) == (is_unknown, False)
    rollup.close()


def test_unknown_components_stay_unknown(rollup: Rollup) -> None:
    rollup.deliver_period(start=T0, jobs={}, idle={"cpu": 3, "gpu[1]": 0})
    rollup.advance()
    sums = next(sums for key, sums in rollup.sums().items() if key.kind == IDLE)
    known = dict(zip(SUM_COLUMNS, sums, strict=True))
    assert (known["cpu_rows"], known["gpu_rows"], known["dram_rows"], known["other_rows"]) == (1, 1, 0, 0)


def test_sums_beyond_64_bits(rollup: Rollup) -> None:
    for node in range(5):
        rollup.deliver_period(start=T0, node=f"n{node}", jobs={}, idle={"cpu": 2**61 + 1})
        rollup.advance()  # each below the bound of a sum of one hour
        rollup.connection.exec_driver_sql('UPDATE usage_sums SET start = start - 3600, "end" = "end" - 3600')
    assert rollup.energies(T0 - 10 * HOUR, END) == {(IDLE, "", ""): 5 * (2**61 + 1)}


def test_hours_without_energy_are_missing(rollup: Rollup) -> None:
    for node, hours in (("n1", (0, 1, 2, 3)), ("n2", (1, 3))):
        for hour in hours:
            rollup.deliver_period(start=T0 + hour * HOUR, node=node)
    rollup.advance()
    usage = rollup.usage(T0, T0 + 2 * HOUR, T0 + 4 * HOUR, END)
    missing = [missing_node_seconds(usage, interval) for interval in usage.intervals]
    assert missing == [{"c1": 0}, {"c1": HOUR}, {}]


def test_time_of_nodes_that_are_off_is_counted_apart_from_energy(rollup: Rollup) -> None:
    rollup.deliver_period(start=T0, node="n1", jobs={}, idle={"cpu": 7_000_000})
    off = [
        OffPeriod("n1", T0 + HOUR, T0 + HOUR + 900, 9_000_000),
        OffPeriod("n1", T0 + HOUR + 900, T0 + 2 * HOUR, 27_000_000),
        OffPeriod("n2", T0 + 2 * HOUR, T0 + 3 * HOUR, None),
    ]
    for _ in range(2):  # a period that is stored again changes nothing
        store_off_periods(rollup.connection, "c1", off, stored.NOW)
        rollup.advance()
    usage = rollup.usage(T0, T0 + HOUR, T0 + 2 * HOUR, T0 + 3 * HOUR)
    assert [off_energy(usage, interval) for interval in usage.intervals] == [
        {},
        {"c1": (HOUR, 36_000_000)},
        {"c1": (HOUR, None)},
    ]
    assert off_energy(rollup.usage(), rollup.usage().intervals[0]) == {"c1": (2 * HOUR, None)}
    assert [sum(missing_node_seconds(usage, one).values()) for one in usage.intervals[:2]] == [0, 0]
    rows = usage_rows(usage, usage.groups, (), GridRates(GridFactors()))
    assert {row["kind"] for row in rows} == {IDLE, UNATTRIBUTED}


def test_users_see_their_own_groups(rollup: Rollup) -> None:
    rollup.deliver_period(start=T0, jobs={(1, 0): {"cpu": 1}}, uid=1000)
    rollup.deliver_period(start=T0, node="n2", jobs={(2, 0): {"cpu": 2}}, uid=1001)
    rollup.deliver_record(job_id=2, start=T0 + 1.0, end=T0 + 2.0, uid=1001, user="bob")
    rollup.learn(facts(2, T0 + 1, T0 + 2, user="bob", account="biology"))
    rollup.advance()
    groups = rollup.usage().groups

    def seen(visible: Visibility | None, meter: bool = False) -> set[tuple[str, int | None]]:
        keys = visible_groups(groups, visible, "x", with_meter=meter).values()
        return {(key.kind, key.uid) for key in keys}

    assert seen(Visibility(1000)) == {(JOB, 1000)}
    assert seen(Visibility(1000, frozenset({"biology"}))) == {(JOB, 1000), (JOB, 1001)}
    assert seen(Visibility(7)) == set()
    assert {kind for kind, _ in seen(None, True)} > {JOB, IDLE}


ACCOUNTS = ("physics", "biology")
NODES = ("n1", "n2")


def _actions() -> list[Callable[[Rollup], None]]:
    """Return calls that deliver energies and facts about three jobs to a rollup, as functions.

    A rollup sums up the delivered energies. Each function takes a rollup and makes one call. A call delivers
    the energies of one hour, an energy record, or Slurm's facts about a job. One of the three jobs was
    requeued by Slurm.
    """
    actions: list[Callable[[Rollup], None]] = []

    def period(hour: int, node: str, jobs: dict[tuple[int, int], dict[str, int]]) -> None:
        start = T0 + hour * HOUR
        actions.append(
            lambda rollup: rollup.deliver_period(start=start, node=node, jobs=jobs, unattributed={"cpu": 3})
        )

    def record(job_id: int, node: str, start: float, end: float, **more: Any) -> None:
        actions.append(
            lambda rollup: rollup.deliver_record(job_id=job_id, node=node, start=start, end=end, **more)
        )

    for hour in range(4):
        period(hour, "n1", {(1, 0): {"cpu": 100 + hour}, **({(3, 1): {"cpu": 7}} if hour == 3 else {})})
        period(hour, "n2", {(2, 0): {"cpu": 50}} if hour < 2 else {(1, 0): {"cpu": 9}})
    record(1, "n1", T0 + 10.0, T0 + 4 * HOUR - 5.0, tag="a", user="alice")
    record(1, "n2", T0 + 10.0, T0 + 4 * HOUR - 5.0, tag="a", user="alice")
    record(2, "n2", T0 + 20.0, T0 + 2 * HOUR - 9.0, user="bob")
    record(3, "n1", T0 + 3 * HOUR + 5.0, T0 + 3 * HOUR + 95.0, user="bob", restart_count=1)
    running = facts(1, T0 + 10, None)
    for known in (
        [running],
        [facts(1, T0 + 10, T0 + 4 * HOUR - 5, account="biology")],
        [facts(2, T0 + 20, T0 + 2 * HOUR - 9, user="bob")],
        [facts(3, T0 + 3 * HOUR + 5, T0 + 3 * HOUR + 95, user="bob")],
    ):
        actions.append(lambda rollup, known=known: rollup.learn(*known, now=T0 + 5 * HOUR))
    return actions


def direct_energies(rollup: Rollup, start: int, end: int) -> dict[tuple[str, str, str], Fraction]:
    """Return the energies by kind, account and user, computed directly from the stored rows.

    A test compares the stored sums of usage with these energies. The rows are those of the energy
    periods, of the jobs' energy records, and of the data about jobs from Slurm's accounting.
    """
    rows = rollup.connection.execute(select(tables.periods)).mappings().all()
    records = rollup.connection.execute(select(tables.records)).mappings().all()
    known = {row["id"]: row for row in rollup.connection.execute(select(tables.jobs)).mappings()}
    result: dict[tuple[str, str, str], Fraction] = {}
    for row in rows:
        account = user = ""
        if row["kind"] == JOB:
            own = [
                one
                for one in records
                if (one["job_id"], one["restart_count"]) == (row["job_id"], row["restart_count"])
            ]
            own.sort(key=lambda one: one["node"])
            linked = [known[one["job"]] for one in own if one["job"] is not None]
            taken = {one["job"] for one in records}
            # A record links the job; before it, facts that no record has.
            free = [
                one for one in known.values() if one["job_id"] == row["job_id"] and one["id"] not in taken
            ]
            source = linked[0] if linked else own[0] if own else free[0] if free else None
            if source is not None:
                account, user = source["account"] or "", source["user"] or ""
        inside = min(end, row["end"]) - max(start, row["start"])
        if inside > 0 and row["total_uj"]:
            key = (row["kind"], account, user)
            part = Fraction(row["total_uj"] * inside, row["end"] - row["start"])
            result[key] = result.get(key, Fraction(0)) + part
    return result


@given(
    order=st.permutations(range(len(_actions()))),
    advances=st.sets(st.integers(0, 20)),
    stop=st.integers(1, len(_actions())),
)
@examples(6)
def test_sums_equal_direct_sums_in_any_order(
    tmp_path_factory: pytest.TempPathFactory, order: list[int], advances: set[int], stop: int
) -> None:
    rollup = Rollup(tmp_path_factory.mktemp("rollup") / "a.db")
    actions = _actions()
    for place, index in enumerate(order[:stop]):
        actions[index](rollup)
        if place in advances:
            rollup.advance()
    rollup.advance()
    for hour in range(4):
        edges = (T0 + hour * HOUR, T0 + (hour + 1) * HOUR)
        assert rollup.energies(*edges) == direct_energies(rollup, *edges)
    counted = rollup.connection.execute(select(usage_tables.usage_runs)).all()
    seconds = sum(run.cpus * (run.end - run.start) for run in counted)
    assert sum(rollup.cpu_seconds(T0 - HOUR, END).values()) == seconds
    rollup.close()


@pytest.mark.slow
@given(order=st.permutations(range(len(_actions()))), advances=st.sets(st.integers(0, 20)))
@examples(6)
def test_the_last_state_does_not_depend_on_the_order(
    tmp_path_factory: pytest.TempPathFactory, order: list[int], advances: set[int]
) -> None:
    rollup = Rollup(tmp_path_factory.mktemp("rollup") / "a.db")
    actions = _actions()
    for place, index in enumerate(order):
        actions[index](rollup)
        if place in advances:
            rollup.advance()
    # Slurm is asked again until the facts are final.
    for index in range(len(actions) - 3, len(actions)):
        actions[index](rollup)
    rollup.advance()
    energies = {
        (account, user): value for (kind, account, user), value in rollup.energies().items() if kind == JOB
    }
    assert energies == {("biology", "alice"): 406 + 18, ("physics", "bob"): 107}
    assert rollup.cpu_seconds() == {
        "biology": 4 * (4 * HOUR - 15),
        "physics": 4 * (2 * HOUR - 29) + 4 * 90,
    }
    rollup.close()


@pytest.mark.slow
def test_all_stores_give_equal_rows(store_location: str, tmp_path: Path) -> None:
    """Check that report rows are identical, byte for byte, on SQLite, MariaDB and PostgreSQL."""

    def rows(location: Path | str) -> str:
        rollup = Rollup(location)
        for action in _actions():
            action(rollup)
        rollup.advance()
        series = GridSeries(SeriesSource("csv", "DE", ""), [(T0 - HOUR, END + HOUR, 123.4)])
        rates = GridRates(GridFactors(GridFactor(series), pue=1.1))
        edges = (T0 - 100, T0 + 1234, T0 + 3 * HOUR, T0 + 30 * HOUR)
        usage = rollup.usage(*edges, rates=rates, count_jobs=True)
        by = ("account", "user", "qos", "partition", "policy", "tag", "cpus")
        text = json.dumps(usage_rows(usage, usage.groups, by, rates))
        text += json.dumps(
            usage_rows(rollup.usage(*edges, rates=rates, nodes=("n1",)), usage.groups, by, rates)
        )
        rollup.close()
        return text

    assert rows(store_location) == rows(tmp_path / "b.db")


def test_absurd_energies_of_a_node_do_not_stop_the_sums_of_others(store_location: str) -> None:
    rollup = Rollup(store_location)
    absurd = {"cpu": 15 * 10**17}  # the most that is plausible after a year without readings
    for number in range(8):
        start = T0 + 10 * number
        more = {"late_seconds": 365 * 86400.0, "jobs": {(1, 0): absurd}, "idle": {"cpu": 0}}
        forged = periods.period(start=start, end=start + 5, **more)
        PlausibilityCheck({"cpu": 50_000, "node": 50_000}).check_period(forged, stored.NOW)
        _, refusals = store_periods(rollup.connection, [DeliveredPeriod(0, forged, "{}")], stored.NOW)
        assert not refusals
        rollup.advance()
    rollup.deliver_period(start=T0, node="n2", jobs={(2, 0): {"cpu": 5}}, idle={"cpu": 7}, uid=1001)
    rollup.advance()
    day = T0 - T0 % 86400
    sums = rollup.sums(day, day + 86400)
    by_uid = {(key.kind, key.uid): values[TOTAL] for key, values in sums.items()}
    assert by_uid[JOB, 1001] == 5 and by_uid[IDLE, None] == 7
    assert by_uid[JOB, 1000] == 2**63 - 1
    rollup.close()


def test_a_report_reads_the_sums_of_one_moment(store_location: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The energy of a job is complete and in one group if facts arrive while a report is computed."""
    midnight = T0 + 2 * HOUR
    window = (midnight + HOUR, midnight + HOUR + 24 * HOUR)
    rollup, writer = Rollup(store_location), Rollup(store_location)
    for hour in range(2):
        rollup.deliver_period(start=midnight + hour * HOUR)
    rollup.advance()
    subtract_outside = whole_periods._subtract_outside

    def interrupted(*arguments: Any) -> None:
        writer.learn(facts(start=midnight, end=midnight + 2 * HOUR))
        writer.advance()
        subtract_outside(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(whole_periods, "_subtract_outside", interrupted)
        during = rollup.energies(*window)
    after = rollup.energies(*window)
    idle = {(IDLE, "", ""): 1_000_000}
    assert during == {(JOB, "", ""): 3_000_000} | idle
    assert after == {(JOB, "physics", "alice"): 3_000_000} | idle
    writer.close()
    rollup.close()


def test_energy_counts_after_the_deletion_of_all_older_periods(store_location: str) -> None:
    rollup = Rollup(store_location)
    for hour in range(3):
        rollup.deliver_period(start=T0 + hour * HOUR)
    rollup.advance()
    deleted = retention.delete_old(rollup.connection, ["periods"], END)
    assert deleted["periods"] > 0
    rollup.deliver_period(start=T0 + 3 * HOUR)
    rollup.advance()
    assert rollup.energies()[JOB, "", ""] == 4 * 3_000_000
    rollup.close()
