"""The simulation engine. It runs events in order of time and then lets the scheduler examine the queue."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from functools import partial

import numpy as np

from slurm_energy.scheduling.queue import Queue
from slurm_energy.scheduling.ranking import Ranking
from slurm_energy.scheduling.registry import Policy
from slurm_energy.signals.feed import SignalFeed
from slurm_energy.simulator.budget_control import BudgetControl
from slurm_energy.simulator.budget_outlook import SLACK_WATTS
from slurm_energy.simulator.cluster import Allocation, Cluster, NodeKind
from slurm_energy.simulator.deadline_preemption import DeadlinePreemption
from slurm_energy.simulator.deferral_control import DeferralControl
from slurm_energy.simulator.energy_integral import EnergyIntegral
from slurm_energy.simulator.event_queue import EventKind, EventQueue
from slurm_energy.simulator.job_demand import JobDemand
from slurm_energy.simulator.node_power import NodePower, PowerStep
from slurm_energy.simulator.power_commitment import PowerCommitment
from slurm_energy.simulator.power_saving_control import PowerSavingControl
from slurm_energy.simulator.running_jobs import UNLIMITED, RunningJob, RunningJobs
from slurm_energy.simulator.schedule_settings import ScheduleSettings
from slurm_energy.simulator.scheduling_pass import PassSteps, SchedulingPass
from slurm_energy.simulator.simulation_result import JobOutcome, SimulationResult
from slurm_energy.simulator.simulation_state import SimulationState
from slurm_energy.simulator.workload import Workload


class Simulation:
    """One simulation of a workload on a cluster under a scheduling policy.

    Args:
        workload: the jobs.
        kinds: the kinds of nodes of the cluster.
        policy: scheduling policy. It orders the jobs and chooses a shape (way to run) for each.
        settings: all other settings.
        watch: function for checks, called with the time in seconds and the cluster's watts after all events
            of one point in time. None: no checks.
    """

    def __init__(
        self,
        workload: Workload,
        kinds: Sequence[NodeKind],
        policy: Policy,
        settings: ScheduleSettings,
        watch: Callable[[float, float], None] | None = None,
    ) -> None:
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
        self._over_s = self._nodes_over_s = 0.0
        self._arrivals_left = workload.count
        demand = JobDemand(workload, self._cluster, self._runs, self._commitment, self._control)
        self._preemption = self._deadline_preemption(demand)
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
        """Simulate like `run`, but yield the queue of each scheduling pass and wait for its ranking.

        The generator returns the result of the simulation. `state` describes the cluster at each pass.
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
        horizon_s = self._settings.horizon_s
        while self._events.next_s < math.inf and (horizon_s is not None or self._unfinished()):
            time_s = self._events.next_s
            if horizon_s is not None and time_s > horizon_s:
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
        """Return the present state of the cluster and of the jobs."""
        runs = list(self._runs.running.values())
        return SimulationState(
            now_s=self._events.now_s,
            watts=self._watts(),
            free_units=self._cluster.free.copy(),
            total_units=self._cluster.total.copy(),
            release_s=np.array([run.start_s + run.limit_s for run in runs], np.float64),
            release_units=np.array([self._jobs.units[run.shape] for run in runs], np.int64),
            accounts=self._runs.accounts,
        )

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

    def _deadline_preemption(self, demand: JobDemand) -> DeadlinePreemption | None:
        """Return the preemption for deadlines; None if the policy or the settings do not permit it."""
        rules = self._settings.preemption
        if not self._policy.preempts or rules is None:
            return None
        return DeadlinePreemption(
            self._jobs,
            self._cluster,
            rules,
            runs=self._runs,
            events=self._events,
            demand=demand,
            left_watts=self._left_watts,
            interrupt=partial(self._interrupt, failure=False),
            start=self._start,
        )

    def _power_saving(self) -> PowerSavingControl | None:
        """Return the control of power saving by forecast; None without it."""
        saving = self._settings.power_saving
        if saving is None:
            return None
        parts = (self._jobs, self._cluster, self._power, self._runs, self._pending, self._events)
        return PowerSavingControl(saving, *parts)

    def _deferral_control(self) -> DeferralControl | None:
        """Return the control of deferral; None without it."""
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

    def _unfinished(self) -> bool:
        held = self._deferral is not None and self._deferral.held
        return bool(self._pending or self._runs.running or self._arrivals_left or held)

    def _interrupt_node(self, node: int) -> None:
        """Interrupt all jobs that hold units of the failed node number `node`."""
        for run in [run for run in self._runs.running.values() if node in dict(run.allocation)]:
            self._interrupt(run, failure=True)

    def _advance(self, now_s: float) -> None:
        budget = self._settings.budget_watts
        if budget is not None:
            # Twice the slack, because decisions use all of it and sums of floats differ by rounding.
            limit_watts = budget.at(self._events.now_s) + 2 * SLACK_WATTS
            elapsed_s = now_s - self._events.now_s
            if self._meter.watts > limit_watts:
                self._over_s += elapsed_s
                self._nodes_over_s += elapsed_s if self._cluster.watts > limit_watts else 0.0
        self._events.now_s = now_s

    def _watts(self) -> float:
        if not self._runs.running:
            self._runs.watts = 0.0  # reset the sum: floats would drift
        return self._cluster.watts + self._runs.watts

    def _arrive(self, job: int) -> None:
        self._arrivals_left -= 1
        if job + 1 < self._jobs.count:
            self._events.add(float(self._jobs.submit_s[job + 1]), EventKind.ARRIVAL, self._arrive, job + 1)
        shapes = self._jobs.shapes(job)
        if not any(self._jobs.units[s] <= self._cluster.total[self._jobs.hardware[s]] for s in shapes):
            self._runs.accounts.outcome[job] = JobOutcome.UNRUNNABLE
            return
        if self._deferral is None or not self._deferral.takes(job):
            self._admit(job)

    def _admit(self, job: int) -> None:
        """Make a job, given by row, pending."""
        self._pending[job] = None
        self._request_pass()
        if self._preemption is not None:
            risk_s = self._preemption.at_risk_s(job)
            self._events.add(max(self._events.now_s, risk_s), EventKind.NODE, self._recheck_deadline, job)

    def _recheck_deadline(self, job: int) -> None:
        """Request a scheduling pass if the job, whose deadline is now at risk, is still pending."""
        if job in self._pending:
            self._request_pass()

    def _end(self, run: RunningJob) -> None:
        if self._runs.running.get(run.job) is run:
            self._runs.finish(run, self._events.now_s)
            self._released(run.allocation)

    def _expect_end(self, run: RunningJob) -> None:
        self._events.add(min(run.end_s, run.kill_s), EventKind.END, self._end, run)

    def _work(self, run: RunningJob) -> None:
        if self._runs.running.get(run.job) is run:
            self._runs.work(run, self._events.now_s)
            self._request_control()

    def _released(self, allocation: Allocation) -> None:
        self._power.released(allocation)
        self._request_pass()
        self._request_control()

    def _request_control(self) -> None:
        if self._control is not None:
            self._control.request()

    def _interrupt(self, run: RunningJob, *, failure: bool) -> None:
        self._runs.interrupt(run, self._events.now_s, failure=failure)
        self._pending[run.job] = None
        self._released(run.allocation)

    def _suspend(self, run: RunningJob) -> None:
        """End a run after a checkpoint, until deferral resumes the job."""
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
        """Return whether the budget permits changes of nodes' power."""
        return self._control is None or self._control.permits_nodes(steps)

    def _left_watts(self) -> float:
        """Return the power budget minus the committed power, in watts; infinity without a budget."""
        return math.inf if self._control is None else self._control.left_watts()

    def _request_pass(self) -> None:
        """Schedule a scheduling pass at the next multiple of the interval, unless one is scheduled."""
        interval_s = self._settings.interval_s
        due_s = math.ceil(self._events.now_s / interval_s) * interval_s if interval_s else self._events.now_s
        if due_s < self._pass_due:
            self._pass_due = due_s
            self._events.add(due_s, EventKind.PASS, self._pass, due_s)

    def _pass(self, due_s: float) -> None:
        """Run the scheduling pass that was scheduled for `due_s`: start those pending jobs that may start."""
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

    def _start(self, job: int, shape: int) -> bool:
        allocation = self._cluster.allocate(int(self._jobs.hardware[shape]), int(self._jobs.units[shape]))
        if allocation is None:
            return False
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
            over_budget_s=self._over_s,
            nodes_over_budget_s=self._nodes_over_s,
            units=int(np.sum(self._cluster.total)),
            segments=None if self._runs.segments is None else self._runs.segments.columns(),
            suspensions=0 if self._deferral is None else int(np.sum(self._deferral.suspensions)),
            notes=self._notes(),
        )

    def _notes(self) -> list[str]:
        """Return remarks on jobs that cannot run, and on a budget that the nodes alone exceed."""
        notes = []
        unrunnable = int(np.sum(self._runs.accounts.outcome == JobOutcome.UNRUNNABLE))
        if unrunnable:
            notes.append(f"{unrunnable} jobs are larger than the cluster and never ran")
        if self._nodes_over_s:
            notes.append(
                f"the power exceeded the budget for {self._nodes_over_s:.0f} s, because the nodes alone drew "
                "more without any job: the budget is below the power of idle, booting or stopping nodes"
            )
        return notes


def simulate(
    workload: Workload,
    kinds: Sequence[NodeKind],
    policy: Policy,
    settings: ScheduleSettings,
    watch: Callable[[float, float], None] | None = None,
) -> SimulationResult:
    """Run one simulation and return its result. The arguments are those of `Simulation`."""
    return Simulation(workload, kinds, policy, settings, watch).run()
