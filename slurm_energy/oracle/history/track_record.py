"""Records of a user's finished runs, weighted by the resources that they used.

A user can make any number of short runs at no cost. Therefore the number of runs never matters: every value
is weighted by GPU or CPU seconds. A prediction deviates far from its prior only if the runs used about as
many resources as the job requests. Pure arithmetic.
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
"""Weight of the prior. Runs that used this share of the job's request have the same weight."""

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
        limit_s: time limit in seconds. For a job without one, the caller assumes a limit.
        nodes: requested nodes, at least 1.
        cpus: CPUs on all nodes that the job will hold, at least 1. With `--exclusive` these are all CPUs of
            the nodes.
        gpus: requested GPUs on all nodes; 0 means none.
        memory_mib: requested memory on all nodes in MiB; 0 means unknown.
    """

    limit_s: float
    nodes: float
    cpus: float
    gpus: float
    memory_mib: float = 0.0


@dataclass(slots=True)
class ResourceUse:
    """Resources that a group of runs has used. All sums decay with the half-life `HALF_LIFE_S`.

    Attributes:
        seconds: seconds in which at least one of the runs was running. Simultaneous runs count once.
        node_seconds: seconds of the runs times their nodes.
        cpu_seconds: seconds of the runs times the CPUs that they held.
        gpu_seconds: seconds of the runs times their GPUs.
        memory_mib_seconds: seconds of the runs times the memory in MiB that was allocated to them.
        unknown_memory_seconds: seconds of the runs whose allocated memory is unknown.
        size_seconds: seconds of the runs times their sizes. The size of a run is its number of GPUs, or its
            number of CPUs without GPUs. These products are the weights of the runs in mean values.
        limit_sum: sum over the runs of three factors: size, run time and time limit, both in seconds. For a
            run without a time limit, the run time replaces the time limit.
        newest: end of the newest run in Unix seconds.
        busy: intervals in which the runs were running.
    """

    seconds: float = 0.0
    node_seconds: float = 0.0
    cpu_seconds: float = 0.0
    gpu_seconds: float = 0.0
    memory_mib_seconds: float = 0.0
    unknown_memory_seconds: float = 0.0
    size_seconds: float = 0.0
    limit_sum: float = 0.0
    newest: float = 0.0
    busy: BusyTime = field(default_factory=BusyTime)

    def add(self, run: ObservedRun, new_s: float | None = None) -> tuple[float, float]:
        """Add a finished run to the sums of used resources, in which older runs have less weight.

        Args:
            run: the finished run.
            new_s: seconds that the run adds to the attribute `seconds`. Time in which other runs ran as well
                is not counted again. None means that these seconds are computed from `busy`.

        Returns:
            The factor by which the sums over earlier runs were multiplied, and the weight of this run: its
            size times its seconds, reduced by its age.
        """
        if new_s is None:
            new_s = self.busy.add(run.end - run.duration_s, run.end)
        fade, weight_now, self.newest = _fading(run, self.newest)
        seconds = max(0.0, run.duration_s) * weight_now
        nodes = run.nodes or 1
        cpus = max(run.cpus or nodes, run.held_cpus or 0)
        weight = seconds * size(run.nodes, cpus, run.gpus)
        self.seconds = self.seconds * fade + new_s * weight_now
        self.node_seconds = self.node_seconds * fade + seconds * nodes
        self.cpu_seconds = self.cpu_seconds * fade + seconds * cpus
        self.gpu_seconds = self.gpu_seconds * fade + seconds * (run.gpus or 0)
        self.memory_mib_seconds = self.memory_mib_seconds * fade + seconds * (run.memory_mib or 0)
        unknown_s = seconds if run.memory_mib is None else 0.0
        self.unknown_memory_seconds = self.unknown_memory_seconds * fade + unknown_s
        self.size_seconds = self.size_seconds * fade + weight
        self.limit_sum = self.limit_sum * fade + weight * (run.time_limit_s or run.duration_s)
        return fade, weight

    def share_of(self, need: ResourceRequest) -> float:
        """Return how far earlier runs are evidence for a job of the requested size (`need`).

        The result is the amount of the earlier runs as a fraction of what the job requests. Such a fraction
        is computed for time, and for node, CPU, GPU and memory seconds. The smallest of these fractions is
        returned, but at least 0.

        Many simultaneous runs, or a short run on many nodes, are therefore no evidence for a large or long
        job. Runs that share a node are no evidence for a job that takes a whole node. If the memory of runs
        is unknown, it counts as sufficient, because earlier releases did not store it. Runs with a shorter
        time limit than `need` count less, in proportion to their limit. A job with another time limit is
        probably another kind of job.
        """
        if self.size_seconds <= 0:
            return 0.0
        shares = [self.seconds, self.node_seconds / need.nodes, self.cpu_seconds / need.cpus]
        if need.gpus:
            shares.append(self.gpu_seconds / need.gpus)
        if need.memory_mib:
            shares.append(self.memory_mib_seconds / need.memory_mib + self.unknown_memory_seconds)
        alike = min(1.0, self.limit_sum / self.size_seconds / need.limit_s)
        return min(shares) / need.limit_s * alike


@dataclass(slots=True)
class ProgramRecord(ResourceUse):
    """Weighted sums over the runs of one program, from which time and power of a job are bounded.

    The runs have one similarity key (a set of common attributes). The weight of a run is the product of its
    size, its seconds and its time limit. Thus runs with a long limit count more, because they tell more
    about a job with a long limit. The sum of the weights is `limit_sum`.

    Attributes:
        time_sum: weighted sum of the seconds that the runs take without a power cap.
        measured_sum: sum of the weights of the runs with known energy.
        watts_sum: weighted sum of the watts per unit (GPU or node) of the runs with known energy.
    """

    time_sum: float = 0.0
    measured_sum: float = 0.0
    watts_sum: float = 0.0

    def add(self, run: ObservedRun, new_s: float | None = None) -> tuple[float, float]:
        """Add a finished run to the weighted sums of this record.

        Arguments and result are those of `ResourceUse.add`.
        """
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
        """Fraction of the program's runs whose energy was measured, from 0 to 1.

        The runs are weighted as in `ProgramRecord`: a run with a long time limit has a higher weight.
        """
        return self.measured_sum / self.limit_sum if self.limit_sum > 0 else 0.0

    @property
    def time_s(self) -> float | None:
        """Weighted mean of the run times in seconds that the runs take without a power cap.

        None is returned if there are no runs.
        """
        return self.time_sum / self.limit_sum if self.limit_sum > 0 else None

    @property
    def unit_watts(self) -> float | None:
        """Weighted mean of the runs' watts per unit (GPU or node); None if no energy is known."""
        return self.watts_sum / self.measured_sum if self.measured_sum > 0 else None


