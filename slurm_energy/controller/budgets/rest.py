"""Power that budgets cannot control: memory, boards, fans, devices without a limit, absent nodes.

An absent node is known to Slurm but has never reported to senergyctld. A budget subtracts this power before
it divides its limit among the devices with a power limit.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slurm_energy.controller.budgets.coverage import CoverSums, JobCover, node_cover
from slurm_energy.controller.budgets.facts import BudgetedNode
from slurm_energy.controller.budgets.nodes import BudgetNode
from slurm_energy.controller.budgets.state import CycleInputs
from slurm_energy.controller.budgets.table import CycleDevices
from slurm_energy.scheduling.queue import Bools, Floats


@dataclass(frozen=True, slots=True)
class RestPower:
    """Power that budgets cannot control.

    This is the power of all parts of the nodes except the devices with a power limit.

    Attributes:
        inputs: state of the budget engine.
        table: the n devices with a power limit.
        nodes_covered: whether each of the b budgets includes a whole node, shape (b, number of nodes).
        jobs_covered: assignment of the jobs to the budgets that include them.
    """

    inputs: CycleInputs
    table: CycleDevices
    nodes_covered: Bools
    jobs_covered: JobCover

    def of_nodes(self, device_watts: Floats) -> Floats:
        """Return the power of each node except for its devices with a power limit, shape (number of nodes,).

        Args:
            device_watts: power that each device with a limit may draw, shape (n,).
        """
        count = len(self.inputs.nodes)
        by_node = np.bincount(self.table.node, weights=device_watts, minlength=count)
        return node_rest(self.inputs, by_node.astype(np.float64))

    def fixed_watts(self, of_nodes: Floats) -> Floats:
        """Return the power of all parts that have no power limit, for each budget, shape (b,).

        Args:
            of_nodes: result of the method `of_nodes`.
        """
        return fixed_watts(self.inputs, self.nodes_covered, self.jobs_covered, of_nodes)


def fixed_watts(inputs: CycleInputs, nodes_covered: Bools, jobs_covered: JobCover, rest: Floats) -> Floats:
    """Return, for each budget, the power that it cannot control, shape (b,).

    This is the power of all parts of the nodes that have no power limit, for example memory, boards and
    fans, and the power of nodes that do not report.

    Args:
        inputs: state of the engine.
        nodes_covered: whether a budget counts a whole node, shape (b, number of nodes).
        jobs_covered: which budgets count which jobs.
        rest: result of `node_rest`.
    """
    total = CoverSums(nodes_covered).total(rest)
    total = total + np.array([budget.constant_watts for budget in inputs.budgets], np.float64)
    absent = _absent_nodes(inputs, rest)
    if absent:
        cover = node_cover(inputs.budgets, list(absent), inputs.slurm_nodes)
        total = total + CoverSums(cover).total(np.array(list(absent.values()), np.float64))
    return total + _rest_of_jobs(inputs, jobs_covered, rest)


def node_rest(inputs: CycleInputs, limited_watts: Floats) -> Floats:
    """Return the power of those parts of each node that have no power limit.

    The result is an array with one value per node. For a node whose power is not known yet, the largest
    value of the other nodes is assumed. For a booting node, the value includes at least the power of a
    boot. For a node that is off, the value is the power of the switched-off node.

    Args:
        inputs: state of the budget engine.
        limited_watts: for each node, the power that its devices with a power limit may draw, shape
            (number of nodes,).
    """
    known = [
        _known_rest(inputs, node, watts)
        for node, watts in zip(inputs.nodes, limited_watts.tolist(), strict=True)
    ]
    largest = max((watts for watts in known if watts is not None), default=0.0)
    rest = [largest if watts is None else watts for watts in known]
    return np.array(
        [max(watts, _boot_rest(inputs, node)) for node, watts in zip(inputs.nodes, rest, strict=True)],
        np.float64,
    )


def _boot_rest(inputs: CycleInputs, node: BudgetNode) -> float:
    """Return the part of a booting node's power that its devices do not account for.

    The result is the power of the booting node minus the power that is committed to its devices. It is 0 if
    the node does not boot.
    """
    facts = inputs.slurm_nodes.get(node.name)
    if facts is None or facts.boot_watts is None:
        return 0.0
    rows = [device.row for device in node.devices.values() if device.row >= 0]
    return max(0.0, facts.boot_watts - float(inputs.commitment.reserved_watts[rows].sum()))


def _known_rest(inputs: CycleInputs, node: BudgetNode, limited_watts: float) -> float | None:
    facts = inputs.slurm_nodes.get(node.name)
    if facts is not None and facts.is_off:
        return facts.off_watts
    if facts is None or facts.reserve_watts is None:
        return node.rest_watts(limited_watts)
    unlimited_watts = node.unlimited.value
    if unlimited_watts is None:
        return facts.reserve_watts if node.is_unmeasured else None
    return facts.reserve_watts + unlimited_watts


def _absent_nodes(inputs: CycleInputs, rest: Floats) -> dict[str, float]:
    """Return the power of the nodes in Slurm that have never reported, by name of the node.

    A node counts at its nameplate power. If this power is unknown, the node counts at the power of the
    largest node that reports.
    """
    names = {node.name for node in inputs.nodes}
    absent = {name: node for name, node in inputs.slurm_nodes.items() if name not in names}
    if not absent:
        return {}
    largest = max(
        (
            node.limited_watts + watts
            for node, watts in zip(inputs.nodes, rest.tolist(), strict=True)
            if not inputs.is_off(node.name)
        ),
        default=0.0,
    )
    return {name: _absent_watts(node, largest) for name, node in absent.items()}


def _absent_watts(node: BudgetedNode, largest: float) -> float:
    if node.is_off:
        return node.off_watts
    watts = largest if node.nameplate_watts is None else node.nameplate_watts
    return max(watts, node.boot_watts or 0.0)


def _rest_of_jobs(inputs: CycleInputs, jobs_covered: JobCover, rest: Floats) -> Floats:
    """Return, for each budget that limits jobs, the power of parts without a power limit, shape (b,).

    The parts, such as memory and fans, belong to the nodes on which the jobs run. The jobs on a node share
    the power of these parts equally.
    """
    if all(budget.scope.covers_nodes for budget in inputs.budgets):
        return np.zeros(len(inputs.budgets))
    ids = [node.job_ids for node in inputs.nodes]
    counts = jobs_covered.counts(ids)
    share = rest / np.maximum(1, np.array([len(one) for one in ids], np.int64))
    node, budget = np.nonzero(counts)
    watts = counts[node, budget] * share[node]
    return np.bincount(budget, weights=watts, minlength=len(inputs.budgets)).astype(np.float64)
