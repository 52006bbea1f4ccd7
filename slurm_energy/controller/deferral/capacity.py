"""Free resources of the cluster over time, for planning the starts of deferred jobs. The module needs numpy.

Partitions that share nodes form one pool of resources. Pools are planned separately.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from slurm_energy.accounting.history.arrivals import PastArrival
from slurm_energy.controller.local_time import utc_offsets
from slurm_energy.deferral import Capacity
from slurm_energy.deferral.arrival_demand import ArrivalDemand, ArrivalHistory, arrival_demand
from slurm_energy.scheduling.queue import Floats, Ints
from slurm_energy.signals import SignalColumns
from slurm_energy.slurm.queue.columns import PENDING, RUNNING, QueueColumns
from slurm_energy.slurm.queue.node_resources import NodeResources
from slurm_energy.slurm.tres import parse_tres

_CPUS: Final = ""
_ANY_GPU: Final = "*"
_OVERDUE_SHARE: Final = 0.1
"""Remaining time of a job that has exceeded its prediction, as a fraction of the time since its start."""


@dataclass(frozen=True, slots=True)
class ResourceKinds:
    """Kinds of resources for the planning of deferred jobs.

    Each kind of hardware in each pool of nodes is one kind of resource. It is one row of `Capacity.units`.

    Attributes:
        pools: number of the pool of each partition.
        names: names of the kinds of hardware: CPUs, GPUs of any type, and the GPU types that jobs request.
        only_gpu_kind: GPU type of each pool whose GPUs are all of one type.
    """

    pools: Mapping[str, int]
    names: tuple[str, ...]
    only_gpu_kind: Mapping[int, str] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """Number of kinds of resources."""
        return len(self.names) * (1 + max(self.pools.values(), default=0))

    def row(self, partition: str, gpus: int, gpu_kind: str) -> int:
        """Return the row number in `Capacity.units` of the resource kind that a job needs.

        A resource kind is a kind of GPU, or CPUs, in one pool of nodes. A job that lists several partitions
        counts in the pool of its first partition. If all GPUs of a pool are of one type, jobs that name this
        type and jobs that name none need the same resource.
        """
        pool = self.pools.get(partition.partition(",")[0], 0)
        is_any = not gpu_kind or gpu_kind == self.only_gpu_kind.get(pool) or gpu_kind not in self.names
        name = _CPUS if gpus == 0 else _ANY_GPU if is_any else gpu_kind
        return pool * len(self.names) + self.names.index(name)


def resource_kinds(queue: QueueColumns, nodes: Sequence[NodeResources]) -> ResourceKinds:
    """Return the kinds of resources that deferral plans.

    They are CPUs and types of GPUs in each pool. Partitions that share a node form one pool.
    """
    named = sorted({kind for kind in queue.gpu_kind if kind})
    pools = partition_pools(nodes)
    kinds: dict[int, set[str]] = {}
    for node in nodes:
        kinds.setdefault(_pool_of(node, pools), set()).update(node.gpus)
    only = {pool: next(iter(types)) for pool, types in kinds.items() if len(types) == 1}
    return ResourceKinds(pools, (_CPUS, _ANY_GPU, *named), only)


def partition_pools(nodes: Sequence[NodeResources]) -> dict[str, int]:
    """Group the partitions into pools. Return the index of the pool of each partition.

    Partitions that share a node belong to the same pool.
    """
    pool_of: dict[str, int] = {}
    members: dict[int, set[str]] = {}
    for node in nodes:
        joined = set(node.partitions)
        for pool in {pool_of[name] for name in node.partitions if name in pool_of}:
            joined |= members.pop(pool)
        if joined:
            number = min((pool_of[name] for name in joined if name in pool_of), default=len(pool_of))
            members[number] = joined
            pool_of |= dict.fromkeys(joined, number)
    order = {number: at for at, number in enumerate(sorted(members))}
    return {name: order[number] for name, number in pool_of.items()}


def requested_units(queue: QueueColumns, kinds: ResourceKinds) -> tuple[Ints, Floats]:
    """Return the kind of resource that each job needs, and the number of units of this resource.

    The units are GPUs, or CPUs for a job without GPUs. Of a job array, one task is counted.
    """
    rows = zip(queue.partition, queue.gpus.tolist(), queue.gpu_kind, strict=True)
    units: Floats = np.where(queue.gpus > 0, queue.gpus, queue.cpus).astype(np.float64)
    return np.array([kinds.row(*row) for row in rows], np.int64), units


def pending_tasks(queue: QueueColumns, leader: Ints) -> Floats:
    """Return the number of pending tasks of each job; 1 for jobs other than arrays.

    `leader` contains for each row of the queue the row that represents its whole job array.
    """
    tasks = np.zeros(queue.count)
    waiting = np.flatnonzero((queue.state == PENDING) & ~queue.held & (queue.het_job_id == 0))
    np.add.at(tasks, leader[waiting], queue.tasks[waiting])
    return np.maximum(tasks, 1.0)


def array_units(tasks: Floats, units: Floats, room: Floats) -> tuple[Floats, Floats]:
    """Return the units that the pending tasks of each job need together, and the number of rounds.

    A job array of more tasks than can run at the same time runs in several rounds, one after another. The
    units are then those of one round. Jobs other than arrays run in one round.

    Args:
        tasks: number of pending tasks, from `pending_tasks`.
        units: number of units of one task, from `requested_units`.
        room: maximum number of units that the tasks of each job may occupy at the same time.
    """
    at_once = np.clip(np.floor(room / np.maximum(units, 1.0)), 1.0, tasks)
    return units * at_once, np.ceil(tasks / at_once)


def usual_room(capacity: Capacity, kind: int, units: float, latest_s: float) -> float:
    """Return the median number of units that are free until the latest start of a deferrable job array.

    Times at which not even one task could start do not count. An array that was planned with all units of
    the cluster would find no time to start, because some units are nearly always in use or in reserve.

    Args:
        capacity: free resources over time.
        kind: index of the kind of resource.
        units: number of units of one task.
        latest_s: latest permitted start in Unix seconds.

    Returns:
        The number of units; 0 if no task could start.
    """
    slots = 1 + max(0, int((latest_s - capacity.start_s) // capacity.step_s))
    free = capacity.units[kind, :slots]
    if capacity.reserve is not None:
        free = free - capacity.reserve[kind, :slots]
    free = free[free >= max(units, 1.0)]
    return float(np.median(free)) if len(free) else 0.0


def free_capacity(
    queue: QueueColumns,
    units: Floats,
    rows: Ints,
    kinds: ResourceKinds,
    time_s: Floats,
    nodes: Sequence[NodeResources],
    signals: SignalColumns,
    now_s: float,
) -> Capacity | None:
    """Return the resources that running jobs leave free in each time slot.

    Memory and licenses are not considered, because Slurm decides which jobs start. Jobs on nodes that drain
    take nothing from the other nodes. It is unknown which jobs these are, so that each running job counts by
    the share of the occupied units that lies on other nodes.

    Args:
        queue: all jobs.
        units: number of GPUs of each job, or of CPUs if the job has no GPUs.
        rows: index of the kind of resource that each job uses.
        kinds: kinds of resources.
        time_s: predicted run time of each job.
        nodes: nodes of the cluster; an empty value means unknown.
        signals: forecasts of price and carbon intensity, which define the time slots.
        now_s: current time in Unix seconds.

    Returns:
        The free resources; None means that the nodes are unknown.
    """
    if not nodes or not signals.slots:
        return None
    total = total_units(nodes, kinds)
    used = np.zeros((len(total), signals.slots))
    starts_s = signals.slot_start_s
    end_s = queue.start_s + time_s
    late_s = now_s + _OVERDUE_SHARE * (now_s - queue.start_s)
    end_s = np.where(end_s <= now_s, late_s, end_s)
    for row in np.flatnonzero(queue.state == RUNNING).tolist():
        used[rows[row], starts_s < end_s[row]] += units[row]
    # GPUs of one type that are in use are also missing for jobs that name no type.
    pools, any_gpu = used.reshape(-1, len(kinds.names), signals.slots), kinds.names.index(_ANY_GPU)
    pools[:, any_gpu] += pools[:, any_gpu + 1 :].sum(axis=1)
    used *= _share_on_serving_nodes(nodes, kinds, used[:, 0])[:, None]
    return Capacity(signals.start_s, signals.step_s, np.maximum(total[:, None] - used, 0.0))


def _share_on_serving_nodes(nodes: Sequence[NodeResources], kinds: ResourceKinds, used: Floats) -> Floats:
    """Return, by kind of resource, the share of the used units on nodes that `total_units` counts."""
    drained = np.zeros(kinds.count)
    for node in nodes:
        if node.usable or node.is_off:
            continue
        gpus = {kind: count - node.gpus_free.get(kind, count) for kind, count in node.gpus.items()}
        # Only jobs without GPUs count by their CPUs.
        cpus = 0 if any(gpus.values()) else node.cpus - node.cpus_free
        drained += _units_of(node, kinds, cpus, gpus)
    share: Floats = 1.0 - np.minimum(1.0, drained / np.maximum(used, 1.0))
    return share


def expected_demand(
    arrivals: Sequence[PastArrival],
    queued: ArrivalHistory,
    kinds: ResourceKinds,
    signals: SignalColumns,
    now_s: float,
) -> ArrivalDemand:
    """Return how many CPUs and GPUs jobs that are not submitted yet are expected to need.

    Args:
        arrivals: jobs that have ended, in order of submission.
        queued: jobs that are in the queue. Jobs that run long or are deferred have often not ended yet.
            Without the queue, too few of these jobs would be expected. Queued jobs have no effect if no job
            has ended yet.
        kinds: kinds of resources.
        signals: forecasts of the signals, which define the time slots.
        now_s: Unix seconds.
    """
    if not arrivals:
        unknown = np.zeros((kinds.count, signals.slots))
        return ArrivalDemand(unknown, unknown, np.full(kinds.count, np.nan))
    requests = [parse_tres(one.allocated) for one in arrivals]
    hardware = [
        kinds.row(one.partition, request.gpus or 0, request.gpu_kind or "")
        for one, request in zip(arrivals, requests, strict=True)
    ]
    history = ArrivalHistory(
        arrivals[0].submit_s,
        np.append([one.submit_s for one in arrivals], queued.submit_s),
        np.append([one.elapsed_s for one in arrivals], queued.time_s),
        np.append([float(one.gpus or one.cpus or 0) for one in requests], queued.units),
        np.append(np.array(hardware, np.int64), queued.hardware),
        np.append([one.slack_s for one in arrivals], queued.slack_s),
        np.append(np.ones(len(arrivals)), queued.count),
    )
    return arrival_demand(history, now_s, signals.step_s, signals.slots, kinds.count, utc_offsets)


def total_units(nodes: Sequence[NodeResources], kinds: ResourceKinds) -> Floats:
    """Return how many units of each kind of resource the nodes have.

    The kinds of resources are CPUs, GPUs of any type, and GPUs of one type. Nodes count if they are up or
    powered down.
    """
    total = np.zeros(kinds.count)
    for node in nodes:
        if not (node.usable or node.is_off):
            continue
        total += _units_of(node, kinds, node.cpus, node.gpus)
    return total


def _units_of(node: NodeResources, kinds: ResourceKinds, cpus: int, gpus: Mapping[str, int]) -> Floats:
    """Return CPUs and GPUs of a node as units of each kind of resource."""
    units = np.zeros(kinds.count)
    first = _pool_of(node, kinds.pools) * len(kinds.names)
    for at, name in enumerate(kinds.names):
        gpu_count = sum(gpus.values()) if name == _ANY_GPU else gpus.get(name, 0)
        units[first + at] = cpus if name == _CPUS else gpu_count
    return units


def _pool_of(node: NodeResources, pools: Mapping[str, int]) -> int:
    return min((pools[name] for name in node.partitions), default=0)
