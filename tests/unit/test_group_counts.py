"""Tests of the memory traffic between two readings of monitoring groups in resctrl.

The tests cover the sums over groups, counts that decrease or are unknown, and the continuation from a
checkpoint.
"""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_energy.agent.metering.group_counts import CountsBetweenReadings, GroupReadings
from slurm_energy.agent.metering.occupancy import MonitoredUse
from slurm_energy.devices.cpu.resctrl import TRAFFIC

A, B = "mon_groups/senergy-1.0", "mon_groups/senergy-2.0"
JOBS = {"1.0": [A], "2.0": [B]}
GB = 10**9


def reading(root: int | None, **groups: int | None) -> GroupReadings:
    """Return an example reading of the memory traffic through one cache, for tests.

    The arguments are the amounts of traffic in gigabytes: of the root group and of other groups.
    """

    def counts(amount: int | None) -> dict[str, dict[int, int | None]]:
        return {TRAFFIC: {0: None if amount is None else amount * GB}}

    return {"": counts(root), **{{"a": A, "b": B}[name]: counts(amount) for name, amount in groups.items()}}


class Counter:
    def __init__(self) -> None:
        self.counts = CountsBetweenReadings([TRAFFIC])
        self.now = 0.0

    def next(
        self,
        root: int | None,
        unknown: frozenset[str] = frozenset(),
        duration_s: float = 0.0,
        **groups: int | None,
    ) -> MonitoredUse:
        self.now += 1.0
        names = {"a": "1.0", "b": "2.0"}
        jobs = {names[name]: JOBS[names[name]] for name in groups}
        readings = reading(root, **groups)
        return self.counts.since_last(self.now, readings, jobs, set(unknown), duration_s)[TRAFFIC]


