"""State of a running simulation between two scheduling passes. Plain data."""

from __future__ import annotations

from dataclasses import dataclass

from slurm_energy.scheduling.queue import Floats, Ints
from slurm_energy.simulator.simulation_result import EnergyAccounts


@dataclass(frozen=True, slots=True)
class SimulationState:
    """State of the cluster and of the jobs at one time.

    Attributes:
        now_s: simulated time in seconds.
        watts: power of the cluster.
        free_units: free units by kind of nodes, shape (kinds,).
        total_units: all units by kind of nodes, shape (kinds,).
        release_s: expected end of each running job by its time limit, shape (running,).
        release_units: units of each running job, shape (running,).
        accounts: times and energies of all jobs so far, shape (jobs,). The simulation continues to write to
            these columns.
    """

    now_s: float
    watts: float
    free_units: Ints
    total_units: Ints
    release_s: Floats
    release_units: Ints
    accounts: EnergyAccounts
