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
    def waiting(headroom: float, watts: list[int], *, only_delaying: bool) -> set[int]:
        queue = queue_columns(
            0.0,
            [1, 2, 3],
            state=[RUNNING, PENDING, PENDING],
            end_s=[60.0, np.nan, np.nan],
            eligible_s=[0.0] * 3,
            time_limit_s=[5000.0] * 3,
            priority=[9, 8, 7],
            reason=["", reason, ""],
        )
        holds, budgets = StartHolds(Begins()), [Limit(headroom)]
        sentences, _ = holds.apply(queue, np.array(watts), 0.0, budgets, [1], only_delaying=only_delaying)
        return set(sentences)

    assert waiting(200.0, [300, 500, 100], only_delaying=True) == delayed
    # Without licenses: job 2 takes the power only if Slurm may start it.
    assert waiting(200.0, [300, 100, 150], only_delaying=False) == (delayed or {2})


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
