"""Days of an energy study in the time zone of the study.

The module also distributes amounts, such as energy, evenly over intervals of time.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from typing import Final

import numpy as np

from slurm_energy.study.data.jobs_table import Bools, Floats
from slurm_energy.study.data.time_zone import time_zone

HOUR_S: Final = 3600.0


@dataclass(frozen=True, slots=True)
class StudyDays:
    """Consecutive days of a study, some of which may be excluded.

    Attributes:
        dates: the n dates.
        edges_s: start of each day and end of the last day in Unix seconds, shape (n + 1,).
        used: whether a day counts, shape (n,). Days of outages and excluded days do not count.
    """

    dates: tuple[date, ...]
    edges_s: Floats
    used: Bools

    @property
    def count(self) -> int:
        """Number of days."""
        return len(self.dates)

    @property
    def weekdays(self) -> np.ndarray:
        """Day of the week of each day; Monday is 0."""
        return np.array([day.weekday() for day in self.dates], np.int64)

    @property
    def hours(self) -> Floats:
        """Length of each day in hours: 24, or 23 and 25 when clocks change."""
        lengths: Floats = np.diff(self.edges_s) / HOUR_S
        return lengths

    def day_of(self, times_s: Floats) -> np.ndarray:
        """Return the index of the day that contains each time.

        The index is -1 if no day contains the time or the time is unknown.
        """
        rows = np.searchsorted(self.edges_s, times_s, side="right") - 1
        outside = np.isnan(times_s) | (rows >= self.count) | (rows < 0)
        return np.where(outside, -1, rows)

    def between(self, first: int, end: int) -> StudyDays:
        """Return the days with the indices `first` to `end` - 1."""
        return StudyDays(self.dates[first:end], self.edges_s[first : end + 1], self.used[first:end])


def study_days(first: date, last: date, timezone: str = "", excluded: Collection[date] = ()) -> StudyDays:
    """Return the days from `first` to `last`, both included.

    Args:
        first: first day.
        last: last day.
        timezone: time zone in which days begin; an empty value means UTC.
        excluded: days that do not count.
    """
    dates = tuple(first + timedelta(days=number) for number in range((last - first).days + 1))
    zone = time_zone(timezone)
    edges = [datetime.combine(day, time(), zone).timestamp() for day in (*dates, last + timedelta(days=1))]
    used = np.array([day not in excluded for day in dates], np.bool_)
    return StudyDays(dates, np.array(edges), used)


def date_of(time_s: float, timezone: str = "") -> date:
    """Return the day to which a time in Unix seconds belongs."""
    return datetime.fromtimestamp(time_s, time_zone(timezone)).date()


def spread(start_s: Floats, end_s: Floats, amounts: Floats, edges_s: Floats) -> Floats:
    """Distribute amounts evenly over intervals of time. Return the sum in each bin of time.

    Args:
        start_s: start of each interval, shape (n,).
        end_s: end of each interval. An interval shorter than a millisecond counts as a millisecond.
        amounts: amount of each interval, shape (n,).
        edges_s: ascending edges of the bins, shape (m + 1,). Parts of intervals outside the bins are left
            out.

    Returns:
        Sums, shape (m,).
    """
    if not len(start_s):
        return np.zeros(max(0, len(edges_s) - 1))
    origin = edges_s[0]
    start, edges = start_s - origin, edges_s - origin
    end = np.maximum(end_s - origin, start + 1e-3)
    rate = amounts / (end - start)
    cumulated = _ramps(start, rate, edges) - _ramps(end, rate, edges)
    sums: Floats = np.diff(cumulated)
    return sums


def _ramps(begin: Floats, rate: Floats, at: Floats) -> Floats:
    """Return, for each time t of `at`, the sum of rate * max(0, t - begin) over all ramps.

    A ramp is 0 before its begin, and increases at its rate afterwards.
    """
    order = np.argsort(begin, kind="stable")
    rates = np.concatenate([[0.0], np.cumsum(rate[order])])
    moments = np.concatenate([[0.0], np.cumsum((rate * begin)[order])])
    number = np.searchsorted(begin[order], at, side="right")
    ramps: Floats = rates[number] * at - moments[number]
    return ramps
