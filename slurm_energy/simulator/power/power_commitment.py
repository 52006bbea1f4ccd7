"""Committed power: the highest future power of the cluster if no further job starts."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from slurm_energy.scheduling.queue import Floats, Ints
from slurm_energy.simulator.cluster import Cluster
from slurm_energy.simulator.event_queue import EventQueue
from slurm_energy.simulator.power.node_power import NodePower, PowerStep
from slurm_energy.simulator.running_jobs import RunningJobs


class PowerCommitment:
    """The highest future power of the cluster if no further job starts (committed power).

    Committed power takes into account the running jobs and the nodes that boot, shut down or are repaired.
    Current power would be too low as a bound for admission, for three reasons. A booting node draws
    `boot_watts` first and `idle_watts` later. A job adds its own power only once all its nodes are on. A
    failed node draws power again after its repair. Expected ends of jobs do not lower the committed power,
    because jobs may end later than expected.

    Args:
        cluster: the nodes of the cluster.
        power: power states of the nodes.
        runs: the running jobs.
        events: event queue, which provides the simulated time.
    """

    def __init__(self, cluster: Cluster, power: NodePower, runs: RunningJobs, events: EventQueue) -> None:
        self._cluster = cluster
        self._power = power
        self._runs = runs
        self._events = events
        self._wakes: dict[tuple[int, int], tuple[float, list[PowerStep]]] = {}
        self._wakes_state = (-1.0, -1)

    @property
    def switches_off(self) -> bool:
        """Return whether idle nodes are switched off. If so, nodes may have to boot for a job."""
        return self._power.switches_off

    def watts(self) -> float:
        """Return the committed power in watts: the highest power from now on with all planned changes."""
        return self.peak_watts([])

    def wake(self, kind: int, units: int) -> tuple[float, list[PowerStep]]:
        """Return when the nodes for a job would be on if the job started now.

        The second value contains the changes of power until this time.

        Args:
            kind: index of the kind of nodes.
            units: number of units that the job needs. A unit is a GPU, a core or a node. These units must be
                free.
        """
        state = (self._events.now_s, self._cluster.version)
        if state != self._wakes_state:
            self._wakes, self._wakes_state = {}, state
        if (kind, units) not in self._wakes:
            allocation = self._cluster.plan(kind, units)
            assert allocation is not None
            self._wakes[kind, units] = self._power.plan_wake(allocation)
        return self._wakes[kind, units]

    def node_levels(self, further: Iterable[PowerStep]) -> list[tuple[float, float, float]]:
        """Return the present and future power of the nodes if they run no jobs.

        Boots and shutdowns that have begun are included, because nothing can interrupt them.

        Args:
            further: changes of power in addition to the boots, shutdowns and repairs that have begun.

        Returns:
            For now and each later time at which the power changes: the time in seconds, the watts from
            this time on, and the part of these watts that `further` adds.
        """
        all_watts = {self._events.now_s: 0.0, **self._power.steps()}
        further_watts: dict[float, float] = {}
        for time_s, watts in further:
            all_watts[time_s] = all_watts.get(time_s, 0.0) + watts
            further_watts[time_s] = further_watts.get(time_s, 0.0) + watts
        level_watts, added_watts = self._cluster.watts, 0.0
        levels = []
        for time_s in sorted(all_watts):
            level_watts += all_watts[time_s]
            added_watts += further_watts.get(time_s, 0.0)
            levels.append((time_s, level_watts, added_watts))
        return levels

    def added_watts(self, kinds: Ints, units: Ints, job_watts: Floats) -> Floats:
        """Return by how many watts each of n jobs would raise the committed power if it started now.

        Each job is considered alone. Committed power is the highest future power of the cluster if no
        further job starts.

        Args:
            kinds: index of the kind of nodes of each job, shape (n,).
            units: number of units (GPUs, cores or nodes) that each job needs, shape (n,). These units must
                be free.
            job_watts: power that each job adds once all its nodes are on, shape (n,).

        Returns:
            Shape (n,).
        """
        added_watts = np.maximum(0.0, job_watts)
        if not self._power.switches_off:
            return added_watts
        committed_watts = self.watts()
        for row, request in enumerate(zip(kinds.tolist(), units.tolist(), strict=True)):
            ready_s, steps = self.wake(*request)
            peak_watts = self.peak_watts([*steps, (ready_s, float(added_watts[row]))])
            added_watts[row] = peak_watts - committed_watts
        return added_watts

    def peak_watts(self, further: Iterable[PowerStep]) -> float:
        """Return the highest committed power in watts from now on.

        The committed power includes all changes of power that are already planned.

        Args:
            further: additional changes of the nodes' power, which are included, too.
        """
        level_watts = self._cluster.watts + self._runs.watts + self._runs.lent_watts
        waiting = [
            (run.ready_s, max(0.0, run.extra_watts)) for run in self._runs.running.values() if not run.working
        ]
        by_time = {self._events.now_s: 0.0, **self._power.steps()}
        for time_s, watts in [*waiting, *further]:
            by_time[time_s] = by_time.get(time_s, 0.0) + watts
        peak_watts = -float("inf")
        for time_s in sorted(by_time):
            level_watts += by_time[time_s]
            peak_watts = max(peak_watts, level_watts)
        return peak_watts
