"""From the columns of a queue to the tables that `scheduling` ranks. No oracle and no Slurm command."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Final, Protocol

import numpy as np

from slurm_energy.priority.prediction import QueuePredictions
from slurm_energy.scheduling.queue import Alternatives, Bools, Floats, Ints, Jobs, alternatives, jobs
from slurm_energy.slurm.queue.columns import PENDING, QueueColumns

_ITS_TURN: Final = frozenset({"", "BeginTime", "Cleaning", "Dependency", "Priority", "Resources"})
"""Slurm's words for waiting for resources, and such as may be out of date: other columns know better."""


@dataclass(frozen=True, slots=True)
class ShapeTable:
    """The shapes in which ranked jobs could run, side by side.

    Attributes:
        table: what `scheduling` looks at; m rows, at least one of each job.
        gpu_kind: Slurm's type of GPU by row, empty if none is named.
        predicted: time and watts with their source by row.
    """

    table: Alternatives
    gpu_kind: list[str]
    predicted: QueuePredictions

    def text(self, row: int) -> str:
        """Return a shape for people."""
        gpus, kind = int(self.table.gpus[row]), self.gpu_kind[row]
        return f"gpu:{kind}:{gpus}" if kind else str(gpus)

    def fits_now(self, row: int) -> bool:
        """Return whether what is free is enough for a shape, as far as that is known."""
        return bool(self.table.possible[row])


class ShapeProvider(Protocol):
    """Finds the shapes of jobs."""

    def shapes(self, queue: QueueColumns, rows: Ints, predicted: QueuePredictions) -> ShapeTable:
        """Return the shapes of some jobs.

        Args:
            queue: all jobs.
            rows: which, shape (n,).
            predicted: of all jobs as they asked, by row of the queue.
        """
        ...


class RequestedShapeProvider:
    """One shape a job: what it asked for. Always possible, as Slurm decides what fits."""

    def shapes(self, queue: QueueColumns, rows: Ints, predicted: QueuePredictions) -> ShapeTable:
        """Return one row for each of the jobs."""
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
    """Return a number for each word, equal ones for equal words."""
    known: dict[str, int] = {}
    return np.array([known.setdefault(word, len(known)) for word in words], np.int64)


def select_rows(predicted: QueuePredictions, rows: Ints) -> QueuePredictions:
    """Return the predictions of some rows."""
    return QueuePredictions(*(getattr(predicted, column.name)[rows] for column in fields(QueuePredictions)))


def leader_rows(queue: QueueColumns) -> Ints:
    """Return for each row the row whose place it shares, shape (n,): mostly its own.

    Slurm addresses an array, and a heterogeneous job, as one: their pending records have one place. It is
    that of the first record that is not held. What is fixed or running stands for itself.
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
    """Return rows of the jobs to rank: pending, not fixed, in these partitions (empty: all), leaders alone.

    Held and dependent jobs are ranked too, so that their place is right as soon as they are free.
    """
    wanted = (queue.state == PENDING) & ~queue.fixed & (leader == np.arange(queue.count))
    if partitions:
        names = frozenset(partitions)
        listed = [not names.isdisjoint(partition.split(",")) for partition in queue.partition]
        wanted &= np.array(listed, np.bool_)
    rows: Ints = np.flatnonzero(wanted)
    return rows


def add_components(queue: QueueColumns, leader: Ints, predicted: QueuePredictions) -> QueuePredictions:
    """Return predictions in which leaders of heterogeneous jobs have the time and watts of all components."""
    parts = np.flatnonzero((queue.het_job_id > 0) & (leader != np.arange(queue.count)))
    if len(parts) == 0:
        return predicted
    time_s, watts = predicted.time_s.copy(), predicted.power_watts.copy()
    np.maximum.at(time_s, leader[parts], predicted.time_s[parts])
    np.add.at(watts, leader[parts], predicted.power_watts[parts])
    return replace(predicted, time_s=time_s, power_watts=watts)


def waiting_since(queue: QueueColumns, now_s: float) -> Floats:
    """Return from when on jobs wait, Unix seconds, shape (n,): since they were eligible, as Slurm counts age.

    A held or dependent job that never was waits from now on: who submits
    held jobs gathers no age.
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

    Factors of partition and QOS are not known here and 0: Slurm sorts by the partition's tier itself, and
    weights of its own may stand beside ours. Size is the share of CPUs of the largest job.

    Args:
        queue: all jobs.
        rows: the ranked ones, shape (n,).
        users: each one's row in the table of users, shape (n,).
        now_s: Unix seconds.
        aged_starts: jobs that started lately past the bound on waiting, by uid; None: none.
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
    """Return which rows are pending and wait for nothing but resources and their turn.

    What a limit or a node that is down holds back is among them, see `held_back`.
    """
    eligible = np.isnan(queue.eligible_s) | (queue.eligible_s <= now_s)
    free: Bools = (queue.state == PENDING) & ~queue.held & ~queue.dependent & eligible
    return free


def blocked_rows(queue: QueueColumns) -> Bools:
    """Return which rows Slurm keeps waiting for something that no free node helps, as limits."""
    return np.array([reason not in _ITS_TURN for reason in queue.reason], np.bool_)
