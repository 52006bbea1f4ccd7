"""Admission of simulated jobs under a power budget, by the functions that also admit live jobs.

The economic limit of a job is the power limit at which the job does the most work per watt. The
budget may lower the job's limit to it. A job is admitted in two cases. In the first case, the budget
has enough free power for the job at its economic limit. In the second case, running jobs hold this
power, but they do less work per watt with it than the new job would do.

An admitted job does not always start at once. It starts as soon as the power limits in force leave
enough power free. Its power limit at the start is the economic limit or a higher limit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from slurm_energy.budget.admission import admit_in_order, start_limits
from slurm_energy.budget.work_price import PRICES, economic_power, headroom_at_prices
from slurm_energy.scheduling.queue import Floats
from slurm_energy.simulator.cluster import NodeKind
from slurm_energy.simulator.power.power_columns import PowerColumns, whole_cluster
from slurm_energy.simulator.running_jobs import PowerPoint, RunningJob
from slurm_energy.simulator.schedule_settings import BudgetRules
from slurm_energy.simulator.workloads.workload import Workload


class JobAdmission:
    """Admission rules: the power that jobs need, and the power that the budget leaves for them.

    Args:
        jobs: workload with all jobs.
        kinds: kinds of nodes.
        rules: rules by which the budget is kept.
        columns: builder of the columns that describe jobs to the functions for budgets.
    """

    def __init__(
        self,
        jobs: Workload,
        kinds: Sequence[NodeKind],
        rules: BudgetRules,
        columns: PowerColumns,
    ) -> None:
        self._jobs = jobs
        self._idle_watts = np.array([kind.unit_idle_watts for kind in kinds])
        self._may_slow_down = bool(np.isnan(rules.slowdown_limit))
        self._columns = columns
        self._economic: dict[int, tuple[float, float, int, float]] = {}
        self._reducible_watts: dict[int, float] = {}

    def added_watts(self, shapes: Sequence[int], room_watts: float) -> list[float]:
        """Return the power in watts that jobs add when they start at their economic limits.

        The economic limit is the power limit at which a job yields the most work per watt.

        Args:
            shapes: row of the shape (way to run the job) in which each job starts.
            room_watts: power that the budget leaves for one job if no other job runs. A job that needs more
                power and has no slowdown limit starts with a lower power limit, but not below the job's
                minimum limit.
        """
        self._find(shapes)
        known = (self._economic[shape] for shape in shapes)
        return [min(watts, max(lowest_watts, room_watts)) for watts, lowest_watts, _, _ in known]

    def price_levels(self, shapes: Sequence[int]) -> list[int]:
        """Return how much work per joule a job does in each shape, as an index in `work_price.PRICES`.

        A shape is a number and kind of GPUs with which the job could run. The work per joule is called the
        price of power.
        """
        self._find(shapes)
        return [self._economic[shape][2] for shape in shapes]

    def _find(self, shapes: Sequence[int]) -> None:
        """Compute the economic power of shapes and store it for later queries.

        The economic power is the power at which a pending job yields the most work per watt. A shape is one
        way to run a job. Shapes whose economic power is already stored are skipped.
        """
        unknown = sorted({shape for shape in shapes if shape not in self._economic})
        if not unknown:
            return
        jobs = np.searchsorted(self._jobs.first, unknown, "right") - 1
        groups = self._columns.pending(jobs.tolist(), unknown)
        idle_watts = self._idle_watts[self._jobs.hardware[unknown]]
        limits = self._columns.limits(jobs.tolist(), unknown)
        economic = economic_power(groups, idle_watts, limits=limits)
        lowest_watts = economic.added_watts
        if self._may_slow_down:
            lowest_watts = groups.devices * np.maximum(0.0, groups.floor_watts - idle_watts)
        columns = (economic.added_watts, lowest_watts, economic.level, economic.limit_watts)
        rows = zip(*(column.tolist() for column in columns), strict=True)
        self._economic.update(zip(unknown, rows, strict=True))

    def headroom_at_prices(
        self, working: Sequence[RunningJob], limit_watts: float, fixed_watts: float, now_s: float
    ) -> Floats:
        """Return the watts that new jobs may add, for each price of power in `work_price.PRICES`.

        The price of power is the work that a job does per joule, in node-seconds. A negative value means
        that the power exceeds the limit.

        Args:
            working: the running jobs that draw power.
            limit_watts: limit of the budget.
            fixed_watts: power of the cluster that does not belong to `working` jobs.
            now_s: current time in seconds.
        """
        if not working:
            return np.full(len(PRICES), limit_watts - fixed_watts)
        groups = self._columns.running(working, now_s)
        limits = self._columns.limits([run.job for run in working], [run.shape for run in working])
        budgets = whole_cluster(groups, limit_watts, fixed_watts)
        headroom: Floats = headroom_at_prices(groups, budgets, limits=limits)[0]
        return headroom

    def admit(self, watts: float, headroom_watts: float) -> tuple[bool, float]:
        """Return whether a job fits in the headroom, which is the power that new jobs may add.

        The headroom in watts that remains afterwards is returned as the second value.

        Args:
            watts: power that must be free for the job.
            headroom_watts: power that new jobs may add.
        """
        admitted = admit_in_order(np.array([watts]), np.ones((1, 1)), np.array([headroom_watts]))
        return bool(admitted.fits[0]), float(admitted.headroom_watts[0])

    def start_point(self, job: int, shape: int, left_watts: float) -> PowerPoint:
        """Return the power limit at which an admitted job starts, and the effect of this limit.

        Args:
            job: row of the job in the workload.
            shape: row of the shape (way to run the job) in which the job starts, in the workload.
            left_watts: power that the job may add. It is at least the power with which the job was
                admitted.
        """
        limits, devices = self._columns.limits([job], [shape]), self._jobs.units[[shape]]
        idle_watts = self._idle_watts[self._jobs.hardware[[shape]]]
        self._find([shape])
        economic_watts, members = np.array([self._economic[shape][3]]), devices[np.newaxis, :]
        start_watts = start_limits(limits, economic_watts, idle_watts, members, np.array([left_watts]))
        highest_watts = np.maximum(idle_watts + left_watts / devices, limits.floor_watts)
        limit_watts = float(np.minimum(start_watts, highest_watts)[0])
        return self._columns.responses.response(job, shape).point(limit_watts)

    def floors_watts(self, working: Sequence[RunningJob], committed_watts: float) -> float:
        """Return the committed power in watts if all running jobs were limited to their floors.

        The floor of a job is the lowest power to which the budget may limit the job.

        Args:
            working: the running jobs that draw power.
            committed_watts: committed power at the limits in force.
        """
        full_watts = self._jobs.power_watts[[run.shape for run in working]].tolist()
        floors_watts = (
            full - self.reducible_watts(run.job, run.shape)
            for run, full in zip(working, full_watts, strict=True)
        )
        saved = (max(0.0, run.watts - floor) for run, floor in zip(working, floors_watts, strict=True))
        return committed_watts - math.fsum(saved)

    def reducible_watts(self, job: int, shape: int) -> float:
        """Return by how many watts power limits can lower the power of a job.

        A power limit cannot be lower than the job's minimum limit (floor).
        """
        watts = self._reducible_watts.get(shape)
        if watts is None:
            limits = self._columns.limits([job], [shape])
            range_watts = float(limits.max_watts[0] - limits.floor_watts[0])
            watts = self._reducible_watts[shape] = range_watts * int(self._jobs.units[shape])
        return watts
