"""Remarks on the result of a simulation for the user.

Remarks are about jobs that never ran, and about a power budget that the nodes exceeded even without jobs.
"""

from __future__ import annotations

import numpy as np

from slurm_energy.simulator.constraints.constrained_selection import ConstrainedSelection
from slurm_energy.simulator.results.simulation_result import EnergyAccounts, JobOutcome


def run_notes(
    accounts: EnergyAccounts,
    horizon_s: float | None,
    nodes_over_s: float = 0.0,
    constrained: ConstrainedSelection | None = None,
) -> list[str]:
    """Return the remarks of a simulation for the user, one line each.

    Args:
        accounts: times and outcomes of the jobs.
        horizon_s: configured end of the simulation. None if the simulation had to run until all jobs have
            ended.
        nodes_over_s: seconds in which the nodes alone exceeded the budget.
        constrained: selection of jobs under constraints; None if there are no constraints.
    """
    notes = [] if constrained is None else constrained.notes()
    unrunnable = int(np.sum(accounts.outcome == JobOutcome.UNRUNNABLE))
    if unrunnable and constrained is None:
        notes.append(f"{unrunnable} jobs are larger than the cluster and never ran")
    if nodes_over_s:
        notes.append(
            f"the power exceeded the budget for {nodes_over_s:.0f} s, because the nodes alone drew "
            "more without any job: the budget is below the power of idle, booting or stopping nodes"
        )
    unfinished = int(np.sum(np.isin(accounts.outcome, (JobOutcome.PENDING, JobOutcome.RUNNING))))
    if unfinished and horizon_s is None:
        notes.append(
            f"the simulation ended with {unfinished} unfinished jobs, which would never start or never end: "
            "the policy never chooses them, they need more than the budget or the working nodes give, or "
            "nodes fail before they end"
        )
    return notes
