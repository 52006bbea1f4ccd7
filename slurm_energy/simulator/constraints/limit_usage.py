"""Numbers of running jobs and of the units that they hold, by user, partition and QOS.

A unit is a GPU, a core or a node. The simulator compares these numbers with the limits of partitions and
QOS.
"""

from __future__ import annotations

from collections.abc import Iterable

from slurm_energy.simulator.constraints.job_constraints import JobConstraints
from slurm_energy.simulator.running_jobs import RunningJob
from slurm_energy.simulator.workloads.workload import Workload

_ALL_USERS = -1


class LimitUsage:
    """Numbers of running jobs and of their units, by user and by limited partition or QOS.

    Args:
        work: workload with all jobs.
        rules: the limits of each job.
        running: the running jobs.
    """

    def __init__(self, work: Workload, rules: JobConstraints, running: Iterable[RunningJob]) -> None:
        self._work = work
        self._rules = rules
        self._used: dict[tuple[str, int], tuple[int, int]] = {}
        for run in running:
            self.add(run.job, run.shape)

    def add(self, job: int, shape: int) -> None:
        """Add a starting job to the numbers of running jobs of its user, partition and QOS.

        `shape` is the shape (way to run the job) in which the job starts. It determines the number of units
        (GPUs, cores or nodes) that are added.
        """
        units = int(self._work.units[shape])
        for name, _ in self._rules.limits(job):
            for user in (_ALL_USERS, int(self._work.user[job])):
                jobs, held = self._used.get((name, user), (0, 0))
                self._used[name, user] = jobs + 1, held + units

    def permits(self, job: int, shape: int) -> bool:
        """Return whether the limits of the job's partition and QOS permit its start in a shape.

        A shape is a set of resources on which the job may run.
        """
        units = int(self._work.units[shape])
        for name, limits in self._rules.limits(job):
            for user, max_jobs, max_units in (
                (_ALL_USERS, limits.max_jobs, limits.max_units),
                (int(self._work.user[job]), limits.max_jobs_per_user, limits.max_units_per_user),
            ):
                jobs, held = self._used.get((name, user), (0, 0))
                if 0 < max_jobs <= jobs or 0 < max_units < held + units:
                    return False
        return True
