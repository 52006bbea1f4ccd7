"""Power budgets of slurm-energy on a virtual cluster: agents on the nodes, and the controller's engine.

Polls and decisions pass between agents and controller by function calls, without a network. Faults can be
simulated: agents and the controller can be killed, and the connection between them can be cut.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from slurm_energy.budget.admission import offered_watts
from slurm_energy.budget.messages import NodeDecision, NodePoll
from slurm_energy.controller.budgets.engine import BudgetEngine
from slurm_energy.controller.budgets.facts import (
    BudgetCycle,
    BudgetedJob,
    BudgetedNode,
    BudgetInForce,
    BudgetScope,
    EngineSettings,
    ScopeKind,
)
from slurm_energy_lab.virtual_cluster.job_power import PendingJobPower, job_power
from slurm_energy_lab.virtual_cluster.program_history import ProgramHistory
from slurm_energy_lab.virtual_cluster.workload import ClusterJob, partition_of
from slurm_energy_lab.virtual_node import ModelClock, VirtualNode

BUDGET = "cluster"
OFFER_DELAY_CYCLES = 5
"""Decisions, one per second, after which Slurm may give power to jobs, because licenses follow once per
period."""
_NEXT_HOURS_S = 4 * 3600.0
_WAITING_S = 1.5
"""Time for which Slurm states that a job waits for power, after it tried to start the job."""
_LIMIT_STEP_S = 10
"""Seconds between the times at which future limits are read."""
_MIN_PAUSE_S = 0.5
"""Minimum seconds between two polls of a node, also after the start of a job."""


@dataclass(slots=True)
class NodeLink:
    """State of a node's agent, and of the agent's connection to the controller.

    Attributes:
        node: the node.
        next_sample_s: time of the next sample of the agent.
        next_poll_s: time of the agent's next poll.
        polled_s: time of the agent's last poll.
        is_running: whether the agent is running.
        is_connected: whether the agent's polls reach the controller.
        missed: messages of prologs and epilogs that arrived while the agent was not running.
    """

    node: VirtualNode
    next_sample_s: float
    next_poll_s: float
    polled_s: float = float("-inf")
    is_running: bool = True
    is_connected: bool = True
    missed: list[Callable[[], None]] = field(default_factory=list)


class BudgetController:
    """Simulated controller that decides about one power budget.

    It consists of the budget engine, the limit over time, the jobs in Slurm, and the stored state.

    Args:
        limit_watts: limit of the cluster as a function of time.
        nodes: names of the nodes.
        settings: settings of the budget engine.
        announced: whether changes of the limit are known in advance, like the changes in a schedule.
    """

    def __init__(
        self,
        limit_watts: Callable[[float], float],
        nodes: Mapping[str, BudgetedNode],
        settings: EngineSettings,
        *,
        announced: bool = True,
    ) -> None:
        self._limit_watts = limit_watts
        self._nodes = nodes
        self._settings = settings
        self._announced = announced
        self._stored: dict[str, str] = {}
        self.jobs: dict[int, BudgetedJob] = {}
        self.started_watts: dict[int, float] = {}
        self.cycle: BudgetCycle | None = None
        self.is_running = True
        self.waiting: dict[int, tuple[float, PendingJobPower]] = {}
        self._held: dict[int, float] = {}
        self._released: list[tuple[float, float]] = []
        self._offers: deque[float] = deque(maxlen=OFFER_DELAY_CYCLES)
        self._next_s = float("-inf")
        self._limit = float("nan")
        self._engine = BudgetEngine(settings)
        self._engine.set_nodes(nodes)

    def kill(self) -> None:
        """End the controller as kill -9 does."""
        self.is_running = False

    def start(self, now_s: float) -> None:
        """Start a simulated budget controller that continues from the stored state."""
        self._engine = BudgetEngine(self._settings)
        self._engine.set_nodes(self._nodes)
        states = {name: json.loads(text) for name, text in self._stored.items()}
        self._engine.restore(states, now_s)
        self.is_running = True
        self._next_s, self._limit, self.cycle = float("-inf"), float("nan"), None

    def tick(self, now_s: float) -> None:
        """Decide about the power limits if a second has passed since the last decision.

        Decide immediately if the limit of the cluster has changed.
        """
        limit = self._limit_at(now_s)
        if not self.is_running or (now_s < self._next_s and limit == self._limit):
            return
        self._next_s, self._limit = now_s + 1.0, limit
        lowest = min(self._limit_watts(now_s), self._limit_watts(now_s + _NEXT_HOURS_S), limit)
        scope = BudgetScope(ScopeKind.CLUSTER)
        falls_in_s = next(
            (seconds for seconds in range(61) if self._limit_at(now_s + seconds) < limit), float("inf")
        )
        if self._announced and falls_in_s < float("inf"):
            falls_in_s += self._engine.reaction_s
        self._engine.set_budgets([BudgetInForce(BUDGET, scope, limit, lowest, falls_in_s=falls_in_s)])
        self._engine.set_jobs(self.jobs)
        promised = max(self._wanted_offer_watts(now_s), sum(self.started_watts.values()))
        promised += self._released_watts(now_s)
        self._offers.append(promised - self._released_watts(now_s))
        self._engine.set_promised({BUDGET: promised})
        self.cycle = self._engine.decide(now_s)
        for name, state in self._engine.unsaved().items():
            self._stored[name] = json.dumps(state)

    def poll(self, poll: NodePoll, now_s: float) -> NodeDecision | None:
        """Return the decision for a node; None if the controller is not running."""
        if not self.is_running:
            return None
        for job in poll.jobs:
            self.started_watts.pop(job.job_id, None)
        parsed = NodePoll.from_json(json.loads(json.dumps(poll.to_json())))
        decision = self._engine.poll(parsed, now_s)
        return NodeDecision.from_json(json.loads(json.dumps(decision.to_json())))

    def _wanted_offer_watts(self, now_s: float) -> float:
        """Return the power that Slurm should be able to give to new jobs.

        The result follows from the demands of the jobs that currently wait for power. Infinity means that no
        decision has been made yet.
        """
        if self.cycle is None:
            return float("inf")
        budget = self.cycle.budgets[0]
        recent = {job: entry for job, entry in self.waiting.items() if now_s - entry[0] <= _WAITING_S}
        self.waiting = recent
        demands = [power.watts + budget.retained_watts[power.level] for _, power in recent.values()]
        return offered_watts(budget.headroom_watts, budget.headroom_watts - budget.retained_watts[0], demands)

    def headroom_watts(self, level: int) -> float:
        """Return the power that a job may add now, according to Slurm's free licenses.

        The number of free licenses is updated with a delay, and does not change while the controller is not
        running. A part of the power is reserved for running jobs. This part depends on the price level of
        the new job, which measures the job's work per watt.

        Args:
            level: price level of the job, an index into the list of prices.
        """
        offered = min(self._offers, default=0.0)
        if len(self._offers) < OFFER_DELAY_CYCLES or offered == float("inf"):
            return 0.0
        kept = self.cycle.budgets[0].retained_watts[level] if self.cycle is not None else 0.0
        released = sum(watts for _, watts in self._released)
        return offered + released - kept - sum(self.started_watts.values())

    def end_job(self, job_id: int, now_s: float) -> None:
        """Give back the licenses of a job that has ended.

        Slurm may give these licenses to other jobs until the controller corrects the number of licenses.
        """
        self.jobs.pop(job_id, None)
        self.started_watts.pop(job_id, None)
        self._released.append((now_s, self._held.pop(job_id, 0.0)))

    def start_job(self, job: BudgetedJob, power: PendingJobPower) -> None:
        """Record the licenses (one per watt) that a starting job takes from the budget."""
        self.waiting.pop(job.job_id, None)
        self.started_watts[job.job_id] = power.watts
        self.jobs[job.job_id] = job
        retained = self.cycle.budgets[0].retained_watts[power.level] if self.cycle is not None else 0.0
        self._held[job.job_id] = power.watts + retained

    def _released_watts(self, now_s: float) -> float:
        """Return the number of licenses (one per watt) that jobs have just released by ending.

        The number of licenses in Slurm is corrected periodically. The result contains only licenses for which
        this correction has not taken place yet.
        """
        self._released = [one for one in self._released if now_s - one[0] < OFFER_DELAY_CYCLES]
        return sum(watts for _, watts in self._released)

    def admits(self, job_id: int, power: PendingJobPower, now_s: float, limit_s: float) -> bool:
        """Return whether the power budget leaves enough power to start a job.

        The caller has verified that all other conditions for the start are met.

        Args:
            job_id: id of the job.
            power: power of the job.
            now_s: current time in seconds.
            limit_s: time limit of the job in seconds.
        """
        if self.cycle is None:
            return False
        budget, started = self.cycle.budgets[0], sum(self.started_watts.values())
        times = range(0, math.ceil(limit_s) + 1, _LIMIT_STEP_S) if self._announced else ()
        fall = self._limit - min([self._limit, *(self._limit_watts(now_s + ahead_s) for ahead_s in times)])
        if fall > 0 and power.reachable_watts > budget.reachable_headroom_watts - fall - started:
            return False
        self.waiting[job_id] = now_s, power
        fits = power.watts <= self.headroom_watts(power.level)
        return fits and power.start_watts <= budget.free_watts - started

    def _limit_at(self, now_s: float) -> float:
        limit = self._limit_watts(now_s)
        return min(limit, self._limit_watts(now_s + self._engine.reaction_s)) if self._announced else limit


class BudgetedCluster:
    """Power manager that runs the agents and the budget engine of slurm-energy.

    Args:
        nodes: nodes by name.
        clock: clock of all nodes.
        controller: the simulated controller.
        history: power and response curves of the programs from earlier runs; None if no earlier runs are
            known.
        admission: whether a job must wait until its power fits in the headroom (the power that the budgets
            leave for new jobs).
    """

    def __init__(
        self,
        nodes: Mapping[str, VirtualNode],
        clock: ModelClock,
        controller: BudgetController,
        history: ProgramHistory | None,
        *,
        admission: bool = True,
    ) -> None:
        self.controller = controller
        self._powers: dict[tuple[str, str, int], PendingJobPower] = {}
        self._clock = clock
        self._history = history
        self._admission = admission
        self.distort: Callable[[NodePoll], NodePoll] = lambda poll: poll
        step_s = 1.0 / max(1, len(nodes))
        self.links = {
            name: NodeLink(node, clock.now_s, clock.now_s + round(index * step_s, 1))
            for index, (name, node) in enumerate(nodes.items())
        }

    def admits(self, job: ClusterJob, nodes: Sequence[str]) -> bool:
        """Return whether a job may start under the power budget.

        The power that the job adds must not exceed the headroom, which is the power that new jobs may add.
        """
        if not self._admission:
            return True
        return self.controller.admits(job.job_id, self._power(job, nodes), self._clock.now_s, job.limit_s)

    def job_starts(self, job: ClusterJob, nodes: Sequence[str]) -> None:
        """Run the prologs of the job."""
        self.controller.start_job(self._budgeted_job(job, nodes), self._power(job, nodes))
        for name in nodes:
            link = self.links[name]
            self._hook(link, partial(link.node.begin, job.job_id))

    def job_ends(self, job: ClusterJob, nodes: Sequence[str]) -> None:
        """End a job on the virtual cluster: run the epilog on each of its nodes."""
        self.controller.end_job(job.job_id, self._clock.now_s)
        for name in nodes:
            link = self.links[name]
            self._hook(link, partial(link.node.end, job.job_id))

    def tick(self, now_s: float) -> None:
        """Let one simulated tick pass.

        The agents take samples and send requests to the controller when they are due. The controller decides
        about the power limits.
        """
        self.controller.tick(now_s)
        for link in self.links.values():
            if not link.is_running:
                continue
            if now_s >= link.next_sample_s - 1e-6:
                link.node.sample()
                link.next_sample_s = now_s + 1.0
            budget = link.node.manager.budget
            is_due = now_s >= link.next_poll_s - 1e-6
            is_early = budget.wants_poll and now_s - link.polled_s >= _MIN_PAUSE_S - 1e-6
            if is_due or is_early:
                self._poll(link, now_s)

    def kill_agent(self, name: str) -> None:
        """End the agent of a node as kill -9 does."""
        link = self.links[name]
        link.is_running = False
        link.node.kill_agent()

    def start_agent(self, name: str) -> None:
        """Start the agent of a node, and deliver the hook messages that the agent has missed."""
        link = self.links[name]
        link.node.start_agent()
        link.is_running = True
        link.next_sample_s = link.next_poll_s = self._clock.now_s
        missed, link.missed = link.missed, []
        for deliver in missed:
            deliver()

    def _hook(self, link: NodeLink, deliver: Callable[[], None]) -> None:
        if link.is_running:
            deliver()
        else:
            link.missed.append(deliver)

    def _poll(self, link: NodeLink, now_s: float) -> None:
        manager = link.node.manager
        poll = self.distort(link.node.poll_budget())
        link.polled_s = now_s
        decision = self.controller.poll(poll, now_s) if link.is_connected else None
        if decision is not None:
            manager.budget.apply(decision, now_s)
        link.next_poll_s = now_s + manager.budget.poll_s

    def _power(self, job: ClusterJob, nodes: Sequence[str]) -> PendingJobPower:
        """Return the power of a job on nodes of one partition, which have equal hardware."""
        key = job.partition, job.program, job.nodes
        if key not in self._powers:
            profile = self.links[nodes[0]].node.model.profile
            known = self._budgeted_job(job, nodes)
            self._powers[key] = job_power(profile, job, known)
        return self._powers[key]

    def _budgeted_job(self, job: ClusterJob, nodes: Sequence[str]) -> BudgetedJob:
        made = BudgetedJob(job.job_id, partition=job.partition, nodes=frozenset(nodes))
        if self._history is None:
            return made
        profile = self.links[nodes[0]].node.model.profile
        record = self._history.record(profile, job.partition, job.program)
        draws = {profile.cpu.model_name: record.package_watts}
        if profile.gpu and job.partition == "gpu":
            draws[profile.gpu.name] = record.peak_watts
        return dataclasses.replace(made, draw_watts=draws, curves={record.curve.hardware: record.curve})


def slurm_nodes(names: Sequence[str], reserves: Mapping[str, float] | None = None) -> dict[str, BudgetedNode]:
    """Return the nodes as they appear in Slurm's configuration.

    Args:
        names: names of the nodes.
        reserves: configured power, by node, of the components that have no limit. If None, the engine learns
            this power.
    """
    facts: dict[str, Any] = {}
    for name in names:
        reserve = None if reserves is None else reserves[name]
        facts[name] = BudgetedNode(frozenset({partition_of(name)}), reserve_watts=reserve)
    return facts
