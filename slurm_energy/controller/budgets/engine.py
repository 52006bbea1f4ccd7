"""Power budgets of the cluster: decisions from the polls of nodes, without network, clock or files.

Times are seconds on one monotonic clock that the caller chooses.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from slurm_energy.budget.ceilings import CeilingCommitment
from slurm_energy.budget.measured_excess import MeasuredExcess
from slurm_energy.budget.messages import JobReport, NodeDecision, NodePoll
from slurm_energy.controller.budgets.cycle import CycleOutcome, run_cycle
from slurm_energy.controller.budgets.facts import (
    BudgetCycle,
    BudgetedJob,
    BudgetedNode,
    BudgetInForce,
    EngineSettings,
)
from slurm_energy.controller.budgets.groups import MergedJobReport
from slurm_energy.controller.budgets.nodes import BudgetNode
from slurm_energy.controller.budgets.polls import check_devices, foreign_jobs, without_jobs
from slurm_energy.controller.budgets.report import cycle_report
from slurm_energy.controller.budgets.state import CycleInputs
from slurm_energy.garbage_collection import paused_collection
from slurm_energy.scheduling.queue import Bools, Floats

MAX_POLLS_PER_S: Final = 300.0
"""Polls per second that the controller serves. With more nodes, the interval between polls is longer."""
_LAG_POLLS: Final = 2.5
"""Time from a lower limit until measured power shows it, in intervals between polls."""
_SILENT_POLLS: Final = 3.0
"""Missed polls after which a node counts as silent."""
_STORED_WATTS: Final = 5.0
"""Minimum change of a node's power without a limit for which it is stored again."""


