"""Control of a power budget in the simulator: power limits of the running jobs.

The limits are computed by the functions that senergyctld uses. Every control cycle distributes the
budget among the jobs that draw power. Lower limits take effect one control period after the decision,
because agents need this time to apply and confirm them. Until then, the old limits still count
against the budget. Other limits are raised only as far as the budget has power left.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from slurm_energy.budget.ceilings import CeilingBudget, raise_ratios
from slurm_energy.budget.distribution import distribute
from slurm_energy.budget.lowering_order import DistributionPolicy
from slurm_energy.budget.work_price import PRICES
from slurm_energy.scheduling.queue import Floats
from slurm_energy.simulator.cluster import NodeKind
from slurm_energy.simulator.event_queue import EventKind, EventQueue
from slurm_energy.simulator.job_admission import JobAdmission
from slurm_energy.simulator.power.budget_outlook import SLACK_WATTS, BudgetOutlook
from slurm_energy.simulator.power.node_power import PowerStep
from slurm_energy.simulator.power.power_columns import PowerColumns, whole_cluster
from slurm_energy.simulator.power.power_commitment import PowerCommitment
from slurm_energy.simulator.power.step_function import StepFunction
from slurm_energy.simulator.running_jobs import PowerPoint, RunningJob, RunningJobs
from slurm_energy.simulator.schedule_settings import BudgetRules
from slurm_energy.simulator.workloads.workload import Workload

_HYSTERESIS = 0.02
"""Share of a job's power below which a change of its limit is left out, unless the budget requires it."""

_ROUNDING_S = 1e-6

_Lowering = tuple[float, list[tuple[RunningJob, PowerPoint]]]
"""A time in seconds, and the lower limits that take effect at that time."""


