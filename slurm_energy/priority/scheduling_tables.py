"""Conversion of queue columns to the tables that `scheduling` ranks.

The module makes no predictions and runs no Slurm command.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Final, Protocol

import numpy as np

from slurm_energy.priority.prediction import QueuePredictions
from slurm_energy.scheduling.queue import Alternatives, Bools, Floats, Ints, Jobs, alternatives, jobs
from slurm_energy.slurm.queue.columns import PENDING, QueueColumns

_ITS_TURN: Final = frozenset({"", "BeginTime", "Cleaning", "Dependency", "Priority", "Resources"})
"""Slurm's reasons for waiting for resources, and reasons that may be outdated. Other columns show exactly
whether the latter apply.
"""


@dataclass(frozen=True, slots=True)
class ShapeTable:
    """The GPU shapes in which the ranked jobs could run. The rows of one job are adjacent.

    Attributes:
        table: the alternatives that `scheduling` ranks; m rows, at least one per job.
        gpu_kind: Slurm's GPU type by row; empty if the job names no type.
        predicted: predicted run time and watts, with their source, by row.
    """

    table: Alternatives
    gpu_kind: list[str]
    predicted: QueuePredictions

    def text(self, row: int) -> str:
        """Return the GPU shape in a row as text for users."""
        gpus, gpu_kind = int(self.table.gpus[row]), self.gpu_kind[row]
        return f"gpu:{gpu_kind}:{gpus}" if gpu_kind else str(gpus)

    def fits_now(self, row: int) -> bool:
        """Return whether the free resources suffice for the shape in a row; True if they are unknown."""
        return bool(self.table.possible[row])


class ShapeProvider(Protocol):
    """Interface that determines the GPU shapes in which jobs could run."""

    def shapes(self, queue: QueueColumns, rows: Ints, predicted: QueuePredictions) -> ShapeTable:
        """Return the table of the shapes in which the jobs could run, at least one shape per job.

        Args:
            queue: all jobs.
            rows: queue rows of the jobs, shape (n,).
            predicted: predictions of all jobs in their original request, by queue row.
        """
        ...


class RequestedShapeProvider:
    """Shape provider that gives each job one shape, the requested one.

    The shape always counts as possible, because Slurm decides which jobs fit.
    """

    def shapes(self, queue: QueueColumns, rows: Ints, predicted: QueuePredictions) -> ShapeTable:
        """Return a table with one row per job, the shape that the job requested."""
        count = len(rows)
        kinds = [queue.gpu_kind[row] for row in rows.tolist()]
        gpus = queue.gpus[rows]
        table = alternatives(
            np.arange(count + 1),
            predicted.time_s[rows],
            predicted.power_watts[rows],
            gpus=np.where(gpus > 0, gpus, queue.nodes[rows]),
            hardware=integer_codes(kinds),
        )
        return ShapeTable(table, kinds, select_rows(predicted, rows))


def integer_codes(words: Sequence[str]) -> Ints:
    """Return an integer code for each word. Equal words get equal codes."""
    codes: dict[str, int] = {}
    return np.array([codes.setdefault(word, len(codes)) for word in words], np.int64)


def select_rows(predicted: QueuePredictions, rows: Ints) -> QueuePredictions:
    """Return a `QueuePredictions` that holds only the given rows."""
    return QueuePredictions(*(getattr(predicted, column.name)[rows] for column in fields(QueuePredictions)))


def leader_rows(queue: QueueColumns) -> Ints:
    """Return the row of the leader of each queue row, shape (n,).

    A queue row shares the place of its leader in the queue. Most rows are their own leaders.

    Slurm addresses all records of an array or of a heterogeneous job together. The pending records
    of an array or heterogeneous job therefore share one place. Their leader is the first record
    that is not held. Running records and records with a fixed place are their own leaders.
    """
    rows = np.arange(queue.count)
    group = np.where(queue.het_job_id > 0, queue.het_job_id, queue.array_job_id)
    members = np.flatnonzero((group > 0) & (queue.state == PENDING) & ~queue.fixed)
    if len(members) == 0:
        return rows
    ordered = members[np.lexsort((queue.job_id[members], queue.held[members], group[members]))]
    first = np.flatnonzero(np.diff(group[ordered], prepend=-1))
    rows[ordered] = np.repeat(ordered[first], np.diff(np.append(first, len(ordered))))
    return rows


def ranked_rows(queue: QueueColumns, leader: Ints, partitions: Sequence[str]) -> Ints:
    """Return the queue rows of the pending jobs to rank.

    A row is included if its job is in `partitions`, if its place in the queue is not fixed, and if
    the row is its own leader. A leader is the row that represents a whole job array or
    heterogeneous job. Held and dependent jobs are ranked too, so that their place is right as soon
    as they are released.

    Args:
        queue: all jobs.
        leader: for each queue row, the row whose place it shares (`leader_rows`), shape (n,).
        partitions: names of the partitions to rank; an empty value means all.
    """
    ranked = (queue.state == PENDING) & ~queue.fixed & (leader == np.arange(queue.count))
    if partitions:
        names = frozenset(partitions)
        listed = [not names.isdisjoint(partition.split(",")) for partition in queue.partition]
        ranked &= np.array(listed, np.bool_)
    rows: Ints = np.flatnonzero(ranked)
    return rows


def add_components(queue: QueueColumns, leader: Ints, predicted: QueuePredictions) -> QueuePredictions:
    """Return a copy of the predictions for ranking.

    In the copy, the leader of a heterogeneous job stands for the whole job.

    The leader's run time becomes the run time of the longest component. The leader's watts become the sum
    over all components.
    """
    parts = np.flatnonzero((queue.het_job_id > 0) & (leader != np.arange(queue.count)))
    if len(parts) == 0:
        return predicted
    time_s, watts = predicted.time_s.copy(), predicted.power_watts.copy()
    np.maximum.at(time_s, leader[parts], predicted.time_s[parts])
    np.add.at(watts, leader[parts], predicted.power_watts[parts])
    return replace(predicted, time_s=time_s, power_watts=watts)


def with_waiting_since(queue: QueueColumns, since_s: Mapping[int, float]) -> QueueColumns:
    """Return a queue in which deferred jobs became eligible at the given times.

    The given times replace the eligible times of Slurm. Slurm moves the eligible time of a job with each
    hold. Without the replacement, the job would then lose all its age.

    Args:
        queue: all jobs.
        since_s: Unix seconds from which the wait counts, by id of the job, array or heterogeneous job.
    """
    if not since_s:
        return queue
    group = np.maximum(queue.array_job_id, queue.het_job_id)
    group = np.where(group > 0, group, queue.job_id)
    rows = np.flatnonzero((queue.state == PENDING) & np.isin(group, list(since_s)))
    eligible_s = queue.eligible_s.copy()
    eligible_s[rows] = [since_s[job] for job in group[rows].tolist()]
    return replace(queue, eligible_s=eligible_s)


def waiting_since(queue: QueueColumns, now_s: float) -> Floats:
    """Return the Unix time since which each job has waited, in seconds, shape (n,).

    As in Slurm's age factor, the wait starts when the job becomes eligible. A held or dependent job that was
    never eligible gathers no age. Its wait starts at `now_s`.
    """
    never = np.isnan(queue.eligible_s) & (queue.held | queue.dependent)
    since = np.fmax(queue.submit_s, queue.eligible_s)
    since = np.where(never | np.isnan(since), now_s, since)
    earliest: Floats = np.minimum(since, now_s)
    return earliest


def job_table(
    queue: QueueColumns, rows: Ints, users: Ints, now_s: float, aged_starts: Mapping[int, int] | None = None
) -> Jobs:
    """Return the table of the ranked jobs.

    The factors of partition and QOS are unknown here and set to 0. They are not needed, because Slurm itself
    sorts by partition tier, and because a site can give weights to Slurm's own factors in addition to the
    site factor. The size factor is the job's number of CPUs divided by the number of CPUs of the largest job.

    Args:
        queue: all jobs.
        rows: queue rows of the ranked jobs, shape (n,).
        users: for each ranked job, the row in the table of users that belongs to the job's user, shape (n,).
        now_s: Unix seconds.
        aged_starts: by uid, the number of recent starts of jobs that had waited beyond the bound; None means
            that there was no such start.
    """
    uids, started = queue.uid[rows], aged_starts or {}
    cpus = queue.cpus[rows].astype(np.float64)
    return jobs(
        queue.job_id[rows],
        waiting_since(queue, now_s)[rows],
        user=users,
        deadline_s=queue.deadline_s[rows],
        time_limit_s=queue.time_limit_s[rows],
        size=cpus / max(1.0, float(cpus.max(initial=0.0))),
        nice=queue.nice[rows].astype(np.float64),
        owner=uids,
        aged_starts=np.array([started.get(uid, 0) for uid in uids.tolist()], np.int64),
    )


def startable_rows(queue: QueueColumns, now_s: float) -> Bools:
    """Return whether the job of each queue row is pending and waits only for resources or its turn.

    Jobs blocked by a limit or by a node that is down are included, see `blocked_rows`.
    """
    eligible = np.isnan(queue.eligible_s) | (queue.eligible_s <= now_s)
    free: Bools = (queue.state == PENDING) & ~queue.held & ~queue.dependent & eligible
    return free


def blocked_rows(queue: QueueColumns) -> Bools:
    """Return, for each queue row, whether Slurm states a reason that free nodes cannot resolve.

    Such a reason is, for example, a limit.
    """
    return np.array([reason not in _ITS_TURN for reason in queue.reason], np.bool_)
