"""Tests of the simulator.

Its schedules are compared with an independent reference. Further tests check properties that must hold for
all policies and disciplines, for example that no job starves.
"""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from property_examples import examples

from slurm_energy.errors import UsageError
from slurm_energy.scheduling import Options, names, policy
from slurm_energy.scheduling.backfill import Discipline
from slurm_energy.simulator.cluster import Cluster, NodeKind, NodePowerState
from slurm_energy.simulator.engine import simulate
from slurm_energy.simulator.kernels import fast_path as fast
from slurm_energy.simulator.power.energy_integral import EnergyIntegral
from slurm_energy.simulator.power.step_function import StepFunction, integral_of_product
from slurm_energy.simulator.results.simulation_result import JobOutcome
from slurm_energy.simulator.schedule_settings import Preemption, ScheduleSettings
from slurm_energy.simulator.workloads.workload import workload

pytestmark = pytest.mark.slow


def rigid(jobs, kinds=None, **columns):
    """Return a workload of rigid jobs, each with one possible allocation.

    Each job is a tuple (submit, units, run time[, limit[, watts]]).
    """
    full = [(*job, *(None, None)[len(job) - 3 :]) for job in jobs]
    limits = [row[2] if row[3] is None else row[3] for row in full]
    watts = [100.0 * row[1] if row[4] is None else row[4] for row in full]
    return workload(
        np.arange(len(full) + 1),
        {"submit_s": [row[0] for row in full], "time_limit_s": limits, **columns},
        {"units": [row[1] for row in full], "time_s": [row[2] for row in full], "power_watts": watts},
    )


def starts(outcome):
    return list(outcome.accounts.start_s)


def rows(outcome):
    """Return the results of a simulation as one object per job."""
    fields = outcome.accounts.__slots__
    return [
        SimpleNamespace(**{name: getattr(outcome.accounts, name)[job] for name in fields})
        for job in range(outcome.workload.count)
    ]


def reference(jobs, total, backfill):
    """Return the start times of jobs by the textbook rules of FCFS, with or without EASY backfill.

    The function steps through time second by second, so that its result is easy to verify. All times are
    integers. The time limit of each job is its run time.
    """
    pending, running, begun, now = [], {}, {}, 0
    while len(begun) < len(jobs):
        running = {i: end for i, end in running.items() if end > now}
        pending += [i for i, job in enumerate(jobs) if job[0] == now]
        free = total - sum(jobs[i][1] for i in running)
        while pending and jobs[pending[0]][1] <= free:
            i = pending.pop(0)
            begun[i], running[i] = now, now + jobs[i][2]
            free -= jobs[i][1]
        if pending and backfill:
            head, avail = jobs[pending[0]], free
            for end, units in sorted((end, jobs[i][1]) for i, end in running.items()):
                avail += units
                if avail >= head[1]:
                    shadow = end
                    break
            avail = free + sum(jobs[i][1] for i, end in running.items() if end <= shadow)
            extra = avail - head[1]
            for i in pending[1:].copy():
                _, units, length = jobs[i]
                short = now + length <= shadow
                if units <= free and (short or units <= extra):
                    pending.remove(i)
                    begun[i], running[i] = now, now + length
                    free -= units
                    extra -= 0 if short else units
        now += 1
    return [begun[i] for i in range(len(jobs))]


JOBS = st.lists(
    st.tuples(st.integers(0, 30), st.integers(1, 8), st.integers(1, 15)), min_size=1, max_size=14
).map(sorted)


@given(JOBS, st.booleans())
@examples(150)
def test_fcfs_and_easy_equal_the_textbook(jobs, backfill):
    discipline = Discipline.EASY if backfill else Discipline.STRICT
    outcome = simulate(rigid(jobs), [NodeKind("n", 8, 1)], policy("fcfs"), ScheduleSettings(discipline))
    assert starts(outcome) == reference(jobs, 8, backfill)


SHAPES = st.tuples(st.integers(1, 6), st.integers(0, 1), st.integers(1, 40), st.integers(0, 500))
RICH = st.lists(
    st.tuples(
        st.integers(0, 100),
        st.lists(SHAPES, min_size=1, max_size=3),
        st.integers(0, 2),
        st.one_of(st.none(), st.integers(5, 400)),
        st.floats(0.8, 1.2),
    ),
    min_size=1,
    max_size=10,
)


