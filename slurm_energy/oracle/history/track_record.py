"""What a user's finished runs prove, weighed by the resources that they took.

A user can make any number of short runs at no cost. So nothing here counts runs: every figure is weighed by
unit-seconds (GPUs or nodes times seconds, see `levels.units`), and a prediction moves away from its prior
only as far as the evidence is comparable to what the job itself may take. Pure arithmetic.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

from slurm_energy.oracle.history.cap_response import NO_CAPS, caps_of, predicted, tdp_watts
from slurm_energy.oracle.history.levels import units
from slurm_energy.oracle.history.runs import Run

HALF_LIFE_S: Final = 14 * 86400.0
"""Seconds in which a run's weight halves."""

PRIOR_FRACTION: Final = 0.5
"""Part of its time limit that a job of an unknown user takes, as at the nameplate."""

PRIOR_SHARE: Final = 0.1
"""Weight of the prior: this part of the unit-seconds that the job may take."""

IGNORED_SHARE: Final = 0.05
"""Evidence below this part of the unit-seconds that the job may take counts for nothing."""

LARGEST_OVERRUN: Final = 1000.0
"""A single run counts as at most so many times longer than predicted."""

_OVERRUN_PRIOR_UNIT_SECONDS: Final = 600.0
_STEPS_PER_DOUBLING: Final = 8


@dataclass(slots=True)
class ProgramRecord:
    """Weighted sums over the runs of one key; they fade with `HALF_LIFE_S`.

    Runs with a long time limit say more of a job with a long time limit, so means are also weighed by it.

    Attributes:
        unit_seconds: of the runs.
        limit_sum: unit-seconds times the time limit, or the time itself where a run had no limit.
        time_sum: `limit_sum` times seconds without any cap.
        measured_sum: part of `limit_sum` of the runs whose energy is known.
        watts_sum: `measured_sum` times watts per unit.
    """

    unit_seconds: float = 0.0
    limit_sum: float = 0.0
    time_sum: float = 0.0
    measured_sum: float = 0.0
    watts_sum: float = 0.0
    _newest: float = 0.0

    def add(self, run: Run) -> None:
        """Count a run."""
        fade, weight, self._newest = _fading(run, self._newest)
        limited = weight * (run.time_limit_s or run.duration_s)
        measured = limited if run.energy_joules is not None and run.duration_s > 0 else 0.0
        watts = (run.energy_joules or 0.0) / (units(run) * run.duration_s) if measured else 0.0
        self.unit_seconds = self.unit_seconds * fade + weight
        self.limit_sum = self.limit_sum * fade + limited
        self.time_sum = self.time_sum * fade + limited * uncapped_s(run)
        self.measured_sum = self.measured_sum * fade + measured
        self.watts_sum = self.watts_sum * fade + measured * watts

    @property
    def time_s(self) -> float | None:
        """Weighted mean of the seconds; None without evidence."""
        return self.time_sum / self.limit_sum if self.limit_sum > 0 else None

    @property
    def unit_watts(self) -> float | None:
        """Weighted mean of the watts per unit; None without evidence."""
        return self.watts_sum / self.measured_sum if self.measured_sum > 0 else None


@dataclass(slots=True)
class UserRecord:
    """Weighted sums over all runs of one user; they fade with `HALF_LIFE_S`.

    Attributes:
        unit_seconds: of the runs with a time limit.
        limit_sum: unit-seconds times the time limit.
        fraction_sum: `limit_sum` times the part of the time limit that was used.
        overrun_unit_seconds: of the runs whose predicted time is known.
        overrun_sum: unit-seconds times the logarithm of actual over predicted time, 0 for shorter runs.
        newest: Unix seconds of the end of the newest run.
    """

    unit_seconds: float = 0.0
    limit_sum: float = 0.0
    fraction_sum: float = 0.0
    overrun_unit_seconds: float = 0.0
    overrun_sum: float = 0.0
    newest: float = 0.0

    def add(self, run: Run) -> None:
        """Count a run."""
        fade, weight, self.newest = _fading(run, self.newest)
        limit_s = run.time_limit_s or 0.0
        limited, predicted_s = weight if limit_s else 0.0, run.predicted_s or 0.0
        fraction = min(1.0, run.duration_s / limit_s) if limit_s else 0.0
        self.unit_seconds = self.unit_seconds * fade + limited
        self.limit_sum = self.limit_sum * fade + limited * limit_s
        self.fraction_sum = self.fraction_sum * fade + limited * limit_s * fraction
        self.overrun_unit_seconds = self.overrun_unit_seconds * fade + (weight if predicted_s else 0.0)
        self.overrun_sum = self.overrun_sum * fade + weight * overrun(run.duration_s, predicted_s)

    @property
    def fraction(self) -> float | None:
        """Weighted mean of the part of the time limit that was used; None without evidence."""
        return self.fraction_sum / self.limit_sum if self.limit_sum > 0 else None

    def overruns_at(self, now: float) -> tuple[float, float]:
        """Return `overrun_sum` and `overrun_unit_seconds` as they count at a Unix second."""
        fade = _fade(now - self.newest)
        return self.overrun_sum * fade, self.overrun_unit_seconds * fade


