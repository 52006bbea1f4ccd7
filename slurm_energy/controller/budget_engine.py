"""Power budgets of the cluster: polls of nodes in, decisions out. No network, clock or files.

Times are seconds on one monotonic clock that the caller chooses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from slurm_energy.budget.messages import NodeDecision, NodePoll
from slurm_energy.controller.budget_facts import (
    BudgetCycle,
    BudgetedJob,
    BudgetedNode,
    BudgetInForce,
    BudgetStatus,
    EngineSettings,
)


class BudgetEngine:
    """Power budgets of the cluster.

    Call `set_budgets`, `set_nodes` and `set_jobs` whenever they change, `decide` once per second, and `poll`
    for each poll of a node. All methods are called by one thread.

    Args:
        settings: settings; `configure` replaces them.
    """

    def __init__(self, settings: EngineSettings) -> None:
        self._settings = settings
        self._budgets: tuple[BudgetInForce, ...] = ()
        self._nodes: Mapping[str, BudgetedNode] = {}
        self._jobs: Mapping[int, BudgetedJob] = {}
        self._polls: dict[str, NodePoll] = {}
        self._number = 0

    def configure(self, settings: EngineSettings) -> None:
        """Use new settings from the next decision on."""
        self._settings = settings

    def set_budgets(self, budgets: Sequence[BudgetInForce]) -> None:
        """Set the budgets in force."""
        self._budgets = tuple(budgets)

    def set_nodes(self, nodes: Mapping[str, BudgetedNode]) -> None:
        """Set the nodes in Slurm's configuration by name."""
        self._nodes = nodes

    def set_jobs(self, jobs: Mapping[int, BudgetedJob]) -> None:
        """Set the running jobs by job id."""
        self._jobs = jobs

    def poll(self, poll: NodePoll, now_s: float) -> NodeDecision:
        """Store the report of a node and return its decision."""
        self._polls[poll.node] = poll
        if not self._budgets or not self._settings.enforces:
            return NodeDecision(0, {}, {}, {}, self._settings.lease_s, self._settings.poll_s)
        minima = {d.name: d.min_watts for d in poll.devices if d.min_watts is not None}
        number, limits = max(1, self._number), dict[str, float | None](minima)
        return NodeDecision(number, limits, minima, minima, self._settings.lease_s, self._settings.poll_s)

    def decide(self, now_s: float) -> BudgetCycle:
        """Distribute the power of the budgets among the devices, and return the state of the budgets."""
        self._number += 1
        budgets = [BudgetStatus(b.name, b.limit_watts, None, 0.0, 0.0) for b in self._budgets]
        return BudgetCycle(now_s, tuple(budgets), {})
