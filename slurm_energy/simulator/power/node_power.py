"""Power states of nodes: shutdown of idle nodes, boot for jobs, failure and repair."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from slurm_energy.simulator.cluster import Allocation, Cluster, NodeKind, NodePowerState
from slurm_energy.simulator.event_queue import EventKind, EventQueue
from slurm_energy.simulator.schedule_settings import ScheduleSettings

Floats = NDArray[np.float64]
PowerStep = tuple[float, float]
"""A time, and the change of power in watts at that time."""

_NEXT_STATE = {
    NodePowerState.BOOTING: NodePowerState.ON,
    NodePowerState.STOPPING: NodePowerState.OFF,
    NodePowerState.DOWN: NodePowerState.ON,
}


class NodePower:
    """State machine of the nodes' power: shutdown of idle nodes, boot for jobs, and random failures.

    Args:
        cluster: the nodes of the cluster.
        settings: idle time after which nodes are switched off, and the seed of random failures.
        events: the simulated clock, and the queue for events of nodes.
        interrupt_node: function called with the number of a node that fails. The function interrupts the jobs
            on the node.
        may_change: function that returns whether the budget permits the given changes of power. The function
            is called before a shutdown and before a boot ahead of demand. The admission of a job already
            covers a boot for that job.
        request_pass: function called after each event of a node, so that the scheduler examines the queue.
    """

    def __init__(
        self,
        cluster: Cluster,
        settings: ScheduleSettings,
        events: EventQueue,
        *,
        interrupt_node: Callable[[int], None],
        may_change: Callable[[Sequence[PowerStep]], bool],
        request_pass: Callable[[], None],
    ) -> None:
        self._cluster = cluster
        self._idle_off_s = settings.idle_off_s
        self.switches_off = settings.idle_off_s is not None or settings.power_saving is not None
        self._events = events
        self._interrupt_node = interrupt_node
        self._may_change = may_change
        self._request_pass = request_pass
        self._random = np.random.default_rng(settings.seed)
        self._free_since: dict[int, float] = {}
        self._on_since: dict[int, float] = {}
        self._settled_s: dict[int, float] = {}
        self._deferred: set[int] = set()
        self._steps: dict[float, float] | None = None

    def times_s(self, first: int, count: int) -> tuple[Floats, Floats]:
        """Return how long nodes have been idle, and how long ago they booted, in seconds.

        The result covers `count` nodes, starting with node `first`.

        Returns:
            Two arrays. The first one is the time for which each node has been on without a job; 0 if the
            node is off or busy. The second one is the time since the node's last boot; infinity if the node
            has not booted.
        """
        idle_s, on_s = np.zeros(count), np.full(count, math.inf)
        for times, since in ((idle_s, self._free_since), (on_s, self._on_since)):
            for node, since_s in since.items():
                if first <= node < first + count:
                    times[node - first] = self._events.now_s - since_s
        return idle_s, on_s

    def is_idle(self, node: int) -> bool:
        """Return whether a node is on and none of its units is in use by a job."""
        return node in self._free_since and self._cluster.state[node] == NodePowerState.ON

    def shut_down(self, node: int) -> None:
        """Shut down an idle node, as soon as the budget permits the shutdown."""
        self._deferred.discard(node)
        if not self.is_idle(node):
            return
        if not self._may_change(
            self._steps_through(node, NodePowerState.STOPPING, self._kind(node).shutdown_s)
        ):
            self._deferred.add(node)
            return
        del self._free_since[node]
        self._change(node, NodePowerState.STOPPING, self._kind(node).shutdown_s, self._stopped)

    def boot(self, node: int) -> None:
        """Boot a simulated node that is off, before a job needs it, if the power budget permits it."""
        boot_s = self._kind(node).boot_s
        if self._cluster.state[node] == NodePowerState.OFF and self._may_change(
            self._steps_through(node, NodePowerState.BOOTING, boot_s)
        ):
            self._change(node, NodePowerState.BOOTING, boot_s, self._turn_on)

    def steps(self) -> Mapping[float, float]:
        """Return the future changes of power of all nodes that boot, shut down or are repaired.

        Returns:
            Change in watts by time in seconds, unordered.
        """
        if self._steps is None:
            self._steps = {}
            for node, time_s in self._settled_s.items():
                state = self._cluster.state[node]
                watts = self._cluster.node_watts(node, _NEXT_STATE[state]) - self._cluster.node_watts(
                    node, state
                )
                self._steps[time_s] = self._steps.get(time_s, 0.0) + watts
        return self._steps

    def plan_wake(self, allocation: Allocation) -> tuple[float, list[PowerStep]]:
        """Return when all allocated nodes would be on if the nodes that are off were booted now.

        Returns:
            Time in seconds, and the changes of power until this time.
        """
        now_s = ready_s = self._events.now_s
        steps: list[PowerStep] = []
        for node, _ in allocation:
            state = self._cluster.state[node]
            if state == NodePowerState.OFF:
                steps += self._steps_through(node, NodePowerState.BOOTING, self._kind(node).boot_s)
                ready_s = max(ready_s, now_s + self._kind(node).boot_s)
            elif state == NodePowerState.BOOTING:
                ready_s = max(ready_s, self._settled_s[node])
        return ready_s, steps

    def _steps_through(self, node: int, state: NodePowerState, length_s: float) -> list[PowerStep]:
        """Return the two changes of power that follow if a node enters a transitional state now.

        The first change occurs now, and the second at the end of the state. A transitional state is, for
        example, a shutdown.

        Args:
            node: number of the node.
            state: the transitional state.
            length_s: seconds that the state lasts.
        """
        now_s, watts = self._events.now_s, self._cluster.node_watts(node, state)
        return [
            (now_s, watts - self._cluster.node_watts(node, self._cluster.state[node])),
            (now_s + length_s, self._cluster.node_watts(node, _NEXT_STATE[state]) - watts),
        ]

    def begin(self) -> None:
        """Schedule the first shutdowns and failures at the start of the simulation."""
        for node in range(len(self._cluster.kind_of)):
            self._idle(node)
            self._plan_failure(node)

    def wake(self, allocation: Allocation) -> float:
        """Boot the nodes of an allocation that are off. Return the time at which all the nodes are on."""
        for node, _ in allocation:
            self._free_since.pop(node, None)
            if self._cluster.state[node] == NodePowerState.OFF:
                self._change(node, NodePowerState.BOOTING, self._kind(node).boot_s, self._turn_on)
        booting = [node for node, _ in allocation if self._cluster.state[node] == NodePowerState.BOOTING]
        return max((self._settled_s[node] for node in booting), default=self._events.now_s)

    def retry_shutdowns(self) -> None:
        """Shut down idle nodes whose shutdown the power budget prevented earlier."""
        for node in sorted(self._deferred):
            self.shut_down(node)

    def _at(self, time_s: float, change: Callable[[int], None], node: int) -> None:
        """Schedule the call `change(node)` at the simulated time `time_s`."""
        self._events.add(time_s, EventKind.NODE, self._run_change, (change, node))

    def _run_change(self, event: tuple[Callable[[int], None], int]) -> None:
        change, node = event
        change(node)
        self._request_pass()

    def _kind(self, node: int) -> NodeKind:
        return self._cluster.kinds[self._cluster.kind_of[node]]

    def _change(self, node: int, state: NodePowerState, length_s: float, then: Callable[[int], None]) -> None:
        """Put a node into a transitional state, for example booting.

        Args:
            node: number of the node.
            state: the transitional state.
            length_s: seconds that the state lasts.
            then: function called with the node number at the end of the state.
        """
        self._cluster.change(node, state)
        self._settled_s[node] = self._events.now_s + length_s
        self._steps = None
        self._at(self._settled_s[node], then, node)

    def _settle(self, node: int, state: NodePowerState) -> None:
        """Put a node into a lasting power state, such as on or off."""
        self._cluster.change(node, state)
        del self._settled_s[node]
        self._steps = None

    def released(self, allocation: Allocation) -> None:
        """React to the end of a job: schedule the shutdown of its nodes if they are idle now."""
        for node, _ in allocation:
            self._idle(node)

    def _idle(self, node: int) -> None:
        if not self.switches_off or not self._cluster.is_free(node):
            return
        self._free_since[node] = self._events.now_s
        if self._idle_off_s is not None:
            self._at(self._events.now_s + self._idle_off_s, self._turn_off, node)

    def _turn_off(self, node: int) -> None:
        """Shut down a node that has been idle long enough.

        Do nothing if a job has used the node in the meantime.
        """
        assert self._idle_off_s is not None
        since_s = self._free_since.get(node)
        if since_s is not None and self._events.now_s >= since_s + self._idle_off_s:
            self.shut_down(node)

    def _stopped(self, node: int) -> None:
        if self._cluster.state[node] == NodePowerState.STOPPING:
            self._settle(node, NodePowerState.OFF)

    def _turn_on(self, node: int) -> None:
        if self._cluster.state[node] == NodePowerState.BOOTING:
            self._settle(node, NodePowerState.ON)
            self._on_since[node] = self._events.now_s
            self._idle(node)

    def _plan_failure(self, node: int) -> None:
        rate = self._kind(node).failures_per_s
        if rate > 0:
            self._at(self._events.now_s + self._random.exponential(1 / rate), self._fail, node)

    def _fail(self, node: int) -> None:
        """Let a node fail: interrupt its jobs and start the repair.

        If the node is not on, schedule its next failure.
        """
        if self._cluster.state[node] != NodePowerState.ON:
            self._plan_failure(node)
            return
        self._interrupt_node(node)
        self._free_since.pop(node, None)
        self._change(node, NodePowerState.DOWN, self._kind(node).repair_s, self._repaired)

    def _repaired(self, node: int) -> None:
        self._settle(node, NodePowerState.ON)
        self._idle(node)
        self._plan_failure(node)
