"""Input of a decision about power budgets: the state of the budget engine at the time of the decision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slurm_energy.budget.ceilings import CeilingCommitment
from slurm_energy.budget.measured_excess import MeasuredExcess
from slurm_energy.controller.budgets.facts import BudgetedJob, BudgetedNode, BudgetInForce, EngineSettings
from slurm_energy.controller.budgets.nodes import BudgetNode
from slurm_energy.scheduling.queue import Bools, Floats


@dataclass(slots=True)
class CycleInputs:
    """State of the engine that a decision uses.

    Attributes:
        settings: settings of the engine.
        budgets: b budgets in force.
        nodes: nodes that have reported, and nodes that an earlier process has stored, by index.
        slurm_nodes: nodes in Slurm's configuration.
        jobs: running jobs in Slurm.
        commitment: ceilings (upper bounds of the power limits) of all devices.
        promised_watts: power under each budget that Slurm may give to jobs that no node has reported yet,
            shape (b,).
        excess: power to subtract from each limit because the measured power exceeds the ceilings; the
            decision updates this value.
        silent: whether each node has stopped reporting, by index of the node.
        now_s: time now.
    """

    settings: EngineSettings
    budgets: Sequence[BudgetInForce]
    nodes: Sequence[BudgetNode]
    slurm_nodes: Mapping[str, BudgetedNode]
    jobs: Mapping[int, BudgetedJob]
    commitment: CeilingCommitment
    promised_watts: Floats
    excess: MeasuredExcess
    silent: Bools
    now_s: float

    def is_off(self, node: str) -> bool:
        """Return whether Slurm has powered a node down."""
        facts = self.slurm_nodes.get(node)
        return facts is not None and facts.is_off