class BudgetEngine:
    """Power budgets of the cluster.

    Call `set_budgets`, `set_nodes` and `set_jobs` whenever budgets, nodes or jobs change, `decide` once per
    second, and `poll` for each poll of a node. Store the result of `unsaved` after each decision and before
    the next poll. After a restart, the stored state is an upper bound of the ceilings (power limits of
    devices) that nodes may have received. Call all methods from one thread.

    Args:
        settings: settings of the engine; `configure` replaces them.

    Attributes:
        outcome: the last decision as columns; None means that no decision has been made yet.
        has_news: whether jobs started or ended, or nodes appeared, since the last decision.
    """

    def __init__(self, settings: EngineSettings) -> None:
        self._settings = settings
        self._budgets: tuple[BudgetInForce, ...] = ()
        self._slurm_nodes: Mapping[str, BudgetedNode] = {}
        self._jobs: Mapping[int, BudgetedJob] = {}
        self._promised: Mapping[str, float] = {}
        self._excess = MeasuredExcess()
        self._commitment = CeilingCommitment()
        self._nodes: dict[str, BudgetNode] = {}
        self._stored: dict[str, dict[str, Any]] = {}
        self._foreign: dict[str, frozenset[tuple[int, int]]] = {}
        self._undecided: set[str] = set()
        self._unlimited: dict[str, frozenset[str]] = {}
        self._safe: dict[str, dict[str, float]] = {}
        self._has_decided = False
        self.outcome: CycleOutcome | None = None
        self.has_news = False

    @property
    def commitment(self) -> CeilingCommitment:
        """The ceilings (upper bounds of the power limits) of all devices."""
        return self._commitment

    @property
    def budgets(self) -> tuple[BudgetInForce, ...]:
        """The budgets in force."""
        return self._budgets

    @property
    def poll_s(self) -> float:
        """Interval in seconds at which each node asks (polls) for a decision about its power.

        The interval is longer in a large cluster, but at most the control period.
        """
        longest_s = max(self._settings.period_s, self._settings.poll_s)
        return min(longest_s, max(self._settings.poll_s, len(self._nodes) / MAX_POLLS_PER_S))

    @property
    def reaction_s(self) -> float:
        """Time from a decision of the engine until the nodes have confirmed the lowered power limits.

        If it is known that the limit of a budget will fall, the engine decides this time earlier.
        """
        return 2.0 * self.poll_s + 2.0

    def configure(self, settings: EngineSettings) -> None:
        """Use new settings from the next decision on."""
        self._settings = settings

    def set_budgets(self, budgets: Sequence[BudgetInForce]) -> None:
        """Replace the budgets that the engine enforces."""
        self._budgets = tuple(budgets)

    def set_nodes(self, nodes: Mapping[str, BudgetedNode]) -> list[str]:
        """Set the nodes in Slurm's configuration by name.

        Returns:
            Nodes that have reported but are no longer in Slurm's configuration. The engine forgets these
            nodes.
        """
        self._slurm_nodes = nodes
        gone = [name for name in self._nodes if name not in nodes]
        for name in gone:
            self._commitment.forget(name)
            self._undecided.discard(name)
            self._unlimited.pop(name, None)
            self._foreign.pop(name, None)
            self._stored.pop(name, None)
            del self._nodes[name]
        for index, node in enumerate(self._nodes.values()):
            node.index = index
        return gone

    def set_jobs(self, jobs: Mapping[int, BudgetedJob]) -> None:
        """Set the running jobs by job id."""
        self._jobs = jobs

    def set_promised(self, promised_watts: Mapping[str, float]) -> None:
        """Set the power that Slurm may still give to new jobs, by name of the budget.

        A new job starts with start limits, which apply until its node reports the job. The engine keeps free
        the power that new jobs can draw with these limits.
        """
        self._promised = promised_watts

    @property
    def reported_jobs(self) -> frozenset[int]:
        """Ids of the jobs that nodes report as running. Budget decisions already count their power."""
        return frozenset(job_id for node in self._nodes.values() for job_id in node.job_ids)

    @property
    def device_kinds(self) -> dict[int, frozenset[str]]:
        """Kinds of devices on which each job runs, by job id. The job's nodes report the kinds."""
        kinds: dict[int, set[str]] = {}
        for node in self._nodes.values():
            for device in node.devices.values():
                for job_id in device.report.job_ids:
                    kinds.setdefault(job_id, set()).add(device.report.kind)
        return {job_id: frozenset(names) for job_id, names in kinds.items()}

    @property
    def unknown_jobs(self) -> frozenset[tuple[int, int]]:
        """Runs that a node reports although `set_jobs` does not assign them to this node.

        A run is a pair of job id and restart count.
        """
        reported = {
            (job.job_id, job.restart_count)
            for node in self._nodes.values()
            if node.poll is not None
            for job in node.poll.jobs
        }
        known = {(job.job_id, job.restart_count) for job in self._jobs.values()}
        return frozenset(reported - known).union(*self._foreign.values())

    def poll(self, poll: NodePoll, now_s: float) -> NodeDecision:
        """Store the report of a node and return the decision for this node.

        Jobs that run only on other nodes are removed from the report: a faulty or compromised node must not
        change the power of these jobs. Devices that these jobs use according to the report count as busy with
        an unknown job.

        Raises:
            UsageError: the number or power of the node's devices is implausible.
        """
        node = self._nodes.get(poll.node)
        known = {} if node is None else {name: one.max_watts for name, one in node.devices.items()}
        check_devices(poll, known, self._settings.max_watts)
        foreign = self._foreign[poll.node] = foreign_jobs(poll, self._jobs)
        poll = without_jobs(poll, {job_id for job_id, _ in foreign})
        if node is None:
            node = self._nodes[poll.node] = BudgetNode(poll.node, len(self._nodes))
            self._undecided.add(poll.node)
        elif node.poll is None or node.poll.boot_id != poll.boot_id or self._is_silent(node, now_s):
            # The ceilings of a silent node may exceed its safe limits and the present limit of a budget.
            self._undecided.add(poll.node)
        before = node.job_ids
        self._commitment.report(poll)
        rows = self._commitment.rows(poll.node)
        if rows.keys() - node.devices.keys():
            self._undecided.add(poll.node)
        node.update(poll, rows, now_s)
        self.has_news = self.has_news or node.job_ids != before or poll.node in self._undecided
        return self._decision(node, poll)

    def decide(self, now_s: float) -> BudgetCycle:
        """Distribute the power of the budgets among the devices, and return the state of the budgets."""
        # A full collection visits all objects of the process. With 10,000 nodes, a collection took a third of
        # the time of a decision, and every second decision started one.
        with paused_collection():
            inputs = self._inputs(now_s)
            outcome = run_cycle(inputs, self._job_reports())
            self.outcome, self.has_news = outcome, False
            self._undecided.clear()
            self._has_decided = True
            self._unlimited = _without_limit(outcome)
            self._safe = _by_node(outcome, outcome.safe_watts)
            return cycle_report(inputs, outcome, self.poll_s)

    def withdraw_raises(self) -> None:
        """Cancel the rises of power limits in the last decision.

        A decision must be stored before nodes receive it (`unsaved`). Call this method if the decision could
        not be stored.
        """
        self._commitment.withdraw_raises()

    def unsaved(self) -> dict[str, dict[str, Any]]:
        """Return, as dicts for JSON, the states of the nodes that changed since the last call."""
        states = self._commitment.unsaved()
        for name, node in self._nodes.items():
            before = self._stored.get(name)
            if name in states or (before is not None and _differs(before, node)):
                state = states.setdefault(name, before or {})
                state["reserve_watts"], state["unlimited_watts"] = node.reserve.value, node.unlimited.value
                self._stored[name] = state
        return states

    def restore(self, states: Mapping[str, Any], now_s: float) -> list[str]:
        """Restore the engine from stored states of nodes. Call this method once, before the first poll.

        No limit is raised until every node has reported. A node that does not report is waited for only as
        long as its last decision is valid (lease).

        Returns:
            Nodes whose stored state is damaged. These nodes are treated like nodes that have never reported.
        """
        damaged = self._commitment.restore(states)
        for name, state in states.items():
            if name in damaged:
                continue
            node = self._nodes[name] = BudgetNode(name, len(self._nodes))
            node.restore(state, self._commitment.rows(name), now_s)
            self._stored[name] = dict(state)
        self._commitment.await_reports(now_s + self._settings.lease_s + self._settings.period_s)
        return damaged

    def _decision(self, node: BudgetNode, poll: NodePoll) -> NodeDecision:
        times = {"lease_s": self._lease_s(), "poll_s": self.poll_s}
        if not self._settings.enforces or (not self._budgets and self._has_decided):
            self._commitment.release(node.name)
            return NodeDecision(0, {}, {}, {}, **times)
        devices = (node.poll or poll).devices
        minima = {d.name: d.min_watts for d in devices if d.min_watts is not None}
        if node.name in self._undecided or not self._has_decided:
            # The node keeps its ceilings until the next decision, which counts it.
            return NodeDecision(max(1, poll.number), {}, minima, minima, **times)
        number, ceilings = self._commitment.decision(node.name)
        unlimited = self._unlimited.get(node.name, frozenset())
        limits = {name: None if name in unlimited else watts for name, watts in ceilings.items()}
        safe = {name: watts for name, watts in self._safe.get(node.name, minima).items() if name in ceilings}
        return NodeDecision(max(1, number), limits, safe, minima, **times)

    def _lease_s(self) -> float:
        """Return the time for which the decisions are valid (lease).

        If a limit is known to fall soon, this time ends before the fall. A node whose decision has ended
        changes to its safe limits. If the controller is absent when the limit falls, the nodes are therefore
        already at their safe limits. Each decision before the fall renews the lease. The last decision
        before the fall contains the lower limits.
        """
        lease_s = max(self._settings.lease_s, 4.0 * self.poll_s)
        falls_s = min((budget.falls_in_s for budget in self._budgets), default=math.inf)
        return min(lease_s, max(2.0 * self.poll_s, falls_s - self.reaction_s))

    def _is_silent(self, node: BudgetNode, now_s: float) -> bool:
        return now_s - node.polled_s > _SILENT_POLLS * self.poll_s

    def _inputs(self, now_s: float) -> CycleInputs:
        nodes = list(self._nodes.values())
        polled_s = np.array([node.polled_s for node in nodes], np.float64)
        silent: Bools = now_s - polled_s > _SILENT_POLLS * self.poll_s
        promised = [self._promised.get(budget.name, 0.0) for budget in self._budgets]
        self._excess.window_s = _LAG_POLLS * self.poll_s
        return CycleInputs(
            settings=self._settings,
            budgets=self._budgets,
            nodes=nodes,
            slurm_nodes=self._slurm_nodes,
            jobs=self._jobs,
            commitment=self._commitment,
            promised_watts=np.array(promised, np.float64),
            excess=self._excess,
            silent=silent,
            now_s=now_s,
        )

    def _job_reports(self) -> dict[int, MergedJobReport]:
        """Return what the nodes report about each job, merged over all nodes of the job.

        If the nodes report different slowdown limits for a job, the lowest one counts.
        """
        by_job: dict[int, list[tuple[BudgetNode, JobReport]]] = {}
        for node in self._nodes.values():
            for job in node.poll.jobs if node.poll is not None else ():
                by_job.setdefault(job.job_id, []).append((node, job))
        merged = {}
        for job_id, entries in by_job.items():
            limits = [job.slowdown_limit for _, job in entries if job.slowdown_limit is not None]
            curve = next((node.curves[job_id] for node, _ in entries if job_id in node.curves), None)
            merged[job_id] = MergedJobReport(len(entries), min(limits, default=None), curve)
        return merged


