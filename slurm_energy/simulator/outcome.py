"""What a simulation found: one row per job, power over time, and totals. Plain data."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from slurm_energy.scheduling.fairness import jain
from slurm_energy.scheduling.queue import Floats, Ints
from slurm_energy.simulator.workload import Workload


class Fate(StrEnum):
    """What became of a job."""

    COMPLETED = "completed"
    RUNNING = "running"
    PENDING = "pending"
    UNRUNNABLE = "unrunnable"


@dataclass(slots=True)
class JobRow:
    """A job at the end of the simulation.

    Attributes:
        shape: row of the shape that it ran in last; -1 if it never ran.
        start_s: when it started for the first time; None if never.
        end_s: when it was done; None if it was not.
        energy_joules: of all its runs, lost work included.
        lost_joules: of work that was done again.
        preemptions: how often it was interrupted for another job.
        failures: how often a node failed under it.
        run_s: seconds for which it held its units.
        unit_s: seconds of all its units together.
    """

    shape: int = -1
    start_s: float | None = None
    end_s: float | None = None
    energy_joules: float = 0.0
    lost_joules: float = 0.0
    preemptions: int = 0
    failures: int = 0
    run_s: float = 0.0
    unit_s: float = 0.0
    fate: Fate = Fate.PENDING


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one run.

    Attributes:
        workload: what was simulated.
        rows: one per job, in the workload's order.
        end_s: end of the simulation.
        energy_joules: of the cluster, idle nodes included.
        idle_joules: part of it that no job used.
        power: times and watts as `meter.PowerMeter.series` gives them.
        peak_watts: highest power.
        passes: how often the queue was ordered.
        over_budget_s: seconds in which the power was above the budget.
    """

    workload: Workload
    rows: list[JobRow]
    end_s: float
    energy_joules: float
    idle_joules: float
    power: tuple[Floats, Floats]
    peak_watts: float
    passes: int
    over_budget_s: float = 0.0
    notes: list[str] = field(default_factory=list)

    @property
    def done(self) -> Ints:
        """Rows of the jobs that were completed."""
        return np.array([i for i, row in enumerate(self.rows) if row.fate == Fate.COMPLETED], np.int64)

    def jct_s(self) -> Floats:
        """Return the completion times (end - submission) of completed jobs."""
        ends = np.array([self.rows[i].end_s for i in self.done], np.float64)
        return ends - self.workload.submit_s[self.done]

    def wait_s(self) -> Floats:
        """Return the times from submission to the first start, of completed jobs."""
        starts = np.array([self.rows[i].start_s for i in self.done], np.float64)
        return starts - self.workload.submit_s[self.done]

    def deadline_misses(self) -> tuple[int, int]:
        """Return (missed, decided): jobs whose deadline has passed or that ended in time."""
        missed = decided = 0
        for row, deadline_s in zip(self.rows, self.workload.deadline_s, strict=True):
            if np.isnan(deadline_s) or (row.end_s is None and deadline_s > self.end_s):
                continue
            decided += 1
            missed += row.end_s is None or row.end_s > deadline_s
        return missed, decided

    def summary(self) -> dict[str, float | int | None]:
        """Return the totals by name; None where there is nothing to tell."""
        jct, wait = self.jct_s(), self.wait_s()
        missed, decided = self.deadline_misses()
        hours = self.end_s / 3600
        done = len(self.done)
        return {
            "jobs": self.workload.count,
            "completed": done,
            "jobs_per_hour": done / hours if hours else None,
            "energy_kwh": self.energy_joules / 3.6e6,
            "energy_kwh_per_job": self.energy_joules / 3.6e6 / done if done else None,
            "idle_kwh": self.idle_joules / 3.6e6,
            "mean_watts": self.energy_joules / self.end_s if self.end_s else None,
            "peak_watts": self.peak_watts,
            "mean_jct_s": _mean(jct),
            "p95_jct_s": float(np.quantile(jct, 0.95)) if done else None,
            "mean_wait_s": _mean(wait),
            "max_wait_s": float(np.max(wait)) if done else None,
            "edp": self.energy_joules * float(np.mean(jct)) if done else None,
            "deadline_miss_rate": missed / decided if decided else None,
            "deadlines": decided,
            "preemptions": sum(row.preemptions for row in self.rows),
            "lost_kwh": sum(row.lost_joules for row in self.rows) / 3.6e6,
            "jain_jct": self.jain_of_jct(),
            "jain_energy": self.jain_of_energy(),
            "over_budget_s": self.over_budget_s,
            "makespan_s": max((row.end_s for row in self.rows if row.end_s is not None), default=None),
        }

    def jain_of_jct(self) -> float | None:
        """Return Jain's index of the users' mean completion times; None without completed jobs."""
        jct, users = self.jct_s(), self.workload.user[self.done]
        means = [float(np.mean(jct[users == user])) for user in np.unique(users)]
        return jain(np.array(means)) if means else None

    def jain_of_energy(self) -> float | None:
        """Return Jain's index of the users' energies; None if there is no energy."""
        sums = np.zeros(len(self.workload.users))
        for row, user in zip(self.rows, self.workload.user, strict=True):
            sums[user] += row.energy_joules
        return jain(sums) if np.any(sums) else None


def _mean(values: Floats) -> float | None:
    return float(np.mean(values)) if len(values) else None
