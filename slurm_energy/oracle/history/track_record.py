"""Records of a user's finished runs, weighted by the resources that they used.

A user can make any number of short runs at no cost. Therefore runs are never counted: every value is weighted
by GPU or CPU seconds, and a prediction deviates from its prior only as far as the runs' resources are
comparable to the request of the job. Pure arithmetic.
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
"""Seconds after which the weight of a run has halved."""

PRIOR_FRACTION: Final = 0.5
"""Assumed fraction of the time limit that a job of an unknown user runs, as in the nameplate prediction."""

PRIOR_SHARE: Final = 0.1
"""Weight of the prior: that of runs which used this share of the job's request."""

IGNORED_SHARE: Final = 0.05
"""Runs that together used less than this share of the job's request are ignored."""

LARGEST_OVERRUN: Final = 1000.0
"""Maximum ratio of actual to predicted time that a single run contributes."""

PARTITION_DEPTH: Final = 2
"""Maximum number of simultaneous runs of one user that count as time of a partition.

The typical values of a partition must be learned before the habits of single users. Otherwise the users whose
jobs run first are trusted first, are ranked first, and delay the others. This happens with a depth of 1.
"""

_OVERRUN_PRIOR_SIZE_SECONDS: Final = 600.0
_STEPS_PER_DOUBLING: Final = 8


class ResourceRequest(NamedTuple):
    """Maximum resources that a job may use.

    Attributes:
        limit_s: time limit, or the assumed one.
        nodes, cpus, gpus: as requested, at least 1 except `gpus`.
    """

    limit_s: float
    nodes: float
    cpus: float
    gpus: float


@dataclass(slots=True)
class ResourceUse:
    """Resources that runs have used; the sums decay with `HALF_LIFE_S`.

    Attributes:
        seconds: time in which any of the runs was running: simultaneous runs count once.
        node_seconds: seconds of the runs times their nodes.
        cpu_seconds: seconds of the runs times their CPUs.
        gpu_seconds: seconds of the runs times their GPUs.
        size_seconds: seconds of the runs times their GPUs, or CPUs without GPUs: the weight of a run in
            means.
        limit_sum: `size_seconds` times the time limit, or times the run time if a run had no limit.
        newest: end of the newest run in Unix seconds.
        busy: intervals in which the runs were running.
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
        """Add a run.

        Args:
            run: the run.
            new_s: seconds of the run that count in addition to simultaneous runs; None: determined from
                `busy`.

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
        """Return the used resources as a share of the job's request, at least 0.

        The scarcest resource determines the share: neither many simultaneous runs nor a short run on many
        nodes are evidence for a large or long job. Time is a resource of its own because a job may occupy
        more than it requests, as with `--exclusive` or `--mem=0`. Runs with shorter time limits count less,
        in proportion: by the other limit, the user declares a different job.
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

    Runs with a long time limit are more relevant to a job with a long time limit, so means are also weighted
    by the limit.

    Attributes:
        time_sum: `limit_sum` times the seconds without any cap.
        measured_sum: part of `limit_sum` that belongs to runs with known energy.
        watts_sum: `measured_sum` times the watts per unit.
    """

    time_sum: float = 0.0
    measured_sum: float = 0.0
    watts_sum: float = 0.0

    def add(self, run: ObservedRun, new_s: float | None = None) -> tuple[float, float]:
        """Add a run; see `ResourceUse.add`."""
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
        """Fraction of the evidence with known energy, 0 to 1."""
        return self.measured_sum / self.limit_sum if self.limit_sum > 0 else 0.0

    @property
    def time_s(self) -> float | None:
        """Weighted mean of the seconds of the runs; None without evidence."""
        return self.time_sum / self.limit_sum if self.limit_sum > 0 else None

    @property
    def unit_watts(self) -> float | None:
        """Weighted mean of the watts per unit; None without evidence."""
        return self.watts_sum / self.measured_sum if self.measured_sum > 0 else None


