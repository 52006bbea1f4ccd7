"""Emulated cluster without Slurm: its nodes, its running jobs, and its true power over time."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from slurm_energy_lab.model import KernelRequest, NodeProfile
from slurm_energy_lab.realtime_model import RealtimeModel
from slurm_energy_lab.virtual_cluster.job_queue import JobRelease, start_jobs
from slurm_energy_lab.virtual_cluster.workload import ClusterJob, partition_of
from slurm_energy_lab.virtual_node import ModelClock

TICK_S = 0.1
"""Seconds between two values of the true power."""


class ClusterNode(Protocol):
    """A node on which compute kernels run."""

    model: RealtimeModel

    def submit(self, kernel: str, device: str, seconds: float | None, job_id: int) -> int:
        """Start a compute kernel that takes `seconds` at full speed, and return its run id."""


class BareNode:
    """A node of the virtual cluster without an agent."""

    def __init__(self, profile: NodeProfile, clock: ModelClock) -> None:
        self.model = RealtimeModel(profile, clock)

    def submit(self, kernel: str, device: str, seconds: float | None, job_id: int) -> int:
        """Start a compute kernel that takes `seconds` at full speed, and return its run id."""
        request = KernelRequest(kernel, device, full_speed_s=seconds, job_id=job_id)
        with self.model.modify() as state:
            return state.submit(request, state.now_s)

    def close(self) -> None:
        """Close the node model."""
        self.model.close()


class PowerManager(Protocol):
    """Interface of the program that keeps the power of the cluster below its limit."""

    def admits(self, job: ClusterJob, nodes: Sequence[str]) -> bool:
        """Return whether the job may start now on these nodes."""

    def job_starts(self, job: ClusterJob, nodes: Sequence[str]) -> None:
        """Prepare the nodes for a job that starts, as the prologs of the job do."""

    def job_ends(self, job: ClusterJob, nodes: Sequence[str]) -> None:
        """Perform the actions that follow the end of a job, as Slurm's epilogs on the nodes do."""

    def tick(self, now_s: float) -> None:
        """Control the power at the time `now_s`. The cluster calls this method every `TICK_S` seconds."""


@dataclass(slots=True)
class PlacedJob:
    """A running job.

    Attributes:
        job: the job.
        nodes: names of the job's nodes.
        start_s: time of the job's start.
        runs: run id of the job's compute kernel on each node, by name of the node.
    """

    job: ClusterJob
    nodes: tuple[str, ...]
    start_s: float
    runs: dict[str, int]


@dataclass(slots=True)
class ClusterRun:
    """Result of one run of the virtual cluster.

    Attributes:
        watts: true power of the cluster, as one value per `TICK_S`. Each value is the mean power since the
            previous value.
        joules: energy of the cluster.
        work: completed work in node-seconds at full speed, including the completed work of jobs that still
            run.
        seconds: duration of the run.
        ended: start and end of each ended job, by job id.
        over_limit: ids of the jobs that ran longer than their time limit. Slurm would have killed these jobs.
        busy_node_s: node-seconds that jobs have used.
        waited_s: seconds from submission to start, summed over the started jobs.
        waits_s: seconds from submission to start, by job id. For jobs that have not started, seconds from
            submission to the end of the run.
    """

    watts: array[float] = field(default_factory=lambda: array("d"))
    joules: float = 0.0
    work: float = 0.0
    seconds: float = 0.0
    ended: dict[int, tuple[float, float]] = field(default_factory=dict)
    over_limit: list[int] = field(default_factory=list)
    busy_node_s: float = 0.0
    waited_s: float = 0.0
    waits_s: dict[int, float] = field(default_factory=dict)

    @property
    def throughput(self) -> float:
        """Completed work per second of the virtual cluster."""
        return self.work / self.seconds

    @property
    def edp(self) -> float:
        """Return the energy-delay product, divided by the square of the completed work."""
        return self.joules * self.seconds / self.work**2


QueueOrder = Callable[[Sequence[ClusterJob], float], Sequence[ClusterJob]]


