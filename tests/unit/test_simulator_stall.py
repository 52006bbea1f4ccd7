"""Simulations without a horizon end even if a job can never start or never end."""

from __future__ import annotations

import math

import numpy as np
import pytest

from slurm_energy.scheduling import policy
from slurm_energy.simulator.cluster import NodeKind
from slurm_energy.simulator.engine import simulate
from slurm_energy.simulator.power.step_function import StepFunction
from slurm_energy.simulator.results.simulation_result import JobOutcome
from slurm_energy.simulator.schedule_settings import PowerSaving, Preemption, ScheduleSettings
from slurm_energy.simulator.workloads.workload import workload

DAY_S = 86_400.0


def one_job(time_s=100.0, watts=500.0, submit_s=0.0):
    return workload(
        np.arange(2), {"submit_s": [submit_s]}, {"units": [1], "time_s": [time_s], "power_watts": [watts]}
    )


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        (NodeKind("n", 1, 1, failures_per_s=1 / DAY_S, repair_s=3600.0), {}),
        (NodeKind("n", 1, 1, boot_s=60.0), {"power_saving": PowerSaving()}),
        (NodeKind("n", 1, 1), {}),  # the events end by themselves
    ],
)
def test_a_job_that_never_fits_the_budget_ends_the_simulation(kind, changes):
    settings = ScheduleSettings(budget_watts=StepFunction.constant(400.0), hard_budget=True, **changes)
    result = simulate(one_job(), [kind], policy("fcfs"), settings)
    assert result.accounts.outcome.tolist() == [JobOutcome.PENDING]
    assert result.end_s <= 31 * DAY_S
    assert "1 unfinished jobs, which would never start or never end" in result.notes[-1]


@pytest.mark.slow
def test_a_job_longer_than_every_time_between_failures_ends_the_simulation():
    """The simulation ends if a job can never finish because nodes fail too often.

    The job takes two days and has no checkpoints. It loses all work at a failure every hour.
    """
    kind = NodeKind("n", 1, 1, failures_per_s=1 / 3600.0, repair_s=60.0)
    result = simulate(one_job(2 * DAY_S), [kind], policy("fcfs"), ScheduleSettings())
    assert result.accounts.outcome[0] != JobOutcome.COMPLETED
    assert 39.9 * DAY_S <= result.end_s <= 41 * DAY_S
    assert "nodes fail before they end" in result.notes[-1]


def test_progress_keeps_a_slow_simulation_alive():
    """The simulator does not stop a simulation that progresses slowly.

    In the first case, a job of ten days on a node that often fails completes because of its checkpoints. In
    the second case, a job starts only after 90 days, when the power budget rises.
    """
    kind = NodeKind("n", 1, 1, failures_per_s=1 / 36000.0, repair_s=60.0)
    settings = ScheduleSettings(preemption=Preemption(checkpoint_s=600.0))
    result = simulate(one_job(10 * DAY_S), [kind], policy("fcfs"), settings)
    assert result.accounts.outcome.tolist() == [JobOutcome.COMPLETED]
    late = StepFunction([0.0, 20 * DAY_S, 45 * DAY_S, 90 * DAY_S], [1.0, 2.0, 3.0, 600.0])
    budget = ScheduleSettings(budget_watts=late, hard_budget=True)
    result = simulate(one_job(), [kind], policy("fcfs"), budget)
    assert result.accounts.start_s[0] >= 90 * DAY_S
    assert result.notes == []


def test_a_horizon_ends_the_simulation_without_a_statement():
    settings = ScheduleSettings(
        budget_watts=StepFunction.constant(400.0), hard_budget=True, horizon_s=2 * DAY_S
    )
    kind = NodeKind("n", 1, 1, failures_per_s=1 / DAY_S, repair_s=math.pi)
    result = simulate(one_job(), [kind], policy("fcfs"), settings)
    assert (result.end_s, result.notes) == (2 * DAY_S, [])
