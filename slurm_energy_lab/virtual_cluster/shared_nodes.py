"""Simulation of virtual nodes that several jobs share, with one agent on each node.

Jobs may be array tasks, and may be cancelled or requeued. Agents may be killed, and nodes may fail.

The true energy of the emulator's components is recorded every second. It is compared with the energy in the
periods and records of the agents.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from slurm_energy_lab.virtual_node import ModelClock, VirtualNode

BLOCKS: Final = 8
"""Equal parts of the CPUs of a node, in which jobs are allocated."""
PROFILES: Final = ("xeon-8358", "xeon-4210-rtx6000", "xeon-h100")
_KERNELS: Final = ("gemm", "triad", "spmv", "stencil")
_HOUSEKEEPING_S: Final = 10
_QUEUE_DEPTH: Final = 10
_ARRAY_TASKS: Final = 5
_CANCELLED, _REQUEUED = 0.15, 0.1
"""Shares of the jobs that are cancelled and requeued."""


@dataclass(slots=True)
class SharedJob:
    """A job of the emulation that runs on one node, which it may share with other jobs.

    Attributes:
        job_id: Slurm's job id.
        blocks: number of CPU blocks that the job gets; a block is a fixed part of the node's CPUs.
        kernel, seconds: compute kernel that the job runs, and its run time in seconds at full speed.
        stop_s: seconds after which the job is cancelled or requeued. None means that the job runs to its
            end.
        requeues: number of times that the job is requeued instead of cancelled.
        restart_count: number of earlier requeues.
        uid: user id of the job's owner.
    """

    job_id: int
    blocks: int
    kernel: str
    seconds: float
    stop_s: float | None = None
    requeues: int = 0
    restart_count: int = 0
    uid: int = 1001


@dataclass(slots=True)
class SharedNodeJob:
    """A job that is running on a node.

    Attributes:
        job: the job.
        start_s: time of the job's start.
        blocks: indices of the blocks of CPUs that the job has.
        run_id: run id of the job's compute kernel.
    """

    job: SharedJob
    start_s: float
    blocks: tuple[int, ...]
    run_id: int


@dataclass(slots=True)
class NodeHistory:
    """True energy of one emulated node, recorded every second.

    Attributes:
        first_s: Unix time of the first value.
        joules: energy of the measured components from the start of the model up to each second.
        failures: number of failures of the node.
        down_s: seconds for which the node was down.
    """

    first_s: int
    joules: array[float] = field(default_factory=lambda: array("d"))
    failures: int = 0
    down_s: int = 0

    def between(self, start: int, end: int) -> float:
        """Return the energy in joules between two Unix seconds."""
        return self.joules[end - self.first_s] - self.joules[start - self.first_s]


class SharedNode:
    """A virtual node that several jobs can share, with its agent and its jobs.

    Args:
        folder: folder for the files of the node.
        name: Slurm's name of the node.
        profile: name of the hardware profile.
        clock: clock of all nodes.
        period_s: length in seconds of the periods over which the agent reports the node's energy.
    """

    def __init__(self, folder: Path, name: str, profile: str, clock: ModelClock, period_s: int) -> None:
        folder.mkdir()
        meter = profile != "xeon-8358"
        agent = {"period_s": period_s}
        self.name, self.clock, self._has_meter = name, clock, meter
        self.node = VirtualNode(folder, profile, 1.0, agent, node_meter=meter, name=name, clock=clock)
        self.history = NodeHistory(round(self.unix()))
        self.running: list[SharedNodeJob] = []
        self._ended: list[SharedJob] = []
        self._due_s = 0.0
        self.agent_runs = self.up = True

    def unix(self) -> float:
        """Return the Unix time according to the nodes' clocks."""
        return 1_700_000_000 + self.clock.now_s

    def note(self) -> None:
        """Append the present true energy of the node to its history, for later comparison.

        If the node has no meter, only the energy of its measured components is recorded.
        """
        joules = self.node.energy_joules()
        parts = [joules[name] for name in ("cpu", "dram", "gpu") if name in joules]
        self.history.joules.append(joules["node"] if self._has_meter else sum(parts))

    def tick(self) -> list[SharedJob]:
        """Advance the node by one step of the clock, and let the agent sample if a sample is due.

        Return the jobs that lost the node and must run again.
        """
        self.note()
        self.history.down_s += not self.up
        if self.agent_runs and self.clock.now_s >= self._due_s - 1e-6:
            self.node.sample()
            self._due_s = self.clock.now_s + max(1.0, round(self.node.manager.sampling_interval_s))
        again = [job for running in list(self.running) if (job := self._check(running)) is not None]
        if self.agent_runs and round(self.clock.now_s) % _HOUSEKEEPING_S == 0:
            self.node.manager.finalize_jobs()
            self.node.manager.housekeeping()
        return again

    def _check(self, running: SharedNodeJob) -> SharedJob | None:
        """End the job if it has finished or if its time to be stopped has come.

        Return the job if Slurm requeues it, else None.
        """
        job = running.job
        stopped = job.stop_s is not None and self.clock.now_s - running.start_s >= job.stop_s
        if not stopped and not self.node.finished(running.run_id):
            return None
        self._end(running)
        if not stopped or not job.requeues:
            return None
        return _requeued(job)

    def _end(self, running: SharedNodeJob) -> None:
        with self.node.model.modify() as model:
            model.forget(running.run_id)
        self.running.remove(running)
        if self.agent_runs:
            self._end_at_agent(running.job)
        else:
            self._ended.append(running.job)

    def _end_at_agent(self, job: SharedJob) -> None:
        self.node.refresh_files()
        self.node.manager.end(self._env(job))

    def free_blocks(self) -> list[int]:
        """Return the numbers of the blocks of CPUs on the node that no job uses."""
        used = {block for running in self.running for block in running.blocks}
        return [block for block in range(BLOCKS) if block not in used]

    def begin(self, job: SharedJob) -> bool:
        """Start a job on this virtual node if enough CPUs are free, and return whether it started.

        A node whose agent does not run accepts no job.
        """
        free = self.free_blocks()
        if not self.agent_runs or len(free) < job.blocks:
            return False
        blocks = tuple(free[: job.blocks])
        self.node.refresh_files()
        self.node.manager.begin(self._env(job))
        cpus = self.node.model.profile.cpu.cpus
        size = cpus // BLOCKS
        own = tuple(cpu for block in blocks for cpu in range(block * size, (block + 1) * size))
        share = job.blocks / BLOCKS  # `seconds` is the run time on the whole node
        run_id = self.node.submit(job.kernel, "cpu", job.seconds * share, job.job_id, cpus=own)
        self.running.append(SharedNodeJob(job, self.clock.now_s, blocks, run_id))
        self._due_s = self.clock.now_s + 1.0
        return True

    def _env(self, job: SharedJob) -> dict[str, str]:
        cpus = self.node.model.profile.cpu.cpus // BLOCKS * job.blocks
        env = self.node.env(job.job_id, None if job.blocks == BLOCKS else cpus)
        return {
            **env,
            "SLURM_JOB_UID": str(job.uid),
            "SLURM_JOB_RESTART_COUNT": str(job.restart_count),
        }

    def fail(self) -> list[SharedJob]:
        """Let the node fail. Return its jobs, which Slurm requeues."""
        if self.agent_runs:
            self.node.kill_agent()
        self.history.failures += self.up
        self.agent_runs = self.up = False
        jobs = [running.job for running in self.running]
        for running in self.running:
            with self.node.model.modify() as model:
                model.forget(running.run_id)
        self.running, self._ended = [], []
        return [_requeued(job) for job in jobs]

    def kill_agent(self) -> None:
        """Kill the agent. The node's jobs continue."""
        if self.agent_runs:
            self.node.kill_agent()
            self.agent_runs = False

    def start_agent(self) -> None:
        """Start the agent again. If the node has failed, boot it first."""
        if self.agent_runs:
            return
        if self.up:
            self.node.start_agent()
        else:
            self.node.reboot()
        self.agent_runs = self.up = True
        for job in self._ended:
            self._end_at_agent(job)
        self._ended = []
        self._due_s = self.clock.now_s + 1.0


