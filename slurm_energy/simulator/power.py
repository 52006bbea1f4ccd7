"""Nodes going off when idle, on when needed, down when they fail."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from slurm_energy.simulator.cluster import Allocation, Cluster, State
from slurm_energy.simulator.settings import Settings

At = Callable[[float, Callable[[int], None], int], None]


class NodePower:
    """Power states of the nodes of a cluster.

    Args:
        cluster: the nodes.
        settings: when nodes go off, and the seed of failures.
        clock: returns the time.
        at: asks for a function to be called with a node at a time.
        lose: called with a node that fails, to end what runs there.
    """

    def __init__(
        self,
        cluster: Cluster,
        settings: Settings,
        clock: Callable[[], float],
        at: At,
        lose: Callable[[int], None],
    ) -> None:
        self._cluster = cluster
        self._idle_off_s = settings.idle_off_s
        self._clock = clock
        self._at = at
        self._lose = lose
        self._random = np.random.default_rng(settings.seed)
        self._free_since: dict[int, float] = {}
        self._on_at: dict[int, float] = {}

    def begin(self) -> None:
        """Plan what happens without jobs."""
        for node in range(len(self._cluster.kind_of)):
            self._idle(node)
            self._plan_failure(node)

    def wake(self, allocation: Allocation) -> float:
        """Boot the nodes of an allocation that are off; return when the last of all is on."""
        now_s = self._clock()
        for node, _ in allocation:
            self._free_since.pop(node, None)
            if self._cluster.state[node] == State.OFF:
                boot_s = self._cluster.kinds[self._cluster.kind_of[node]].boot_s
                self._cluster.change(node, State.BOOTING)
                self._on_at[node] = now_s + boot_s
                self._at(now_s + boot_s, self._turn_on, node)
        booting = [node for node, _ in allocation if self._cluster.state[node] == State.BOOTING]
        return max((self._on_at[node] for node in booting), default=now_s)

    def released(self, allocation: Allocation) -> None:
        """Note that a job has left nodes."""
        for node, _ in allocation:
            self._idle(node)

    def _idle(self, node: int) -> None:
        if self._idle_off_s is None or not self._cluster.is_free(node):
            return
        self._free_since[node] = self._clock()
        self._at(self._clock() + self._idle_off_s, self._turn_off, node)

    def _turn_off(self, node: int) -> None:
        since_s = self._free_since.get(node)
        assert self._idle_off_s is not None
        if since_s is None or self._clock() < since_s + self._idle_off_s:
            return  # it was used in between
        if self._cluster.state[node] == State.ON:
            self._cluster.change(node, State.STOPPING)
            shutdown_s = self._cluster.kinds[self._cluster.kind_of[node]].shutdown_s
            self._at(self._clock() + shutdown_s, self._stopped, node)

    def _stopped(self, node: int) -> None:
        if self._cluster.state[node] == State.STOPPING:
            self._cluster.change(node, State.OFF)

    def _turn_on(self, node: int) -> None:
        if self._cluster.state[node] == State.BOOTING:
            self._cluster.change(node, State.ON)
            self._idle(node)

    def _plan_failure(self, node: int) -> None:
        rate = self._cluster.kinds[self._cluster.kind_of[node]].failures_per_s
        if rate > 0:
            self._at(self._clock() + self._random.exponential(1 / rate), self._fail, node)

    def _fail(self, node: int) -> None:
        """A node that is on fails, and what runs there with it; one that is not on only lives on."""
        if self._cluster.state[node] != State.ON:
            self._plan_failure(node)
            return
        self._lose(node)
        self._free_since.pop(node, None)
        self._cluster.change(node, State.DOWN)
        repair_s = self._cluster.kinds[self._cluster.kind_of[node]].repair_s
        self._at(self._clock() + repair_s, self._repaired, node)

    def _repaired(self, node: int) -> None:
        self._cluster.change(node, State.ON)
        self._idle(node)
        self._plan_failure(node)
