"""The machines of a simulation: kinds of nodes, which are free, on or off. Knows no jobs' wishes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from slurm_energy.scheduling.queue import Ints

Allocation = list[tuple[int, int]]
"""(node, units) pairs."""


@dataclass(frozen=True, slots=True)
class NodeKind:
    """Nodes of one kind.

    Attributes:
        name: for people.
        nodes: how many.
        units: GPUs (or cores) of a node that jobs can have; 1 where whole nodes are given.
        idle_watts: power of a node that is on, everything in it idle.
        unit_idle_watts: part of it that belongs to one unit and is counted in the job's power instead
            while a job has the unit.
        off_watts: power of a node that is off.
        boot_s, boot_watts, shutdown_s, shutdown_watts: time and power of going on and off.
        failures_per_s: rate of failures of one node.
        repair_s: time after which a failed node is back.
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

    def watts(self, state: ClusterState) -> float:
        """Return the power of a node without jobs in a state."""
        powers = {
            ClusterState.ON: self.idle_watts,
            ClusterState.OFF: self.off_watts,
            ClusterState.BOOTING: self.boot_watts,
            ClusterState.STOPPING: self.shutdown_watts,
            ClusterState.DOWN: 0.0,
        }
        return powers[state]


class ClusterState(IntEnum):
    """What a node does."""

    ON = 0
    OFF = 1
    BOOTING = 2
    STOPPING = 3
    DOWN = 4


class Cluster:
    """Nodes in a row, kind after kind, and what is free on them.

    Attributes:
        kinds: the kinds.
        free: free units by kind on nodes that can be used, those that are off included. Shape (k,).
        total: units by kind. Shape (k,).
        watts: power of all nodes without jobs.
    """

    def __init__(self, kinds: Sequence[NodeKind]) -> None:
        self.kinds = tuple(kinds)
        self.kind_of = [index for index, kind in enumerate(kinds) for _ in range(kind.nodes)]
        self.node_free = [kinds[kind].units for kind in self.kind_of]
        self.state = [ClusterState.ON] * len(self.kind_of)
        self.total: Ints = np.array([kind.nodes * kind.units for kind in kinds], np.int64)
        self.free: Ints = self.total.copy()
        self.watts = float(sum(kind.nodes * kind.idle_watts for kind in kinds))
        self._nodes: list[range] = []
        for kind in kinds:
            start = self._nodes[-1].stop if self._nodes else 0
            self._nodes.append(range(start, start + kind.nodes))

    def allocate(self, kind: int, units: int) -> Allocation | None:
        """Take the units that `plan` chooses; None if there are not enough."""
        planned = self.plan(kind, units)
        if planned is not None:
            self.take(planned)
        return planned

    def plan(self, kind: int, units: int) -> Allocation | None:
        """Choose units of a kind, on as few nodes as possible; None if there are not enough.

        One node that holds all is taken if there is one, the fullest such node; else the emptiest nodes
        first. Nodes that are on go before nodes that are off.
        """
        if units > self.free[kind]:
            return None
        usable = [n for n in self._nodes[kind] if self.node_free[n] and self.usable(n)]
        whole = [n for n in usable if self.node_free[n] >= units]
        if whole:
            best = min(whole, key=lambda n: (self.state[n] != ClusterState.ON, self.node_free[n], n))
            taken = [(best, units)]
        else:
            taken = []
            for node in sorted(
                usable, key=lambda n: (self.state[n] != ClusterState.ON, -self.node_free[n], n)
            ):
                part = min(units - sum(count for _, count in taken), self.node_free[node])
                if part:
                    taken.append((node, part))
        return taken

    def take(self, allocation: Allocation) -> None:
        """Take free units of usable nodes."""
        for node, count in allocation:
            self.node_free[node] -= count
            self.free[self.kind_of[node]] -= count

    def release(self, allocation: Allocation) -> None:
        """Give units back."""
        for node, count in allocation:
            self.node_free[node] += count
            if self.usable(node):
                self.free[self.kind_of[node]] += count

    def usable(self, node: int) -> bool:
        """Return whether jobs may get this node: it is on, off (it can be booted) or booting."""
        return self.state[node] in (ClusterState.ON, ClusterState.OFF, ClusterState.BOOTING)

    def is_free(self, node: int) -> bool:
        """Return whether no job has anything of a node."""
        return self.node_free[node] == self.kinds[self.kind_of[node]].units

    def change(self, node: int, state: ClusterState) -> None:
        """Bring a node into another state; what is free and the power follow."""
        kind = self.kind_of[node]
        before = self.usable(node)
        self.watts += self.kinds[kind].watts(state) - self.kinds[kind].watts(self.state[node])
        self.state[node] = state
        after = self.usable(node)
        if before != after:
            self.free[kind] += self.node_free[node] if after else -self.node_free[node]