class VirtualCluster:
    """Cluster of emulated nodes that runs arriving jobs.

    Args:
        clock: clock of the models of all nodes.
        nodes: nodes by name. The name of a node is its partition followed by a number.
        jobs: jobs in the order of their submission.
        order: function that sorts the waiting jobs into the order in which they may start. Its arguments are
            the jobs and the seconds since the start of the run. None stands for the order of submission.
    """

    def __init__(
        self,
        clock: ModelClock,
        nodes: Mapping[str, ClusterNode],
        jobs: Sequence[ClusterJob],
        order: QueueOrder | None = None,
    ) -> None:
        self.clock = clock
        self._order = order
        self._nodes = nodes
        self._models = {name: node.model for name, node in nodes.items()}
        self.running: dict[int, PlacedJob] = {}
        self.queue: list[ClusterJob] = []
        self._arriving = list(reversed(jobs))
        self._start_s = clock.now_s
        self.result = ClusterRun()
        self._joules = self._start_joules = self._energy_joules()
        self._ended_work = 0.0

    def free_nodes(self) -> dict[str, list[str]]:
        """Return the names of the nodes without a job, by partition.

        The order is that of the nodes in the cluster.
        """
        busy = {node for entry in self.running.values() for node in entry.nodes}
        free: dict[str, list[str]] = {}
        for name in self._models:
            nodes = free.setdefault(partition_of(name), [])
            if name not in busy:
                nodes.append(name)
        return free

    def run(self, seconds: float, manager: PowerManager) -> ClusterRun:
        """Run the cluster for some seconds under a power manager, and return the result so far."""
        ticks = round(seconds / TICK_S)
        begin_s = self.clock.now_s
        for tick in range(1, ticks + 1):
            self.clock.now_s = begin_s + tick * TICK_S
            joules = self._energy_joules()
            self.result.watts.append((joules - self._joules) / TICK_S)
            self._joules = joules
            self._end_jobs(manager)
            manager.tick(self.clock.now_s)
            self._submit()
            if self.queue and tick % 10 == 0:
                self._start_jobs(manager)
        result = self.result
        result.seconds += seconds
        result.joules = self._joules - self._start_joules
        done = sum(entry.job.work * self._share(entry) for entry in self.running.values())
        result.work = self._ended_work + done
        elapsed_s = self.clock.now_s - self._start_s
        result.waits_s |= {job.job_id: elapsed_s - job.submit_s for job in self.queue}
        return result

    def _energy_joules(self) -> float:
        total = 0.0
        for model in self._models.values():
            with model.now() as state:
                total += state.energy_joules("node")
        return total

    def _share(self, entry: PlacedJob) -> float:
        """Return the completed fraction of a running job's work, averaged over the nodes of the job."""
        total = 0.0
        for node, run_id in entry.runs.items():
            with self._models[node].now() as state:
                total += state.progress_share(run_id)
        return total / len(entry.runs)

    def _submit(self) -> None:
        elapsed_s = self.clock.now_s - self._start_s
        while self._arriving and self._arriving[-1].submit_s <= elapsed_s:
            self.queue.append(self._arriving.pop())

    def _end_jobs(self, manager: PowerManager) -> None:
        now_s = self.clock.now_s
        for entry in list(self.running.values()):
            if not all(self._has_ended(node, run_id) for node, run_id in entry.runs.items()):
                continue
            del self.running[entry.job.job_id]
            manager.job_ends(entry.job, entry.nodes)
            self._ended_work += entry.job.work
            self.result.ended[entry.job.job_id] = entry.start_s, now_s
            self.result.busy_node_s += len(entry.nodes) * (now_s - entry.start_s)
            if now_s - entry.start_s > entry.job.limit_s:
                self.result.over_limit.append(entry.job.job_id)

    def _has_ended(self, node: str, run_id: int) -> bool:
        with self._models[node].now() as state:
            return state.result(run_id) is not None

    def _start_jobs(self, manager: PowerManager) -> None:
        releases = [
            JobRelease(entry.start_s + entry.job.limit_s, entry.nodes) for entry in self.running.values()
        ]

        def start(job: ClusterJob, nodes: tuple[str, ...]) -> bool:
            if not manager.admits(job, nodes):
                return False
            manager.job_starts(job, nodes)
            runs = {
                node: self._nodes[node].submit(job.program, job.partition, job.seconds, job.job_id)
                for node in nodes
            }
            self.running[job.job_id] = PlacedJob(job, nodes, self.clock.now_s, runs)
            wait_s = self.clock.now_s - self._start_s - job.submit_s
            self.result.waited_s += wait_s
            self.result.waits_s[job.job_id] = wait_s
            return True

        queue = (
            self.queue if self._order is None else self._order(self.queue, self.clock.now_s - self._start_s)
        )
        started = start_jobs(queue, self.free_nodes(), releases, self.clock.now_s, start)
        ids = {job.job_id for job in started}
        self.queue = [job for job in self.queue if job.job_id not in ids]


def seconds_above(watts: Sequence[float], limits: Sequence[float]) -> float:
    """Return the number of seconds in which the power was above the limit.

    `watts` and `limits` have one value per interval of equal length. The limit at an index was in force in
    the interval of the power at the same index.
    """
    return TICK_S * sum(power > limit for power, limit in zip(watts, limits, strict=True))