def gigabytes(use: MonitoredUse) -> tuple[int | None, dict[str, int | None]]:
    total = None if use.total is None else use.total // GB
    return total, {job: None if used is None else used // GB for job, used in use.jobs.items()}


def test_the_first_reading_has_no_total() -> None:
    assert Counter().next(50, a=5).total is None


def test_a_control_group_s_count_includes_its_groups() -> None:
    counter = Counter()
    counter.next(50, a=5, b=0)
    assert gigabytes(counter.next(80, a=15, b=12)) == (30, {"1.0": 10, "2.0": 12})


def test_a_new_group_counts_from_zero_and_a_removed_one_leaves_no_gap() -> None:
    counter = Counter()
    counter.next(50, a=5)
    assert gigabytes(counter.next(70, a=10, b=8)) == (20, {"1.0": 5, "2.0": 8})
    counter.counts.remove_group(A)
    assert gigabytes(counter.next(62, b=9)) == (2, {"2.0": 1})  # 10 GB vanished from the root group's count


def test_a_count_that_falls_is_unknown_once() -> None:
    """An event count that falls is treated as unknown for one interval, and as known afterwards.

    On AMD processors without counter assignment, the processor may give a counter to another group. The
    counter then starts again at zero.
    """
    counter = Counter()
    counter.next(50, a=20, b=10)
    use = counter.next(40, a=2, b=12)
    assert (use.total, use.jobs["1.0"]) == (None, None)
    assert gigabytes(counter.next(45, a=4, b=13)) == (5, {"1.0": 2, "2.0": 1})


def test_an_implausible_jump_is_unknown() -> None:
    counter = Counter()
    counter.next(50, a=20)
    assert counter.next(200_000, a=190_000).total is None
    assert counter.next(390_000, a=190_001).total is None


@pytest.mark.parametrize("first", ["counted", "uncounted"])
def test_a_count_that_comes_or_goes_makes_the_total_unknown_once(first: str) -> None:
    """The total use of a resctrl group is unknown for one interval if a count appears or vanishes.

    A control group contains monitoring groups. The kernel's total for the control group omits each
    monitoring group that has no count. In the test, a monitoring group loses its count or gets a count
    back. The totals before and after this change cannot be compared.
    """
    counter = Counter()
    known, unknown = (50, {"a": 20, "b": 10}), (30, {"a": None, "b": 10})
    steps = [known, unknown] if first == "counted" else [unknown, known]
    counter.next(steps[0][0], **steps[0][1])
    use = counter.next(steps[1][0], **steps[1][1])
    assert (use.total, use.jobs["1.0"], use.jobs["2.0"]) == (None, None, 0)


def test_a_job_that_stays_uncounted_is_not_in_the_total() -> None:
    counter = Counter()
    counter.next(30, a=None, b=10)
    use = counter.next(45, a=None, b=20)
    assert gigabytes(use) == (15, {"1.0": None, "2.0": 10})
    assert use.uncounted == {"1.0"}


def test_a_job_that_is_counted_in_part_is_neither_known_nor_in_the_total() -> None:
    counter = CountsBetweenReadings([TRAFFIC])
    for now, scale in ((1.0, 1), (2.0, 2)):
        readings: GroupReadings = {
            "": {TRAFFIC: {0: 40 * scale, 1: 30 * scale}},
            A: {TRAFFIC: {0: None, 1: 20 * scale}},
            B: {TRAFFIC: {0: 10 * scale, 1: 0}},
        }
        use = counter.since_last(now, readings, JOBS, set())[TRAFFIC]
    assert use == MonitoredUse(50, {"1.0": None, "2.0": 10}, frozenset({"1.0"}))


def test_an_unknown_count_of_the_root_group_makes_the_total_unknown() -> None:
    counter = Counter()
    for _ in range(2):
        use = counter.next(None, a=20)
        assert use.total is None
    counter.next(50, a=21)
    assert gigabytes(counter.next(51, a=22)) == (1, {"1.0": 1})


def test_a_group_without_any_file_is_not_a_group_without_traffic() -> None:
    counter = CountsBetweenReadings([TRAFFIC])
    for now in (1.0, 2.0):
        use = counter.since_last(now, {"": {TRAFFIC: {0: 5}}, A: {TRAFFIC: {}}}, {"1.0": [A]}, set())[TRAFFIC]
    assert use.jobs["1.0"] is None
    assert use.uncounted == {"1.0"}


def test_a_control_group_that_comes_or_goes_makes_the_total_unknown_once() -> None:
    counter = CountsBetweenReadings([TRAFFIC])
    roots: list[GroupReadings] = [{"": {TRAFFIC: {0: 5}}}, {"": {TRAFFIC: {0: 6}}, "site": {TRAFFIC: {0: 1}}}]
    totals = []
    for number in (0, 1, 1, 0, 0):
        totals.append(counter.since_last(float(len(totals)), roots[number], {}, set())[TRAFFIC].total)
    assert totals == [None, None, 0, None, 0]


def test_a_small_lag_of_the_control_group_is_no_negative_use() -> None:
    counter = Counter()
    counter.next(1000, a=500)
    assert gigabytes(counter.next(1100, a=601)) == (101, {"1.0": 101})


def test_a_slow_reading_lags_by_its_own_duration() -> None:
    """Late readings explain why a job group seems to have more traffic than the whole node.

    The count of the node (root group) was read 0.2 s before the count of the job's group. The job's group
    counted 100 GB in one second, the node only 80 GB. At 100 GB/s, the group can count 20 GB in 0.2 s, so
    the total is corrected to 100 GB. If the readings are only 0.1 s apart, the total stays unknown.
    """
    counter = Counter()
    counter.next(1000, a=500)
    assert gigabytes(counter.next(1080, a=600, duration_s=0.2)) == (100, {"1.0": 100})
    assert counter.next(1160, a=700, duration_s=0.1).total is None


AMOUNTS = st.none() | st.integers(0, 10**18)


@given(st.lists(st.tuples(AMOUNTS, AMOUNTS, AMOUNTS), min_size=1, max_size=6), st.integers(0, 5))
def test_whatever_is_read_the_use_is_never_negative_and_survives_a_restart(
    rows: list[tuple[int | None, int | None, int | None]], restart_at: int
) -> None:
    counter = CountsBetweenReadings([TRAFFIC])
    for now, (root, one, other) in enumerate(rows):
        if now == restart_at:
            saved = json.loads(json.dumps(counter.dump()))
            counter = CountsBetweenReadings([TRAFFIC])
            counter.load(saved)
        readings: GroupReadings = {"": {TRAFFIC: {0: root}}, A: {TRAFFIC: {0: one}}, B: {TRAFFIC: {0: other}}}
        use = counter.since_last(float(now), readings, JOBS, set())[TRAFFIC]
        known = [used for used in use.jobs.values() if used is not None]
        assert all(used >= 0 for used in known)
        assert use.total is None or use.total >= sum(known)
