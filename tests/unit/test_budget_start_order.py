"""Tests of the rules by which a power budget decides which pending jobs may start.

The tests check the order of the jobs, the start of short jobs before a waiting job (backfill), and the
holding of jobs by their begin time.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples

from slurm_energy.budget.start_order import PowerRequest, order_starts
from slurm_energy.controller.budgets.start_holds import MAX_DELAYING, StartHolds
from slurm_energy.controller.deferral.begin_holds import HOLD_S
from slurm_energy.scheduling.backfill import Candidate, Discipline, choose
from slurm_energy.slurm.queue.columns import PENDING, RUNNING, queue_columns
from slurm_energy.slurm.queue.job_update import JobUpdater, UpdateResult


def test_short_jobs_pass_a_waiting_job_and_long_ones_do_not() -> None:
    running = [PowerRequest(1, 400.0, (0,), 100.0), PowerRequest(2, 300.0, (0,), 500.0)]
    pending = [
        PowerRequest(3, 50.0, (0,), 900.0),
        PowerRequest(4, 500.0, (0,), 900.0),
        PowerRequest(5, 60.0, (0,), 90.0),
        PowerRequest(6, 40.0, (0,), 900.0),
        PowerRequest(7, 20.0, (0,), 900.0),
        PowerRequest(8, 10.0, (), 900.0),
        PowerRequest(9, 60.0, (0,), 900.0),
    ]
    order = order_starts(pending, running, [180.0])
    # Job 4 starts when job 1 ends, and then leaves 30 W.
    assert order.startable == {3, 5, 7, 8} and order.waiting == {4: 0, 6: 0, 9: 0}
    assert order.delaying == {6} and order.first == 4 and order.spare_watts == 30.0


def test_equal_jobs_do_not_delay_each_other() -> None:
    pending = [PowerRequest(number, 50.0, (0,), 100.0) for number in range(9)]
    order = order_starts(pending, [PowerRequest(99, 50.0, (0,), 60.0)], [200.0])
    assert order.startable == {0, 1, 2, 3} and order.delaying == frozenset()


def test_everything_starts_without_contention() -> None:
    order = order_starts([PowerRequest(1, 1e9, (0, 1))], [], [math.inf, 1e9])
    assert order.startable == {1} and order.first is None


_JOBS = st.lists(
    st.tuples(
        st.floats(1.0, 500.0), st.sampled_from([(0,), (1,), (0, 1), ()]), st.sampled_from([60.0, 600.0])
    ),
    max_size=12,
)


@given(_JOBS, _JOBS, st.lists(st.floats(-100.0, 1500.0), min_size=2, max_size=2))
def test_startable_jobs_fit_together(
    waiting: list[tuple[float, tuple[int, ...], float]],
    started: list[tuple[float, tuple[int, ...], float]],
    headroom: list[float],
) -> None:
    pending = [PowerRequest(number, *one) for number, one in enumerate(waiting)]
    running = [PowerRequest(100 + number, *one) for number, one in enumerate(started)]
    order = order_starts(pending, running, headroom)
    assert order.startable.isdisjoint(order.waiting) and order.delaying <= order.waiting.keys()
    assert len(order.startable) + len(order.waiting) == len(pending)
    for budget in (0, 1):
        watts = sum(job.watts for job in pending if job.job_id in order.startable and budget in job.budgets)
        assert watts <= max(0.0, headroom[budget]) + 1e-6


_WATTS, _SECONDS = st.integers(1, 500).map(float), st.sampled_from([60.0, 120.0, 300.0, 600.0])


@given(
    st.lists(st.tuples(_WATTS, _SECONDS), max_size=10),
    st.lists(st.tuples(_WATTS, _SECONDS), max_size=6),
    st.integers(-100, 800).map(float),
)
@examples(60)
def test_the_simulator_and_the_controller_start_the_same_jobs_behind_a_blocked_one(
    waiting: list[tuple[float, float]], started: list[tuple[float, float]], headroom: float
) -> None:
    """The simulator and the controller start the same jobs if the first job in the order must wait.

    In the test, a power budget is the only reason why jobs wait. The other resources of the simulator are
    sufficient.
    """
    pending = [PowerRequest(number, watts, (0,), limit_s) for number, (watts, limit_s) in enumerate(waiting)]
    running = [PowerRequest(-1 - number, watts, (0,), end_s) for number, (watts, end_s) in enumerate(started)]
    candidates = [
        Candidate(job.job_id, job.job_id, np.array([0.0, job.watts]), job.time_limit_s) for job in pending
    ]
    simulated = list(running)
    for candidate in choose(
        Discipline.EASY,
        candidates,
        0.0,
        np.array([1.0, max(0.0, headroom)]),
        None,
        lambda: [(job.time_limit_s, np.array([0.0, job.watts])) for job in simulated],
    ):
        simulated.append(pending[candidate.job])
    live = order_starts(pending, running, [headroom])
    assert live.startable == {job.job_id for job in simulated[len(running) :]}


class Begins(JobUpdater):
    """Stand-in for the writer of job changes. It stores the begin times that it is told to set."""

    def __init__(self) -> None:
        super().__init__(1000.0)
        self.calls: list[tuple[list[str], int | None]] = []

    def set_begin(
        self, jobs: Sequence[int], names: Mapping[int, str], begin_unix_s: int | None
    ) -> UpdateResult:
        if jobs:
            self.calls.append(([names[job] for job in jobs], begin_unix_s))
        return UpdateResult(done=tuple(jobs))


@dataclass
class Limit:
    """A stand-in for a power budget that applies to every job."""

    headroom_watts: float
    name: str = "site"

    def covers(self, user: str, account: str, partition: str, qos: str) -> bool:
        return True


def test_a_held_job_is_held_again_and_gets_its_own_begin_back() -> None:
    begins = Begins()
    holds = StartHolds(begins)

    def apply(now: float, headroom: float, eligible: float, *, dependent: bool) -> dict[int, str]:
        queue = queue_columns(
            now,
            [1, 2],
            state=[RUNNING, PENDING],
            eligible_s=[0.0, eligible],
            dependent=[False, dependent],
            end_s=[now + 60.0, np.nan],
        )
        watts = np.array([100, 200])
        waiting, problems = holds.apply(queue, watts, now, [Limit(headroom)], [1], only_delaying=False)
        assert problems == ()
        return waiting

    text = "held by senergyctld: it adds 200 W, and 150 W are free under budget 'site'"
    assert apply(1000.0, 150.0, 1030.0, dependent=True) == {2: text}
    assert apply(1005.0, 150.0, 1000.0 + HOLD_S, dependent=True) == {2: text}
    assert apply(1200.0, 150.0, 1000.0 + HOLD_S, dependent=True) == {2: text}
    assert apply(1205.0, 250.0, 1200.0 + HOLD_S, dependent=True) == {}
    assert begins.calls == [(["2"], 1300), (["2"], 1500), (["2"], None)]
    assert apply(1210.0, 150.0, 1205.0, dependent=False) == {2: text}
    holds.release_all(1211.0)
    assert begins.calls[-1] == (["2"], None)


def test_a_job_whose_power_has_become_free_keeps_its_precedence_for_a_while() -> None:
    """A job keeps its precedence for a while after enough power for it has become free.

    Its nodes may still be busy with epilogs. Without this rule, a job with lower priority could find free
    nodes in the meantime and take the power.
    """
    begins = Begins()
    holds = StartHolds(begins)
    now = itertools.count(1000, 10)

    def apply(headroom: float, large: int = PENDING) -> dict[int, str]:
        now_s = float(next(now))
        queue = queue_columns(
            now_s,
            [1, 2, 3, 4],
            state=[RUNNING, large, PENDING, PENDING],
            end_s=[now_s + 60.0, np.nan, np.nan, np.nan],
            eligible_s=[0.0] * 4,
            time_limit_s=[5000.0] * 4,
            priority=[9, 8, 7, 6],
        )
        counted = [1] if large == PENDING else [1, 2]
        watts = np.array([300, 500, 100, 900])
        waiting, _ = holds.apply(queue, watts, now_s, [Limit(headroom)], counted, only_delaying=True)
        return waiting

    delays = "held by senergyctld: it would delay job 2, which waits for power under budget 'site'"
    takes = "held by senergyctld: it would take the power of job 2, whose nodes are not free yet"
    assert apply(200.0) == {3: delays}
    assert apply(550.0) == {3: takes}  # job 4 does not fit: its license keeps it waiting
    assert apply(550.0) == {3: takes}
    assert apply(50.0, large=RUNNING) == {}
    assert apply(200.0) == {3: delays}
    free = [apply(550.0) for _ in range(8)]
    assert free == [{3: takes}] * 6 + [{}] * 2  # after a minute nothing is held for it any more


class Queue:
    """Queue, read every 10 s: running job 1, and pending jobs by priority. Held jobs show BeginTime."""

    def __init__(self, headroom: float, watts: Sequence[int], *, only_delaying: bool) -> None:
        self.begins = Begins()
        self._holds, self._budgets = StartHolds(self.begins), [Limit(headroom)]
        self._watts, self._only_delaying = np.array(watts), only_delaying
        self._now, self.waiting = 0.0, set[int]()

    def see(self, *reasons: str, seconds: float = 10.0) -> set[int]:
        """Let Slurm show these reasons of the pending jobs for some time, and return the jobs held then."""
        end, jobs = self._now + seconds, range(2, 2 + len(reasons))
        while self._now < end:
            self._now += 10.0
            shown = [
                "BeginTime" if job in self.waiting else one for job, one in zip(jobs, reasons, strict=True)
            ]
            queue = queue_columns(
                self._now,
                [1, *jobs],
                state=[RUNNING] + [PENDING] * len(jobs),
                end_s=[self._now + 60.0] + [np.nan] * len(jobs),
                eligible_s=[0.0] * (len(jobs) + 1),
                time_limit_s=[5000.0] * (len(jobs) + 1),
                priority=range(len(jobs) + 1, 0, -1),
                reason=["", *shown],
            )
            sentences, _ = self._holds.apply(
                queue, self._watts, self._now, self._budgets, [1], only_delaying=self._only_delaying
            )
            self.waiting = set(sentences)
        return self.waiting


@pytest.mark.parametrize(
    ("reason", "delayed"),
    [
        ("Licenses", {3}),
        ("Resources", {3}),
        ("", {3}),
        ("QOSMaxJobsPerUserLimit", set()),
        ("AssocGrpNodeLimit", set()),
        ("PartitionDown", set()),
    ],
)
def test_a_job_that_slurm_does_not_start_for_another_reason_delays_no_job(
    reason: str, delayed: set[int]
) -> None:
    queue = Queue(200.0, [300, 500, 100], only_delaying=True)
    assert queue.see(reason, "Licenses", seconds=200.0) == {3}  # the reason may be outdated
    assert queue.see(reason, "Licenses", seconds=400.0) == delayed
    assert queue.see("Licenses", "Licenses", seconds=700.0) == {3}
    # Without licenses: job 2 takes the power only if Slurm may start it.
    queue = Queue(200.0, [300, 100, 150], only_delaying=False)
    assert queue.see(reason, "Licenses", seconds=600.0) == (delayed or {2})


def test_a_job_keeps_its_precedence_if_slurm_shows_different_reasons_in_turn() -> None:
    queue = Queue(200.0, [300, 500, 100], only_delaying=True)
    for _ in range(60):
        assert queue.see("ReqNodeNotAvail", "Licenses", seconds=60.0) == {3}
        assert queue.see("Licenses", "Licenses", seconds=30.0) == {3}


@pytest.mark.parametrize(("only_delaying", "held"), [(True, {4}), (False, {3, 4})])
def test_blocked_jobs_are_not_held_and_released_in_turn(only_delaying: bool, held: set[int]) -> None:
    """Job 2 is blocked and has a higher priority than job 3, which waits for power; job 4 has a lower one."""
    queue = Queue(200.0, [300, 120, 400, 110], only_delaying=only_delaying)
    reasons = ("QOSMaxJobsPerUserLimit", "Licenses", "AssocGrpNodeLimit")
    queue.see(*reasons, seconds=400.0)
    queue.begins.calls.clear()
    for _ in range(100):
        assert queue.see(*reasons) == held  # held jobs show the reason BeginTime
    assert "2" not in [name for jobs, _ in queue.begins.calls for name in jobs]
    assert None not in [begin for _, begin in queue.begins.calls]


def test_a_held_job_that_was_blocked_gets_its_precedence_back() -> None:
    """Without licenses, a blocked job that does not fit is held. Slurm then shows no other reason."""
    queue = Queue(200.0, [300, 150, 150], only_delaying=False)
    assert queue.see("QOSMaxJobsPerUserLimit", "", seconds=200.0) == {3}
    assert queue.see("QOSMaxJobsPerUserLimit", "", seconds=400.0) == {2}
    assert queue.see("", "", seconds=300.0) == {2}
    assert queue.see("", "", seconds=600.0) == {3}


def test_the_number_of_held_jobs_is_bounded() -> None:
    begins = Begins()
    holds = StartHolds(begins)
    count = MAX_DELAYING + 50
    queue = queue_columns(
        0.0,
        range(1, count + 3),
        state=[RUNNING] + [PENDING] * (count + 1),
        end_s=[900.0] + [np.nan] * (count + 1),
        eligible_s=[0.0] * (count + 2),
        time_limit_s=[5000.0] * (count + 2),
        priority=range(count + 2, 0, -1),
    )
    watts = np.array([400, 580] + [50] * count)
    waiting, _ = holds.apply(queue, watts, 0.0, [Limit(200.0)], [1], only_delaying=True)
    assert len(waiting) == MAX_DELAYING and waiting.keys() == set(range(3, 3 + MAX_DELAYING))
    assert holds.max_headroom_watts == {"site": 20.0}
    waiting, _ = holds.apply(queue, watts, 0.0, [Limit(600.0)], [1], only_delaying=True)
    assert len(waiting) == MAX_DELAYING  # they would take the power of the large job
    assert holds.max_headroom_watts == {}