def rich(jobs):
    """Return a workload, given one tuple per job.

    A tuple contains the time of submission, the shapes (possible resources), the user, the deadline relative
    to the submission, and the factor by which the predicted time is wrong.
    """
    flat = [(shape, job[4]) for job in jobs for shape in job[1]]
    return workload(
        np.cumsum([0, *(len(job[1]) for job in jobs)]),
        {
            "submit_s": [job[0] for job in jobs],
            "user": [job[2] for job in jobs],
            "deadline_s": [math.nan if job[3] is None else job[0] + job[3] for job in jobs],
        },
        {
            "units": [shape[0] for shape, _ in flat],
            "hardware": [shape[1] for shape, _ in flat],
            "time_s": [shape[2] for shape, _ in flat],
            "power_watts": [10.0 * shape[0] + shape[3] for shape, _ in flat],
            "predicted_time_s": [shape[2] * error for shape, error in flat],
        },
        users=("a", "b", "c"),
    )


KINDS = [
    NodeKind("x", 2, 3, 30.0, 10.0, 2.0, 5.0, 50.0, 3.0, 20.0),
    NodeKind("y", 1, 6, 60.0, 10.0, 1.0, 8.0, 90.0, 2.0, 30.0),
]


@pytest.mark.parametrize("name", names())
@given(
    jobs=RICH,
    discipline=st.sampled_from(list(Discipline)),
    off=st.booleans(),
    margin=st.sampled_from([0, 20]),
)
@examples(25)
def test_every_job_ends_and_all_energy_is_accounted_for(name, jobs, discipline, off, margin):
    """Random simulations end all jobs and conserve energy.

    The energy of jobs and idle nodes equals the integral of the power. No job uses more than the capacity,
    no job starves, and a second simulation gives the same result.
    """
    setting = ScheduleSettings(
        discipline,
        interval_s=1.0 if discipline == Discipline.PACKING else 0.0,
        preemption=Preemption(checkpoint_s=5.0, restart_s=1.0, margin_s=margin),
        idle_off_s=20.0 if off else None,
        options=Options(wait_bound_s=150.0),
    )
    samples = []
    work = rich(jobs)
    outcome = simulate(
        work, KINDS, policy(name), setting, lambda time_s, watts: samples.append((time_s, watts))
    )
    assert {row.outcome for row in rows(outcome)} == {JobOutcome.COMPLETED}
    times, watts = outcome.power
    integral = math.fsum(watts[:-1] * np.diff(times))
    assert outcome.energy_joules == pytest.approx(integral, rel=1e-9)
    parts = outcome.idle_joules + math.fsum(row.energy_joules for row in rows(outcome))
    assert parts == pytest.approx(outcome.energy_joules, rel=1e-9)
    assert all(power >= -1e-6 for _, power in samples)
    for row, job in zip(rows(outcome), range(work.count), strict=True):
        shortest_s = min(work.time_s[shape] for shape in work.shapes(job))
        assert row.end_s - work.submit_s[job] >= shortest_s - 1e-9
        if row.preemptions == 0:
            expected = work.power_watts[row.shape] * work.time_s[row.shape]
            assert row.energy_joules == pytest.approx(expected, rel=1e-9)
            assert row.lost_joules == 0
    for time_s in times[:-1]:
        assert_capacity(outcome, time_s)
    again = simulate(work, KINDS, policy(name), setting)
    assert again.summary() == outcome.summary()


@pytest.mark.parametrize("name", names())
@pytest.mark.parametrize(
    "discipline", [Discipline.EASY, pytest.param(Discipline.PACKING, marks=pytest.mark.slow)]
)
def test_no_job_starves_under_load(name, discipline):
    """No job starves under a load of 95 %. Each job starts within a bound on the waiting time.

    Every tenth job needs the whole cluster, while small jobs keep arriving.
    """
    random = np.random.default_rng(7)
    count, bound_s = 400, 2000.0
    large = np.arange(count) % 10 == 3
    units = np.where(large, 8, random.integers(1, 4, count))
    time_s = random.uniform(20.0, 100.0, count)
    gap_s = float(np.mean(units * time_s)) / (0.95 * 8)
    work = workload(
        np.arange(count + 1),
        {
            "submit_s": np.cumsum(random.exponential(gap_s, count)),
            "user": random.integers(0, 3, count),
            "deadline_s": np.full(count, np.nan),
        },
        {"units": units, "time_s": time_s, "power_watts": 100.0 * units},
        users=("a", "b", "c"),
    )
    setting = ScheduleSettings(
        discipline,
        interval_s=1.0 if discipline == Discipline.PACKING else 0.0,
        options=Options(wait_bound_s=bound_s),
    )
    outcome = simulate(work, [NodeKind("n", 2, 4)], policy(name), setting)
    assert {row.outcome for row in rows(outcome)} == {JobOutcome.COMPLETED}
    assert np.max(outcome.wait_s()) < 2 * bound_s