@dataclass(slots=True)
class UserRecord(ResourceUse):
    """Weighted sums over all runs of one user.

    Attributes:
        fraction_sum: `limit_sum` times the used fraction of the time limit.
        overrun_size_seconds: size seconds of the runs with a predicted time.
        overrun_sum: these times the logarithm of actual over predicted time, 0 for shorter runs. It decays
            twice as fast, so that the logarithm of the misprediction factor halves, too.
    """

    fraction_sum: float = 0.0
    overrun_size_seconds: float = 0.0
    overrun_sum: float = 0.0

    def add(self, run: ObservedRun, new_s: float | None = None) -> tuple[float, float]:
        """Add a run; see `ResourceUse.add`."""
        fade, weight = ResourceUse.add(self, run, new_s)
        limit_s, predicted_s = run.time_limit_s or run.duration_s, run.predicted_s or 0.0
        fraction = min(1.0, run.duration_s / limit_s) if limit_s > 0 else 0.0
        self.fraction_sum = self.fraction_sum * fade + weight * limit_s * fraction
        self.overrun_size_seconds = self.overrun_size_seconds * fade + (weight if predicted_s else 0.0)
        self.overrun_sum = self.overrun_sum * fade * fade + weight * overrun(run.duration_s, predicted_s)
        return fade, weight

    @property
    def fraction(self) -> float | None:
        """Weighted mean of the used fraction of the time limit; None without evidence."""
        return self.fraction_sum / self.limit_sum if self.limit_sum > 0 else None

    def overruns_at(self, now: float) -> tuple[float, float]:
        """Return the decayed `overrun_sum` and `overrun_size_seconds` at a time in Unix seconds."""
        fade = _fade(now - self.newest)
        return self.overrun_sum * fade * fade, self.overrun_size_seconds * fade


@dataclass(slots=True)
class PartitionRecord:
    """Record of the runs of all users in a partition, which is the same for every job there.

    Attributes:
        limits: used fractions of time limits.
        programs: watts of the runs.
        busy: intervals of the runs by user; the key None is for runs of unknown users.
    """

    limits: UserRecord = field(default_factory=UserRecord)
    programs: ProgramRecord = field(default_factory=ProgramRecord)
    busy: dict[str | None, BusyTime] = field(default_factory=dict)

    def add(self, run: ObservedRun) -> None:
        """Add a run, which counts beside at most `PARTITION_DEPTH` - 1 simultaneous runs of its user."""
        busy = self.busy.get(run.user)
        if busy is None:
            busy = self.busy[run.user] = BusyTime(PARTITION_DEPTH)
        new_s = busy.add(run.end - run.duration_s, run.end)
        self.limits.add(run, new_s)
        self.programs.add(run, new_s)

    def forget(self, before: float) -> None:
        """Drop the intervals of users whose last run ended before the time `before`; the sums remain."""
        self.busy = {user: busy for user, busy in self.busy.items() if busy.last_end_s >= before}


def overrun(actual_s: float, predicted_s: float) -> float:
    """Return the logarithm of actual over predicted time, 0 for a run that ended early.

    Early ends do not compensate overruns, because a user could produce them with cheap jobs.
    """
    if predicted_s <= 0 or actual_s <= predicted_s:
        return 0.0
    return math.log(min(actual_s / predicted_s, LARGEST_OVERRUN))


def misprediction_factor(overrun_sum: float, size_seconds: float) -> float:
    """Return the factor, at least 1, by which a user's predicted times are multiplied.

    Args:
        overrun_sum: size seconds times `overrun`.
        size_seconds: size seconds of the runs in `overrun_sum`.
    """
    return math.exp(overrun_sum / (size_seconds + _OVERRUN_PRIOR_SIZE_SECONDS))


def size(nodes: int | None, cpus: int | None, gpus: int | None) -> float:
    """Return the weight of a run per second: its GPUs, else its CPUs, else its nodes."""
    return float(gpus or cpus or nodes or 1)


def bounded(prior: float, value: float | None, share: float) -> float:
    """Return the weighted mean of evidence and prior.

    Args:
        prior: value without evidence.
        value: mean of the evidence; None: no evidence.
        share: weight of the evidence, see `ResourceUse.share_of`.

    Returns:
        `prior` itself while the evidence is below `IGNORED_SHARE`.
    """
    counted = share - IGNORED_SHARE
    if value is None or counted <= 0:
        return prior
    return (counted * value + PRIOR_SHARE * prior) / (counted + PRIOR_SHARE)


def rounded_up(value: float, anchor: float) -> float:
    """Round up to `anchor` times a power of the eighth root of 2.

    Values that differ slightly become equal, so a small difference does not move a job ahead of jobs with the
    same prior.
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
    """Return the GPUs' part of a run's watts per unit; all of them if the part is unknown."""
    if not run.gpus:
        return 0.0
    if run.gpu_joules is None or not run.energy_joules:
        return watts
    return watts * min(1.0, run.gpu_joules / run.energy_joules)


def _fading(run: ObservedRun, newest: float) -> tuple[float, float, float]:
    """Return the factor on older runs, the factor on this run, and the latest end."""
    if run.end >= newest:
        return _fade(run.end - newest), 1.0, run.end
    return 1.0, _fade(newest - run.end), newest


def _fade(elapsed_s: float) -> float:
    return float(2.0 ** (-max(0.0, elapsed_s) / HALF_LIFE_S))
