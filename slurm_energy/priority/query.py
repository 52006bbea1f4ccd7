"""Selection of the jobs for the response to a query about the priority of pending jobs.

The jobs come from a snapshot, which is the result of the last ranking of the queue. The selected jobs match
the query, and the user may see them. This module depends neither on HTTP nor on the texts of responses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from slurm_energy.accounting.records.record_selection import JobSelector, Visibility
from slurm_energy.errors import ForbiddenError
from slurm_energy.priority.explanation import pending_rows
from slurm_energy.priority.snapshot import Snapshot
from slurm_energy.protocol.query_parameters import refuse_unknown, switch, words
from slurm_energy.quantities import shown
from slurm_energy.scheduling.queue import Bools
from slurm_energy.slurm.queue.columns import PENDING, QueueColumns

_KEYS: Final = ("job", "user", "account", "partition", "neighbours", "state")


@dataclass(frozen=True, slots=True)
class PriorityQuery:
    """Conditions of a query for pending jobs; an empty tuple means no condition.

    Attributes:
        users: login names, or uids as text.
        neighbours: whether the result also contains the jobs that are directly before and after each
            matching job in the queue.
        state: whether the response also contains the columns from which the order was computed.
        visible: restriction to jobs that the caller may see; None means no restriction.
    """

    jobs: tuple[JobSelector, ...] = ()
    users: tuple[str, ...] = ()
    accounts: tuple[str, ...] = ()
    partitions: tuple[str, ...] = ()
    neighbours: bool = False
    state: bool = False
    visible: Visibility | None = None

    @classmethod
    def from_parameters(cls, query: Mapping[str, str]) -> PriorityQuery:
        """Parse the parameters of `GET /v1/priority`.

        Raises:
            UsageError: unknown parameter or bad value.
        """
        refuse_unknown(query, _KEYS)
        return cls(
            jobs=tuple(JobSelector.parse(text) for text in words(query, "job")),
            users=words(query, "user"),
            accounts=words(query, "account"),
            partitions=words(query, "partition"),
            neighbours=switch(query, "neighbours"),
            state=switch(query, "state"),
        )

    def limited_to(self, visible: Visibility, name: str | None) -> PriorityQuery:
        """Return a copy of this query that is restricted to the jobs that a caller may see.

        Args:
            visible: the jobs that the caller may see.
            name: login name of the caller, None if unknown.

        Raises:
            ForbiddenError: the query names other users, or requests the columns of all jobs.
        """
        others = [user for user in self.users if user not in (name, str(visible.uid))]
        if (others and not visible.accounts) or self.state:
            what = "the state behind the order" if self.state else f"jobs of user {shown(others[0])}"
            raise ForbiddenError(what, "you may read your own", "ask an operator (controller.operators)")
        return replace(self, visible=visible)


def matching_rows(snapshot: Snapshot, query: PriorityQuery) -> list[int]:
    """Return the queue rows of the pending jobs that match a query, ordered by place.

    Raises:
        ForbiddenError: a job named by the query belongs to another user.
    """
    queue = snapshot.queue
    pending = queue.state == PENDING
    matches = pending & _conditions(snapshot, query)
    may_see = visible_rows(queue, query.visible)
    if query.jobs:
        named = pending & _named(snapshot, query.jobs)
        if np.any(hidden := named & ~may_see):
            row = int(np.flatnonzero(hidden)[0])
            why = "it belongs to another user"
            raise ForbiddenError(f"job {int(queue.job_id[row])}", why, "ask an operator")
        matches &= named
    pending &= may_see
    matches &= pending
    rows = np.flatnonzero(matches)
    if query.neighbours and query.jobs:
        near = np.concatenate([snapshot.place[rows] - 1, snapshot.place[rows] + 1])
        ranked = np.isin(snapshot.place, near[near > 0]) & (snapshot.place > 0) & pending
        rows = np.union1d(rows, np.flatnonzero(ranked))
    return pending_rows(snapshot, rows.tolist())


def visible_rows(queue: QueueColumns, visible: Visibility | None) -> Bools:
    """Return for each queue row whether the caller may see its job.

    If `visible` is None, all jobs are visible.
    """
    if visible is None:
        return np.ones(queue.count, np.bool_)
    visible_jobs: Bools = queue.uid == visible.uid
    if visible.accounts:
        visible_jobs = visible_jobs | np.array(
            [account in visible.accounts for account in queue.account], np.bool_
        )
    return visible_jobs


def _conditions(snapshot: Snapshot, query: PriorityQuery) -> Bools:
    queue = snapshot.queue
    matches = np.ones(queue.count, np.bool_)
    if query.users:
        uids = np.array([int(user[:18]) for user in query.users if user.isdecimal()], np.int64)
        names = frozenset(query.users)
        matches &= np.array([user in names for user in queue.user], np.bool_) | np.isin(queue.uid, uids)
    if query.accounts:
        accounts = frozenset(query.accounts)
        matches &= np.array([account in accounts for account in queue.account], np.bool_)
    if query.partitions:
        partitions = frozenset(query.partitions)
        listed = [not partitions.isdisjoint(partition.split(",")) for partition in queue.partition]
        matches &= np.array(listed, np.bool_)
    return matches


def _named(snapshot: Snapshot, jobs: tuple[JobSelector, ...]) -> Bools:
    """Return, for each queue row, whether one of the selectors in `jobs` selects it.

    A selector names a job, an array, a task or a component of a heterogeneous job. If an array task has
    no separate queue row, the row of all pending tasks represents it, as in squeue.
    """
    queue = snapshot.queue
    whole = np.array([job.base for job in jobs if job.task is None and job.offset is None], np.int64)
    matches: Bools = np.zeros(queue.count, np.bool_)
    for column in (queue.job_id, queue.array_job_id, queue.het_job_id):
        matches |= np.isin(column, whole)
    for job in jobs:
        if job.task is not None:
            array = queue.array_job_id == job.base
            own = array & (queue.array_task_id == job.task)
            matches |= own if np.any(own) else array & (queue.array_task_id < 0)
        if job.offset is not None:
            matches |= (queue.het_job_id == job.base) & (queue.job_id == job.base + job.offset)
    return matches