def assert_capacity(outcome, time_s):
    """Check that the jobs running at a time hold no more units than the cluster has.

    Jobs that were interrupted are ignored.
    """
    held = np.zeros(2)
    for row in rows(outcome):
        if row.preemptions == 0 and row.start_s <= time_s < row.end_s:
            held[outcome.workload.hardware[row.shape]] += outcome.workload.units[row.shape]
    assert np.all(held <= [6, 6])


@pytest.mark.parametrize("discipline", list(Discipline))
@given(jobs=RICH)
@examples(25)
def test_a_hard_budget_is_never_exceeded(discipline, jobs):
    """The power of the cluster never exceeds a hard budget.

    The idle power is 120 W. A job never starts in a shape (way to run the job) that needs more power than
    the budget leaves.
    """
    jobs = [(a, [(u, h, t, min(p, 100)) for u, h, t, p in shapes], *rest) for a, shapes, *rest in jobs]
    budget = StepFunction([0.0, 40.0, 80.0], [400.0, 300.0, 500.0])
    setting = ScheduleSettings(discipline, budget_watts=budget, horizon_s=2000.0)
    samples = []
    outcome = simulate(rich(jobs), KINDS, policy("charon"), setting, lambda *sample: samples.append(sample))
    assert all(watts <= budget.at(time_s) + 1e-5 for time_s, watts in samples)
    assert outcome.over_budget_s == 0.0
    assert {row.outcome for row in rows(outcome)} == {JobOutcome.COMPLETED}
    free = simulate(rich(jobs), KINDS, policy("zeus"), setting)
    assert free.over_budget_s >= 0.0


def test_admission_counts_the_idle_power_of_nodes_that_must_boot():
    """The power that nodes save while they are off is not free power for new jobs.

    The cluster has four nodes with 200 W idle and 10 W off, and a budget of 1,000 W.
    """
    kind = NodeKind("n", 4, 1, 200.0, 0.0, 10.0, boot_s=60.0, boot_watts=250.0)
    jobs = rigid([(1000.0, 1, 500.0, 500.0, 140.0) for _ in range(4)])
    setting = ScheduleSettings(idle_off_s=100.0, budget_watts=StepFunction.constant(1000.0), hard_budget=True)
    samples = []
    outcome = simulate(jobs, [kind], policy("fcfs"), setting, lambda *sample: samples.append(sample))
    assert max(watts for _, watts in samples) <= 1000.0
    # Two boot at once (2 x 340 + 20 W); a third would make 1,030 W; the fourth takes a node that is on.
    assert starts(outcome) == [1000.0, 1000.0, 1560.0, 1560.0]
    assert outcome.over_budget_s == 0.0


NODE_WATTS = st.sampled_from([0.0, 5.0, 40.0, 70.0])
SWITCHED = st.lists(
    st.builds(
        NodeKind,
        st.just("n"),
        st.integers(1, 3),
        st.integers(1, 3),
        idle_watts=st.sampled_from([10.0, 30.0, 60.0]),
        unit_idle_watts=st.sampled_from([0.0, 3.0]),
        off_watts=NODE_WATTS,
        boot_s=st.sampled_from([0.0, 7.0, 30.0]),
        boot_watts=NODE_WATTS,
        shutdown_s=st.sampled_from([0.0, 4.0, 25.0]),
        shutdown_watts=NODE_WATTS,
        failures_per_s=st.sampled_from([0.0, 0.0, 0.01]),
        repair_s=st.just(15.0),
    ),
    min_size=2,
    max_size=2,
)