@dataclass(slots=True)
class UserRecord(ResourceUse):
    """Weighted sums over all runs of one user, from which corrections of predictions are computed.

    The size of a run is its number of GPUs, or of CPUs if it has no GPUs. Older runs count less.

    Attributes:
        fraction_sum: sum over the runs: size times seconds times time limit times the fraction of the time
            limit that the run used.
        overrun_size_seconds: sum over the runs whose time was predicted: size times seconds.
        overrun_sum: sum over the runs: size times seconds times ln(actual time / predicted time). The
            logarithm counts as 0 for a run that took less time than predicted. `overrun_sum` decays with
            half the half-life, so that the logarithm of the misprediction factor decays, too.
    """

    fraction_sum: float = 0.0
    overrun_size_seconds: float = 0.0
    overrun_sum: float = 0.0

    def add(self, run: ObservedRun, new_s: float | None = None) -> tuple[float, float]:
        """Add a finished run to the sums. Arguments and result are those of `ResourceUse.add`."""
        fade, weight = ResourceUse.add(self, run, new_s)
        limit_s, predicted_s = run.time_limit_s or run.duration_s, run.predicted_s or 0.0
        fraction = min(1.0, run.duration_s / limit_s) if limit_s > 0 else 0.0
        self.fraction_sum = self.fraction_sum * fade + weight * limit_s * fraction
        self.overrun_size_seconds = self.overrun_size_seconds * fade + (weight if predicted_s else 0.0)
        self.overrun_sum = self.overrun_sum * fade * fade + weight * overrun(run.duration_s, predicted_s)
        return fade, weight

    @property
    def fraction(self) -> float | None:
        """Mean fraction of the time limit that the user's runs used, from 0 to 1; None without runs.

        Older runs count less.
        """
        return self.fraction_sum / self.limit_sum if self.limit_sum > 0 else None

    def overruns_at(self, now: float) -> tuple[float, float]:
        """Return two sums that state how much longer a user's runs took than predicted.

        The sums are `overrun_sum` and `overrun_size_seconds` at the Unix time `now`. Their ratio is the mean
        excess. Both sums decay with time, so that older runs count less.
        """
        fade = _fade(now - self.newest)
        return self.overrun_sum * fade * fade, self.overrun_size_seconds * fade


@dataclass(slots=True)
class PartitionRecord:
    """History of all users' runs in a Slurm partition, as weighted sums.

    Attributes:
        limits: sums of the fraction of the time limit that each run used.
        programs: sums of the runs' seconds and watts.
        busy: intervals in which runs were running, by login name. The key None holds the runs of unknown
            users.
    """

    limits: UserRecord = field(default_factory=UserRecord)
    programs: ProgramRecord = field(default_factory=ProgramRecord)
    busy: dict[str | None, BusyTime] = field(default_factory=dict)

    def add(self, run: ObservedRun) -> None:
        """Add a finished run to the history of a partition.

        If one user has many runs at the same time, at most `PARTITION_DEPTH` of them count.
        """
        busy = self.busy.get(run.user)
        if busy is None:
            busy = self.busy[run.user] = BusyTime(PARTITION_DEPTH)
        new_s = busy.add(run.end - run.duration_s, run.end)
        self.limits.add(run, new_s)
        self.programs.add(run, new_s)

    def forget(self, before: float) -> None:
        """Discard the busy intervals of users whose last run ended before `before` (Unix seconds).

        The sums of the partition remain.
        """
        self.busy = {user: busy for user, busy in self.busy.items() if busy.last_end_s >= before}


