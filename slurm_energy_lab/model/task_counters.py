"""Exact memory traffic and core energy of the tasks on one package.

A task is either a run of a compute kernel or all real programs of a job. The run id identifies a run of a
compute kernel. The negative job id identifies the real programs of a job, and 0 identifies real programs
without a job.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from slurm_energy_lab.model.job_integrals import JobIntegrals

Task = int


@dataclass(slots=True)
class TaskShares:
    """Present memory traffic and power of one processor package, divided among its tasks.

    Attributes:
        bytes_per_s: memory traffic in bytes per second, by task.
        core_watts: power of the cores that a task keeps busy, by task. The power of the package's shared
            parts is not included.
    """

    bytes_per_s: dict[int | None, float] = field(default_factory=dict)
    core_watts: dict[int | None, float] = field(default_factory=dict)

    def add_traffic(self, task: Task, bytes_per_s: float) -> None:
        """Add memory traffic in bytes per second to the traffic of a task."""
        self.bytes_per_s[task] = self.bytes_per_s.get(task, 0.0) + bytes_per_s

    def add_core_watts(self, task: Task, watts: float) -> None:
        """Add power in watts to the part of the core power that a task causes."""
        self.core_watts[task] = self.core_watts.get(task, 0.0) + watts


@dataclass(frozen=True, slots=True)
class TaskCount:
    """Memory traffic and core energy of one task on one package since the start of the model.

    A task is a run of a compute kernel, or all real programs of a job.

    Attributes:
        traffic_bytes: bytes to and from memory.
        core_joules: energy of the cores.
    """

    traffic_bytes: float = 0.0
    core_joules: float = 0.0

    def plus(self, more: TaskCount, sign: int = 1) -> TaskCount:
        """Return the sum of this count and `more`. With `sign` -1, return the difference."""
        return TaskCount(
            self.traffic_bytes + sign * more.traffic_bytes, self.core_joules + sign * more.core_joules
        )


class TaskCounters:
    """Counters of the memory traffic and the core energy of each task on one package.

    A task is the work of one compute kernel run.
    """

    def __init__(self) -> None:
        self._traffic, self._energy = JobIntegrals(), JobIntegrals()

    def set_rates(self, now_s: float, shares: TaskShares) -> None:
        """Set the memory traffic and the core power of all tasks from time `now_s` on."""
        self._traffic.set_rates(now_s, shares.bytes_per_s)
        self._energy.set_rates(now_s, shares.core_watts)

    def count(self, task: Task, now_s: float) -> TaskCount:
        """Return the memory traffic and the core energy that a task has caused up to time `now_s`."""
        return TaskCount(self._traffic.integral_at(task, now_s), self._energy.integral_at(task, now_s))

    def forget(self, task: Task) -> None:
        """Delete the counts of a compute kernel run that has ended."""
        self._traffic.forget(task)
        self._energy.forget(task)