@pytest.mark.parametrize("discipline", list(Discipline))
@pytest.mark.parametrize("name", ["fcfs", "aurachronos", "charon"])
@given(
    jobs=RICH,
    kinds=SWITCHED,
    idle_off_s=st.sampled_from([0.0, 5.0, 30.0]),
    room_watts=st.sampled_from([0.0, 40.0, 150.0, 400.0]),
)
@examples(40)
def test_a_budget_holds_while_nodes_go_off_and_on(name, discipline, jobs, kinds, idle_off_s, room_watts):
    """The power never exceeds a budget while nodes are switched off and on.

    The budget is at least the idle power of all nodes together. Neither jobs nor boots, shutdowns and
    repairs of nodes may exceed it.
    """
    budget_watts = room_watts + sum(kind.nodes * kind.idle_watts for kind in kinds)
    setting = ScheduleSettings(
        discipline,
        budget_watts=StepFunction.constant(budget_watts),
        hard_budget=True,
        idle_off_s=idle_off_s,
        preemption=Preemption(checkpoint_s=5.0, margin_s=20.0),
        horizon_s=1500.0,
    )
    samples = []
    outcome = simulate(rich(jobs), kinds, policy(name), setting, lambda *sample: samples.append(sample))
    assert max(watts for _, watts in samples) <= budget_watts + 1e-5
    assert outcome.over_budget_s == 0.0


def test_a_falling_budget_interrupts_the_job_that_loses_least():
    jobs = rigid([(0, 1, 100.0, 100.0, 300.0), (50, 1, 100.0, 100.0, 300.0)])
    setting = ScheduleSettings(
        budget_watts=StepFunction([0.0, 60.0, 200.0], [1000.0, 400.0, 1000.0]), hard_budget=True
    )
    outcome = simulate(jobs, [NodeKind("n", 2, 1)], policy("fcfs"), setting)
    assert [row.preemptions for row in rows(outcome)] == [0, 1]
    assert [row.end_s for row in rows(outcome)] == [100.0, 200.0]  # 300 W fit again after the first job
    assert rows(outcome)[1].lost_joules == pytest.approx(10 * 300.0)


def capped_jobs(*caps):
    """Return a workload of two jobs that can also run under power caps.

    The jobs are submitted at 0 and 50 s. Without a cap, each job takes 100 s at 300 W.

    Args:
        caps: pairs of the time in seconds and the power in watts of a job under a cap.
    """
    shapes = [(100.0, 300.0), *caps]
    return workload(
        np.array([0, len(shapes), 2 * len(shapes)]),
        {"submit_s": [0.0, 50.0]},
        {
            "units": [1] * 2 * len(shapes),
            "time_s": [time_s for time_s, _ in shapes] * 2,
            "power_watts": [watts for _, watts in shapes] * 2,
            "cap_watts": [math.nan, *(watts for _, watts in caps)] * 2,
        },
    )


def test_a_falling_budget_lowers_caps_before_it_interrupts():
    """When the budget falls, the simulator lowers the power caps of jobs before it interrupts jobs.

    In the test, the budget falls at 60 s. Each job then gets 250 W and takes 5/12 longer for its work. At 80
    s the budget rises and the original caps are restored.
    """
    setting = ScheduleSettings(
        Discipline.STRICT,
        budget_watts=StepFunction([0.0, 60.0, 80.0], [1000.0, 500.0, 1000.0]),
        hard_budget=True,
    )
    samples = []
    jobs = capped_jobs((200.0, 180.0))
    outcome = simulate(
        jobs, [NodeKind("n", 2, 1)], policy("fcfs"), setting, lambda *sample: samples.append(sample)
    )
    assert [row.preemptions for row in rows(outcome)] == [0, 0]
    lost_s = 20.0 - 20.0 / (1 + 5 / 12)
    assert [row.end_s for row in rows(outcome)] == pytest.approx([100.0 + lost_s, 150.0 + lost_s])
    for row in rows(outcome):
        assert row.energy_joules == pytest.approx((80 + lost_s) * 300 + 20 * 250)
        assert row.run_s == pytest.approx(100.0 + lost_s)
    assert outcome.over_budget_s == 0
    assert max(watts for time_s, watts in samples if 60 <= time_s < 80) == pytest.approx(500.0)


