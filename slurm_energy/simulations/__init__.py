"""Simulations of schedules from Python.

The package offers single runs, comparisons, sweeps, single steps, and scheduling policies written by the
user.

    >>> from slurm_energy import simulations
    >>> scenario = simulations.read("training")
    >>> scenario.run("zeus").summary["energy_kwh"]
    >>> results = scenario.compare(["fcfs", "zeus"], seeds=range(5))
    >>> results.groupby("policy").energy_kwh.mean()

The package requires the extra `simulation`. Data frames also require the extra `analysis` (pandas).
`slurm_energy.simulations.environment` is a Gymnasium environment and requires the extra `gym`.
docs/python-api.md has examples.
"""

from slurm_energy.scheduling import Options, Queue, Ranking, register
from slurm_energy.simulations.session import SimulationSession
from slurm_energy.simulations.simulated_scenario import SimulatedScenario, SimulatedSchedule, parse, read

__all__ = [
    "Options",
    "Queue",
    "Ranking",
    "SimulatedScenario",
    "SimulatedSchedule",
    "SimulationSession",
    "parse",
    "read",
    "register",
]
