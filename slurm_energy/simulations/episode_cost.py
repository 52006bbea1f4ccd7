"""Cost of a schedule as one number: energy of the cluster plus weighted time of jobs in the system."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slurm_energy.scheduling.queue import Floats
from slurm_energy.simulator.results.simulation_result import EnergyAccounts
from slurm_energy.simulator.workloads.workload import Workload


@dataclass(frozen=True, slots=True)
class EpisodeCost:
    """Cost E / E0 + w T / T0 of a schedule.

    E is the energy of the cluster. T is the sum over the jobs of the time from submission to completion, or
    to now for unfinished jobs. E0 is the sum of the jobs' lowest predicted energies, and T0 is the sum of the
    jobs' shortest predicted run times.

    Attributes:
        submit_s: submission time of each job in seconds.
        energy_joules: E0, the sum of the jobs' lowest predicted energies.
        time_s: T0, the sum of the jobs' shortest predicted run times.
        delay_weight: w, the weight of the time relative to the energy.
    """

    submit_s: Floats
    energy_joules: float
    time_s: float
    delay_weight: float

    @classmethod
    def nothing(cls) -> EpisodeCost:
        """Return the cost object for a workload without jobs."""
        return cls(np.zeros(0), 1.0, 1.0, 0.0)

    @classmethod
    def of(cls, work: Workload, delay_weight: float) -> EpisodeCost:
        """Return the cost function with which schedules of a workload are compared.

        The cost relates energy and time to reference values. The reference energy is the least energy of the
        jobs. The reference time is the sum of their shortest run times.

        Args:
            work: the workload.
            delay_weight: weight of the delay relative to the energy.
        """
        if not work.count:
            return cls.nothing()
        joules = np.minimum.reduceat(work.predicted_time_s * work.predicted_watts, work.first[:-1])
        fastest_s = np.minimum.reduceat(work.predicted_time_s, work.first[:-1])
        return cls(work.submit_s, max(1.0, float(joules.sum())), float(fastest_s.sum()), delay_weight)

    def total(self, energy_joules: float, accounts: EnergyAccounts, now_s: float) -> float:
        """Return the cost of the simulated schedule from the start until now.

        The cost is the sum of two terms. The first term is the energy, divided by the lowest predicted
        energy of the jobs. The second term is the total time of the jobs in the system, divided by their
        shortest predicted run time and multiplied by a weight.

        Args:
            energy_joules: energy of the cluster until now.
            accounts: times and energies of the jobs, among them each job's end.
            now_s: current time in seconds.
        """
        end_s = np.where(np.isnan(accounts.end_s), now_s, np.minimum(accounts.end_s, now_s))
        spent_s = float(np.sum(np.maximum(0.0, end_s - self.submit_s)))
        return energy_joules / self.energy_joules + self.delay_weight * spent_s / self.time_s
