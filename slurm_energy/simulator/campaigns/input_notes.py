"""Remarks on the input of a simulation for the user."""

from __future__ import annotations

from slurm_energy.quantities import shown
from slurm_energy.simulator.inputs import LoadedWorkload
from slurm_energy.simulator.scenario import Scenario
from slurm_energy.simulator.workloads.workload import Workload


def input_notes(scenario: Scenario, work: Workload, loaded: LoadedWorkload | None) -> list[str]:
    """Return the remarks on the input of a simulation, one line each.

    Args:
        scenario: the scenario.
        work: the simulated jobs.
        loaded: workload files and the problems found in them; None if all jobs come from models.
    """
    notes: list[str] = []
    if loaded is not None:
        notes += loaded.notes()
        # The models of a scenario determine the power of its jobs.
        if loaded.without_power and not scenario.models and not scenario.workload.watts_per_unit:
            text = "rows of the workload files without power, which draw 0 W"
            notes.append(f"{text}: {loaded.without_power}; set workload.watts_per_unit")
    if absent := sorted(set(scenario.schedule.shares) - set(work.users)):
        notes.append(f"schedule.shares without effect: there is no job of {shown(', '.join(absent))}")
    return notes
