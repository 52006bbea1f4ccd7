"""Constraints of the simulated cluster: memory, licenses, partitions, QOS, reservations, time limits."""

from __future__ import annotations

import math

import numpy as np
import pytest

from slurm_energy.scheduling import policy
from slurm_energy.scheduling.backfill import Discipline
from slurm_energy.simulator import column_engine, fast_path
from slurm_energy.simulator.cluster import NodeKind
from slurm_energy.simulator.engine import simulate
from slurm_energy.simulator.schedule_settings import Preemption, ScheduleSettings
from slurm_energy.simulator.simulation_result import JobOutcome
from slurm_energy.simulator.step_function import StepFunction
from slurm_energy.simulator.workload import workload


def jobs_of(*rows, **columns):
    """Return a workload of (submission, units, run time, time limit) rows of 100 W per unit."""
    return workload(
        np.arange(len(rows) + 1),
        {"submit_s": [row[0] for row in rows], "time_limit_s": [row[3] for row in rows], **columns},
        {
            "units": [row[1] for row in rows],
            "time_s": [row[2] for row in rows],
            "power_watts": [100.0 * row[1] for row in rows],
        },
    )


def test_requests_of_jobs_keep_their_rows_when_jobs_are_sorted_by_submission():
    jobs = workload(
        np.arange(4),
        {
            "submit_s": [20.0, 0.0, 10.0],
            "partition": [0, 1, -1],
            "unit_memory_gib": [1.0, np.nan, 3.0],
            "licenses": [[1, 0], [0, 2], [0, 0]],
        },
        {"units": [1, 2, 3], "time_s": [5.0, 5.0, 5.0]},
        partitions=("a", "b"),
        license_names=("x", "y"),
    )
    assert jobs.partition.tolist() == [1, -1, 0]
    assert jobs.licenses.tolist() == [[0, 2], [0, 0], [1, 0]]
    np.testing.assert_array_equal(jobs.unit_memory_gib, [np.nan, 3.0, 1.0])
    assert jobs.qos.tolist() == jobs.reservation.tolist() == [-1, -1, -1]


def test_jobs_end_at_their_time_limit_if_it_is_enforced():
    """The second job exceeds its limit of 50 s, the third has none, the fourth ends exactly at its limit."""
    jobs = jobs_of(
        (0.0, 1, 30.0, 40.0),
        (0.0, 1, 90.0, 50.0),
        (0.0, 1, 90.0, math.nan),
        (0.0, 1, 40.0, 40.0),
        deadline_s=[math.nan, 60.0, math.nan, 60.0],
    )
    kinds = [NodeKind("n", 1, 1)]
    result = simulate(jobs, kinds, policy("fcfs"), ScheduleSettings(Discipline.STRICT, kill_at_limit=True))
    assert result.accounts.end_s.tolist() == [30.0, 80.0, 170.0, 210.0]
    names = [JobOutcome(value).name for value in result.accounts.outcome]
    assert names == ["COMPLETED", "TIMEOUT", "COMPLETED", "COMPLETED"]
    assert result.accounts.energy_joules.tolist() == [3000.0, 5000.0, 9000.0, 4000.0]
    totals = result.summary()
    assert (totals["completed"], totals["timeouts"]) == (3, 1)
    assert totals["timeout_kwh"] == pytest.approx(5000.0 / 3.6e6)
    assert result.deadline_misses() == (2, 2)  # a killed job has not met its deadline
    free = simulate(jobs, kinds, policy("fcfs"), ScheduleSettings(Discipline.STRICT))
    assert free.accounts.end_s.tolist() == [30.0, 120.0, 210.0, 250.0]
    assert free.summary()["timeouts"] == 0


def test_a_time_limit_counts_from_the_end_of_the_boot_and_anew_after_a_requeue():
    """The node boots until 130. An urgent job interrupts at 140; then the job starts from the beginning."""
    kind = NodeKind("n", 1, 1, boot_s=30.0, boot_watts=1.0)
    jobs = jobs_of((100.0, 1, 80.0, 80.0), (140.0, 1, 5.0, 5.0), deadline_s=[math.nan, 146.0])
    settings = ScheduleSettings(
        Discipline.PACKING,
        idle_off_s=10.0,
        kill_at_limit=True,
        preemption=Preemption(checkpoint_s=math.inf, margin_s=2.0),
    )
    result = simulate(jobs, [kind], policy("aurachronos"), settings)
    assert result.accounts.outcome.tolist() == [JobOutcome.COMPLETED] * 2
    assert result.accounts.end_s.tolist() == [225.0, 145.0]


def test_a_power_limit_does_not_extend_an_enforced_time_limit():
    """At half power the job needs longer than its limit."""
    kind = NodeKind("n", 1, 1, unit_min_watts=10.0)
    jobs = jobs_of((0.0, 1, 50.0, 60.0), compute_share=[1.0])
    budget = StepFunction([0.0, 10.0], [100.0, 50.0])
    settings = ScheduleSettings(budget_watts=budget, hard_budget=True, kill_at_limit=True)
    result = simulate(jobs, [kind], policy("fcfs"), settings)
    assert result.accounts.outcome.tolist() == [JobOutcome.TIMEOUT]
    assert result.accounts.end_s.tolist() == [60.0]


def test_compiled_engines_leave_enforced_limits_to_the_general_engine():
    kinds, fcfs = [NodeKind("n", 2, 1)], policy("fcfs")
    settings = ScheduleSettings(kill_at_limit=True)
    longer, within = jobs_of((0.0, 1, 9.0, 8.0)), jobs_of((0.0, 1, 8.0, 8.0), (0.0, 1, 8.0, math.nan))
    for compiled in (column_engine, fast_path):
        assert not compiled.supports(longer, kinds, fcfs, settings)
        assert compiled.supports(longer, kinds, fcfs, ScheduleSettings())
        assert compiled.supports(within, kinds, fcfs, settings)  # no job is killed