@pytest.mark.parametrize(
    ("checkpoint_s", "lost", "end_s"),
    [(math.inf, 60 * 300 + 10 * 180, 240.0), (0.0, 0.0, 175.0), (25.0, 10 * 300 + 10 * 180, 190.0)],
)
def test_lost_and_saved_work_counts_at_the_cap_under_which_it_ran(checkpoint_s, lost, end_s):
    """The lost energy of a preempted job depends on the power cap under which the lost work ran.

    The job runs 60 s at full speed and 10 s at half speed under a lower cap. After 70 s, the budget permits
    no job until 140 s.
    """
    jobs = capped_jobs((200.0, 180.0))
    alone = workload(
        np.array([0, 2]),
        {"submit_s": [0.0]},
        {"units": [1, 1], "time_s": [100.0, 200.0]}
        | {"power_watts": jobs.power_watts[:2], "cap_watts": jobs.cap_watts[:2]},
    )
    setting = ScheduleSettings(
        Discipline.STRICT,
        budget_watts=StepFunction([0.0, 60.0, 70.0, 140.0], [1000.0, 180.0, 0.0, 1000.0]),
        hard_budget=True,
        preemption=Preemption(checkpoint_s),
    )
    outcome = simulate(alone, [NodeKind("n", 1, 1)], policy("fcfs"), setting)
    (row,) = rows(outcome)
    assert (row.preemptions, row.lost_joules) == (1, pytest.approx(lost))
    assert row.end_s == pytest.approx(end_s)


def test_a_job_that_waits_for_its_nodes_to_boot_can_be_interrupted():
    """An urgent job can interrupt a job that waits for the boot of its nodes.

    The interrupted job loses no work. The nodes finish booting, and the urgent job then uses them.
    """
    kind = NodeKind("n", 1, 1, 100.0, 0.0, 0.0, boot_s=30.0, boot_watts=150.0)
    jobs = rigid([(100, 1, 50.0), (110, 1, 20.0)], deadline_s=[math.nan, 155.0])
    setting = ScheduleSettings(
        Discipline.PACKING, idle_off_s=10.0, preemption=Preemption(math.inf, 0.0, margin_s=10.0)
    )
    outcome = simulate(jobs, [kind], policy("aurachronos"), setting)
    waiting, urgent = rows(outcome)
    assert (urgent.start_s, urgent.end_s) == (125.0, 150.0)  # the node is on at 130
    assert (waiting.preemptions, waiting.lost_joules, waiting.end_s) == (1, 0.0, 200.0)
    assert outcome.energy_joules == pytest.approx(10 * 100 + 30 * 150 + 70 * 200.0)


@pytest.mark.parametrize(
    ("checkpoint_s", "end_s", "lost"), [(math.inf, 145.0, 4000.0), (30.0, 115.0, 1000.0), (0, 105.0, 0)]
)
def test_an_urgent_job_preempts_a_job_without_deadline(checkpoint_s, end_s, lost):
    """An urgent job interrupts a running job without a deadline.

    The urgent job is submitted at 40 s with deadline 46 s and runs for 5 s, so that it must start soon. It
    runs from 40 s to 45 s. The interrupted job restarts at 45 s.
    """
    jobs = rigid([(0, 1, 100.0, 100.0, 100.0), (40, 1, 5.0, 5.0, 100.0)], deadline_s=[math.nan, 46.0])
    setting = ScheduleSettings(
        Discipline.PACKING, preemption=Preemption(checkpoint_s, restart_s=0.0, margin_s=2.0)
    )
    outcome = simulate(jobs, [NodeKind("n", 1, 1)], policy("aurachronos"), setting)
    victim, urgent = rows(outcome)
    assert (urgent.start_s, urgent.end_s) == (40.0, 45.0)
    assert (victim.preemptions, victim.end_s, victim.lost_joules) == (1, end_s, pytest.approx(lost))
    assert outcome.deadline_misses() == (0, 1)
    calm = simulate(jobs, [NodeKind("n", 1, 1)], policy("chronos"), setting)
    assert calm.deadline_misses() == (1, 1)
    assert rows(calm)[0].preemptions == 0


def test_shutdown_and_boot_take_their_times_and_powers():
    kind = NodeKind(
        "n", 1, 1, 100.0, 0.0, 5.0, boot_s=30.0, boot_watts=150.0, shutdown_s=10.0, shutdown_watts=80.0
    )
    jobs = rigid([(0, 1, 50.0, 50.0, 200.0), (200, 1, 50.0, 50.0, 200.0)])
    outcome = simulate(jobs, [kind], policy("fcfs"), ScheduleSettings(idle_off_s=60.0))
    times, watts = outcome.power
    expected = [(0, 300), (50, 100), (110, 80), (120, 5), (200, 150), (230, 300), (280, 100)]
    assert list(zip(times[:-1], watts[:-1], strict=True)) == expected
    assert rows(outcome)[1].end_s == 280.0
    assert rows(outcome)[1].energy_joules == pytest.approx(50 * 200.0)


