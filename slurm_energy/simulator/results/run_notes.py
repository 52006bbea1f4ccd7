"""Remarks on the result of a simulation for the user.

Remarks are about jobs that never ran, about a power budget that the nodes exceeded even without jobs, and
about prices and carbon intensities that end before the simulation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from slurm_energy.grid.series import usual_step_s
from slurm_energy.simulator.constraints.constrained_selection import ConstrainedSelection
from slurm_energy.simulator.power.step_function import read_steps
from slurm_energy.simulator.results.simulation_result import EnergyAccounts, JobOutcome

if TYPE_CHECKING:
    from slurm_energy.simulator.scenario import Scenario
    from slurm_energy.simulator.scenario_schema import PowerSection
    from slurm_energy.simulator.sites.site_schema import SiteSection


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


def series_notes(scenario: Scenario, end_s: float) -> list[str]:
    """Return a remark for each file of prices or carbon intensities that ends before the simulation.

    The last value of such a file is used until the end of the simulation. A file with a single value states
    a constant and gets no remark.

    Args:
        scenario: scenario with the files in `[power]` and in its sites.
        end_s: end of the simulation in seconds.

    Raises:
        UsageError: a file cannot be read.
    """
    notes = []
    sections: list[PowerSection | SiteSection] = [scenario.power, *scenario.sites.values()]
    for section in sections:
        for name, column in ((section.price_file, "price"), (section.carbon_file, "gco2_per_kwh")):
            times_s = read_steps(scenario.beside(name), column).times_s.tolist() if name else []
            if len(times_s) > 1 and end_s > times_s[-1] + usual_step_s(times_s):
                notes.append(
                    f"{name} ends at {times_s[-1]:.0f} s, before the simulation: the last value was used for "
                    "all later times"
                )
    return notes
