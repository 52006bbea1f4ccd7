"""Resources that jobs need and that are free, as vectors.

A vector contains the number of units (GPUs, nodes or cores) by kind of nodes and, as its last value, watts
of the budget.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from slurm_energy.scheduling.backfill import Candidate, Release
from slurm_energy.scheduling.queue import Floats, Ints
from slurm_energy.simulator.cluster import Cluster
from slurm_energy.simulator.power.budget_control import BudgetControl
from slurm_energy.simulator.power.power_commitment import PowerCommitment
from slurm_energy.simulator.running_jobs import RunningJobs
from slurm_energy.simulator.workloads.workload import Workload


class JobDemand:
    """Resources that jobs need, as vectors.

    A vector has one element for each kind of nodes, and a last element. The element of a kind of nodes is
    the number of needed units (GPUs or cores). The last element is the watts under the power budget.

    Args:
        jobs: workload with all jobs.
        cluster: the nodes of the cluster.
        runs: the running jobs.
        commitment: committed power of the cluster, see `PowerCommitment`.
        control: control loop of the power budget; None without a budget.
    """

    def __init__(
        self,
        jobs: Workload,
        cluster: Cluster,
        runs: RunningJobs,
        commitment: PowerCommitment,
        control: BudgetControl | None,
    ) -> None:
        self._jobs = jobs
        self._cluster = cluster
        self._runs = runs
        self._commitment = commitment
        self._control = control

    def need(self, shape: int) -> Floats:
        """Return the resources that must be free to start a job in a shape (way to run the job).

        All nodes of the job are assumed to be on.
        """
        need = self.taken(shape)
        need[-1] += float(self.retained_watts([shape])[0])
        return need

    def taken(self, shape: int) -> Floats:
        """Return the resources that a job uses in a shape once the job's nodes are on.

        A shape is a way to run the job, with a kind of node and a number of units. The last element of the
        result is the power in watts.
        """
        taken = np.zeros(len(self._cluster.total) + 1)
        taken[self._jobs.hardware[shape]] = self._jobs.units[shape]
        taken[-1] = max(0.0, float(self._job_watts([shape])[0]))
        return taken

    def retained_watts(self, shapes: Sequence[int]) -> Floats:
        """Return the power of the budget that a starting job must leave to running jobs, in watts.

        The result has one value for each of the given shapes. A shape is a way to run the job: a kind of
        node and a number of units (GPUs, nodes or cores).
        """
        return np.zeros(len(shapes)) if self._control is None else self._control.retained_watts(shapes)

    def need_now(self, candidate: Candidate) -> Floats:
        """Return the resources that must be free for a job to start now, including power to boot nodes."""
        watts = self.added_watts(np.array([candidate.shape])) + self.retained_watts([candidate.shape])
        return np.append(candidate.need[:-1], watts)

    def added_watts(self, shapes: Ints) -> Floats:
        """Return by how many watts a job would raise the committed power, for each of its shapes.

        A shape is a possible choice of hardware and number of units (such as GPUs) for the job. Committed
        power is the highest future power of the cluster if no further job starts. The result is infinity if
        nodes must boot for the job and the power of the boot would exceed the budget, now or later.
        """
        kinds, units = self._jobs.hardware[shapes], self._jobs.units[shapes]
        added_watts = self._commitment.added_watts(kinds, units, np.array(self._job_watts(shapes.tolist())))
        if self._control is not None and self._commitment.switches_off:
            for request in set(zip(kinds.tolist(), units.tolist(), strict=True)):
                _, steps = self._commitment.wake(*request)
                if steps and not self._control.outlook.nodes_keep(steps):
                    added_watts[(kinds == request[0]) & (units == request[1])] = math.inf
        return added_watts

    def keeps_floors(self, candidate: Candidate, *, starts: bool) -> bool:
        """Return whether the power budget can be kept until a candidate has ended.

        All jobs are assumed to draw their minimum power (floor). The minimum power is the power under the
        lowest permitted power limit.

        Args:
            candidate: pending job with the shape (possible set of resources) in which it would start.
            starts: whether the job starts now. If the job starts now, its GPUs, nodes or cores must be free,
                and the power of nodes that must boot is included.
        """
        if self._control is None:
            return True
        job, shape = candidate.job, candidate.shape
        wake = None
        if starts and self._commitment.switches_off:
            wake = self._commitment.wake(int(self._jobs.hardware[shape]), int(self._jobs.units[shape]))
        return self._control.outlook.keeps_floors(job, shape, candidate.limit_s, wake)

    def free(self) -> Floats:
        """Return the free resources as a vector.

        The vector contains the free units of each kind of nodes and, as last element, the free watts.
        """
        watts = math.inf if self._control is None else self._control.headroom_watts()
        return np.append(self._cluster.free, watts)

    def releases(self) -> list[Release]:
        """Return the resources that each running job will release, with the job's expected end."""
        return [(run.start_s + run.limit_s, self.taken(run.shape)) for run in self._runs.running.values()]

    def _job_watts(self, shapes: Sequence[int]) -> Sequence[float]:
        """Return the watts that a job adds to the power of its running nodes, for each given shape.

        A shape is a way to run the job: a number and kind of GPUs, cores or whole nodes.
        """
        if self._control is None:
            return [self._runs.extra_watts(shape) for shape in shapes]
        return self._control.added_watts(shapes)
