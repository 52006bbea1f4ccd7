"""Pending and running jobs as columns. The columns are the same for every source and Slurm release."""

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
    """The pending and running jobs of slurmctld, one row for each job record of slurmctld.

    Columns are arrays of shape (n,) or lists of length n. The pending tasks of a job array that slurmctld
    keeps in one record are one row.

    Attributes:
        taken_unix_s: Unix time of the snapshot of the queue.
        job_id: Slurm's job id of the record, as `scontrol update` takes it.
        array_job_id: job id of the array; 0 means that the job is not part of an array.
        array_task_id: index in the array; -1 means not part of an array, or a record of several tasks.
        tasks: pending array tasks in the record; 1 for a single job.
        het_job_id: job id of the heterogeneous job; 0 means that the job is not part of one.
        uid: uid of the job's owner.
        state: PENDING or RUNNING. Configuring, completing and suspended jobs are not listed.
        held: whether the user or an administrator holds the job; Slurm's priority of the job is then 0.
        dependent: the job waits for the jobs on which it depends, or for its begin time.
        fixed: an administrator set the priority; site factors have no effect on the job.
        requeue: the job may be requeued.
        submit_s, eligible_s, start_s, end_s, deadline_s: Unix seconds; NaN means none. `end_s` is the time at
            which a running job reaches its time limit.
        time_limit_s: seconds; NaN means no limit.
        nodes, cpus, gpus: numbers on all nodes together, requested by a pending job or allocated to a running
            one. If a job requests a range, the minimum is given.
        held_cpus: number of all CPUs of the nodes that a pending job takes whole (`--exclusive`, or the
            partition's `OverSubscribe=EXCLUSIVE` or `ExclusiveUser`); 0 means that the job shares nodes, or
            that the number is unknown.
        memory_mib: memory in MiB on all nodes together, requested by a pending job or allocated to a running
            one; 0 means unknown.
        gpu_kind: Slurm's GRES type of the GPUs; empty if the job names none.
        priority: Slurm's priority as squeue shows it.
        site_factor: Slurm's site factor as sprio shows it, without Slurm's NICE_OFFSET.
        nice: nice value as `--nice` takes it.
        restart_count: number of earlier requeues.
        shares_norm: normalised fair shares of the job's association, 0 to 1; NaN means unknown.
        user: login name; the uid as text if this host does not know the name.
        account, partition, qos, name: Slurm account, partition, quality of service and job name; empty if not
            set. Several partitions, or several QOS (from Slurm 24.11 on), are separated by commas.
        reason: Slurm's reason code of a pending job; empty if unknown.
        licenses: licenses as squeue shows them; empty if the job has no licenses, or if they are unknown.
        array_tasks: indexes of the tasks in the record, as squeue shows them (`3-9,12`); an empty value means
            not part of an array, or unknown.
        flags: energy flags by their name in the job-control environment (`ENERGY_POLICY`, ...), as the user
            wrote them, unchecked.
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
    held_cpus: Ints
    memory_mib: Ints
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
    licenses: list[str]
    array_tasks: list[str]
    flags: list[Mapping[str, str]]

    @property
    def count(self) -> int:
        """Number of rows, one for each job record."""
        return len(self.job_id)

    def select_rows(self, rows: Bools) -> QueueColumns:
        """Return a queue with only those jobs for which `rows`, of shape (n,), is True."""
        if rows.all():
            return self
        positions = np.flatnonzero(rows)
        columns = {name: getattr(self, name) for name in self.__slots__[1:]}
        selected: dict[str, Any] = {
            name: [column[row] for row in positions.tolist()]
            if isinstance(column, list)
            else column[positions]
            for name, column in columns.items()
        }
        return QueueColumns(taken_unix_s=self.taken_unix_s, **selected)

    def scontrol_name(self, row: int) -> str:
        """Return the name by which scontrol addresses only the record in `row`: `12`, or `12_3` (array task).

        The last task of an array has the job id of the array, which scontrol would apply to all tasks.
        """
        array, task = int(self.array_job_id[row]), int(self.array_task_id[row])
        return f"{array}_{task}" if array and task >= 0 else str(int(self.job_id[row]))


_FLOATS: Final = ("submit_s", "eligible_s", "start_s", "end_s", "deadline_s", "time_limit_s", "shares_norm")
_BOOLS: Final = ("held", "dependent", "fixed", "requeue")
_TEXTS: Final = (
    *("user", "account", "partition", "qos", "name", "gpu_kind", "reason"),
    *("licenses", "array_tasks"),
)
_INTS: Final = {"array_task_id": -1, "tasks": 1, "nodes": 1, "cpus": 1}


def queue_columns(taken_unix_s: float, job_id: Any, **columns: Any) -> QueueColumns:
    """Return a queue built from single columns.

    A column that is not given has the value of a job that sets nothing. The default of `requeue` is True.

    Args:
        taken_unix_s: Unix time of the snapshot of the queue.
        job_id: job ids, one per row.
        **columns: other columns by the names in `QueueColumns`.

    Raises:
        ValueError: a column has another length than `job_id`, or an unknown name.
    """
    count = len(job_id)
    values: dict[str, Any] = {}
    for name in QueueColumns.__slots__[1:]:
        column = job_id if name == "job_id" else columns.pop(name, None)
        values[name] = _column(name, count, column)
        if len(values[name]) != count:
            raise ValueError(f"column {name} has {len(values[name])} rows, not {count}")
    if columns:
        raise ValueError(f"unknown columns: {', '.join(columns)}")
    return QueueColumns(taken_unix_s=taken_unix_s, **values)


def _column(name: str, count: int, values: Any) -> Any:
    if name in _TEXTS:
        return [""] * count if values is None else list(values)
    if name == "flags":
        return [{} for _ in range(count)] if values is None else list(values)
    if name in _FLOATS:
        return np.full(count, np.nan) if values is None else np.asarray(values, np.float64)
    if name in _BOOLS:
        return np.full(count, name == "requeue") if values is None else np.asarray(values, np.bool_)
    return np.full(count, _INTS.get(name, 0)) if values is None else np.asarray(values, np.int64)


class QueueSource(Protocol):
    """Interface of the objects that read Slurm's queue of jobs."""

    def read(self) -> QueueColumns:
        """Return the current queue.

        Raises:
            UnavailableError: the queue cannot be read. Callers continue with the last queue that they read.
        """
        ...
