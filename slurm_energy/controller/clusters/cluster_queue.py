"""State of this cluster (resources and queue) for the comparison of clusters.

A job that can run on several clusters is placed on the best one by this comparison. The module uses
the queue of the last ranking. If the queue is not ranked, the queue is read with squeue when a
request needs it, at most once per refresh interval. The module needs numpy.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from slurm_energy.oracle.nameplate import NO_LIMIT_S
from slurm_energy.priority.scheduling_tables import startable_rows
from slurm_energy.priority.snapshot import Snapshot
from slurm_energy.protocol.cluster_state import MAX_JOBS
from slurm_energy.slurm.command import Runner
from slurm_energy.slurm.queue.columns import RUNNING, Floats, QueueColumns
from slurm_energy.slurm.queue.node_resources import NodeResources, read_nodes
from slurm_energy.slurm.queue.squeue_source import SqueueSource

NODES_AGE_S: Final = 60.0
MAX_SNAPSHOT_AGE_S: Final = 120.0
_MAX_RUN_S: Final = 1e10  # 300 years: the sum of many jobs without a limit is no number that others accept
_LATE_S: Final = 30.0  # a job beyond its predicted end is expected to run this long at least


@dataclass(frozen=True, slots=True)
class ClusterLoad:
    """Resources, running jobs and pending jobs of a cluster, for the choice among clusters.

    The attributes have the same meaning as those of `ClusterState`.
    """

    taken_unix_s: float
    cpus: int
    gpus: int
    running: tuple[tuple[float, float, float], ...]
    pending: tuple[tuple[float, float, float], ...]


class ClusterQueue:
    """Reader of the resources and the queue of this cluster.

    Only one thread at a time may use the reader.

    Args:
        run: runs Slurm commands.
        snapshot: returns the last ranking of the queue; None means that the queue was never ranked.
        refresh_s: returns the maximum age of the queue in seconds.
        clock: returns Unix seconds.
    """

    def __init__(
        self,
        run: Runner,
        snapshot: Callable[[], Snapshot | None],
        refresh_s: Callable[[], float],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._run, self._snapshot, self._refresh_s, self._clock = run, snapshot, refresh_s, clock
        self._nodes: tuple[float, list[NodeResources]] | None = None
        self._source = SqueueSource(run)

    def read(self) -> ClusterLoad:
        """Return the resources and the queue of this cluster, for the choice of a cluster for a job.

        Raises:
            UnavailableError: slurmctld does not answer.
        """
        now_s = self._clock()
        if self._nodes is None or not 0 <= now_s - self._nodes[0] < max(NODES_AGE_S, self._refresh_s()):
            self._nodes = now_s, read_nodes(self._run)
        usable = [node for node in self._nodes[1] if node.usable or node.is_off]
        snapshot = self._snapshot()
        if snapshot is not None and abs(now_s - snapshot.queue.taken_unix_s) <= MAX_SNAPSHOT_AGE_S:
            queue, run_s = snapshot.queue, np.asarray(snapshot.predicted.time_s, np.float64)
            place = np.where(snapshot.place > 0, snapshot.place, np.iinfo(np.int64).max)
        else:
            queue = self._source.read()
            run_s, place = _half_limits(queue), -queue.priority
        running = queue.state == RUNNING
        waiting = np.flatnonzero(startable_rows(queue, now_s))
        waiting = waiting[np.lexsort((queue.job_id[waiting], place[waiting]))]
        end_s = np.fmax(queue.start_s + run_s, now_s + _LATE_S)
        end_s = np.where(np.isnan(queue.end_s), end_s, np.fmin(end_s, np.fmax(queue.end_s, now_s)))
        rows = np.repeat(waiting, np.maximum(1, queue.tasks[waiting]))
        return ClusterLoad(
            queue.taken_unix_s,
            sum(node.cpus for node in usable),
            sum(sum(node.gpus.values()) for node in usable),
            _grouped(np.column_stack([end_s[running], *_on_serving_nodes(self._nodes[1], queue)])),
            _with_rest(np.column_stack([queue.cpus, queue.gpus, run_s])[rows]),
        )


def _on_serving_nodes(nodes: Sequence[NodeResources], queue: QueueColumns) -> tuple[Floats, Floats]:
    """Return the CPUs and the GPUs of each running job on the nodes where further jobs may start.

    Jobs also run on other nodes, for example on nodes that drain. It is unknown which jobs these are. Each
    job therefore counts by the share of all occupied CPUs and GPUs that lies on the nodes for further jobs.
    """
    running = queue.state == RUNNING
    cpus, gpus = queue.cpus[running].astype(np.float64), queue.gpus[running].astype(np.float64)
    left = [node for node in nodes if not (node.usable or node.is_off)]
    left_cpus = sum(node.cpus - node.cpus_free for node in left)
    left_gpus = sum(sum(node.gpus.values()) - sum(node.gpus_free.values()) for node in left)
    cpus *= 1.0 - min(1.0, left_cpus / max(1.0, float(cpus.sum())))
    gpus *= 1.0 - min(1.0, left_gpus / max(1.0, float(gpus.sum())))
    return cpus, gpus


def _grouped(running: Floats) -> tuple[tuple[float, float, float], ...]:
    """Return end, CPUs and GPUs of the running jobs, merged into at most `MAX_JOBS` groups.

    The jobs of one group end at about the same time.

    Args:
        running: rows of end, CPUs and GPUs, shape (n, 3).
    """
    running = running[np.isfinite(running[:, 0])]
    ordered = running[np.argsort(running[:, 0], kind="stable")]
    groups = np.array_split(ordered, min(MAX_JOBS, len(ordered))) if len(ordered) else []
    return tuple((float(g[-1, 0]), float(g[:, 1].sum()), float(g[:, 2].sum())) for g in groups)


def _with_rest(pending: Floats) -> tuple[tuple[float, float, float], ...]:
    """Return CPUs, GPUs and run time of pending jobs; the later jobs are summarised.

    The first jobs are returned one by one. All further jobs are replaced by one job that represents them.
    This job has the largest number of CPUs and the largest number of GPUs among the further jobs. Its run
    time follows from their total CPU time.

    Args:
        pending: rows of CPUs, GPUs and run time, shape (n, 3).
    """
    first, rest = pending[: MAX_JOBS - 1], pending[MAX_JOBS - 1 :]
    rows = [(float(cpus), float(gpus), float(run_s)) for cpus, gpus, run_s in first.tolist()]
    if len(rest):
        widest = rest[:, :2].max(axis=0)
        work = (rest[:, 0] * rest[:, 2]).sum() / max(1.0, widest[0])
        rows.append((float(widest[0]), float(widest[1]), float(min(work, _MAX_RUN_S))))
    return tuple(rows)


def _half_limits(queue: QueueColumns) -> Floats:
    """Return half the time limit of each job.

    A nameplate prediction, which uses no earlier runs, assumes this run time.
    """
    limits = np.where(np.isnan(queue.time_limit_s), NO_LIMIT_S, queue.time_limit_s)
    halves: Floats = limits / 2
    return halves
