"""Power that a cluster is committed to: its highest power if no further job starts. Decides nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from slurm_energy.simulator.cluster import Cluster
from slurm_energy.simulator.power import NodePower, PowerStep
from slurm_energy.simulator.runs import Runs


class PowerCommitment:
    """The highest power, now or later, of the running jobs and of nodes that change their power state.

    Current power is no bound for admission: a booting node draws `boot_watts` first and `idle_watts` later,
    a job on it adds its own power only once all its nodes are on, and a failed node draws power again after
    its repair. Ends of jobs are not counted on, as they may come later than expected.

    Args:
        cluster: the nodes.
        power: the nodes' power states.
        runs: the running jobs.
        clock: returns the time.
    """

    def __init__(self, cluster: Cluster, power: NodePower, runs: Runs, clock: Callable[[], float]) -> None:
        self._cluster = cluster
        self._power = power
        self._runs = runs
        self._clock = clock

    def watts(self) -> float:
        """Return the committed power in watts."""
        return self._peak_watts([])

    def added_watts(self, kind: int, units: int, job_watts: float) -> float:
        """Return by how much the committed power rises if a job starts now.

        Args:
            kind: row of the kind of node.
            units: units that the job needs; they must be free.
            job_watts: power that the job adds once all its nodes are on.
        """
        if not self._power.switches_off:
            return max(0.0, job_watts)
        allocation = self._cluster.plan(kind, units)
        assert allocation is not None
        ready_s, steps = self._power.plan_wake(allocation)
        steps.append((ready_s, max(0.0, job_watts)))
        return self._peak_watts(steps) - self.watts()

    def _peak_watts(self, further: Iterable[PowerStep]) -> float:
        now_s = self._clock()
        level_watts = self._cluster.watts + self._runs.watts + self._runs.lent_watts
        waiting = [
            (run.ready_s, max(0.0, self._runs.extra_watts(run.shape)))
            for run in self._runs.running.values()
            if not run.working
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