@dataclass(slots=True)
class PartitionRecord:
    """What the runs of all users in a partition prove; it is the same for every job there.

    Attributes:
        limits: parts of time limits that were used.
        programs: watts of the runs.
    """

    limits: UserRecord = field(default_factory=UserRecord)
    programs: ProgramRecord = field(default_factory=ProgramRecord)


def overrun(actual_s: float, predicted_s: float) -> float:
    """Return the logarithm of actual over predicted time, 0 for a run that ended early.

    Runs that end early do not make up for overruns: a user could buy them with cheap jobs.
    """
    if predicted_s <= 0 or actual_s <= predicted_s:
        return 0.0
    return math.log(min(actual_s / predicted_s, LARGEST_OVERRUN))


def misprediction_factor(overrun_sum: float, unit_seconds: float) -> float:
    """Return by what a user's predicted times are multiplied, 1 or more.

    Args:
        overrun_sum: unit-seconds times `overrun`.
        unit_seconds: of the runs in it.
    """
    return math.exp(overrun_sum / (unit_seconds + _OVERRUN_PRIOR_UNIT_SECONDS))


def evidence(record: ProgramRecord | UserRecord, limit_s: float) -> float:
    """Return the unit-seconds of a record that count for a job with this time limit.

    Runs with shorter time limits count less, in proportion: the user says that this job is another one.
    """
    return min(record.unit_seconds, record.limit_sum / limit_s)


def bounded(prior: float, value: float | None, weight: float, may_take: float) -> float:
    """Return the weighted mean of evidence and prior.

    Args:
        prior: value without evidence.
        value: what the evidence says; None: nothing.
        weight: unit-seconds of the evidence.
        may_take: unit-seconds that the job may take at most.

    Returns:
        `prior` itself while the evidence is below `IGNORED_SHARE` of `may_take`.
    """
    counted = weight - IGNORED_SHARE * may_take
    if value is None or counted <= 0:
        return prior
    own = PRIOR_SHARE * may_take
    return (counted * value + own * prior) / (counted + own)


def suffices(record: ProgramRecord, limit_s: float, may_take: float) -> bool:
    """Return whether a record moves a bound away from its prior."""
    return evidence(record, limit_s) > IGNORED_SHARE * may_take


def rounded_up(value: float, anchor: float) -> float:
    """Round up to `anchor` times a power of the eighth root of 2.

    So figures that differ by little are equal, and no small change passes jobs that have the same prior.
    """
    if value <= 0 or anchor <= 0 or not math.isfinite(anchor):
        return value
    steps = math.floor(_STEPS_PER_DOUBLING * math.log2(anchor / value) + 1e-9)
    return float(anchor * 2.0 ** (-steps / _STEPS_PER_DOUBLING))


def uncapped_s(run: Run) -> float:
    """Return the seconds that a run would have taken without a cap."""
    before = caps_of(run.cap_watts, run.gpu_cap_watts, run.nodes, run.gpus)
    if before == NO_CAPS or run.energy_joules is None or run.duration_s <= 0:
        return run.duration_s
    watts = run.energy_joules / run.duration_s / units(run)
    _, time = predicted(watts, gpu_watts(run, watts), before, NO_CAPS, tdp_watts(run.gpu_kind))
    return run.duration_s * time


def gpu_watts(run: Run, watts: float) -> float:
    """Return the part of a run's watts per unit that its GPUs drew: all of it where that is not known."""
    if not run.gpus:
        return 0.0
    if run.gpu_joules is None or not run.energy_joules:
        return watts
    return watts * min(1.0, run.gpu_joules / run.energy_joules)


def _fading(run: Run, newest: float) -> tuple[float, float, float]:
    """Return the factor on older runs, the weight of this run, and the newest end."""
    weight = units(run) * max(0.0, run.duration_s)
    if run.end >= newest:
        return _fade(run.end - newest), weight, run.end
    return 1.0, weight * _fade(newest - run.end), newest


def _fade(elapsed_s: float) -> float:
    return float(2.0 ** (-max(0.0, elapsed_s) / HALF_LIFE_S))