def test_jobs_of_a_node_that_fails_run_again():
    jobs = rigid([(0, 2, 1000.0)])
    kind = NodeKind("n", 2, 1, failures_per_s=1 / 1500, repair_s=100.0)
    outcome = simulate(jobs, [kind], policy("fcfs"), ScheduleSettings(seed=3))
    (row,) = rows(outcome)
    assert row.failures > 0 and row.outcome == JobOutcome.COMPLETED
    assert row.end_s > 1000.0 + 100.0
    assert row.lost_joules == pytest.approx(row.energy_joules - 1000.0 * 200.0)


def test_a_job_larger_than_the_cluster_is_counted_and_named():
    outcome = simulate(
        rigid([(0, 9, 10), (0, 1, 10)]), [NodeKind("n", 8, 1)], policy("fcfs"), ScheduleSettings()
    )
    assert [row.outcome for row in rows(outcome)] == [JobOutcome.UNRUNNABLE, JobOutcome.COMPLETED]
    assert outcome.notes == ["1 jobs are larger than the cluster and never ran"]


def test_the_horizon_cuts_jobs_and_their_energy():
    outcome = simulate(
        rigid([(0, 1, 100)]), [NodeKind("n", 1, 1)], policy("fcfs"), ScheduleSettings(horizon_s=40.0)
    )
    (row,) = rows(outcome)
    assert row.outcome == JobOutcome.RUNNING and math.isnan(row.end_s)
    assert row.energy_joules == pytest.approx(4000.0) == outcome.energy_joules
    assert outcome.summary()["completed"] == 0


def test_packing_starts_jobs_at_intervals_only():
    setting = ScheduleSettings(Discipline.PACKING, interval_s=10.0)
    outcome = simulate(rigid([(1, 1, 5), (12, 1, 5)]), [NodeKind("n", 1, 1)], policy("fcfs"), setting)
    assert starts(outcome) == [10.0, 20.0]


def test_jobs_are_packed_on_few_nodes():
    cluster = Cluster([NodeKind("n", 3, 8)])
    assert cluster.allocate(0, 3) == [(0, 3)]
    assert cluster.allocate(0, 5) == [(0, 5)]
    assert cluster.allocate(0, 12) == [(1, 8), (2, 4)]
    assert cluster.allocate(0, 5) is None
    cluster.release([(0, 3)])
    assert cluster.allocate(0, 4) == [(2, 4)]
    cluster.change(0, NodePowerState.DOWN)
    assert cluster.free[0] == 0


def test_step_functions_and_their_integral_with_power():
    meter = EnergyIntegral(100.0)
    meter.change(10.0, 200.0)
    meter.change(10.0, 300.0)
    meter.change(20.0, 0.0)
    times, watts = meter.series(30.0)
    assert list(times) == [0, 10, 20, 30] and list(watts) == [100, 300, 0, 0]
    assert meter.energy_joules(30.0) == 4000.0 and meter.peak_watts == 300.0
    price = StepFunction([5.0, 15.0], [1.0, 2.0])
    assert [price.at(t) for t in (0, 5, 14.9, 15, 99)] == [1, 1, 1, 2, 2]
    assert integral_of_product(times, watts, price) == pytest.approx(1000 + 5 * 300 + 5 * 300 * 2)
    with pytest.raises(ValueError, match="rise"):
        StepFunction([1.0, 1.0], [1.0, 2.0])


@pytest.mark.parametrize(
    ("job", "message"),
    [
        ((0, 1, -1.0), "job 1: it has a time that is not positive"),
        ((0, 0, 1.0), "job 1: it has a size below 1"),
        ((-1, 1, 1.0), "submission time"),
        ((0, 1, 1.0, 1.0, -1.0), "job 1: it has a power that is negative"),
    ],
)
def test_impossible_jobs_are_named(job, message):
    with pytest.raises(UsageError, match=message):
        rigid([job])


