"""State of a running simulation between two scheduling passes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slurm_energy.scheduling.queue import Floats, Ints
from slurm_energy.simulator.cluster import Cluster
from slurm_energy.simulator.results.simulation_result import EnergyAccounts
from slurm_energy.simulator.running_jobs import RunningJobs
from slurm_energy.simulator.workloads.workload import Workload


@dataclass(frozen=True, slots=True)
class SimulationState:
    """State of the cluster and of the jobs at one time of a simulation.

    A unit is a GPU, node or core.

    Attributes:
        now_s: simulated time in seconds.
        watts: power of the cluster.
        energy_joules: energy of the cluster so far.
        free_units: free units by kind of nodes, shape (kinds,).
        total_units: all units by kind of nodes, shape (kinds,).
        release_s: expected end of each running job by its time limit, shape (running,).
        release_units: units of each running job, shape (running,).
        accounts: times and energies of all jobs so far, shape (jobs,). The simulation continues to write to
            these columns.
    """

    now_s: float
    watts: float
    energy_joules: float
    free_units: Ints
    total_units: Ints
    release_s: Floats
    release_units: Ints
    accounts: EnergyAccounts


def state_of(
    now_s: float, watts: float, energy_joules: float, jobs: Workload, cluster: Cluster, runs: RunningJobs
) -> SimulationState:
    """Return the current state of the cluster and of the jobs.

    Args:
        now_s: simulated time in seconds.
        watts: power of the cluster.
        energy_joules: energy of the cluster so far.
        jobs: workload with all jobs.
        cluster: the nodes of the cluster.
        runs: the running jobs.
    """
    running = list(runs.running.values())
    return SimulationState(
        now_s=now_s,
        watts=watts,
        energy_joules=energy_joules,
        free_units=cluster.free.copy(),
        total_units=cluster.total.copy(),
        release_s=np.array([run.start_s + run.limit_s for run in running], np.float64),
        release_units=np.array([jobs.units[run.shape] for run in running], np.int64),
        accounts=runs.accounts,
    )
