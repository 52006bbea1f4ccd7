"""Committed power: the highest future power of the cluster if no further job starts."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from slurm_energy.scheduling.queue import Floats, Ints
from slurm_energy.simulator.cluster import Cluster
from slurm_energy.simulator.event_queue import EventQueue
from slurm_energy.simulator.node_power import NodePower, PowerStep
from slurm_energy.simulator.running_jobs import RunningJobs


class PowerCommitment:
    """The highest future power of the cluster if no further job starts (committed power).

    It takes into account the running jobs and the nodes that boot, shut down or are repaired. Current power
    is no bound for admission: a booting node draws `boot_watts` first and `idle_watts` later, a job on it
    adds its own power only once all its nodes are on, and a failed node draws power again after its repair.
    Ends of jobs do not lower the committed power, because jobs may end later than expected.

    Args:
        cluster: the nodes.
        power: power states of the nodes.
        runs: the running jobs.
        events: the simulated clock.
    """

    def __init__(self, cluster: Cluster, power: NodePower, runs: RunningJobs, events: EventQueue) -> None:
        self._cluster = cluster
        self._power = power
        self._runs = runs
        self._events = events

    @property
    def switches_off(self) -> bool:
        """Whether idle nodes are switched off, so that nodes may have to boot for a job."""
        return self._power.switches_off

    def watts(self) -> float:
        """Return the committed power in watts."""
        return self._peak_watts([])

    def added_watts(self, kinds: Ints, units: Ints, job_watts: Floats) -> Floats:
        """Return by how many watts the committed power grows if a job starts now, for each of n jobs alone.

        Args:
            kinds: number of the kind of nodes of each job, shape (n,).
            units: units that each job needs; they must be free. Shape (n,).
            job_watts: power that each job adds once all its nodes are on, shape (n,).

        Returns:
            Shape (n,).
        """
        added_watts = np.maximum(0.0, job_watts)
        if not self._power.switches_off:
            return added_watts
        committed_watts = self.watts()
        wakes: dict[tuple[int, int], tuple[float, list[PowerStep]]] = {}
        for row, request in enumerate(zip(kinds.tolist(), units.tolist(), strict=True)):
            if request not in wakes:
                allocation = self._cluster.plan(*request)
                assert allocation is not None
                wakes[request] = self._power.plan_wake(allocation)
            ready_s, steps = wakes[request]
            peak_watts = self._peak_watts([*steps, (ready_s, float(added_watts[row]))])
            added_watts[row] = peak_watts - committed_watts
        return added_watts

    def _peak_watts(self, further: Iterable[PowerStep]) -> float:
        now_s = self._events.now_s
        level_watts = self._cluster.watts + self._runs.watts + self._runs.lent_watts
        waiting = [
            (run.ready_s, max(0.0, run.extra_watts)) for run in self._runs.running.values() if not run.working
        ]
        steps = [*self._power.steps(), *waiting, *further]
        by_time: dict[float, float] = {now_s: 0.0}
        for time_s, watts in steps:
            by_time[time_s] = by_time.get(time_s, 0.0) + watts
        peak_watts = -float("inf")
        for time_s in sorted(by_time):
            level_watts += by_time[time_s]
            peak_watts = max(peak_watts, level_watts)
        return peak_watts
