"""Simulation engine: runs events in order of time, then lets the scheduler examine the queue."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from functools import partial

import numpy as np

from slurm_energy.scheduling.queue import Queue
from slurm_energy.scheduling.ranking import Ranking
from slurm_energy.scheduling.registry import Policy
from slurm_energy.signals.feed import SignalFeed
from slurm_energy.simulator.cluster import Allocation, Cluster, NodeKind
from slurm_energy.simulator.constraints.constrained_selection import constrained_selection
from slurm_energy.simulator.constraints.job_constraints import with_default_limits
from slurm_energy.simulator.deadline_preemption import deadline_preemption
from slurm_energy.simulator.deferral.deferral_control import DeferralControl
from slurm_energy.simulator.event_queue import EventKind, EventQueue
from slurm_energy.simulator.power.budget_control import BudgetControl
from slurm_energy.simulator.power.budget_excess import BudgetExcess
from slurm_energy.simulator.power.energy_integral import EnergyIntegral
from slurm_energy.simulator.power.node_power import NodePower, PowerStep
from slurm_energy.simulator.power.power_commitment import PowerCommitment
from slurm_energy.simulator.power.power_saving_control import PowerSavingControl
from slurm_energy.simulator.results.run_notes import run_notes
from slurm_energy.simulator.results.simulation_result import JobOutcome, SimulationResult
from slurm_energy.simulator.running_jobs import UNLIMITED, RunningJob, RunningJobs
from slurm_energy.simulator.schedule_settings import ScheduleSettings
from slurm_energy.simulator.scheduling_pass import PassSteps, SchedulingPass
from slurm_energy.simulator.simulation_state import SimulationState, state_of
from slurm_energy.simulator.stall_guard import StallGuard
from slurm_energy.simulator.workloads.job_demand import JobDemand
from slurm_energy.simulator.workloads.workload import Workload


class Simulation:
    """One simulation of a workload on a cluster under a scheduling policy.

    Args:
        workload: the jobs.
        kinds: the kinds of nodes of the cluster.
        policy: scheduling policy. The policy orders the jobs and chooses the shape (way to run) of each job.
        settings: settings of the simulation, such as discipline, budget and preemption.
        watch: function that checks the simulation. It is called after all events of one point in time, with
            the time in seconds and the watts of the cluster. None means no checks.
    """

    def __init__(
        self,
        workload: Workload,
        kinds: Sequence[NodeKind],
        policy: Policy,
        settings: ScheduleSettings,
        watch: Callable[[float, float], None] | None = None,
    ) -> None:
        if settings.constraints is not None:
            workload = with_default_limits(workload, settings.constraints)
        self._jobs = workload
        self._cluster = Cluster(kinds)
        self._policy = policy
        self._settings = settings
        self._watch = watch
        self._runs = RunningJobs(workload, self._cluster, settings)
        self._meter = EnergyIntegral(self._cluster.watts)
        self._events = EventQueue()
        self._power = NodePower(
            self._cluster,
            settings,
            self._events,
            interrupt_node=self._interrupt_node,
            may_change=self._may_change_nodes,
            request_pass=self._request_pass,
        )
        self._commitment = PowerCommitment(self._cluster, self._power, self._runs, self._events)
        self._control = self._budget_control() if settings.hard_budget or policy.keeps_budget else None
        self._pending: dict[int, None] = {}
        self._saving = self._power_saving()
        self._deferral = self._deferral_control()
        self._passes = 0
        self._open_pass: PassSteps | None = None
        self._pass_due = math.inf
        self._stall = StallGuard(workload, kinds, settings)
        self._excess = BudgetExcess(settings.budget_watts)
        self._arrivals_left = workload.count
        demand = JobDemand(workload, self._cluster, self._runs, self._commitment, self._control)
        parts = (self._jobs, self._cluster, settings, self._runs, self._events, demand)
        self._constrained = constrained_selection(*parts, has_budget=self._control is not None)
        acts = (self._left_watts, partial(self._interrupt, failure=False), self._start, self._constrained)
        self._preemption = deadline_preemption(*parts, *acts) if policy.preempts else None
        self._scheduling = SchedulingPass(
            workload,
            self._cluster,
            settings,
            runs=self._runs,
            events=self._events,
            demand=demand,
            commitment=self._commitment,
            control=self._control,
            start=self._start,
            constrained=self._constrained,
            looks_ahead=policy.looks_ahead,
        )

    def run(self) -> SimulationResult:
        """Simulate until all jobs are done or the configured end is reached, and return the result."""
        steps = self.steps()
        try:
            queue = next(steps)
            while True:
                queue = steps.send(self._policy.rank(queue, self._settings.options))
        except StopIteration as end:
            result: SimulationResult = end.value
            return result

    def steps(self) -> Generator[Queue, Ranking, SimulationResult]:
        """Simulate like `run`, but let the caller rank the queue in each scheduling pass.

        The generator yields the queue of each pass. The caller sends the ranking of this queue back to the
        generator. The generator's return value is the result of the simulation. At each pass, the caller can
        read the state of the cluster from `state`.
        """
        if self._jobs.count:
            self._events.add(float(self._jobs.submit_s[0]), EventKind.ARRIVAL, self._arrive, 0)
        if self._settings.budget_watts is not None:
            self._events.add(
                self._settings.budget_watts.after(0.0), EventKind.BUDGET, self._budget_changes, None
            )
        if self._control is not None:
            self._control.begin()
        self._power.begin()
        if self._saving is not None:
            self._saving.begin()
        self._expect_window()
        horizon_s = self._settings.horizon_s
        while self._events.next_s < math.inf and (horizon_s is not None or self._unfinished()):
            time_s = self._events.next_s
            if horizon_s is not None and time_s > horizon_s:
                break
            if horizon_s is None and self._stall.is_over(time_s):
                break
            self._advance(time_s)
            while self._events.next_s == time_s:
                self._events.run_next()
                if self._open_pass is not None:
                    open_pass, self._open_pass = self._open_pass, None
                    yield from open_pass
                if self._events.next_s != time_s:
                    self._power.retry_shutdowns()
            self._meter.change(time_s, self._watts())
            if self._watch is not None:
                self._watch(time_s, self._meter.watts)
        return self._result(self._events.now_s if horizon_s is None else horizon_s)

    def state(self) -> SimulationState:
        """Return the current state of the cluster and of the jobs."""
        now_s = self._events.now_s
        power = self._watts(), self._meter.energy_joules(now_s)
        return state_of(now_s, *power, self._jobs, self._cluster, self._runs)

    def _budget_control(self) -> BudgetControl | None:
        """Return the control loop of the power budget; None without a budget."""
        settings = self._settings
        if settings.budget_watts is None:
            return None
        return BudgetControl(
            settings.budget_watts,
            settings.budget_rules,
            jobs=self._jobs,
            kinds=self._cluster.kinds,
            runs=self._runs,
            commitment=self._commitment,
            events=self._events,
            continue_run=self._expect_end,
            interrupt=partial(self._interrupt, failure=False),
            request_pass=self._request_pass,
        )

    def _power_saving(self) -> PowerSavingControl | None:
        """Return the object that powers simulated nodes down and up.

        None means that the settings of the simulation do not use power saving.
        """
        saving = self._settings.power_saving
        if saving is None:
            return None
        parts = (self._jobs, self._cluster, self._power, self._runs, self._pending, self._events)
        return PowerSavingControl(saving, *parts)

    def _deferral_control(self) -> DeferralControl | None:
        """Create the object that controls the deferral of jobs.

        The result is None if the settings do not use deferral.
        """
        settings = self._settings
        if settings.deferral is None:
            return None
        return DeferralControl(
            settings.deferral,
            settings.signals or SignalFeed({}),
            settings,
            workload=self._jobs,
            cluster=self._cluster,
            policy=self._policy,
            runs=self._runs,
            pending=self._pending,
            events=self._events,
            release=self._admit,
            suspend=self._suspend,
            left_watts=self._left_watts,
        )

    def _unfinished(self) -> int:
        """Return the number of jobs that have not ended."""
        held = len(self._deferral.held) if self._deferral is not None else 0
        return len(self._pending) + len(self._runs.running) + self._arrivals_left + held

    def _interrupt_node(self, node: int) -> None:
        """Interrupt all jobs that use a part of the failed node `node`."""
        for run in [run for run in self._runs.running.values() if node in dict(run.allocation)]:
            self._interrupt(run, failure=True)

    def _advance(self, now_s: float) -> None:
        self._excess.add(self._events.now_s, now_s, self._meter.watts, self._cluster.watts)
        self._events.now_s = now_s

    def _watts(self) -> float:
        if not self._runs.running:
            self._runs.watts = 0.0  # reset the sum: floats would drift
        return self._cluster.watts + self._runs.watts

    def _arrive(self, job: int) -> None:
        self._arrivals_left -= 1
        if job + 1 < self._jobs.count:
            self._events.add(float(self._jobs.submit_s[job + 1]), EventKind.ARRIVAL, self._arrive, job + 1)
        if not self._can_run(job):
            self._runs.accounts.outcome[job] = JobOutcome.UNRUNNABLE
            return
        if self._deferral is None or not self._deferral.takes(job):
            self._admit(job)

    def _can_run(self, job: int) -> bool:
        if self._constrained is not None:
            return self._constrained.accepts(job)
        shapes = self._jobs.shapes(job)
        return any(self._jobs.units[s] <= self._cluster.total[self._jobs.hardware[s]] for s in shapes)

    def _expect_window(self, _: None = None) -> None:
        """Request a scheduling pass now, and one whenever a reservation's time window begins or ends.

        Pending jobs that can no longer run become unrunnable.
        """
        if self._constrained is not None:
            for job in self._constrained.expired(list(self._pending)):
                del self._pending[job]
                self._runs.accounts.outcome[job] = JobOutcome.UNRUNNABLE
            self._request_pass()
            self._events.add(self._constrained.next_change_s(), EventKind.NODE, self._expect_window, None)

    def _admit(self, job: int) -> None:
        """Add the job of row `job` to the pending jobs."""
        self._stall.progress(self._events.now_s)
        if self._constrained is not None and self._constrained.expired([job]):
            self._runs.accounts.outcome[job] = JobOutcome.UNRUNNABLE
            return
        self._pending[job] = None
        self._request_pass()
        if self._preemption is not None:
            risk_s = self._preemption.at_risk_s(job)
            self._events.add(max(self._events.now_s, risk_s), EventKind.NODE, self._recheck_deadline, job)

    def _recheck_deadline(self, job: int) -> None:
        """Start a scheduling pass at the time from which a job could miss its deadline.

        Nothing is done if the job is not pending any more.
        """
        if job in self._pending:
            self._request_pass()

    def _end(self, run: RunningJob) -> None:
        if self._runs.running.get(run.job) is run:
            self._runs.finish(run, self._events.now_s)
            self._stall.progress(self._events.now_s)
            self._released(run.allocation)

    def _expect_end(self, run: RunningJob) -> None:
        self._events.add(min(run.end_s, run.kill_s), EventKind.END, self._end, run)

    def _work(self, run: RunningJob) -> None:
        if self._runs.running.get(run.job) is run:
            self._runs.work(run, self._events.now_s)
            if self._control is not None:
                self._control.begin_work(run)

    def _released(self, allocation: Allocation) -> None:
        self._power.released(allocation)
        self._request_pass()
        self._request_control()

    def _request_control(self) -> None:
        if self._control is not None:
            self._control.request()

    def _interrupt(self, run: RunningJob, *, failure: bool) -> None:
        left = float(self._runs.left[run.job])
        self._runs.interrupt(run, self._events.now_s, failure=failure)
        if self._runs.left[run.job] < left:
            self._stall.progress(self._events.now_s)
        self._pending[run.job] = None
        self._released(run.allocation)

    def _suspend(self, run: RunningJob) -> None:
        """End a run after a checkpoint. Deferral resumes the job later."""
        assert self._settings.deferral is not None
        self._runs.suspend(run, self._events.now_s, self._settings.deferral.options.restart_s)
        self._released(run.allocation)

    def _budget_changes(self, _: None) -> None:
        budget = self._settings.budget_watts
        assert budget is not None
        self._events.add(budget.after(self._events.now_s), EventKind.BUDGET, self._budget_changes, None)
        if self._control is not None:
            self._control.step()
        self._request_pass()

    def _may_change_nodes(self, steps: Sequence[PowerStep]) -> bool:
        """Return whether the power budget permits to power nodes up or down now.

        `steps` contains the changes of the nodes' power. Without a budget, all changes are permitted.
        """
        return self._control is None or self._control.permits_nodes(steps)

    def _left_watts(self) -> float:
        """Return the power budget minus the committed power, in watts; infinity without a budget."""
        return math.inf if self._control is None else self._control.left_watts()

    def _request_pass(self) -> None:
        """Schedule a scheduling pass at the next multiple of the interval between passes.

        Nothing is done if a pass is already scheduled.
        """
        interval_s = self._settings.interval_s
        due_s = math.ceil(self._events.now_s / interval_s) * interval_s if interval_s else self._events.now_s
        if due_s < self._pass_due:
            self._pass_due = due_s
            self._events.add(due_s, EventKind.PASS, self._pass, due_s)

    def _pass(self, due_s: float) -> None:
        """Run a scheduling pass, in which the pending jobs that may start are started.

        Args:
            due_s: time for which the pass was scheduled.
        """
        if due_s != self._pass_due:
            return
        self._pass_due = math.inf
        if not self._pending:
            return
        self._passes += 1
        if self._control is not None:
            self._control.begin_pass()
        if self._preemption is not None:
            self._preemption.run(self._pending)
        self._open_pass = self._scheduling.steps(self._pending)

    def _allocate(self, job: int, shape: int) -> Allocation | None:
        """Choose free units (GPUs or cores) for a job that shall run in a given shape.

        A shape is a way to run a job: a kind and a number of units. The units are not allocated yet. Return
        None if the job cannot start.
        """
        if self._constrained is not None:
            return self._constrained.place_now(job, shape)
        return self._cluster.plan(int(self._jobs.hardware[shape]), int(self._jobs.units[shape]))

    def _start(self, job: int, shape: int, allocation: Allocation | None = None) -> bool:
        allocation = allocation or self._allocate(job, shape)
        if allocation is None:
            return False
        self._cluster.take(allocation)
        point = UNLIMITED if self._control is None else self._control.start_point(job, shape)
        ready_s = self._power.wake(allocation)
        run = self._runs.start(job, shape, allocation, self._events.now_s, ready_s, point)
        del self._pending[job]
        if self._deferral is not None:
            self._deferral.started(job, shape)
        if ready_s > self._events.now_s:
            self._events.add(ready_s, EventKind.WORK, self._work, run)
        else:
            self._runs.work(run, self._events.now_s)
        self._expect_end(run)
        self._request_control()
        return True

    def _result(self, end_s: float) -> SimulationResult:
        self._advance(end_s)
        for run in list(self._runs.running.values()):
            self._runs.truncate(run, end_s)
        accounts, energy = self._runs.accounts, self._meter.energy_joules(end_s)
        power = self._meter.series(end_s)
        return SimulationResult(
            workload=self._jobs,
            accounts=accounts,
            end_s=end_s,
            energy_joules=energy,
            idle_joules=energy - math.fsum(accounts.energy_joules),
            power=power,
            peak_watts=self._meter.peak_watts,
            passes=self._passes,
            over_budget_s=self._excess.over_s,
            nodes_over_budget_s=self._excess.nodes_over_s,
            units=int(np.sum(self._cluster.total)),
            segments=None if self._runs.segments is None else self._runs.segments.columns(),
            suspensions=0 if self._deferral is None else int(np.sum(self._deferral.suspensions)),
            notes=run_notes(accounts, self._settings.horizon_s, self._excess.nodes_over_s, self._constrained),
        )


def simulate(
    workload: Workload,
    kinds: Sequence[NodeKind],
    policy: Policy,
    settings: ScheduleSettings,
    watch: Callable[[float, float], None] | None = None,
) -> SimulationResult:
    """Run one simulation and return its result. The arguments have the same meaning as in `Simulation`."""
    return Simulation(workload, kinds, policy, settings, watch).run()
