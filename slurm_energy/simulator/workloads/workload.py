"""Workload of a simulation as tables (arrays) of jobs and of their shapes.

A shape is a way to run a job. Each shape has a predicted and a real run time and power.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from slurm_energy.deferral import latest_start_s
from slurm_energy.errors import UsageError
from slurm_energy.scheduling.queue import Floats, Ints, Queue, Users
from slurm_energy.scheduling.queue import alternatives as alternatives_of
from slurm_energy.scheduling.queue import jobs as jobs_of

_WHOLE_NUMBERS = frozenset(
    {
        "job_id",
        "user",
        "checkpointable",
        "partition",
        "qos",
        "reservation",
        "licenses",
        "hardware",
        "units",
        "batch",
    }
)

SHAPE_COLUMNS: Final = (
    *("hardware", "units", "batch", "cap_watts", "time_s", "power_watts"),
    *("predicted_time_s", "predicted_watts"),
)
"""Columns with one element per shape of a job; the other columns have one element per job."""
REQUEST_COLUMNS: Final = ("unit_memory_gib", "partition", "qos", "reservation", "licenses")
"""Columns with requests of jobs other than units; the constraints of a cluster use these columns."""
REQUEST_NAMES: Final = ("partitions", "qos_names", "reservations", "license_names")
"""Lists of names to which columns of requests refer."""


@dataclass(frozen=True, slots=True)
class Workload:
    """All n jobs in order of submission, with their m shapes.

    A shape is one way to run a job: a kind of nodes, a number of units, a batch size and a power cap. A unit
    is a GPU, a core or a node. Job columns have n elements, shape columns have m elements.

    Attributes:
        job_id: unique number of each job.
        submit_s: seconds from the start of the simulation, ascending.
        user: index of the job's user in `users`.
        deadline_s: deadline in seconds from the start of the simulation; NaN if the job has no deadline.
        time_limit_s: requested time limit in seconds, on which backfill relies. If NaN, backfill uses the
            predicted time.
        slack_s: maximum time after submission by which the start may be deferred; NaN means no deferral.
        checkpointable: 1 for jobs that can be suspended and resumed, else 0.
        compute_share: fraction of the run time that is inversely proportional to the clock frequency. It
            determines how a power limit slows the job down. NaN means the predictor's default.
        unit_memory_gib: memory that each unit of the job needs on its node; NaN if the job requests none.
        partition, qos, reservation: index in `partitions`, `qos_names` and `reservations`; -1 if the job
            requests none.
        licenses: licenses that the job holds while it runs, one column per name in `license_names`, shape
            (n, l).
        first: n + 1 indices; the shapes of job i are at first[i] to first[i + 1] - 1.
        hardware, units, batch, cap_watts: for each shape: index of the kind of nodes, number of units, batch
            size, and power cap.
        time_s, power_watts: for each shape: real run time, and real power of all units together.
        predicted_time_s, predicted_watts: run time and power that the policy assumes.
        cap_points: measured effect of power limits, by index of the job. An entry has two arrays: power
            ratios below 1, ascending, and the time ratio at each power ratio. Both ratios are relative to
            the same shape of the job without a limit. For a job without an entry, the effect follows from
            its shapes with power caps, or from the predictor's model.
        users: names of the users.
        names: names of the jobs; empty if the jobs have no names.
        partitions, qos_names, reservations, license_names: names that the jobs request.
    """

    job_id: Ints
    submit_s: Floats
    user: Ints
    deadline_s: Floats
    time_limit_s: Floats
    slack_s: Floats
    checkpointable: Ints
    compute_share: Floats
    unit_memory_gib: Floats
    partition: Ints
    qos: Ints
    reservation: Ints
    licenses: Ints
    first: Ints
    hardware: Ints
    units: Ints
    batch: Ints
    cap_watts: Floats
    time_s: Floats
    power_watts: Floats
    predicted_time_s: Floats
    predicted_watts: Floats
    cap_points: Mapping[int, tuple[Floats, Floats]] = field(default_factory=dict)
    users: tuple[str, ...] = ("user0",)
    names: tuple[str, ...] = field(default=())
    partitions: tuple[str, ...] = field(default=())
    qos_names: tuple[str, ...] = field(default=())
    reservations: tuple[str, ...] = field(default=())
    license_names: tuple[str, ...] = field(default=())

    @property
    def count(self) -> int:
        """Return the number of jobs in the workload."""
        return len(self.job_id)

    def shapes(self, job: int) -> range:
        """Return the indices of a job's shapes in the shape columns.

        A shape is one way to run a job. `job` is the index of the job in the job columns.
        """
        return range(int(self.first[job]), int(self.first[job + 1]))

    def limit_s(self, job: int, shape: int) -> float:
        """Return the expected run time of a job in seconds: its time limit, else the predicted time.

        Args:
            job: row of the job in the workload.
            shape: row of the shape (way to run the job) in which the job runs.
        """
        limit = float(self.time_limit_s[job])
        return float(self.predicted_time_s[shape]) if limit != limit else limit

    def latest_start_s(self, rows: Ints) -> Floats:
        """Return the latest permitted start of each job; NaN for a job that is not deferrable.

        The latest start respects the permitted delay (slack) and the deadline of the job.
        """
        slack_s = self.slack_s[rows]
        if np.all(np.isnan(slack_s)):
            return np.full(len(rows), np.nan)
        limit_s = self.time_limit_s[rows]
        limit_s = np.where(np.isnan(limit_s), self.predicted_time_s[self.first[rows]], limit_s)
        deadline_s = np.where(np.isnan(slack_s), np.nan, self.deadline_s[rows])
        return latest_start_s(self.submit_s[rows], slack_s, deadline_s, limit_s)

    def sizes(self, total: Ints) -> Floats:
        """Return the size of each job in the shape that comes first in the workload.

        A shape is one way to run a job: a kind of nodes and a number of units (GPUs, cores or nodes). The
        size is a fraction of all units of this kind of nodes.

        Args:
            total: units of the cluster by kind of nodes.
        """
        first = self.first[:-1]
        units = total[self.hardware[first]] if len(first) else np.ones(0)
        shares: Floats = np.minimum(1.0, self.units[first] / np.maximum(1, units))
        return shares

    def queue(
        self,
        rows: Ints,
        now_s: float,
        left: Floats,
        users: Users,
        size: Floats,
        held_s: Floats | None = None,
    ) -> tuple[Queue, Ints]:
        """Return the queue of the given pending jobs, as the input of a scheduling policy.

        Args:
            rows: indices of the pending jobs in this workload, shape (p,).
            now_s: current time.
            left: fraction of each job's work that remains, shape (n,).
            users: usage of the users.
            size: fraction of the cluster that each job requests, shape (n,).
            held_s: time for which each job was held, shape (n,). This time does not count as waiting time.
                None if no job was held.

        Returns:
            Two values. The first is the queue, in which every shape (choice of resources) of a job is marked
            as possible. The second has, for each shape in the queue, the index of the shape in this
            workload.
        """
        counts = self.first[rows + 1] - self.first[rows]
        starts = np.concatenate([[0], np.cumsum(counts)])
        shapes = np.arange(starts[-1]) + np.repeat(self.first[rows] - starts[:-1], counts)
        table = alternatives_of(
            starts,
            self.predicted_time_s[shapes] * np.repeat(left[rows], counts),
            self.predicted_watts[shapes],
            gpus=self.units[shapes],
            batch=self.batch[shapes],
            hardware=self.hardware[shapes],
            cap_watts=self.cap_watts[shapes],
        )
        jobs = jobs_of(
            self.job_id[rows],
            self.submit_s[rows] if held_s is None else self.submit_s[rows] + held_s[rows],
            user=self.user[rows],
            deadline_s=self.deadline_s[rows],
            time_limit_s=self.time_limit_s[rows],
            size=size[rows],
            latest_start_s=self.latest_start_s(rows),
            checkpointable=self.checkpointable[rows] != 0,
        )
        return Queue(now_s, jobs, table, users), shapes


def workload(first: Ints, job: dict[str, Any], shape: dict[str, Any], **more: Any) -> Workload:
    """Return a workload whose jobs are sorted by submission time. Omitted columns get defaults.

    Each job has one or more shapes. A shape is one way to run the job, with a number of units (such as GPUs)
    and a run time. All shapes are rows of one table.

    Args:
        first: the shapes of job i are the rows first[i] to first[i + 1] - 1, array of shape (n + 1,).
        job: columns of jobs by name; `submit_s` is required.
        shape: columns of shapes by name; `units` and `time_s` are required.
        **more: further attributes of `Workload`, such as the names of users, jobs and partitions.

    Raises:
        UsageError: a time or power is impossible. The message names the job.
    """
    first = np.asarray(first, np.int64)
    count, shapes = len(first) - 1, int(first[-1])
    # Omitted columns take no memory: one value is broadcast to all rows.
    columns: dict[str, Any] = {
        "job_id": np.arange(1, count + 1),
        "user": np.broadcast_to(np.int64(0), count),
        "deadline_s": np.broadcast_to(np.nan, count),
        "time_limit_s": np.broadcast_to(np.nan, count),
        "slack_s": np.broadcast_to(np.nan, count),
        "checkpointable": np.broadcast_to(np.int64(0), count),
        "compute_share": np.broadcast_to(np.nan, count),
        "unit_memory_gib": np.broadcast_to(np.nan, count),
        "partition": np.broadcast_to(np.int64(-1), count),
        "qos": np.broadcast_to(np.int64(-1), count),
        "reservation": np.broadcast_to(np.int64(-1), count),
        "licenses": np.broadcast_to(np.int64(0), (count, 0)),
        **job,
    }
    details: dict[str, Any] = {
        "hardware": np.broadcast_to(np.int64(0), shapes),
        "batch": np.broadcast_to(np.int64(0), shapes),
        "cap_watts": np.broadcast_to(np.nan, shapes),
        "power_watts": np.broadcast_to(0.0, shapes),
        **shape,
    }
    starts, order, rows = _in_order(np.asarray(job["submit_s"], np.float64), first)
    ordered: dict[str, Any] = {name: _column(name, values, order) for name, values in columns.items()}
    ordered |= {name: _column(name, values, rows) for name, values in details.items()}
    if order is not None and more.get("names"):
        more["names"] = tuple(more["names"][row] for row in order.tolist())
    ordered.setdefault("predicted_time_s", ordered["time_s"])
    ordered.setdefault("predicted_watts", ordered["power_watts"])
    result = Workload(first=starts, **ordered, **more)
    _check(result)
    return result


def _in_order(submit_s: Floats, first: Ints) -> tuple[Ints, Ints | None, Ints | None]:
    """Sort jobs by submission time, together with their shapes.

    A shape is a possible choice of resources for the job. The shapes of a job are adjacent rows.

    Args:
        submit_s: submission times, shape (n,).
        first: row of the first shape of each job, shape (n + 1,).

    Returns:
        `first` in the new order, and the old row numbers of jobs and of shapes in the new order. The row
        numbers are None if the jobs are already in this order.
    """
    if np.all(submit_s[1:] >= submit_s[:-1]):
        return first, None, None
    order = np.argsort(submit_s, kind="stable")
    counts = np.diff(first)[order]
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    rows = np.arange(starts[-1]) + np.repeat(first[:-1][order] - starts[:-1], counts)
    return starts, order, rows


def _column(name: str, values: Any, rows: Ints | None) -> np.ndarray:
    column = np.asarray(values)
    kind = np.int64 if name in _WHOLE_NUMBERS else np.float64
    return (column if rows is None else column[rows]).astype(kind, copy=False)


def _check(jobs: Workload) -> None:
    """Raise an error for the first job that cannot be simulated."""
    problems = {
        "a time that is not positive": ~((jobs.time_s > 0) & (jobs.predicted_time_s > 0)),
        "a power that is negative": ~((jobs.power_watts >= 0) & (jobs.predicted_watts >= 0)),
        "a size below 1": jobs.units < 1,
    }
    for fault, wrong in problems.items():
        if np.any(wrong):
            owner = int(np.searchsorted(jobs.first, np.argmax(wrong), "right")) - 1
            raise UsageError(f"job {jobs.job_id[owner]}", f"it has {fault}")
    if np.any(np.diff(jobs.first) < 1):
        raise UsageError(f"job {jobs.job_id[np.argmin(np.diff(jobs.first))]}", "it has no shape to run in")
    if np.any(jobs.slack_s < 0):
        raise UsageError(f"job {jobs.job_id[np.argmax(jobs.slack_s < 0)]}", "its slack is negative")
    if np.any(~np.isfinite(jobs.submit_s)) or np.any(jobs.submit_s < 0):
        raise UsageError("a job has a submission time that is negative or not a number")
