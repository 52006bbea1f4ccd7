"""Tables of pending jobs, of the alternatives (ways to run) of each job, and of users.

The tables are the input of the scheduling policies. They contain only data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from slurm_energy.errors import UsageError
from slurm_energy.signals import SignalColumns

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Column = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Jobs:
    """Table of the n pending jobs; all columns have shape (n,). Times are in seconds on one clock.

    Attributes:
        job_id: number of the job in Slurm or in the simulator. Of jobs with equal rank, the one with the
            lower number goes first.
        submit_s: time of submission.
        user: row of the job's user in the table `Users`.
        deadline_s: time by which the job must have ended; NaN if the job has no deadline.
        time_limit_s: time limit that the user requested, in seconds; NaN if the user requested none.
        size: fraction of the cluster that the job requests, 0 to 1.
        partition_factor, qos_factor: Slurm's priority factors of the partition and the QOS, 0 to 1.
        nice: Slurm's nice value, which `multifactor` subtracts from the priority.
        owner: number that identifies the person who submitted the job, for limits per person. One person may
            have several rows in `Users`.
        aged_starts: number of the owner's jobs that started recently and had waited longer than the bound on
            waiting.
        latest_start_s: latest time to which the start may be deferred, see `slurm_energy.deferral`. NaN means
            that the job is not deferrable.
        checkpointable: whether the job can be suspended and resumed.
    """

    job_id: Ints
    submit_s: Floats
    user: Ints
    deadline_s: Floats
    time_limit_s: Floats
    size: Floats
    partition_factor: Floats
    qos_factor: Floats
    nice: Floats
    owner: Ints
    aged_starts: Ints
    latest_start_s: Floats
    checkpointable: Bools

    @property
    def count(self) -> int:
        """Return the number of jobs."""
        return len(self.job_id)

    @property
    def urgent(self) -> Bools:
        """Return the mask of the jobs with a deadline, shape (n,)."""
        return ~np.isnan(self.deadline_s)


def jobs(job_id: Ints, submit_s: Floats, **columns: Column) -> Jobs:
    """Return a table of pending jobs. Each omitted column gets a neutral value.

    Args:
        job_id: numbers of the jobs, shape (n,).
        submit_s: times of submission in seconds, shape (n,).
        **columns: further columns of `Jobs` by name.

    Raises:
        UsageError: a column has another length or an unknown name.
    """
    count = len(job_id)
    defaults = {
        "user": np.zeros(count, np.int64),
        "deadline_s": np.full(count, np.nan),
        "time_limit_s": np.full(count, np.nan),
        "size": np.zeros(count),
        "partition_factor": np.zeros(count),
        "qos_factor": np.zeros(count),
        "nice": np.zeros(count),
        "owner": np.asarray(columns.get("user", np.zeros(count)), np.int64),
        "aged_starts": np.zeros(count, np.int64),
        "latest_start_s": np.full(count, np.nan),
        "checkpointable": np.zeros(count, np.bool_),
    }
    given = _complete("jobs", count, defaults, {"submit_s": submit_s}, columns)
    return Jobs(job_id=np.asarray(job_id, np.int64), submit_s=np.asarray(submit_s, np.float64), **given)


def _complete(
    table: str,
    count: int,
    defaults: Mapping[str, Column],
    needed: Mapping[str, Column],
    given: Mapping[str, Column],
) -> dict[str, Any]:
    """Check the given columns of a table, and return its optional columns with defaults filled in.

    Args:
        table: name of the table, for error messages.
        count: number of rows.
        defaults: default of each optional column, used where a column is omitted.
        needed: required columns. Their lengths are checked as well.
        given: optional columns given by the caller.

    Raises:
        UsageError: a column has another length or an unknown name.
    """
    for name, column in {**needed, **given}.items():
        if name not in needed and name not in defaults:
            raise UsageError(f"{table}: column '{name}' is not known", todo=f"one of {', '.join(defaults)}")
        if len(column) != count:
            raise UsageError(f"{table}: column '{name}' has {len(column)} rows", f"the table has {count}")
    return {name: np.asarray(given.get(name, column), column.dtype) for name, column in defaults.items()}


@dataclass(frozen=True, slots=True)
class Alternatives:
    """Table of the m shapes of all jobs. A shape is a set of resources on which a job could run.

    Each row is one shape, and each column has shape (m,). The rows of a job are adjacent.

    Attributes:
        first: the rows of job i are first[i] to first[i + 1] - 1, shape (n + 1,). Each job has at least one
            row.
        gpus: number of GPUs. On a cluster whose jobs are counted in nodes or cores, the number of nodes or
            cores.
        batch: batch size in training; 0 if the job has no batch size.
        hardware: index of the kind of hardware, assigned by the caller.
        cap_watts: power cap; NaN if the shape has no cap.
        time_s: predicted run time.
        power_watts: predicted mean power.
        possible: whether the shape fits in the resources that are free now. The value is True for all shapes
            if the caller does not restrict the choice.
    """

    first: Ints
    gpus: Ints
    batch: Ints
    hardware: Ints
    cap_watts: Floats
    time_s: Floats
    power_watts: Floats
    possible: Bools

    @property
    def edp(self) -> Floats:
        """Return the energy-delay product P T^2 of each alternative in joule seconds, shape (m,).

        An alternative is one choice of resources with which a job could run.

        Source: thesis, Eq. 5.1.
        """
        product: Floats = self.power_watts * np.square(self.time_s)
        return product

    @property
    def energy_joules(self) -> Floats:
        """Return the predicted energy in joules of each shape (possible set of resources of a job).

        The result has the shape (m,).
        """
        return self.power_watts * self.time_s


def alternatives(first: Ints, time_s: Floats, power_watts: Floats, **columns: Column) -> Alternatives:
    """Return a table of the alternatives (ways to run) of all jobs, with neutral defaults.

    Args:
        first: the rows of job i are first[i] to first[i + 1] - 1, shape (n + 1,).
        time_s: predicted run times, shape (m,).
        power_watts: predicted mean powers, shape (m,).
        **columns: further columns of `Alternatives` by name. Each omitted column gets a neutral
            value.

    Raises:
        UsageError: columns differ in length, a job has no alternative, or a time or power is not positive.
    """
    count = len(time_s)
    defaults = {
        "gpus": np.ones(count, np.int64),
        "batch": np.zeros(count, np.int64),
        "hardware": np.zeros(count, np.int64),
        "cap_watts": np.full(count, np.nan),
        "possible": np.ones(count, np.bool_),
    }
    given = _complete("alternatives", count, defaults, {"power_watts": power_watts}, columns)
    starts = np.asarray(first, np.int64)
    if starts[0] != 0 or starts[-1] != count or np.any(np.diff(starts) < 1):
        raise UsageError("alternatives: every job needs at least one row, in the order of the jobs")
    times, powers = np.asarray(time_s, np.float64), np.asarray(power_watts, np.float64)
    if not (np.all(times > 0) and np.all(powers >= 0) and np.all(np.isfinite(times + powers))):
        raise UsageError("alternatives: a predicted time or power is negative or not a number")
    return Alternatives(first=starts, time_s=times, power_watts=powers, **given)


@dataclass(frozen=True, slots=True)
class Users:
    """Table of the u users with their decayed usage; columns have shape (u,).

    Attributes:
        share: fair share of a user, in any positive unit. Only ratios between users matter.
        gpu_seconds: decayed GPU seconds used.
        energy_joules: decayed energy used, in joules.
    """

    share: Floats = field(default_factory=lambda: np.ones(1))
    gpu_seconds: Floats = field(default_factory=lambda: np.zeros(1))
    energy_joules: Floats = field(default_factory=lambda: np.zeros(1))


UNKNOWN_UNITS: Final = -1
"""Value of `UnitCapacity.free` for a kind of hardware whose units are unknown."""


@dataclass(frozen=True, slots=True)
class UnitCapacity:
    """The units (GPUs, nodes or cores) of the cluster: free units, and units that r running jobs hold.

    Attributes:
        free: number of free units by kind of hardware, shape (k,). `UNKNOWN_UNITS` marks a kind whose units
            are unknown.
        unit_idle_watts: power of an idle unit by kind of hardware, shape (k,); 0 where it is unknown.
        hardware: kind of hardware that each running job holds, shape (r,).
        gpus: number of units that each running job holds, shape (r,).
        end_s: expected end of each running job, on the clock of `Queue.now_s`, shape (r,).
    """

    free: Ints
    unit_idle_watts: Floats
    hardware: Ints
    gpus: Ints
    end_s: Floats


@dataclass(frozen=True, slots=True)
class Queue:
    """Input of a scheduling policy.

    It contains the pending jobs, the ways in which each job can run (alternatives), and the users.

    Attributes:
        now_s: current time in seconds, on the clock of `jobs.submit_s`.
        signals: price, carbon intensity and other signals from the current time on; None if no signal is
            known.
        capacity: number of free units (such as GPUs), and expected ends of running jobs; None if unknown.
            Only policies that look ahead (`Policy.looks_ahead`) get the capacity.
    """

    now_s: float
    jobs: Jobs
    alternatives: Alternatives
    users: Users = field(default_factory=Users)
    signals: SignalColumns | None = None
    capacity: UnitCapacity | None = None

    @property
    def wait_s(self) -> Floats:
        """Return the seconds since the submission of each job, shape (n,)."""
        waited: Floats = np.maximum(0.0, self.now_s - self.jobs.submit_s)
        return waited