class BudgetControl:
    """Control loop that keeps one power budget over the whole cluster.

    Args:
        budget: limit over time in watts.
        rules: rules by which the budget is kept.
        jobs: workload with all jobs.
        kinds: kinds of nodes.
        runs: the running jobs.
        commitment: committed power of the cluster, see `PowerCommitment`.
        events: event queue, which provides the simulated time.
        continue_run: function called with each run that continues under a new limit.
        interrupt: function that interrupts a running job.
        request_pass: function that requests a scheduling pass.

    Attributes:
        outlook: comparison of future power with the future budget.
    """

    def __init__(
        self,
        budget: StepFunction,
        rules: BudgetRules,
        *,
        jobs: Workload,
        kinds: Sequence[NodeKind],
        runs: RunningJobs,
        commitment: PowerCommitment,
        events: EventQueue,
        continue_run: Callable[[RunningJob], None],
        interrupt: Callable[[RunningJob], None],
        request_pass: Callable[[], None],
    ) -> None:
        self._budget = budget
        self._rules = rules
        self._policy = DistributionPolicy(rules.distribution)
        self._jobs = jobs
        self._columns = PowerColumns(jobs, kinds, rules)
        self._admission = JobAdmission(jobs, kinds, rules, self._columns)
        self._idle_watts = sum(kind.nodes * kind.idle_watts for kind in kinds)
        self._runs = runs
        self._commitment = commitment
        self._events = events
        self._continue_run = continue_run
        self._interrupt = interrupt
        self._request_pass = request_pass
        self._due_s = math.inf
        self._pending: list[_Lowering] = []
        self.outlook = BudgetOutlook(
            budget,
            rules,
            admission=self._admission,
            runs=runs,
            commitment=commitment,
            events=events,
            working=self._working,
        )
        self._reserved_watts = 0.0
        self._headroom_watts: float | None = None
        self._retained_watts: Floats = np.zeros(len(PRICES))

    def begin(self) -> None:
        """Schedule the control cycle that precedes the first step of the power budget.

        A step is a change of the budget's limit. The cycle is scheduled only if steps are announced in
        advance.
        """
        self._plan_step(0.0)

    def begin_pass(self) -> None:
        """Forget the jobs that wait for power. Call this method at the start of each scheduling pass."""
        self.outlook.forget()
        self._headroom_watts = None
        self._reserved_watts = 0.0

    def left_watts(self) -> float:
        """Return the watts that starting jobs may add now; negative if the budget is exceeded."""
        return self.limit_watts() + SLACK_WATTS - self._commitment.watts()

    def limit_watts(self) -> float:
        """Return the limit for decisions, in watts.

        The limit is the lowest budget between now and the time at which power limits that are lowered now
        take effect.
        """
        now_s = self._events.now_s
        return self._budget.lowest(now_s, now_s + self._lead_s())

    def added_watts(self, shapes: Sequence[int]) -> list[float]:
        """Return the power in watts that a job would add if it started, for each of the given shapes.

        A shape is a possible set of resources of the job.
        """
        now_s = self._events.now_s
        limit_watts = self._budget.highest(now_s) if self._rules.announced else self._budget.at(now_s)
        return self._admission.added_watts(shapes, limit_watts - self._idle_watts)

    def headroom_watts(self) -> float:
        """Return the power that new jobs may add under the budget, in watts.

        This power (headroom) assumes that the running jobs get the lowest power limits that are allowed. The
        headroom is computed once in each scheduling pass. Each job that is then admitted lowers the
        headroom.
        """
        if self._headroom_watts is None:
            headroom = self._compute_headroom()
            self._headroom_watts, self._retained_watts = float(headroom[-1]), headroom[-1] - headroom
        return self._headroom_watts

    def retained_watts(self, shapes: Sequence[int]) -> Floats:
        """Return the watts that a starting job must leave to running jobs, for each of its shapes.

        A shape is a number and kind of GPUs with which the job could run. The budget has free power
        (headroom). The running jobs can use a part of this power to do more work than the starting job would
        do with it. The result is this part.
        """
        self.headroom_watts()
        retained: Floats = self._retained_watts[self._admission.price_levels(shapes)]
        return retained

    def admit(self, watts: float) -> bool:
        """Return whether a job that needs `watts` fits in the free power of the budget (headroom).

        If it fits, the headroom is lowered by the power of the job.
        """
        fits, self._headroom_watts = self._admission.admit(watts, self.headroom_watts())
        return fits

    def _compute_headroom(self) -> Floats:
        working, limit_watts = self._working(), self.limit_watts() + SLACK_WATTS
        fixed_watts = self._commitment.watts() - math.fsum(run.watts for run in working)
        return self._admission.headroom_at_prices(working, limit_watts, fixed_watts, self._events.now_s)

    def permits_nodes(self, steps: Sequence[PowerStep]) -> bool:
        """Return whether the budget permits planned changes of nodes' power.

        The starts of jobs are checked elsewhere.
        """
        return self.outlook.permits_nodes(steps, self.limit_watts())

    def make_room(self, watts: float) -> bool:
        """Return whether the limits in force leave enough free power for a job to start.

        If the limits do not leave enough power, lower the limits of running jobs.

        Args:
            watts: power that the start of the job adds.
        """
        if watts + self._reserved_watts <= self.left_watts():
            return True
        self._reserved_watts += watts
        if self._rules.period_s:
            self.request()
            return False
        self.decide(self._working())
        self._reserved_watts -= watts
        return watts + self._reserved_watts <= self.left_watts()

    def start_point(self, job: int, shape: int) -> PowerPoint:
        """Return the power limit with which a job starts, and the effect of this limit on time and power.

        The job gets the power with which it was admitted. If idle nodes are never switched off, the job also
        gets the free power of the budget.

        Args:
            job: row of the job in the workload.
            shape: row, in the workload, of the shape (way to run the job) in which the job starts.
        """
        watts = self.added_watts([shape])[0]
        if not self._commitment.switches_off:
            watts = max(watts, self.left_watts() - self._reserved_watts)
        return self._admission.start_point(job, shape, watts)

    def begin_work(self, run: RunningJob) -> None:
        """Lower the limit of a job whose nodes have booted, if the budget has fallen since the job's start.

        The limit is set before the job's work begins, so that the job does not wait for a control period.
        """
        excess_watts = self._commitment.watts() - self._binding_watts() - SLACK_WATTS
        if excess_watts > 0:
            full_watts = float(self._jobs.power_watts[run.shape])
            floor_watts = full_watts - self._admission.reducible_watts(run.job, run.shape)
            watts = max(floor_watts, run.watts - excess_watts)
            if watts < run.watts:
                self._change([(run, self._point(run, watts))])
        self.request()

    def request(self) -> None:
        """Schedule a control cycle of the budget, because jobs have started or ended.

        The cycle runs at the next multiple of the control period.
        """
        self.outlook.forget()
        period_s = self._rules.period_s
        due_s = math.ceil(self._events.now_s / period_s) * period_s if period_s else self._events.now_s
        self._request_at(due_s)

    def step(self) -> None:
        """Handle a change of the power budget's limit that takes place now.

        Control cycles are requested, which adapt the power of the cluster to the new limit.
        """
        now_s, period_s = self._events.now_s, self._rules.period_s
        self._request_at(now_s)
        self._plan_step(now_s)
        if period_s and not self._rules.announced:
            self._events.add(now_s + period_s, EventKind.CONTROL, self._cycle, None)

    def _lead_s(self) -> float:
        """Return how many seconds before a fall of the budget the power limits are lowered.

        The result is 0 if changes of the budget are not known in advance.
        """
        return 2 * self._rules.period_s if self._rules.announced else 0.0

    def _plan_step(self, after_s: float) -> None:
        """Schedule the control cycle that prepares for the first change of the budget after `after_s`.

        Nothing is scheduled if changes of the budget are not known in advance.
        """
        lead_s = self._lead_s()
        if lead_s:
            step_s = self._budget.after(after_s)
            self._events.add(max(after_s, step_s - lead_s), EventKind.CONTROL, self._cycle, None)

    def _request_at(self, due_s: float) -> None:
        if due_s < self._due_s:
            self._due_s = due_s
            self._events.add(due_s, EventKind.CONTROL, self._cycle, due_s)

    def _cycle(self, due_s: float | None) -> None:
        """Run one control cycle of a power budget.

        The cycle first applies the reductions of power limits whose time has come. The cycle then distributes
        the budget again and changes the power limits of jobs.

        Args:
            due_s: time in seconds for which the cycle was requested. None means that the cycle was planned
                ahead of a coming change of the budget.
        """
        if due_s is not None:
            if due_s != self._due_s:
                return
            self._due_s = math.inf
        self._apply_due()
        working = self._working()
        if working:
            self.decide(working)
        if self._rules.interrupts:
            self._interrupt_until_kept(self._binding_watts() if self._pending else self.limit_watts())

    def _binding_watts(self) -> float:
        """Return the limit in watts that the power of the cluster must keep at the present time.

        If steps of the budget are announced in advance, the limit is the present budget. Otherwise the
        budget may fall without notice, and the control needs time to react. For one control period after a
        fall, the limit therefore is still the earlier, higher budget.
        """
        now_s = self._events.now_s
        if self._rules.announced:
            return self._budget.at(now_s)
        return self._budget.highest(now_s - self._rules.period_s + _ROUNDING_S, now_s)

    def _working(self) -> list[RunningJob]:
        return [run for run in self._runs.running.values() if run.working]

    def decide(self, working: Sequence[RunningJob]) -> None:
        """Distribute the power budget among the jobs that draw power.

        Some power limits are lowered. Other limits are raised as far as power is free.
        """
        watts = np.array([run.watts for run in working])
        full_watts = self._jobs.power_watts[[run.shape for run in working]]
        if np.array_equal(watts, full_watts) and self.left_watts() >= self._reserved_watts:
            return
        target_watts = self._targets(working, watts, full_watts)
        lower = [
            (working[row], self._point(working[row], target_watts[row]))
            for row in np.flatnonzero(target_watts < watts).tolist()
        ]
        if not self._rules.period_s:
            self._change(lower)
        elif lower:
            due_s = self._events.now_s + self._rules.period_s
            self._pending.append((due_s, lower))
            self._events.add(due_s, EventKind.CONTROL, self._cycle, None)
        self._raise([self._runs.running[run.job] for run in working], target_watts)

    def _targets(self, working: Sequence[RunningJob], watts: Floats, full_watts: Floats) -> Floats:
        """Return the power that each job that draws power should get under the budget.

        The budget is distributed among the jobs. A job keeps its present power if the new power differs only
        little.

        Args:
            working: jobs that draw power.
            watts: power of each job now, shape (n,).
            full_watts: power of each job without a limit, shape (n,).

        Returns:
            Shape (n,).
        """
        limit_watts, left_watts = self.limit_watts(), self.left_watts() - self._reserved_watts
        groups = self._columns.running(working, self._events.now_s)
        fixed_watts = limit_watts + SLACK_WATTS - left_watts - math.fsum(watts)
        budgets = whole_cluster(groups, limit_watts, fixed_watts)
        known = self._columns.limits([run.job for run in working], [run.shape for run in working])
        limits = distribute(groups, budgets, self._policy, limits=known).limit_watts
        target_watts = np.fmin(full_watts, groups.devices * limits)
        small = (np.abs(target_watts - watts) < _HYSTERESIS * full_watts) & (target_watts < full_watts)
        kept_watts = np.where(small, watts, target_watts)
        if math.fsum(np.minimum(0.0, kept_watts - watts)) > left_watts:
            kept_watts = np.minimum(kept_watts, target_watts)
        return kept_watts

    def _raise(self, working: Sequence[RunningJob], target_watts: Floats) -> None:
        """Raise power limits towards `target_watts`, as far as the limits in force leave free power.

        Args:
            working: the working jobs.
            target_watts: power that each job should get, shape (n,).
        """
        watts = np.array([run.watts for run in working])
        raises = np.maximum(0.0, target_watts - watts)
        whole = CeilingBudget(
            np.arange(len(working)), math.fsum(watts) + self.left_watts() - self._reserved_watts
        )
        granted = raise_ratios(raises, watts, [whole]) * raises
        useful = (granted >= raises) | (granted >= _HYSTERESIS * watts)
        rows = np.flatnonzero((granted > 0) & useful).tolist()
        self._change([(working[row], self._point(working[row], watts[row] + granted[row])) for row in rows])

    def _point(self, run: RunningJob, job_watts: float) -> PowerPoint:
        """Return the power limit per unit at which a job draws `job_watts`."""
        response = self._columns.responses.response(run.job, run.shape)
        return response.point(float(job_watts / self._jobs.units[run.shape]))

    def _change(self, points: Sequence[tuple[RunningJob, PowerPoint]]) -> None:
        for run, point in points:
            self._continue_run(self._runs.change_limit(run, point, self._events.now_s))

    def _apply_due(self) -> None:
        """Apply those reductions of power limits whose time has come.

        Jobs that have ended, or whose limit is already lower, are skipped.
        """
        now_s = self._events.now_s
        due = [points for time_s, points in self._pending if time_s <= now_s]
        self._pending = [entry for entry in self._pending if entry[0] > now_s]
        for points in due:
            for decided, point in points:
                run = self._runs.running.get(decided.job)
                if run is not None and run.working and point.limit_watts < run.point.limit_watts:
                    self._change([(run, point)])
        if due:
            self._request_pass()

    def _interrupt_until_kept(self, limit_watts: float) -> None:
        """Interrupt jobs until the committed power is within the limit.

        The jobs whose interruption wastes the least energy are interrupted first.
        """
        # Twice the slack: a job that was admitted with all of it must not be interrupted for rounding.
        limit_watts += 2 * SLACK_WATTS
        if self._commitment.watts() <= limit_watts:
            return
        now_s = self._events.now_s
        for run in sorted(self._runs.running.values(), key=lambda run: self._runs.loss(run, now_s)[0]):
            if self._commitment.watts() <= limit_watts:
                return
            self._interrupt(run)
