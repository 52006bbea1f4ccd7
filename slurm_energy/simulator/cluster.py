"""Nodes of the simulated cluster: their kinds, power states and free units (GPUs, cores or whole nodes)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from slurm_energy.scheduling.queue import Bools, Ints

Allocation = list[tuple[int, int]]
"""Units of nodes that a job holds: (node, units) pairs."""


@dataclass(frozen=True, slots=True)
class NodeKind:
    """Properties of the nodes of one kind in the simulated cluster.

    Attributes:
        name: name of the kind.
        nodes: number of nodes.
        units: number of units per node. Jobs allocate units: GPUs, cores, or whole nodes. The number is 1 if
            jobs allocate whole nodes.
        idle_watts: power of a node that is on and idle.
        unit_idle_watts: idle power of one unit, a part of `idle_watts`. While a job holds the unit, this
            power counts as power of the job.
        unit_min_watts: lowest power limit that can be set for a unit. 0 means that units have no power
            limit.
        off_watts: power of a node that is off.
        boot_s, boot_watts: duration in seconds and power of booting.
        shutdown_s, shutdown_watts: duration in seconds and power of shutting down.
        failures_per_s: failure rate of one node.
        repair_s: seconds from a failure to the end of the repair.
        memory_gib: memory of a node in GiB; infinity means no limit.
    """

    name: str
    nodes: int
    units: int
    idle_watts: float = 0.0
    unit_idle_watts: float = 0.0
    off_watts: float = 0.0
    boot_s: float = 0.0
    boot_watts: float = 0.0
    shutdown_s: float = 0.0
    shutdown_watts: float = 0.0
    failures_per_s: float = 0.0
    repair_s: float = 3600.0
    unit_min_watts: float = 0.0
    memory_gib: float = math.inf

    def watts(self, state: NodePowerState) -> float:
        """Return the watts that a node of this kind draws in a power state while no job runs on it."""
        powers = {
            NodePowerState.ON: self.idle_watts,
            NodePowerState.OFF: self.off_watts,
            NodePowerState.BOOTING: self.boot_watts,
            NodePowerState.STOPPING: self.shutdown_watts,
            NodePowerState.DOWN: 0.0,
        }
        return powers[state]


class NodePowerState(IntEnum):
    """Power state of a node."""

    ON = 0
    OFF = 1
    BOOTING = 2
    STOPPING = 3
    DOWN = 4


_USABLE = (NodePowerState.ON, NodePowerState.OFF, NodePowerState.BOOTING)
"""Power states of nodes whose units jobs can get. Nodes that are off are booted for the jobs."""


class Cluster:
    """Nodes of the simulated cluster and their free units (GPUs or cores).

    The nodes are numbered consecutively: all nodes of the first kind, then those of the next kind.

    Attributes:
        kinds: the k kinds of nodes.
        free: number of free units on usable nodes, by kind, shape (k,). Nodes that are off are usable.
        total: number of all units by kind, shape (k,).
        watts: power that all nodes would draw in their current states without jobs.
        version: number of times that free units or power states have changed so far.
    """

    def __init__(self, kinds: Sequence[NodeKind]) -> None:
        self.kinds = tuple(kinds)
        self.kind_of = [index for index, kind in enumerate(kinds) for _ in range(kind.nodes)]
        self.node_free = [kinds[kind].units for kind in self.kind_of]
        self.state = [NodePowerState.ON] * len(self.kind_of)
        self.total: Ints = np.array([kind.nodes * kind.units for kind in kinds], np.int64)
        self.free: Ints = self.total.copy()
        self.watts = float(sum(kind.nodes * kind.idle_watts for kind in kinds))
        self.version = 0
        self._is_on: Bools = np.ones(len(self.kind_of), np.bool_)
        self._is_usable: Bools = np.ones(len(self.kind_of), np.bool_)
        self._nodes: list[slice] = []
        for kind in kinds:
            start = self._nodes[-1].stop if self._nodes else 0
            self._nodes.append(slice(start, start + kind.nodes))
        self._state_watts = [{state: kind.watts(state) for state in NodePowerState} for kind in kinds]

    def allocate(self, kind: int, units: int) -> Allocation | None:
        """Allocate the units that `plan` chooses and return the allocation.

        Args:
            kind: index of the kind of nodes in `kinds`.
            units: number of units (GPUs, cores or whole nodes) that the job needs.

        Returns:
            The allocation; None if there are too few free units.
        """
        planned = self.plan(kind, units)
        if planned is not None:
            self.take(planned)
        return planned

    def plan(self, kind: int, units: int) -> Allocation | None:
        """Choose free units on as few nodes as possible, without allocating them.

        If some nodes can hold the whole job, choose the fullest of them. Otherwise fill the emptiest nodes
        first. Nodes that are on are preferred to nodes that are off.

        Args:
            kind: index of the kind of nodes in `kinds`.
            units: number of units (GPUs, cores or whole nodes) that the job needs.

        Returns:
            The allocation; None if there are too few free units.
        """
        if units > self.free[kind]:
            return None
        nodes = self._nodes[kind]
        free = np.array(self.node_free[nodes], np.int64)
        rows = np.flatnonzero((free > 0) & self._is_usable[nodes])
        free = free[rows]
        # Nodes that are off come after all nodes that are on, whatever the number of free units.
        penalty = np.where(self._is_on[nodes][rows], 0, self.kinds[kind].units + 1)
        holds_all = free >= units
        if holds_all.any():
            best = np.argmin(np.where(holds_all, penalty + free, np.iinfo(np.int64).max))
            return [(nodes.start + int(rows[best]), units)]
        order = np.argsort(penalty - free, kind="stable")
        before = np.cumsum(free[order]) - free[order]
        order = order[before < units]
        parts = np.minimum(free[order], units - before[: len(order)])
        return list(zip((nodes.start + rows[order]).tolist(), parts.tolist(), strict=True))

    def take(self, allocation: Allocation) -> None:
        """Take the units of an allocation from the free units of the cluster.

        The units must be free, and the nodes must be usable.
        """
        self.version += 1
        for node, count in allocation:
            self.node_free[node] -= count
            self.free[self.kind_of[node]] -= count

    def release(self, allocation: Allocation) -> None:
        """Mark the units (e.g. GPUs) of an allocation as free again."""
        self.version += 1
        for node, count in allocation:
            self.node_free[node] += count
            if self.usable(node):
                self.free[self.kind_of[node]] += count

    @property
    def usable_nodes(self) -> Bools:
        """Mask of the nodes on which jobs can get units, as determined by `usable`.

        A unit is a GPU, a core or a node. Callers must not change the array.
        """
        return self._is_usable

    def usable(self, node: int) -> bool:
        """Return whether jobs can get units (GPUs, cores or the whole node) of a node.

        This is the case if the node is on, booting, or off but can be booted.
        """
        return self.state[node] in _USABLE

    def node_watts(self, node: int, state: NodePowerState) -> float:
        """Return the watts that a node draws in a power state while no job runs on it."""
        return self._state_watts[self.kind_of[node]][state]

    def is_free(self, node: int) -> bool:
        """Return whether no job holds a unit of the node `node`."""
        return self.node_free[node] == self.kinds[self.kind_of[node]].units

    def change(self, node: int, state: NodePowerState) -> None:
        """Change the power state of a node in the simulated cluster.

        The number of free units (GPUs, cores or nodes) and the power of the cluster are updated.
        """
        self.version += 1
        kind = self.kind_of[node]
        was_usable = self.usable(node)
        self.watts += self.node_watts(node, state) - self.node_watts(node, self.state[node])
        self.state[node] = state
        is_usable = self.usable(node)
        self._is_on[node], self._is_usable[node] = state == NodePowerState.ON, is_usable
        if was_usable != is_usable:
            self.free[kind] += self.node_free[node] if is_usable else -self.node_free[node]
