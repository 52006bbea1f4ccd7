"""What a user's finished runs prove, weighed by the resources that they took.

A user can make any number of short runs at no cost. So nothing here counts runs: every figure is weighed by
GPU or CPU seconds, and a prediction moves away from its prior only as far as the evidence is comparable to
what the job itself may take. Pure arithmetic.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from slurm_energy.oracle.history.busy_time import BusyTime
from slurm_energy.oracle.history.cap_response import NO_CAPS, caps_of, convert_run, tdp_watts
from slurm_energy.oracle.history.observed_run import ObservedRun
from slurm_energy.oracle.history.similarity import units

HALF_LIFE_S: Final = 14 * 86400.0
"""Seconds in which a run's weight halves."""

PRIOR_FRACTION: Final = 0.5
"""Part of its time limit that a job of an unknown user takes, as at the nameplate."""

PRIOR_SHARE: Final = 0.1
"""Weight of the prior: that of runs which took this part of what the job may take."""

IGNORED_SHARE: Final = 0.05
"""Runs that took together less than this part of what the job may take count for nothing."""

LARGEST_OVERRUN: Final = 1000.0
"""A single run counts as at most so many times longer than predicted."""

PARTITION_DEPTH: Final = 2
"""Largest number of simultaneous runs of one user that count as time of a partition.

What is usual in a partition must be known sooner than the habits of single users. Otherwise the users whose
jobs run first are believed first, are ranked first, and keep the others waiting. That happens with 1 here.
"""

_OVERRUN_PRIOR_SIZE_SECONDS: Final = 600.0
_STEPS_PER_DOUBLING: Final = 8


class ResourceRequest(NamedTuple):
    """What a job may take at most.

    Attributes:
        limit_s: time limit, or what is assumed without one.
        nodes, cpus, gpus: as asked for, at least 1 but for `gpus`.
    """

    limit_s: float
    nodes: float
    cpus: float
    gpus: float


@dataclass(slots=True)
class ResourceUse:
    """Resources that runs have taken; the sums fade with `HALF_LIFE_S`.

    Attributes:
        seconds: in which any of the runs ran, whatever their size: runs at the same time count once.
        node_seconds: times their nodes.
        cpu_seconds: times their CPUs.
        gpu_seconds: times their GPUs.
        size_seconds: times their GPUs, or CPUs where they had no GPUs: the weight of a run in means.
        limit_sum: `size_seconds` times the time limit, or the time itself where a run had no limit.
        newest: Unix seconds of the end of the newest run.
        busy: when the runs ran.
    """

    seconds: float = 0.0
    node_seconds: float = 0.0
    cpu_seconds: float = 0.0
    gpu_seconds: float = 0.0
    size_seconds: float = 0.0
    limit_sum: float = 0.0
    newest: float = 0.0
    busy: BusyTime = field(default_factory=BusyTime)

    def add(self, run: ObservedRun, new_s: float | None = None) -> tuple[float, float]:
        """Count a run.

        Args:
            run: the run.
            new_s: seconds of the run that count beside simultaneous runs; None: as `busy` says.

        Returns:
            The factor on sums over older runs, and the run's size seconds.
        """
        if new_s is None:
            new_s = self.busy.add(run.end - run.duration_s, run.end)
        fade, weight_now, self.newest = _fading(run, self.newest)
        seconds = max(0.0, run.duration_s) * weight_now
        nodes = run.nodes or 1
        weight = seconds * size(run.nodes, run.cpus, run.gpus)
        self.seconds = self.seconds * fade + new_s * weight_now
        self.node_seconds = self.node_seconds * fade + seconds * nodes
        self.cpu_seconds = self.cpu_seconds * fade + seconds * (run.cpus or nodes)
        self.gpu_seconds = self.gpu_seconds * fade + seconds * (run.gpus or 0)
        self.size_seconds = self.size_seconds * fade + weight
        self.limit_sum = self.limit_sum * fade + weight * (run.time_limit_s or run.duration_s)
        return fade, weight

    def share_of(self, need: ResourceRequest) -> float:
        """Return how much of what a job may take these runs have taken, 0 or more.

        The scarcest resource counts: neither many runs at once nor a wide one for a moment prove anything of
        a large or long job. Time counts apart from CPUs because a job may hold more than it asks for, as with
        `--exclusive` or `--mem=0`. Runs with shorter time limits count less, in proportion: the user says
        that the job is another one.
        """
        if self.size_seconds <= 0:
            return 0.0
        shares = [self.seconds, self.node_seconds / need.nodes, self.cpu_seconds / need.cpus]
        if need.gpus:
            shares.append(self.gpu_seconds / need.gpus)
        alike = min(1.0, self.limit_sum / self.size_seconds / need.limit_s)
        return min(shares) / need.limit_s * alike


