"""Forecast of the number of units that future jobs will need, computed from past arrivals.

Units are GPUs, nodes or cores.

A deferred job must not take the units that later arrivals will need. Arrivals are modelled as a Poisson
process. The rate of the process is the mean rate of the past. If enough days are known, this mean is blended
with the mean rate at the same hour of the day.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from slurm_energy.scheduling.queue import Floats, Ints

_DAY_S: Final = 86400.0
_HOUR_S: Final = 3600.0
_HOURS: Final = 24
_DAYS_FOR_PROFILE: Final = 7.0
"""Minimum number of known days for rates by hour of the day."""
_PROFILE_WEIGHT: Final = 0.5
"""Weight of the rate of the hour of the day; the rest is the mean rate."""
_MIN_ARRIVALS: Final = 10
"""Fewer arrivals do not show a rate."""
_FIXED_SHARE: Final = 0.25
"""Share of the slack of a deferrable job after which the job counts.

Chosen by simulation: at 1 more deferrable jobs start late, at 0 deferral of long slacks saves less.
"""


@dataclass(frozen=True, slots=True)
class ArrivalHistory:
    """Jobs that arrived in the past; columns have shape (n,).

    A row contains equal jobs that arrived at the same time, for example the tasks of a job array.

    Attributes:
        since_s: start of the observed period. Earlier arrivals are ignored.
        submit_s: time of each arrival.
        time_s: run time of the job.
        units: number of units (GPUs, nodes or cores) that the job needs.
        hardware: index of the job's kind of hardware. It is also the row in `Capacity.units`.
        slack_s: maximum time by which the start of the job could be deferred; 0 for an urgent job.
        count: number of jobs in the row.
    """

    since_s: float
    submit_s: Floats
    time_s: Floats
    units: Floats
    hardware: Ints
    slack_s: Floats
    count: Floats


class ArrivalDemand(NamedTuple):
    """Expected number of units (GPUs or CPUs) that jobs submitted in the future will occupy.

    Attributes:
        mean, deviation: mean and standard deviation of the number of units at the end of each time slot,
            each of shape (kinds, slots). Both are 0 if fewer than 10 arrivals are known.
        hold_s: mean time for which a job occupies a unit, shape (kinds,). NaN if fewer than 10 arrivals are
            known.
    """

    mean: Floats
    deviation: Floats
    hold_s: Floats


def arrival_demand(
    history: ArrivalHistory,
    now_s: float,
    step_s: float,
    slots: int,
    kinds: int,
    utc_offset_s: Callable[[Floats], Floats] | None = None,
) -> ArrivalDemand:
    """Return the expected number of units that future arrivals will hold.

    Urgent jobs are counted from their arrival. A deferrable job is counted only after a quarter of its slack
    has passed since its arrival.

    Args:
        history: arrivals of the past.
        now_s: current time in seconds.
        step_s: length of a time slot in seconds.
        slots: number of time slots from `now_s` on.
        kinds: number of kinds of hardware.
        utc_offset_s: returns local time minus the clock of `history` at each of the given times, in seconds.
            Hours of the day are those of local time. None means that the clock of `history` is local time.
    """
    mean, variance = np.zeros((kinds, slots)), np.zeros((kinds, slots))
    hold_s = np.full(kinds, np.nan)
    known = (history.submit_s > history.since_s) & (history.submit_s < now_s)
    observed_s = now_s - history.since_s
    if np.sum(history.count[known]) < _MIN_ARRIVALS:
        return ArrivalDemand(mean, variance, hold_s)
    rate = _relative_rate(
        *(history.submit_s[known], history.count[known], history.since_s, now_s, step_s, slots, utc_offset_s)
    )
    age_s: Floats = np.asarray(
        step_s * (np.arange(slots) + 0.5), np.float64
    )  # of jobs that arrive in the middle of an earlier slot
    for kind in range(kinds):
        rows = known & (history.hardware == kind)
        if not np.any(rows):
            continue
        count = history.count[rows]
        units = history.units[rows].astype(np.float64)
        if np.sum(count) >= _MIN_ARRIVALS and np.sum(units) > 0:
            hold_s[kind] = np.average(history.time_s[rows], weights=count * units)
        for power, result in ((1, mean), (2, variance)):
            weight = count * units**power
            delay_s = _FIXED_SHARE * history.slack_s[rows]
            after_end = _weight_longer_than(delay_s + history.time_s[rows], weight, age_s)
            still: Floats = after_end - _weight_longer_than(delay_s, weight, age_s)
            result[kind] = np.convolve(rate, still)[:slots] * step_s / observed_s
    # Differences of sums may be negative by rounding.
    return ArrivalDemand(np.maximum(mean, 0.0), np.sqrt(np.maximum(variance, 0.0)), hold_s)


def _weight_longer_than(time_s: Floats, weight: Floats, age_s: Floats) -> Floats:
    """Return, for each age, the total weight of the jobs that still run at this age.

    The age is the time since the arrival of a job.
    """
    order = np.argsort(time_s)
    below = np.concatenate([[0.0], np.cumsum(weight[order])])
    longer: Floats = below[-1] - below[np.searchsorted(time_s[order], age_s, side="right")]
    return longer


def _relative_rate(
    submit_s: Floats,
    count: Floats,
    since_s: float,
    now_s: float,
    step_s: float,
    slots: int,
    utc_offset_s: Callable[[Floats], Floats] | None,
) -> Floats:
    """Return the arrival rate in each slot, divided by the mean rate. The first slot begins now."""
    observed_s = now_s - since_s
    if observed_s < _DAYS_FOR_PROFILE * _DAY_S:
        return np.ones(slots)
    whole_s = np.floor(observed_s / _DAY_S) * _DAY_S  # whole days contain each hour equally often
    recent = submit_s > now_s - whole_s
    hours_of_day = _hours_of_day(submit_s[recent], utc_offset_s)
    counts = np.bincount(hours_of_day, weights=count[recent], minlength=_HOURS)
    if not np.sum(counts):
        return np.ones(slots)
    profile = counts / np.mean(counts)
    slot_s: Floats = np.asarray(now_s + step_s * np.arange(slots), np.float64)
    hours = _hours_of_day(slot_s, utc_offset_s)
    rate: Floats = 1.0 + _PROFILE_WEIGHT * (profile[hours] - 1.0)
    return rate


def _hours_of_day(times_s: Floats, utc_offset_s: Callable[[Floats], Floats] | None) -> Ints:
    local_s = times_s if utc_offset_s is None else times_s + utc_offset_s(times_s)
    hours: Ints = ((local_s % _DAY_S) // _HOUR_S).astype(np.int64)
    return hours