def _differs(stored: Mapping[str, Any], node: BudgetNode) -> bool:
    """Return whether the unlimited part of a node's power differs from the stored value.

    This part is the power of the devices without a power limit. Small changes do not count.
    """
    for key, maximum in (("reserve_watts", node.reserve), ("unlimited_watts", node.unlimited)):
        before, now = stored.get(key), maximum.value
        if now is not None and (before is None or abs(now - before) > max(_STORED_WATTS, 0.03 * before)):
            return True
    return False


def _by_node(outcome: CycleOutcome, values: Floats) -> dict[str, dict[str, float]]:
    """Group values of devices by node and by device name."""
    by_node: dict[str, dict[str, float]] = {}
    for device, value in zip(outcome.table.devices, values.tolist(), strict=True):
        by_node.setdefault(device.node.name, {})[device.report.name] = value
    return by_node


def _without_limit(outcome: CycleOutcome) -> dict[str, frozenset[str]]:
    """Return the names of the devices to which no budget applies, by node."""
    finite = np.isfinite(outcome.usable_watts)
    free = ~(outcome.table.cover & finite[:, None]).any(axis=0)
    names: dict[str, set[str]] = {}
    for index in np.flatnonzero(free).tolist():
        device = outcome.table.devices[index]
        names.setdefault(device.node.name, set()).add(device.report.name)
    return {node: frozenset(devices) for node, devices in names.items()}
