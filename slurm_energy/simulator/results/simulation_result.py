"""Result of a simulation: times and energies of each job, power over time, and totals. Plain data."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slurm_energy.scheduling.fairness import jain
from slurm_energy.scheduling.queue import Floats, Ints
from slurm_energy.simulator.workloads.workload import Workload


class JobOutcome(IntEnum):
    """State of a job at the end of the simulation."""

    PENDING = 0
    RUNNING = 1
    COMPLETED = 2
    UNRUNNABLE = 3
    TIMEOUT = 4


@dataclass(frozen=True, slots=True)
class EnergyAccounts:
    """Times and energies of all n jobs; columns have shape (n,).

    The jobs are in the order of the workload.

    Attributes:
        shape: row of the shape (way to run the job) in the last run; -1 if the job never ran.
        start_s: time of the first start; NaN if the job never ran.
        end_s: time of completion, or of the kill at the time limit; NaN if the job has not ended.
        energy_joules: energy of all runs, including work that was lost.
        lost_joules: energy of work that was lost by interruptions.
        preemptions: number of interruptions for another job or for the budget.
        failures: number of interruptions by node failures.
        run_s: seconds for which the job held its units, over all runs.
        unit_s: sum over the job's units of the seconds for which the job held each unit.
        outcome: a `JobOutcome`.
    """

    shape: Ints
    start_s: Floats
    end_s: Floats
    energy_joules: Floats
    lost_joules: Floats
    preemptions: Ints
    failures: Ints
    run_s: Floats
    unit_s: Floats
    outcome: NDArray[np.int8]

    @classmethod
    def empty(cls, count: int) -> EnergyAccounts:
        """Return result columns for `count` simulated jobs, of which none has run yet."""
        return cls(
            shape=np.full(count, -1),
            start_s=np.full(count, np.nan),
            end_s=np.full(count, np.nan),
            energy_joules=np.zeros(count),
            lost_joules=np.zeros(count),
            preemptions=np.zeros(count, np.int64),
            failures=np.zeros(count, np.int64),
            run_s=np.zeros(count),
            unit_s=np.zeros(count),
            outcome=np.zeros(count, np.int8),
        )


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """Result of one simulation.

    Attributes:
        workload: the simulated jobs.
        accounts: times and energies of each job.
        end_s: end of the simulation in seconds.
        energy_joules: energy of the cluster, including idle nodes.
        idle_joules: part of `energy_joules` that belongs to no job.
        power: times in seconds, and the watts from each time on, in the format of `EnergyIntegral.series`.
        peak_watts: highest power of the cluster.
        passes: number of scheduling passes.
        over_budget_s: seconds in which the power exceeded the budget.
        nodes_over_budget_s: part of `over_budget_s` in which the nodes would have exceeded the budget even
            without any job.
        units: size of the whole cluster. It is counted in GPUs, cores or nodes, as the sizes of the jobs
            are.
        segments: intervals in which jobs drew power. The four columns are the row number of the job, the
            start, the end, and the watts. None if the intervals were not recorded, because each job ran
            without interruption at constant power.
        suspensions: how often a job was suspended in order to defer its work.
        notes: remarks for the user.
        site_totals: additional totals, by name, of a simulation of several sites.
    """

    workload: Workload
    accounts: EnergyAccounts
    end_s: float
    energy_joules: float
    idle_joules: float
    power: tuple[Floats, Floats]
    peak_watts: float
    passes: int
    over_budget_s: float = 0.0
    nodes_over_budget_s: float = 0.0
    units: int = 0
    segments: tuple[Ints, Floats, Floats, Floats] | None = None
    suspensions: int = 0
    notes: list[str] = field(default_factory=list)
    site_totals: dict[str, Any] = field(default_factory=dict)

    @property
    def done(self) -> Ints:
        """Return the row numbers of the completed jobs."""
        return np.flatnonzero(self.accounts.outcome == JobOutcome.COMPLETED)

    @property
    def timeouts(self) -> Ints:
        """Return the row numbers of the jobs that were killed at their time limit."""
        return np.flatnonzero(self.accounts.outcome == JobOutcome.TIMEOUT)

    def jct_s(self) -> Floats:
        """Return the seconds from submission to end of each completed job."""
        spent: Floats = self.accounts.end_s[self.done] - self.workload.submit_s[self.done]
        return spent

    def wait_s(self) -> Floats:
        """Return the waiting time of each completed job: seconds from submission to first start."""
        waited: Floats = self.accounts.start_s[self.done] - self.workload.submit_s[self.done]
        return waited

    def deadline_misses(self) -> tuple[int, int]:
        """Return how many jobs missed their deadline, and how many jobs have a decided deadline.

        A deadline is decided when its job has ended or the deadline has passed.
        """
        deadline_s, end_s = self.workload.deadline_s, self.accounts.end_s
        decided = ~np.isnan(deadline_s) & (~np.isnan(end_s) | (deadline_s <= self.end_s))
        missed = decided & ~((end_s <= deadline_s) & (self.accounts.outcome == JobOutcome.COMPLETED))
        return int(np.sum(missed)), int(np.sum(decided))

    def late_starts(self) -> tuple[int, int]:
        """Return how many deferrable jobs started too late, and how many deferrable jobs there were.

        A job starts too late if it starts after its latest permitted start.
        """
        latest_s = self.workload.latest_start_s(np.arange(self.workload.count))
        started = ~np.isnan(latest_s) & ~np.isnan(self.accounts.start_s)
        late = started & (self.accounts.start_s > latest_s + 1e-6)
        return int(np.sum(late)), int(np.sum(started))

    def summary(self) -> dict[str, float | int | None]:
        """Return the totals by name. A total that is undefined in this simulation is None."""
        jct, wait = self.jct_s(), self.wait_s()
        missed, decided = self.deadline_misses()
        late, deferrable = self.late_starts()
        hours = self.end_s / 3600
        done = len(self.done)
        return {
            "jobs": self.workload.count,
            "completed": done,
            "timeouts": len(self.timeouts),
            "jobs_per_hour": done / hours if hours else None,
            "utilisation": self.utilisation(),
            "energy_kwh": self.energy_joules / 3.6e6,
            "energy_kwh_per_job": self.energy_joules / 3.6e6 / done if done else None,
            "job_kwh": float(np.sum(self.accounts.energy_joules)) / 3.6e6,
            "idle_kwh": self.idle_joules / 3.6e6,
            "mean_watts": self.energy_joules / self.end_s if self.end_s else None,
            "peak_watts": self.peak_watts,
            "mean_jct_s": _mean(jct),
            "p95_jct_s": float(np.quantile(jct, 0.95)) if done else None,
            "mean_wait_s": _mean(wait),
            "p95_wait_s": float(np.quantile(wait, 0.95)) if done else None,
            "max_wait_s": float(np.max(wait)) if done else None,
            "edp_js": self.energy_joules * float(np.mean(jct)) if done else None,
            "job_edp_js": float(np.sum(self.accounts.energy_joules)) * float(np.mean(jct)) if done else None,
            "deadline_miss_rate": missed / decided if decided else None,
            "deadlines": decided,
            "late_start_rate": late / deferrable if deferrable else None,
            "suspensions": self.suspensions,
            "preemptions": int(np.sum(self.accounts.preemptions)),
            "timeout_kwh": float(np.sum(self.accounts.energy_joules[self.timeouts])) / 3.6e6,
            "lost_kwh": float(np.sum(self.accounts.lost_joules)) / 3.6e6,
            "jain_jct": self.jain_of_jct(),
            "jain_energy": self.jain_of_energy(),
            "over_budget_s": self.over_budget_s,
            "nodes_over_budget_s": self.nodes_over_budget_s,
            "makespan_s": float(np.max(self.accounts.end_s[self.done])) if done else None,
        }

    def utilisation(self) -> float | None:
        """Return the utilisation of the cluster's units (for example GPUs), from 0 to 1.

        The utilisation is the unit seconds that jobs held, divided by all unit seconds. It is None if the
        simulation ends at 0 seconds.
        """
        unit_s = self.units * self.end_s
        return float(np.sum(self.accounts.unit_s)) / unit_s if unit_s else None

    def jain_of_jct(self) -> float | None:
        """Return Jain's fairness index of the users' mean completion times; None without completed jobs."""
        jct, users = self.jct_s(), self.workload.user[self.done]
        means = [float(np.mean(jct[users == user])) for user in np.unique(users)]
        return jain(np.array(means)) if means else None

    def jain_of_energy(self) -> float | None:
        """Return Jain's fairness index of the users' energies; None if no energy was used."""
        users = len(self.workload.users)
        sums: Floats = np.bincount(self.workload.user, self.accounts.energy_joules, users).astype(np.float64)
        return jain(sums) if np.any(sums) else None


def _mean(values: Floats) -> float | None:
    return float(np.mean(values)) if len(values) else None