def overrun(actual_s: float, predicted_s: float) -> float:
    """Return ln(actual time / predicted time) of a run that took longer than predicted.

    The result is 0 if the run took less time than predicted, or if its time was not predicted. A run that
    took less time has no negative value, because users could otherwise compensate for overruns by many short
    and cheap jobs. The ratio is limited to `LARGEST_OVERRUN`.
    """
    if predicted_s <= 0 or actual_s <= predicted_s:
        return 0.0
    return math.log(min(actual_s / predicted_s, LARGEST_OVERRUN))


def misprediction_factor(overrun_sum: float, size_seconds: float) -> float:
    """Return the factor, at least 1, by which a user's predicted run times are multiplied.

    The factor is larger if earlier runs of the user took longer than predicted. `overrun` is the logarithm
    of the actual time divided by the predicted time of a run, at least 0.

    Args:
        overrun_sum: sum over the user's runs of size times seconds times `overrun`.
        size_seconds: sum of size times seconds over these runs.
    """
    return math.exp(overrun_sum / (size_seconds + _OVERRUN_PRIOR_SIZE_SECONDS))


def size(nodes: int | None, cpus: int | None, gpus: int | None) -> float:
    """Return the weight that one second of a run has in the statistics of earlier runs.

    The weight is the number of GPUs of the run. Without GPUs, it is the number of CPUs. If this number is
    unknown too, it is the number of nodes. The weight is at least 1. For each argument, None and 0 mean none
    or unknown.
    """
    return float(gpus or cpus or nodes or 1)


def bounded(prior: float, value: float | None, share: float) -> float:
    """Return the weighted mean of a prior value (an assumption) and a value learned from runs.

    Args:
        prior: value that is assumed without runs.
        value: mean over the runs; None means that there are no runs.
        share: weight of the runs, from `ResourceUse.share_of`.

    Returns:
        The weighted mean, or `prior` itself if `share` is at most `IGNORED_SHARE` or `value` is None.
    """
    counted = share - IGNORED_SHARE
    if value is None or counted <= 0:
        return prior
    return (counted * value + PRIOR_SHARE * prior) / (counted + PRIOR_SHARE)


def rounded_up(value: float, anchor: float) -> float:
    """Return `value` rounded up to the nearest of a few fixed levels.

    The levels are `anchor` times powers of the eighth root of 2. Values that differ slightly become equal.
    Therefore a small difference does not move a job ahead of jobs that would otherwise be equal. `value` is
    returned unchanged if `value` or `anchor` is not above 0.
    """
    if value <= 0 or anchor <= 0 or not math.isfinite(anchor):
        return value
    steps = math.floor(_STEPS_PER_DOUBLING * math.log2(anchor / value) + 1e-9)
    return float(anchor * 2.0 ** (-steps / _STEPS_PER_DOUBLING))


def uncapped_s(run: ObservedRun) -> float:
    """Return the seconds that a run would have taken without a power cap.

    The result is the run's actual time if the run had no cap or if its energy is unknown.
    """
    before = caps_of(run.cap_watts, run.gpu_cap_watts, run.nodes, run.gpus)
    if before == NO_CAPS or run.energy_joules is None or run.duration_s <= 0:
        return run.duration_s
    watts = run.energy_joules / run.duration_s / units(run)
    _, time = convert_run(watts, gpu_watts(run, watts), before, NO_CAPS, tdp_watts(run.gpu_kind))
    return run.duration_s * time


def gpu_watts(run: ObservedRun, watts: float) -> float:
    """Return the mean power of the GPUs of a run, in watts per unit.

    A unit is a GPU of the run, or a node if the run has no GPUs. `watts` is the mean power of the whole run
    in watts per unit. The result is the part of `watts` that the GPUs draw. The result is 0 for a run without
    GPUs. It equals `watts` if the energy of the GPUs is unknown.
    """
    if not run.gpus:
        return 0.0
    if run.gpu_joules is None or not run.energy_joules:
        return watts
    return watts * min(1.0, run.gpu_joules / run.energy_joules)


def _fading(run: ObservedRun, newest: float) -> tuple[float, float, float]:
    """Return the factors with which a new run is added to the decayed sums of a user's runs.

    In the sums, the weight of a run decreases with its age. A run has the weight 1 if it ended last.

    Args:
        run: the run to add. The run may have ended before `newest`.
        newest: latest end of the earlier runs in Unix seconds.

    Returns:
        Factor on the sums over the earlier runs, factor on the new run, and the latest end of all
            runs.
    """
    if run.end >= newest:
        return _fade(run.end - newest), 1.0, run.end
    return 1.0, _fade(newest - run.end), newest


def _fade(elapsed_s: float) -> float:
    return float(2.0 ** (-max(0.0, elapsed_s) / HALF_LIFE_S))
