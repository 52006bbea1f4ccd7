"""Choice of the nodes of a cluster to power down or up.

The choice takes all partitions and all pools into account. A pool is a set of interchangeable nodes in the
same partitions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from slurm_energy.power_saving.boot_headroom import BootHeadroom
from slurm_energy.power_saving.demand_forecast import DemandHistory, known_change
from slurm_energy.power_saving.expected_starts import KnownJobs, expected_changes
from slurm_energy.power_saving.node_energy import NodeEnergy
from slurm_energy.power_saving.power_down_rule import (
    KeepReason,
    NodeActivity,
    PoolNodes,
    PowerSavingRules,
    plan_pool,
    rules_without_history,
)


@dataclass(frozen=True, slots=True)
class PlannedNode:
    """A node of the cluster, as the decision about power saving needs it.

    Attributes:
        name: name of the node.
        pool: name of the node's pool. A pool is a set of interchangeable nodes in the same partitions.
        partitions: partitions of the node.
        activity: present activity of the node.
        is_protected: whether power saving must not change the node.
        idle_s: seconds for which the node has been idle; NaN if unknown.
        on_s: seconds since the node's last boot; NaN if unknown.
        busy_for_s: seconds until the jobs on the node are expected to end.
    """

    name: str
    pool: str
    partitions: frozenset[str]
    activity: NodeActivity
    is_protected: bool = False
    idle_s: float = math.nan
    on_s: float = math.nan
    busy_for_s: float = 0.0


@dataclass(frozen=True, slots=True)
class FutureJob:
    """A pending job or a reservation, as input for planning how many nodes must be on.

    Attributes:
        partitions: partitions in which the job may run; empty means any.
        nodes: number of nodes.
        time_s: expected run time in seconds.
        from_s: earliest start in seconds from now.
    """

    partitions: frozenset[str]
    nodes: int
    time_s: float
    from_s: float = 0.0


@dataclass(frozen=True, slots=True)
class NodeChange:
    """A node to power down or up.

    Attributes:
        name: name of the node.
        saving_joules: for a node to power down: expected saving. For a node to power up: 0.
        probability: for a node to power up: probability that the node is needed soon. For a node to power
            down: 0.
    """

    name: str
    saving_joules: float = 0.0
    probability: float = 0.0


@dataclass(slots=True)
class ClusterPlan:
    """Decision about the whole cluster: which nodes to power down and up.

    Attributes:
        down, up: nodes to power down and up now.
        kept: number of idle nodes that stay on, by reason.
        deferred_boots: number of nodes that should boot before they are needed, but do not boot yet because
            the power budgets have no room.
    """

    down: list[NodeChange] = field(default_factory=list)
    up: list[NodeChange] = field(default_factory=list)
    kept: dict[KeepReason, int] = field(default_factory=dict)
    deferred_boots: int = 0


@dataclass(frozen=True, slots=True)
class PoolModel:
    """Data about a pool (set of interchangeable nodes) from which power saving decides.

    Attributes:
        energy: power and duration of the nodes' power states.
        history: history of the demand for these nodes.
    """

    energy: NodeEnergy
    history: DemandHistory


def plan_cluster(
    nodes: Sequence[PlannedNode],
    jobs: Sequence[FutureJob],
    models: Mapping[str, PoolModel],
    reserves: Mapping[str, int],
    rules: PowerSavingRules,
    now_s: float,
    headrooms: Sequence[BootHeadroom] = (),
) -> ClusterPlan:
    """Decide which nodes of a cluster to power down or up now.

    A pool is a set of interchangeable nodes in the same partitions.

    Args:
        nodes: all nodes.
        jobs: pending jobs in the order of the queue, and reservations.
        models: model of each pool by name. Pools without a model are not changed.
        reserves: warm reserve (number of idle nodes that stay on) by partition.
        rules: parameters of the rule. The limits per cycle apply to the whole cluster.
        now_s: time now, on the clock of the histories.
        headrooms: power that each budget leaves for nodes that boot before they are needed.
    """
    pools: dict[str, list[PlannedNode]] = {}
    for node in nodes:
        pools.setdefault(node.pool, []).append(node)
    requests = _assign(pools, jobs)
    pool_reserves = _pool_reserves(pools, reserves)
    plan, free = ClusterPlan(), [replace(one) for one in headrooms]
    for name, members in pools.items():
        model = models.get(name)
        if model is None:
            continue
        left = replace(rules, max_down=rules.max_down - len(plan.down), max_up=rules.max_up - len(plan.up))
        _add_pool(plan, members, requests[name], model, pool_reserves[name], left, now_s, free)
    return plan


def _add_pool(
    plan: ClusterPlan,
    members: Sequence[PlannedNode],
    jobs: Sequence[FutureJob],
    model: PoolModel,
    reserve: int,
    rules: PowerSavingRules,
    now_s: float,
    headrooms: Sequence[BootHeadroom],
) -> None:
    """Add the decision about one pool of interchangeable nodes to the power-saving plan.

    The power of the boots is subtracted from the headrooms of the budgets that cover the booted nodes.
    """
    energy, horizon_s = model.energy, model.history.horizon_s
    usable = [one for one in members if not one.is_protected]
    free = sum(one.activity in (NodeActivity.IDLE, NodeActivity.BOOTING, NodeActivity.OFF) for one in usable)
    busy = [one for one in usable if one.activity is NodeActivity.BUSY]
    known = KnownJobs(
        running_end_s=[one.busy_for_s for one in busy],
        running_nodes=[1.0] * len(busy),
        pending_nodes=[float(job.nodes) for job in jobs],
        pending_time_s=[job.time_s for job in jobs],
        pending_from_s=[job.from_s for job in jobs],
    )
    rows = PoolNodes(
        np.array([int(one.activity) for one in members]),
        np.array([one.is_protected for one in members], np.bool_),
        np.array([one.idle_s for one in members], np.float64),
        np.array([one.on_s for one in members], np.float64),
    )
    decided = plan_pool(
        *(rows, energy, model.history.forecast(now_s)),
        known_change(horizon_s, *expected_changes(known, float(free))),
        rules_without_history(rules, energy, model.history),
        reserve=reserve,
    )
    plan.down.extend(
        NodeChange(members[row].name, saving_joules=saving)
        for row, saving in zip(decided.down, decided.down_saving_joules, strict=True)
    )
    boot_watts = max(0.0, max(energy.boot_watts, energy.idle_watts) - energy.off_watts)
    for row, share in zip(decided.up, decided.up_probability, strict=True):
        one = members[row]
        covering = [room for room in headrooms if room.covers(one.name, one.partitions)]
        if any(boot_watts > max(0.0, room.watts) for room in covering):
            plan.deferred_boots += 1
            continue
        for room in covering:
            room.watts -= boot_watts
        plan.up.append(NodeChange(one.name, probability=share))
    for reason, count in decided.kept.items():
        plan.kept[reason] = plan.kept.get(reason, 0) + count


def _assign(
    pools: Mapping[str, Sequence[PlannedNode]], jobs: Sequence[FutureJob]
) -> dict[str, list[FutureJob]]:
    """Assign each job to the best pool in the job's partitions.

    Pools are compared by these criteria, in this order: the pool has enough nodes for the job; enough free
    nodes are on; enough nodes are free, on or off; number of free nodes that are on; number of free nodes
    that are off.
    """
    requests: dict[str, list[FutureJob]] = {name: [] for name in pools}
    counts = {name: _free_counts(members) for name, members in pools.items()}
    partitions = {name: members[0].partitions for name, members in pools.items()}
    for job in jobs:
        allowed = [
            name for name in pools if not job.partitions or not job.partitions.isdisjoint(partitions[name])
        ]
        if not allowed:
            continue
        sizes = {name: len(pools[name]) for name in allowed}
        best = max(
            allowed,
            key=lambda name: (
                sizes[name] >= job.nodes,
                counts[name][0] >= job.nodes,
                sum(counts[name]) >= job.nodes,
                counts[name],
            ),
        )
        requests[best].append(job)
        warm, off = counts[best]
        counts[best] = (max(0, warm - job.nodes), off - max(0, min(off, job.nodes - warm)))
    return requests


def _free_counts(members: Sequence[PlannedNode]) -> tuple[int, int]:
    """Return the numbers of free nodes that are on and of free nodes that are off."""
    free = [one.activity for one in members if not one.is_protected]
    return (
        sum(one in (NodeActivity.IDLE, NodeActivity.BOOTING) for one in free),
        sum(one is NodeActivity.OFF for one in free),
    )


def _pool_reserves(pools: Mapping[str, Sequence[PlannedNode]], reserves: Mapping[str, int]) -> dict[str, int]:
    """Divide the reserve of warm nodes of each partition among the node pools of the partition.

    The division is in proportion to the number of nodes, rounded up.
    """
    sizes: dict[str, int] = {}
    for members in pools.values():
        for partition in members[0].partitions:
            sizes[partition] = sizes.get(partition, 0) + len(members)
    return {
        name: max(
            (
                math.ceil(reserves.get(one, 0) * len(members) / sizes[one] - 1e-9)
                for one in members[0].partitions
            ),
            default=0,
        )
        for name, members in pools.items()
    }
