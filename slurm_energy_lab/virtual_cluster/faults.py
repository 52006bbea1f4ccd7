"""Random faults of a virtual cluster under a power budget, determined by a seed."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from slurm_energy.budget.messages import NodePoll
from slurm_energy_lab.virtual_cluster.budgeted_cluster import BudgetedCluster
from slurm_energy_lab.virtual_cluster.workload import ClusterJob


class FaultKind(StrEnum):
    """Kinds of faults that can be injected into the virtual cluster."""

    CONTROLLER = "kill -9 of the controller"
    AGENTS = "kill -9 of agents"
    NETWORK = "no network between nodes and controller"
    SENSOR_ZERO = "power sensors read 0"
    SENSOR_TENFOLD = "power sensors read ten times the power"
    SENSOR_STUCK = "power sensors keep their value"


_SENSORS = (FaultKind.SENSOR_ZERO, FaultKind.SENSOR_TENFOLD, FaultKind.SENSOR_STUCK)
_DURATION_S = {FaultKind.AGENTS: (2.0, 6.0)}
"""The service manager restarts a killed agent. Only the agent can lower the limits of its node."""
_LONG_S = (5.0, 75.0)
_NODES = {FaultKind.CONTROLLER: 0, FaultKind.AGENTS: 3, FaultKind.NETWORK: 3}


@dataclass(frozen=True, slots=True)
class ClusterFault:
    """Fault that lasts for some time.

    Attributes:
        kind: kind of the fault, for example of an agent or of the network.
        begin_s, end_s: begin and end of the fault, in seconds of model time.
        nodes: names of the affected nodes.
    """

    kind: FaultKind
    begin_s: float
    end_s: float
    nodes: tuple[str, ...]


def draw_faults(seed: int, names: Sequence[str], times_s: Sequence[float]) -> list[ClusterFault]:
    """Return a random fault near each of the given times. A fault ends before the next fault begins.

    Args:
        seed: seed of the random numbers.
        names: names of the nodes.
        times_s: model times in ascending order.
    """
    numbers = random.Random(f"faults/{seed}")
    kinds = list(FaultKind)
    numbers.shuffle(kinds)
    faults = []
    for index, time_s in enumerate(times_s):
        kind = kinds[index % len(kinds)]
        begin_s = round(time_s - numbers.uniform(0.0, 12.0), 1)
        limit_s = times_s[index + 1] - 13.0 if index + 1 < len(times_s) else float("inf")
        end_s = round(min(limit_s, begin_s + numbers.uniform(*_DURATION_S.get(kind, _LONG_S))), 1)
        nodes = tuple(sorted(numbers.sample(list(names), _NODES.get(kind, 1))))
        faults.append(ClusterFault(kind, begin_s, end_s, nodes))
    return faults


class FaultyCluster:
    """Power manager of a virtual cluster that adds faults, for tests.

    All calls are passed on to another power manager.

    Args:
        manager: the power manager to which calls are passed.
        faults: the faults, in the order of their begins.
        on_cycle: function that is called after each tick with the current time.
    """

    def __init__(
        self,
        manager: BudgetedCluster,
        faults: Sequence[ClusterFault],
        on_cycle: Callable[[float], None] = lambda _: None,
    ) -> None:
        self._manager = manager
        self._pending = sorted(faults, key=lambda fault: fault.begin_s)
        self._active: list[ClusterFault] = []
        self._frozen: dict[str, Mapping[str, float | None]] = {}
        self._on_cycle = on_cycle
        manager.distort = self._distort

    def admits(self, job: ClusterJob, nodes: Sequence[str]) -> bool:
        """Return whether the job may start on these nodes, as decided by the wrapped power manager."""
        return self._manager.admits(job, nodes)

    def job_starts(self, job: ClusterJob, nodes: Sequence[str]) -> None:
        """Start a job on the virtual cluster: run the prolog on each of its nodes."""
        self._manager.job_starts(job, nodes)

    def job_ends(self, job: ClusterJob, nodes: Sequence[str]) -> None:
        """End the job on its nodes: run the epilog of each node."""
        self._manager.job_ends(job, nodes)

    def tick(self, now_s: float) -> None:
        """Begin and end the faults that are due at `now_s`, then let the manager act."""
        for fault in [fault for fault in self._active if now_s >= fault.end_s]:
            self._active.remove(fault)
            self._end(fault, now_s)
        while self._pending and now_s >= self._pending[0].begin_s:
            fault = self._pending.pop(0)
            self._active.append(fault)
            self._begin(fault)
        self._manager.tick(now_s)
        self._on_cycle(now_s)

    def _begin(self, fault: ClusterFault) -> None:
        if fault.kind is FaultKind.CONTROLLER:
            self._manager.controller.kill()
        for name in fault.nodes:
            if fault.kind is FaultKind.AGENTS:
                self._manager.kill_agent(name)
            elif fault.kind is FaultKind.NETWORK:
                self._manager.links[name].is_connected = False

    def _end(self, fault: ClusterFault, now_s: float) -> None:
        if fault.kind is FaultKind.CONTROLLER:
            self._manager.controller.start(now_s)
        for name in fault.nodes:
            self._frozen.pop(name, None)
            if fault.kind is FaultKind.AGENTS:
                self._manager.start_agent(name)
            elif fault.kind is FaultKind.NETWORK:
                self._manager.links[name].is_connected = True

    def _distort(self, poll: NodePoll) -> NodePoll:
        for fault in self._active:
            if fault.kind in _SENSORS and poll.node in fault.nodes:
                return self._with_fault(poll, fault.kind)
        return poll

    def _with_fault(self, poll: NodePoll, kind: FaultKind) -> NodePoll:
        """Return the report that a node with faulty sensors would send to the controller.

        Args:
            poll: report with the correct values.
            kind: kind of the fault: sensors that are stuck, that show 0, or that show ten times the true
                value.
        """
        values = {device.name: device.watts for device in poll.devices} | {"node": poll.node_watts}
        if kind is FaultKind.SENSOR_STUCK:
            values = dict(self._frozen.setdefault(poll.node, values))
        else:
            factor = 0.0 if kind is FaultKind.SENSOR_ZERO else 10.0
            values = {name: None if watts is None else factor * watts for name, watts in values.items()}
        devices = tuple(dataclasses.replace(item, watts=values.get(item.name)) for item in poll.devices)
        return dataclasses.replace(poll, devices=devices, node_watts=values["node"])