@dataclass(slots=True)
class ProgramRecord(ResourceUse):
    """Weighted sums over the runs of one key.

    Runs with a long time limit say more of a job with a long time limit, so means are also weighed by it.

    Attributes:
        time_sum: `limit_sum` times seconds without any cap.
        measured_sum: part of `limit_sum` of the runs whose energy is known.
        watts_sum: `measured_sum` times watts per unit.
    """

    time_sum: float = 0.0
    measured_sum: float = 0.0
    watts_sum: float = 0.0

    def add(self, run: ObservedRun, new_s: float | None = None) -> tuple[float, float]:
        """Count a run; see `Taken.add`."""
        fade, weight = ResourceUse.add(self, run, new_s)
        limited = weight * (run.time_limit_s or run.duration_s)
        measured = limited if run.energy_joules is not None and run.duration_s > 0 else 0.0
        watts = (run.energy_joules or 0.0) / (units(run) * run.duration_s) if measured else 0.0
        self.time_sum = self.time_sum * fade + limited * uncapped_s(run)
        self.measured_sum = self.measured_sum * fade + measured
        self.watts_sum = self.watts_sum * fade + measured * watts
        return fade, weight

    @property
    def measured_part(self) -> float:
        """Part of the evidence whose energy is known, 0 to 1."""
        return self.measured_sum / self.limit_sum if self.limit_sum > 0 else 0.0

    @property
    def time_s(self) -> float | None:
        """Weighted mean of the seconds; None without evidence."""
        return self.time_sum / self.limit_sum if self.limit_sum > 0 else None

    @property
    def unit_watts(self) -> float | None:
        """Weighted mean of the watts per unit; None without evidence."""
        return self.watts_sum / self.measured_sum if self.measured_sum > 0 else None


@dataclass(slots=True)
class UserRecord(ResourceUse):
    """Weighted sums over all runs of one user.

    Attributes:
        fraction_sum: `limit_sum` times the part of the time limit that was used.
        overrun_size_seconds: size seconds of the runs whose predicted time is known.
        overrun_sum: these times the logarithm of actual over predicted time, 0 for shorter runs. It fades
            twice as fast, so that the logarithm of the misprediction factor halves too.
    """

    fraction_sum: float = 0.0
    overrun_size_seconds: float = 0.0
    overrun_sum: float = 0.0

    def add(self, run: ObservedRun, new_s: float | None = None) -> tuple[float, float]:
        """Count a run; see `Taken.add`."""
        fade, weight = ResourceUse.add(self, run, new_s)
        limit_s, predicted_s = run.time_limit_s or run.duration_s, run.predicted_s or 0.0
        fraction = min(1.0, run.duration_s / limit_s) if limit_s > 0 else 0.0
        self.fraction_sum = self.fraction_sum * fade + weight * limit_s * fraction
        self.overrun_size_seconds = self.overrun_size_seconds * fade + (weight if predicted_s else 0.0)
        self.overrun_sum = self.overrun_sum * fade * fade + weight * overrun(run.duration_s, predicted_s)
        return fade, weight

    @property
    def fraction(self) -> float | None:
        """Weighted mean of the part of the time limit that was used; None without evidence."""
        return self.fraction_sum / self.limit_sum if self.limit_sum > 0 else None

    def overruns_at(self, now: float) -> tuple[float, float]:
        """Return `overrun_sum` and `overrun_size_seconds` as they count at a Unix second."""
        fade = _fade(now - self.newest)
        return self.overrun_sum * fade * fade, self.overrun_size_seconds * fade


