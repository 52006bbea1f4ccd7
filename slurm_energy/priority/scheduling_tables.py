"""Conversion of the queue from Slurm to the tables that the package `scheduling` ranks.

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
    """Table of the GPU shapes in which each job could run. The rows of one job are adjacent.

    A GPU shape is a number and a type of GPUs.

    Attributes:
        table: the shapes as alternatives that a scheduling policy ranks; m rows, at least one per job.
        gpu_kind: Slurm's GPU type by row; empty if the job names no type.
        predicted: predicted run time and watts, with their source, by row.
    """

    table: Alternatives
    gpu_kind: list[str]
    predicted: QueuePredictions

    def text(self, row: int) -> str:
        """Return the GPU shape (type and number of GPUs) in a row of the table, as text for users."""
        gpus, gpu_kind = int(self.table.gpus[row]), self.gpu_kind[row]
        return f"gpu:{gpu_kind}:{gpus}" if gpu_kind else str(gpus)

    def fits_now(self, row: int) -> bool:
        """Return whether the free resources suffice for the shape (set of resources) in a table row.

        The result is True if the free resources are unknown.
        """
        return bool(self.table.possible[row])


class ShapeProvider(Protocol):
    """Interface of a class that determines the shapes of jobs: numbers and types of GPUs for a job."""

    def shapes(self, queue: QueueColumns, rows: Ints, predicted: QueuePredictions) -> ShapeTable:
        """Return the table of the shapes (numbers and types of GPUs) in which the jobs could run.

        Each job has at least one shape.

        Args:
            queue: all jobs.
            rows: queue rows of the jobs, shape (n,).
            predicted: predictions of all jobs with their original requests, by queue row.
        """
        ...


class RequestedShapeProvider:
    """Provider of GPU shapes that offers each job only the shape that the job requested.

    A GPU shape is a kind and number of GPUs. It always counts as possible, because Slurm decides which jobs
    fit.
    """

    def shapes(self, queue: QueueColumns, rows: Ints, predicted: QueuePredictions) -> ShapeTable:
        """Return a table in which each job has only one shape, the one that the job requested.

        A shape is a number and a type of GPUs, or a number of nodes for a job without GPUs.
        """
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
    """Return a copy of the predictions that contains only the given rows of the queue."""
    return QueuePredictions(*(getattr(predicted, column.name)[rows] for column in fields(QueuePredictions)))


def leader_rows(queue: QueueColumns) -> Ints:
    """Return, for each record of the queue, the index of the record that determines its place.

    The second record is called the leader. The result has shape (n,). Most records are their own leaders.
    But Slurm addresses all pending records of an array or of a heterogeneous job together, so they must
    share one place in the queue. Their leader is the first of these records that is not held. Running
    records, and records whose priority is fixed, are their own leaders.
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
    """Return the queue rows that the scheduling policy must rank.

    A row is included if three conditions hold: its job is pending in one of `partitions`, its place in the
    queue is not fixed, and it is the leader of its job. The leader is the row that represents a whole job
    array or heterogeneous job. Held and dependent jobs are ranked too, so that their place is right as soon
    as they are released.

    Args:
        queue: all jobs.
        leader: for each queue row, its leader row (`leader_rows`), shape (n,).
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
    """Combine the predictions for the components of each heterogeneous job.

    The result is a copy for ranking, in which the first component (leader) stands for the whole job. The
    leader's run time becomes the longest run time of the components. The leader's watts become the sum over
    all components.
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
    hold. Without the replacement, the job would then lose all its age. A job that its user holds, or that
    depends on other jobs, and that has no eligible time in Slurm, has none in the result either.

    Args:
        queue: all jobs.
        since_s: Unix seconds from which the wait counts, by id of the job, array or heterogeneous job.
    """
    if not since_s:
        return queue
    group = np.maximum(queue.array_job_id, queue.het_job_id)
    group = np.where(group > 0, group, queue.job_id)
    replaced = (queue.state == PENDING) & np.isin(group, list(since_s)) & ~_never_eligible(queue)
    rows = np.flatnonzero(replaced)
    eligible_s = queue.eligible_s.copy()
    eligible_s[rows] = [since_s[job] for job in group[rows].tolist()]
    return replace(queue, eligible_s=eligible_s)


def waiting_since(queue: QueueColumns, now_s: float) -> Floats:
    """Return the Unix time since which each job has waited, in seconds, shape (n,).

    As in Slurm's age factor, the wait starts when the job becomes eligible. A held or dependent job that was
    never eligible gathers no age. Its wait starts at `now_s`.
    """
    since = np.fmax(queue.submit_s, queue.eligible_s)
    since = np.where(_never_eligible(queue) | np.isnan(since), now_s, since)
    earliest: Floats = np.minimum(since, now_s)
    return earliest


def _never_eligible(queue: QueueColumns) -> Bools:
    never: Bools = np.isnan(queue.eligible_s) & (queue.held | queue.dependent)
    return never


def job_table(
    queue: QueueColumns, rows: Ints, users: Ints, now_s: float, aged_starts: Mapping[int, int] | None = None
) -> Jobs:
    """Return the table of the jobs to rank, as input of a scheduling policy.

    The factors of partition and QOS are unknown here and set to 0. They are not needed, for two reasons.
    First, Slurm itself sorts jobs by partition tier. Second, a site can give weights to Slurm's own
    factors, in addition to the site factor that contains the ranking. The size factor is the job's number
    of CPUs divided by the number of CPUs of the largest job.

    Args:
        queue: all jobs.
        rows: queue rows of the ranked jobs, shape (n,).
        users: for each ranked job, the row of its user in the table of users, shape (n,).
        now_s: current time in Unix seconds.
        aged_starts: by uid, the number of the user's jobs that started recently after a wait beyond the
            maximum wait of the policy. None means that there was no such start.
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
    """Return whether the job of each queue row is pending and could start if resources were free.

    The job is neither held nor dependent on another job, and its begin time has come. Jobs blocked by a
    limit or by a node that is down are included, see `blocked_rows`.
    """
    eligible = np.isnan(queue.eligible_s) | (queue.eligible_s <= now_s)
    free: Bools = (queue.state == PENDING) & ~queue.held & ~queue.dependent & eligible
    return free


def blocked_rows(queue: QueueColumns) -> Bools:
    """Return a mask of the queue rows whose jobs would not start even if all nodes were free.

    Slurm states the reason, for example a limit.
    """
    return np.array([reason not in _ITS_TURN for reason in queue.reason], np.bool_)