@given(
    st.lists(
        st.tuples(st.integers(0, 60), st.integers(1, 9), st.integers(1, 20), st.integers(1, 30)),
        min_size=1,
        max_size=30,
    ).map(sorted),
    st.sampled_from([Discipline.STRICT, Discipline.EASY]),
)
@example([(0, 9, 1, 1)], Discipline.STRICT)
@examples(100)
def test_the_fast_path_gives_the_schedule_of_the_engine(jobs, discipline):
    """The fast simulator computes the same schedule as the general engine.

    This also holds for time limits that are too short or too long, and for jobs that are too large.
    """
    work, kinds = rigid(jobs), [NodeKind("n", 8, 1, 50.0, 20.0)]
    setting = ScheduleSettings(discipline)
    assert fast.supports(work, kinds, policy("fcfs"), setting)
    quick, full = fast.simulate(work, kinds, setting), simulate(work, kinds, policy("fcfs"), setting)
    np.testing.assert_array_equal(quick.accounts.start_s, full.accounts.start_s)
    for name in ("end_s", "energy_joules", "run_s", "unit_s", "outcome", "shape"):
        np.testing.assert_allclose(getattr(quick.accounts, name), getattr(full.accounts, name), rtol=1e-12)
    assert quick.energy_joules == pytest.approx(full.energy_joules, rel=1e-9)
    times, watts = quick.power
    assert math.fsum(watts[:-1] * np.diff(times)) == pytest.approx(quick.energy_joules, rel=1e-9)
    assert quick.peak_watts == pytest.approx(full.peak_watts)
    assert quick.notes == full.notes


def test_the_fast_path_leaves_an_overloaded_cluster_to_the_column_engine(monkeypatch):
    """A simulation that takes too many steps in the fast path is done by the column engine instead.

    The fast path and the column engine are two implementations of the simulator. The run time of the fast
    path grows with the square of the number of pending jobs. It is therefore not used for an overloaded
    cluster.
    """
    work, kinds, setting = rigid([(0, 8, 5)] * 9), [NodeKind("n", 8, 1)], ScheduleSettings(Discipline.EASY)
    calls = []
    monkeypatch.setattr(fast.column_engine, "simulate", lambda *given: calls.append(given))
    assert fast.simulate(work, kinds, setting) is not None and not calls
    monkeypatch.setattr(fast, "_MAX_STEPS", 3)
    monkeypatch.setattr(fast, "_MAX_STEPS_PER_JOB", 0)
    fast.simulate(work, kinds, setting)
    assert calls == [(work, kinds, policy("fcfs"), setting)]


def test_columns_with_gaps_reach_compiled_code_without_them(monkeypatch):
    """The simulator copies arrays with gaps in memory before it passes them to compiled code.

    The compiled code thus gets arrays without gaps only. Numba would compile a function again for each
    other memory layout, which takes seconds.
    """
    work, layouts = rigid([(0, 1, 1), (1, 2, 1)]), []
    work = replace(work, time_s=np.repeat(work.time_s, 2)[::2], submit_s=np.repeat(work.submit_s, 2)[::2])
    schedule = fast._schedule

    def record(*arguments):
        layouts.extend(one.flags.c_contiguous for one in arguments if isinstance(one, np.ndarray))
        return schedule(*arguments)

    monkeypatch.setattr(fast, "_schedule", record)
    assert fast.simulate(work, [NodeKind("n", 8, 1)], ScheduleSettings(Discipline.EASY)).units == 8
    assert len(layouts) == 6 and all(layouts)


@pytest.mark.parametrize(
    ("name", "change"),
    [("sjf", {}), ("fcfs", {"horizon_s": 5.0}), ("fcfs", {"discipline": Discipline.PACKING})],
)
def test_the_fast_path_rejects_runs_that_it_cannot_simulate(name, change):
    setting = ScheduleSettings(**{"discipline": Discipline.EASY, **change})
    assert not fast.supports(rigid([(0, 1, 1)]), [NodeKind("n", 8, 1)], policy(name), setting)


def test_a_user_without_a_directory_to_cache_in_can_simulate():
    """A user without a writable cache directory can run simulations.

    An example is a service whose home directory does not exist, if only root can write to the directory of
    the installed packages.
    """
    code = "import numba.core.caching as c; c.CacheImpl._locator_classes = []; "
    code += "from slurm_energy.simulator.kernels import fast_path; print(fast_path.__name__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "slurm_energy.simulator.kernels.fast_path\n"), done.stderr