@dataclass(slots=True)
class PartitionRecord:
    """What the runs of all users in a partition prove; it is the same for every job there.

    Attributes:
        limits: parts of time limits that were used.
        programs: watts of the runs.
        busy: when the runs of each user ran; None as user: of runs whose user is not known.
    """

    limits: UserRecord = field(default_factory=UserRecord)
    programs: ProgramRecord = field(default_factory=ProgramRecord)
    busy: dict[str | None, BusyTime] = field(default_factory=dict)

    def add(self, run: ObservedRun) -> None:
        """Count a run beside at most `PARTITION_DEPTH` - 1 simultaneous runs of its user."""
        busy = self.busy.get(run.user)
        if busy is None:
            busy = self.busy[run.user] = BusyTime(PARTITION_DEPTH)
        new_s = busy.add(run.end - run.duration_s, run.end)
        self.limits.add(run, new_s)
        self.programs.add(run, new_s)

    def forget(self, before: float) -> None:
        """Drop the intervals of users whose last run ended before a Unix second; the sums stay."""
        self.busy = {user: busy for user, busy in self.busy.items() if busy.last_end_s >= before}


def overrun(actual_s: float, predicted_s: float) -> float:
    """Return the logarithm of actual over predicted time, 0 for a run that ended early.

    Runs that end early do not make up for overruns: a user could buy them with cheap jobs.
    """
    if predicted_s <= 0 or actual_s <= predicted_s:
        return 0.0
    return math.log(min(actual_s / predicted_s, LARGEST_OVERRUN))


def misprediction_factor(overrun_sum: float, size_seconds: float) -> float:
    """Return by what a user's predicted times are multiplied, 1 or more.

    Args:
        overrun_sum: size seconds times `overrun`.
        size_seconds: of the runs in it.
    """
    return math.exp(overrun_sum / (size_seconds + _OVERRUN_PRIOR_SIZE_SECONDS))


def size(nodes: int | None, cpus: int | None, gpus: int | None) -> float:
    """Return by what a run weighs for each second: its GPUs, else its CPUs, else its nodes."""
    return float(gpus or cpus or nodes or 1)


def bounded(prior: float, value: float | None, share: float) -> float:
    """Return the weighted mean of evidence and prior.

    Args:
        prior: value without evidence.
        value: what the evidence says; None: nothing.
        share: weight of the evidence, see `Taken.share_of`.

    Returns:
        `prior` itself while the evidence is below `IGNORED_SHARE`.
    """
    counted = share - IGNORED_SHARE
    if value is None or counted <= 0:
        return prior
    return (counted * value + PRIOR_SHARE * prior) / (counted + PRIOR_SHARE)


def rounded_up(value: float, anchor: float) -> float:
    """Round up to `anchor` times a power of the eighth root of 2.

    So figures that differ by little are equal, and no small change passes jobs that have the same prior.
    """
    if value <= 0 or anchor <= 0 or not math.isfinite(anchor):
        return value
    steps = math.floor(_STEPS_PER_DOUBLING * math.log2(anchor / value) + 1e-9)
    return float(anchor * 2.0 ** (-steps / _STEPS_PER_DOUBLING))


def uncapped_s(run: ObservedRun) -> float:
    """Return the seconds that a run would have taken without a cap."""
    before = caps_of(run.cap_watts, run.gpu_cap_watts, run.nodes, run.gpus)
    if before == NO_CAPS or run.energy_joules is None or run.duration_s <= 0:
        return run.duration_s
    watts = run.energy_joules / run.duration_s / units(run)
    _, time = convert_run(watts, gpu_watts(run, watts), before, NO_CAPS, tdp_watts(run.gpu_kind))
    return run.duration_s * time


def gpu_watts(run: ObservedRun, watts: float) -> float:
    """Return the part of a run's watts per unit that its GPUs drew: all of it where that is not known."""
    if not run.gpus:
        return 0.0
    if run.gpu_joules is None or not run.energy_joules:
        return watts
    return watts * min(1.0, run.gpu_joules / run.energy_joules)


def _fading(run: ObservedRun, newest: float) -> tuple[float, float, float]:
    """Return the factor on older runs, the factor on this run, and the newest end."""
    if run.end >= newest:
        return _fade(run.end - newest), 1.0, run.end
    return 1.0, _fade(newest - run.end), newest


def _fade(elapsed_s: float) -> float:
    return float(2.0 ** (-max(0.0, elapsed_s) / HALF_LIFE_S))