def _requeued(job: SharedJob) -> SharedJob:
    return SharedJob(
        *(job.job_id, job.blocks, job.kernel, job.seconds, job.stop_s, max(0, job.requeues - 1)),
        *(job.restart_count + 1, job.uid),
    )


class SharedNodes:
    """Several shared nodes with a queue of jobs and with faults, on one clock.

    Args:
        folder: folder for the files of the nodes.
        node_count: number of nodes. The nodes have the hardware profiles of `PROFILES` in turn.
        seconds: seconds in which jobs arrive and faults occur. The run lasts until the last job has ended.
        jobs: jobs in the order of their submission.
        period_s: length of the agents' periods in seconds.
        faults: number of agents to kill, and also number of nodes that fail.
        seed: seed of the random numbers.
    """

    def __init__(
        self,
        folder: Path,
        node_count: int,
        seconds: int,
        jobs: Sequence[SharedJob],
        *,
        period_s: int,
        faults: int,
        seed: int,
    ) -> None:
        self.clock = ModelClock()
        self.nodes = [
            SharedNode(folder / f"n{n}", f"n{n}", PROFILES[n % len(PROFILES)], self.clock, period_s)
            for n in range(node_count)
        ]
        self.seconds = seconds
        self._queue = list(jobs)
        self._arrivals_per_s = len(jobs) / seconds
        self._faults = self._draw_faults(random.Random(seed), faults)
        self.started = 0

    def _draw_faults(self, numbers: random.Random, count: int) -> dict[int, list[tuple[str, int]]]:
        """Draw random faults, and return the actions (name, node) for each second.

        Each fault has two actions: the agent is killed or its node fails, and later the agent is started
        again.

        Args:
            numbers: source of random numbers.
            count: number of faults of each kind.
        """
        actions: dict[int, list[tuple[str, int]]] = {}
        for action, longest_s in (("kill_agent", 120), ("fail", min(400, self.seconds // 4))) * count:
            node = numbers.randrange(len(self.nodes))
            begin = numbers.randrange(30, self.seconds)
            end = begin + numbers.randrange(2, longest_s)
            actions.setdefault(begin, []).append((action, node))
            actions.setdefault(end, []).append(("start_agent", node))
        return actions

    def run(self) -> None:
        """Run until all jobs have ended."""
        for node in self.nodes:
            node.note()
        second = 0
        while second < self.seconds or self._queue or any(node.running for node in self.nodes):
            second += 1
            self.clock.now_s += 1.0
            again = [job for node in self.nodes for job in node.tick()]
            for action, index in self._faults.get(second, []):
                again += getattr(self.nodes[index], action)() or []
            self._queue[:0] = again
            self._start_jobs(second)
        for node in self.nodes:
            node.start_agent()
            node.node.manager.finalize_jobs()

    def _start_jobs(self, second: int) -> None:
        """Start those jobs that have arrived and that fit on a node."""
        arrived = second * self._arrivals_per_s
        for job in list(self._queue[:_QUEUE_DEPTH]):
            if job.restart_count == 0 and self.started >= arrived:
                break
            nodes = sorted(self.nodes, key=lambda node: -len(node.free_blocks()))
            if any(node.begin(job) for node in nodes):
                self._queue.remove(job)
                self.started += job.restart_count == 0

    def spooled(self) -> Iterator[tuple[list[dict[str, Any]], list[dict[str, Any]]]]:
        """Stop the agent of each node, and yield the records and periods that it has not delivered.

        The data has the form in which the agent would deliver it.
        """
        for node in self.nodes:
            manager = node.node.manager
            node.node.close()
            records = [{"record": item.record} for item in manager.spool.items(10**10, 10**6)]
            periods = [{"period": item.record} for item in manager.period_spool.items(10**10, 10**6)]
            yield records, periods


def draw_shared_jobs(count: int, seed: int, longest_s: float = 500.0) -> list[SharedJob]:
    """Return random jobs that share nodes, for tests in a virtual cluster.

    The jobs have all sizes. Some are arrays of equal tasks; some are cancelled, requeued or need exclusive
    nodes.

    Args:
        count: number of jobs.
        seed: seed of the random numbers.
        longest_s: maximum run time of a compute kernel at full speed, in seconds.
    """
    numbers = random.Random(seed)
    jobs: list[SharedJob] = []
    while len(jobs) < count:
        tasks = _ARRAY_TASKS if numbers.random() < 0.1 else 1
        blocks = BLOCKS if numbers.random() < 0.1 else numbers.randint(1, 4)
        kernel, seconds = numbers.choice(_KERNELS), numbers.uniform(0.04 * longest_s, longest_s)
        for _ in range(tasks):
            chance = numbers.random()
            stopped = chance < _CANCELLED + _REQUEUED
            stop_s = numbers.uniform(5.0, seconds) if stopped else None
            requeues = 1 if _CANCELLED <= chance < _CANCELLED + _REQUEUED else 0
            uid = numbers.randint(1001, 1005)
            jobs.append(SharedJob(len(jobs) + 1, blocks, kernel, seconds, stop_s, requeues, uid=uid))
    return jobs[:count]
