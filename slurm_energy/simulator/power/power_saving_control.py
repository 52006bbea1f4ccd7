"""Power saving by forecast in a simulation: the rule of `power_saving/` on simulated nodes and jobs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import numpy as np

from slurm_energy.power_saving.demand_forecast import DemandHistory, Ints, horizons, known_change
from slurm_energy.power_saving.expected_starts import KnownJobs, expected_changes
from slurm_energy.power_saving.node_energy import NodeEnergy
from slurm_energy.power_saving.power_down_rule import (
    NodeActivity,
    PoolNodes,
    PoolPlan,
    PowerSavingRules,
    forecast_points,
    plan_pool,
    rules_without_history,
)
from slurm_energy.simulator.cluster import Cluster, NodeKind, NodePowerState
from slurm_energy.simulator.event_queue import EventKind, EventQueue
from slurm_energy.simulator.power.node_power import NodePower
from slurm_energy.simulator.running_jobs import RunningJobs
from slurm_energy.simulator.schedule_settings import PowerSaving
from slurm_energy.simulator.workloads.workload import Workload

_LEARN_S: Final = 3600.0
_ACTIVITIES: Final = {
    NodePowerState.OFF: NodeActivity.OFF,
    NodePowerState.BOOTING: NodeActivity.BOOTING,
    NodePowerState.STOPPING: NodeActivity.STOPPING,
    NodePowerState.DOWN: NodeActivity.UNAVAILABLE,
}
_ACTIVITY_OF_STATE: Final = np.array(
    [int(_ACTIVITIES.get(state, NodeActivity.IDLE)) for state in NodePowerState], np.int64
)


class PowerSavingControl:
    """Control loop that periodically shuts idle nodes down and boots nodes ahead of demand.

    The forecast learns from the jobs that have arrived since the start of the simulation. Each kind of nodes
    is a pool.

    Args:
        saving: parameters of the rule.
        workload: the jobs.
        cluster: the nodes of the cluster.
        power: power states of the nodes.
        runs: the running jobs.
        pending: rows of the pending jobs in the workload. The collection changes during the simulation.
        events: the simulated clock, and the queue for events.
    """

    def __init__(
        self,
        saving: PowerSaving,
        workload: Workload,
        cluster: Cluster,
        power: NodePower,
        runs: RunningJobs,
        pending: Mapping[int, None],
        events: EventQueue,
    ) -> None:
        self._saving, self._workload, self._cluster = saving, workload, cluster
        self._power, self._runs, self._pending, self._events = power, runs, pending, events
        first = workload.first[:-1]
        hardware = workload.hardware[first] if len(first) else np.zeros(0, np.int64)
        self._pools = []
        start = 0
        for number, kind in enumerate(cluster.kinds):
            rows = np.flatnonzero(hardware == number)
            self._pools.append(_SimulatedPool(saving, workload, kind, number, start, rows))
            start += kind.nodes

    def begin(self) -> None:
        """Start the control of power saving: schedule its first decision at the current time."""
        self._events.add(self._events.now_s, EventKind.CONTROL, self._decide, None)

    def _decide(self, _: None) -> None:
        for pool in self._pools:
            if pool.energy.saved_watts > 0 and (nodes := self._changeable(pool)) is not None:
                plan = self._plan(pool, nodes)
                for row in plan.down:
                    self._power.shut_down(pool.start + row)
                for row in plan.up:
                    self._power.boot(pool.start + row)
        next_s = self._events.now_s + self._saving.rules.cycle_s
        self._events.add(next_s, EventKind.CONTROL, self._decide, None)

    def _changeable(self, pool: _SimulatedPool) -> PoolNodes | None:
        """Return the state of the nodes of a pool, as input for the decision to power nodes down or up.

        A pool is the nodes of one kind. None is returned if no node of the pool can be shut down or booted
        now.
        """
        members = slice(pool.start, pool.start + pool.kind.nodes)
        free = np.array(self._cluster.node_free[members]) == pool.kind.units
        states = np.array(self._cluster.state[members])
        activity = np.where(free, _ACTIVITY_OF_STATE[states], int(NodeActivity.BUSY))
        idle_s, on_s = self._power.times_s(pool.start, pool.kind.nodes)
        may_stop = (activity == NodeActivity.IDLE) & (idle_s >= self._saving.rules.min_idle_s)
        if not np.any(may_stop) and not np.any(activity == NodeActivity.OFF):
            return None
        busy = np.flatnonzero(activity == NodeActivity.BUSY)
        free_units = sum(self._cluster.node_free[pool.start + row] for row in busy.tolist())
        return PoolNodes(
            activity=activity,
            protected=np.zeros(len(activity), np.bool_),
            idle_s=idle_s,
            on_s=on_s,
            free_share=free_units / pool.kind.units,
        )

    def _plan(self, pool: _SimulatedPool, nodes: PoolNodes) -> PoolPlan:
        now_s = self._events.now_s
        history = pool.learn(now_s)
        free_nodes = float(self._cluster.free[pool.number]) / pool.kind.units
        changes = expected_changes(self._known_jobs(pool), free_nodes)
        return plan_pool(
            nodes,
            pool.energy,
            history.forecast(now_s),
            known_change(pool.horizon_s, *changes),
            pool.rules(),
            reserve=pool.reserve,
        )

    def _known_jobs(self, pool: _SimulatedPool) -> KnownJobs:
        now_s, units = self._events.now_s, pool.kind.units
        workload = self._workload
        running = [run for run in self._runs.running.values() if workload.hardware[run.shape] == pool.number]
        shapes = [(job, int(workload.first[job])) for job in self._pending]
        waiting = [(job, shape) for job, shape in shapes if workload.hardware[shape] == pool.number]
        return KnownJobs(
            running_end_s=[run.start_s + run.limit_s - now_s for run in running],
            running_nodes=[float(workload.units[run.shape]) / units for run in running],
            pending_nodes=[float(workload.units[shape]) / units for _, shape in waiting],
            pending_time_s=[
                float(self._runs.left[job]) * workload.limit_s(job, shape) for job, shape in waiting
            ],
            pending_from_s=[0.0] * len(waiting),
        )


class _SimulatedPool:
    """Pool of the nodes of one kind, with the history of the demand for them."""

    def __init__(
        self,
        saving: PowerSaving,
        workload: Workload,
        kind: NodeKind,
        number: int,
        start: int,
        rows: Ints,
    ) -> None:
        self.kind, self.number, self.start = kind, number, start
        self.energy = NodeEnergy(
            *(kind.idle_watts, kind.off_watts, kind.boot_s, kind.boot_watts),
            *(kind.shutdown_s, kind.shutdown_watts),
        )
        self.horizon_s = horizons(forecast_points(self.energy, saving.rules))
        self.reserve = max(saving.reserve_nodes, math.ceil(saving.reserve_share * kind.nodes - 1e-9))
        self._rules = saving.rules
        self._history = DemandHistory(self.horizon_s)
        shapes = workload.first[rows]
        self._submit_s = workload.submit_s[rows]
        self._time_s = workload.predicted_time_s[shapes]
        self._nodes = workload.units[shapes] / kind.units
        self._learned_s = -math.inf

    def learn(self, now_s: float) -> DemandHistory:
        """Add the jobs that have arrived by now to the history, and return the history."""
        if now_s - self._learned_s >= _LEARN_S:
            self._learned_s = now_s
            self._history.extend(0.0, now_s, self._submit_s, self._time_s, self._nodes)
        return self._history

    def rules(self) -> PowerSavingRules:
        """Return the parameters of the rule that powers down idle nodes.

        The parameters are stricter while the recorded demand for the nodes covers only a short time.
        """
        return rules_without_history(self._rules, self.energy, self._history)
