"""Columns of simulated jobs for the decisions of a power budget. Each job is one group of equal devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

import numpy as np

from slurm_energy.budget.group_response import GroupLimits, group_limits
from slurm_energy.budget.power_groups import NO_JOB, BudgetColumns, PowerGroups
from slurm_energy.scheduling.queue import Floats, Ints
from slurm_energy.simulator.cluster import NodeKind
from slurm_energy.simulator.power.power_response import PowerResponses
from slurm_energy.simulator.running_jobs import RunningJob
from slurm_energy.simulator.schedule_settings import BudgetRules
from slurm_energy.simulator.workloads.workload import Workload


class PowerColumns:
    """Builder of the input tables with which a power budget decides about jobs.

    Each row describes the devices of a pending or running job.

    No limit lowers a unit below its idle power. A job may draw less power than its units draw when idle. The
    unused part of the idle power must not be given to other jobs, because the units draw it again when the
    job ends.

    Args:
        jobs: workload with all jobs.
        kinds: kinds of nodes.
        rules: floors (lowest power limits) and accepted slowdowns.
    """

    def __init__(self, jobs: Workload, kinds: Sequence[NodeKind], rules: BudgetRules) -> None:
        self._jobs = jobs
        self._rules = rules
        self._idle_watts = np.array([kind.unit_idle_watts for kind in kinds])
        self._units_per_node = np.array([kind.units for kind in kinds], np.float64)
        self.responses = PowerResponses(jobs, kinds)
        self._limits: dict[int, tuple[float, ...]] = {}

    def running(self, runs: Sequence[RunningJob], now_s: float) -> PowerGroups:
        """Return the power data of running jobs as columns, one entry per group of devices.

        Args:
            runs: the running jobs.
            now_s: current time in seconds.
        """
        rows = [run.job for run in runs]
        left_s = np.array([(run.end_s - now_s) / run.point.time_ratio for run in runs])
        return self._groups(
            rows,
            [run.shape for run in runs],
            job_id=self._jobs.job_id[rows],
            weight=np.array([len(run.allocation) for run in runs], np.float64),
            slack_s=self._jobs.deadline_s[rows] - now_s - left_s,
        )

    def pending(self, jobs: Sequence[int], shapes: Sequence[int]) -> PowerGroups:
        """Return the columns of the power table for pending jobs, one group of devices per given job.

        The groups get no job id. Otherwise, if a job is listed with several shapes (ways to run it), its
        groups would count as parts of one job that run at the same time.

        Args:
            jobs: rows of the jobs in the workload.
            shapes: for each job, the row of its shape in the workload.
        """
        units = self._jobs.units[shapes] / self._units_per_node[self._jobs.hardware[shapes]]
        count = len(jobs)
        return self._groups(
            jobs,
            shapes,
            job_id=np.full(count, NO_JOB),
            weight=np.maximum(1.0, np.ceil(units)),
            slack_s=np.full(count, np.nan),
        )

    def limits(self, jobs: Sequence[int], shapes: Sequence[int]) -> GroupLimits:
        """Return the characteristic power limits of jobs, such as the lowest possible limit.

        These limits never change.

        Args:
            jobs: rows of the jobs in the workload.
            shapes: for each job, the row of the shape (set of resources) in which it runs.
        """
        unknown = {shape: job for job, shape in zip(jobs, shapes, strict=True) if shape not in self._limits}
        if unknown:
            limits = group_limits(self.pending(list(unknown.values()), list(unknown)))
            columns = (getattr(limits, field.name).tolist() for field in fields(GroupLimits))
            self._limits.update(zip(unknown, zip(*columns, strict=True), strict=True))
        rows = np.array([self._limits[shape] for shape in shapes]).reshape(len(shapes), -1)
        return GroupLimits(*np.ascontiguousarray(rows.T))

    def _groups(
        self,
        rows: Sequence[int],
        shapes: Sequence[int],
        *,
        job_id: Ints,
        weight: Floats,
        slack_s: Floats,
    ) -> PowerGroups:
        responses = [self.responses.response(*pair) for pair in zip(rows, shapes, strict=True)]
        level_watts = np.array([response.level_watts for response in responses])
        min_watts, max_watts = level_watts[:, 0], level_watts[:, -1]
        floor_watts = min_watts + self._rules.floor_share * (max_watts - min_watts)
        idle_watts = self._idle_watts[self._jobs.hardware[shapes]]
        return PowerGroups(
            job_id=job_id,
            devices=self._jobs.units[shapes],
            min_watts=min_watts,
            max_watts=max_watts,
            draw_watts=max_watts,
            floor_watts=np.minimum(max_watts, np.maximum(floor_watts, idle_watts)),
            level_watts=level_watts,
            time_ratio=np.array([response.time_ratio for response in responses]),
            slowdown_limit=np.full(len(rows), self._rules.slowdown_limit),
            weight=weight,
            deadline_s=np.where(np.isnan(slack_s), np.inf, slack_s),
        )


def whole_cluster(groups: PowerGroups, limit_watts: float, fixed_watts: float) -> BudgetColumns:
    """Return the table of power budgets for a single budget that applies to the whole cluster.

    Args:
        groups: groups of equal devices, one group per job.
        limit_watts: limit of the budget.
        fixed_watts: power that no limit controls.
    """
    return BudgetColumns(
        limit_watts=np.array([limit_watts]),
        fixed_watts=np.array([fixed_watts]),
        members=groups.devices[np.newaxis, :],
    )
