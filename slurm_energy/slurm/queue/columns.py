"""Pending and running jobs as columns, the same for every source and release. Plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

PENDING: Final = 0
RUNNING: Final = 1


@dataclass(frozen=True, slots=True)
class QueueColumns:
    """One row per job record of slurmctld that is pending or running; arrays of shape (n,), lists alike.

    An array whose tasks are all alike is one row, as it is one record in slurmctld.

    Attributes:
        taken_unix_s: when slurmctld was in this state.
        job_id: number to address the record by, in `scontrol update` too.
        array_job_id: number of the array; 0: no array.
        array_task_id: index in the array; -1: no array, or a record of several tasks.
        tasks: pending tasks in the record, 1 for a single job.
        het_job_id: number of the heterogeneous job; 0: none.
        uid: owner.
        state: PENDING or RUNNING (configuring, completing and suspended jobs are not listed).
        held: priority 0: held by user or administrator.
        dependent: waits for other jobs or a begin time.
        fixed: an administrator gave it a priority of its own; site factors have no effect on it.
        requeue: may be put back into the queue.
        submit_s, eligible_s, start_s, end_s, deadline_s: Unix seconds; NaN where there is none. `end_s` is
            the end of a running job's time limit.
        time_limit_s: NaN: no limit.
        nodes, cpus, gpus: asked for (running: allocated), over all nodes; least where a range was given.
        gpu_kind: Slurm's type of GPU, empty if none was named.
        priority: as squeue shows it.
        site_factor: as sprio shows it; Slurm's NICE_OFFSET is taken away.
        nice: as `--nice` takes it.
        restart_count: how often it was requeued.
        shares_norm: the association's normalised shares, 0 to 1; NaN: not known.
        user: login name, or the number as text where this host does not know it.
        account, partition, qos, name: empty where not set. A job in several partitions: `a,b`.
        reason: Slurm's word for why it waits; empty where not known.
        flags: values by name in the job-control environment (`ENERGY_POLICY`, ...), user-supplied, unchecked.
    """

    taken_unix_s: float
    job_id: Ints
    array_job_id: Ints
    array_task_id: Ints
    tasks: Ints
    het_job_id: Ints
    uid: Ints
    state: Ints
    held: Bools
    dependent: Bools
    fixed: Bools
    requeue: Bools
    submit_s: Floats
    eligible_s: Floats
    start_s: Floats
    end_s: Floats
    deadline_s: Floats
    time_limit_s: Floats
    nodes: Ints
    cpus: Ints
    gpus: Ints
    priority: Ints
    site_factor: Ints
    nice: Ints
    restart_count: Ints
    shares_norm: Floats
    user: list[str]
    account: list[str]
    partition: list[str]
    qos: list[str]
    name: list[str]
    gpu_kind: list[str]
    reason: list[str]
    flags: list[Mapping[str, str]]

    @property
    def count(self) -> int:
        """Number of rows."""
        return len(self.job_id)

    def only(self, rows: Bools) -> QueueColumns:
        """Return the queue without the rows of which this is False, shape (n,)."""
        if rows.all():
            return self
        kept = np.flatnonzero(rows)
        columns = {name: getattr(self, name) for name in self.__slots__[1:]}
        taken: dict[str, Any] = {
            name: [column[row] for row in kept.tolist()] if isinstance(column, list) else column[kept]
            for name, column in columns.items()
        }
        return QueueColumns(taken_unix_s=self.taken_unix_s, **taken)

    def name_of(self, row: int) -> str:
        """Return what means this record alone to scontrol: `12`, and `12_3` of a single task of an array.

        The last task of an array has the array's own number, by which scontrol takes all of its tasks.
        """
        array, task = int(self.array_job_id[row]), int(self.array_task_id[row])
        return f"{array}_{task}" if array and task >= 0 else str(int(self.job_id[row]))


_FLOATS: Final = ("submit_s", "eligible_s", "start_s", "end_s", "deadline_s", "time_limit_s", "shares_norm")
_BOOLS: Final = ("held", "dependent", "fixed", "requeue")
_TEXTS: Final = ("user", "account", "partition", "qos", "name", "gpu_kind", "reason")
_INTS: Final = {"array_task_id": -1, "tasks": 1, "nodes": 1, "cpus": 1}


def queue_columns(taken_unix_s: float, job_id: Any, **columns: Any) -> QueueColumns:
    """Return columns, those not given with the values of a job that says nothing; `requeue` is then True.

    Raises:
        ValueError: a column of another length, or one that is not known.
    """
    count = len(job_id)
    values: dict[str, Any] = {}
    for name in QueueColumns.__slots__[1:]:
        given = job_id if name == "job_id" else columns.pop(name, None)
        values[name] = _column(name, count, given)
        if len(values[name]) != count:
            raise ValueError(f"column {name} has {len(values[name])} rows, not {count}")
    if columns:
        raise ValueError(f"unknown columns: {', '.join(columns)}")
    return QueueColumns(taken_unix_s=taken_unix_s, **values)


def _column(name: str, count: int, given: Any) -> Any:
    if name in _TEXTS:
        return [""] * count if given is None else list(given)
    if name == "flags":
        return [{} for _ in range(count)] if given is None else list(given)
    if name in _FLOATS:
        return np.full(count, np.nan) if given is None else np.asarray(given, np.float64)
    if name in _BOOLS:
        return np.full(count, name == "requeue") if given is None else np.asarray(given, np.bool_)
    return np.full(count, _INTS.get(name, 0)) if given is None else np.asarray(given, np.int64)


class QueueSource(Protocol):
    """Where the queue is read from."""

    def read(self) -> QueueColumns:
        """Return the queue as it is now.

        Raises:
            UnavailableError: it cannot be read; the last one known stays good.
        """
        ...
