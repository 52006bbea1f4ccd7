"""Check that planned changes keep the power budget, as far ahead as the budget is known.

A limit or an interruption lowers the power of a job within a control period. Two kinds of power cannot be
lowered: the power of a node that boots or shuts down, and the power of a job at its floor (the lowest power
limit of the job). Therefore these two powers must fit under the budget at every time at which they are
drawn.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

from slurm_energy.simulator.event_queue import EventQueue
from slurm_energy.simulator.job_admission import JobAdmission
from slurm_energy.simulator.power.node_power import PowerStep
from slurm_energy.simulator.power.power_commitment import PowerCommitment
from slurm_energy.simulator.power.step_function import StepFunction
from slurm_energy.simulator.running_jobs import RunningJob, RunningJobs
from slurm_energy.simulator.schedule_settings import BudgetRules

SLACK_WATTS: Final = 1e-6
"""Watts by which sums of floats may exceed a budget."""


class BudgetOutlook:
    """Comparison of the future power of the simulated cluster with the future power budget.

    Args:
        budget: limit over time in watts.
        rules: rules by which the budget is kept.
        admission: admission rules, which determine the power that jobs need.
        runs: the running jobs.
        commitment: highest future power of the cluster if no further job starts, see `PowerCommitment`.
        events: event queue, which provides the simulated time.
        working: function that returns the running jobs that draw power.
    """

    def __init__(
        self,
        budget: StepFunction,
        rules: BudgetRules,
        *,
        admission: JobAdmission,
        runs: RunningJobs,
        commitment: PowerCommitment,
        events: EventQueue,
        working: Callable[[], list[RunningJob]],
    ) -> None:
        self._budget = budget
        self._rules = rules
        self._admission = admission
        self._runs = runs
        self._commitment = commitment
        self._events = events
        self._working = working
        self._reducible_watts: float | None = None

    def forget(self) -> None:
        """Discard the cached power by which the running jobs can still be slowed down.

        This power is the sum, over all running jobs, of the watts by which power limits can lower the power
        of a job. Call this method when the set of running jobs has changed. The sum is then computed again.
        """
        self._reducible_watts = None

    def nodes_keep(self, steps: Sequence[PowerStep]) -> bool:
        """Return whether the future power of the nodes, without jobs, permits the given changes.

        The power must stay within the future budget at each time at which the changes add power. A time at
        which the changes add no power is not checked: an excess over the budget at this time has another
        cause.

        Args:
            steps: further changes of power over time, in addition to those that have begun.
        """
        levels = self._commitment.node_levels(steps)
        ends_s = [*(time_s for time_s, _, _ in levels[1:]), math.inf]
        return all(
            added_watts <= 0 or watts <= self._lowest_watts(time_s, end_s) + SLACK_WATTS
            for (time_s, watts, added_watts), end_s in zip(levels, ends_s, strict=True)
        )

    def permits_nodes(self, steps: Sequence[PowerStep], limit_watts: float) -> bool:
        """Return whether nodes may be powered up or down now without exceeding the budget.

        A shutdown is permitted even if the power of the nodes without jobs exceeds the budget now, because
        the power is lower after the shutdown.

        Args:
            steps: changes of the nodes' power that would take place.
            limit_watts: budget limit for decisions at this time, in watts.
        """
        levels = self._commitment.node_levels(steps)
        if all(added_watts <= 0 for _, _, added_watts in levels):
            return True
        (now_s, watts, added_watts), (_, _, last_watts) = levels[0], levels[-1]
        if last_watts < 0 and watts - added_watts > self._budget.at(now_s) + SLACK_WATTS:
            return True
        peak_watts = self._commitment.peak_watts(steps)
        if peak_watts > max(limit_watts + SLACK_WATTS, self._commitment.watts()):
            return False
        return self.nodes_keep(steps) and self._floors_keep(peak_watts, self._last_end_s())

    def keeps_floors(
        self, job: int, shape: int, expected_s: float, wake: tuple[float, list[PowerStep]] | None
    ) -> bool:
        """Return whether the power can still be lowered to the budget after a new job has started.

        The floor of a job is the lowest power to which its limits can be lowered. The function checks that
        the sum of the floors of all running jobs and of the new job stays below the budget until the new job
        ends. The rules may permit the interruption of jobs when lower limits do not suffice. In this case
        the result is always True.

        Args:
            job: row of the job in the workload.
            shape: row of the shape (way to run the job) in which the job starts, in the workload.
            expected_s: seconds for which the job is expected to run.
            wake: time at which the job's nodes will be on, and the changes of power until that time. None if
                these nodes are on.
        """
        if self._rules.interrupts:
            return True
        now_s = self._events.now_s
        ready_s, steps = wake or (now_s, [])
        floor_watts = self._runs.extra_watts(shape) - self._admission.reducible_watts(job, shape)
        end_s = ready_s + expected_s
        if steps:  # the nodes stay on when the job has ended
            end_s = max(end_s, self._last_end_s())
        peak_watts = self._commitment.peak_watts([*steps, (ready_s, max(0.0, floor_watts))])
        return self._floors_keep(peak_watts, end_s)

    def _floors_keep(self, committed_watts: float, end_s: float) -> bool:
        """Return whether the running jobs keep the budget if all of them are limited to their floors.

        The floor of a job is the lowest power to which the budget may limit the job.

        Args:
            committed_watts: committed power at the limits in force.
            end_s: time in seconds until which the budget must be kept.
        """
        if self._rules.interrupts:
            return True
        if self._reducible_watts is None:
            self._reducible_watts = -self._admission.floors_watts(self._working(), 0.0)
        floors_watts = committed_watts - self._reducible_watts
        return floors_watts <= self._lowest_watts(self._events.now_s, end_s) + SLACK_WATTS

    def _last_end_s(self) -> float:
        """Return the time in seconds at which the last running job is expected to end."""
        ends_s = (run.start_s + run.limit_s for run in self._runs.running.values())
        return max(ends_s, default=self._events.now_s)

    def _lowest_watts(self, begin_s: float, end_s: float) -> float:
        """Return the lowest known budget from the time `begin_s` until before the time `end_s`."""
        if not self._rules.announced:
            return self._budget.at(self._events.now_s)
        # A job that has outlasted its limit was expected to end before `begin_s`.
        return self._budget.lowest(begin_s, max(begin_s, math.nextafter(end_s, begin_s)))
