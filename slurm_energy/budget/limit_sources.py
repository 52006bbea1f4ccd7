"""Limits of budgets over time: constants, weekly schedules, calendars, signals and live changes.

The functions have no side effects. The caller reads files, fetches signals and passes the time. Times are
Unix seconds, limits are watts, and infinity means no limit.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date, datetime, timedelta, tzinfo
from typing import Final, Protocol

from slurm_energy.config.weekly_schedule import ScheduleEntry

NO_LIMIT: Final = math.inf
_DAY: Final = timedelta(days=1)
_MINUTES_PER_DAY: Final = 24 * 60


@dataclass(frozen=True, slots=True)
class LimitStep:
    """A change of a power limit: from the Unix time `unix_s` on, the limit is `watts`."""

    unix_s: float
    watts: float


class LimitSource(Protocol):
    """The limit of a budget as a function of time."""

    def limit_at(self, unix_s: float) -> float:
        """Return the power limit that is in force at a time in Unix seconds."""
        ...

    def steps(self, begin_unix_s: float, end_unix_s: float) -> tuple[LimitStep, ...]:
        """Return the changes of the power limit in a time span, in the order of time.

        The time span begins after `begin_unix_s` and includes `end_unix_s`.
        """
        ...

    def lowest(self, begin_unix_s: float, end_unix_s: float) -> float:
        """Return the lowest limit that may apply between two times, both included."""
        ...


@dataclass(frozen=True, slots=True)
class ConstantLimit:
    """A limit that does not change."""

    watts: float

    def limit_at(self, unix_s: float) -> float:
        """Return the limit."""
        return self.watts

    def steps(self, begin_unix_s: float, end_unix_s: float) -> tuple[LimitStep, ...]:
        """Return the future changes of the limit: none, because the limit is constant."""
        return ()

    def lowest(self, begin_unix_s: float, end_unix_s: float) -> float:
        """Return the lowest limit in a time window, which is the constant limit."""
        return self.watts


class WeeklyLimit:
    """A limit by local weekday and time of day.

    The limit at a time is stated by the last entry at or before this time on the local clock. The change to
    summer time skips an hour. An entry within the skipped hour begins at the change. The change to winter
    time repeats an hour. The limits of the repeated hour apply twice.

    Args:
        entries: entries of the schedule, at least one.
        zone: time zone; None means the time zone of this host.
    """

    def __init__(self, entries: Iterable[ScheduleEntry], zone: tzinfo | None = None) -> None:
        begins = sorted(
            (day * _MINUTES_PER_DAY + entry.minute, entry.watts) for entry in entries for day in entry.days
        )
        self._minutes = [minute for minute, _ in begins]
        self._watts = [watts for _, watts in begins]
        self._zone = zone

    def limit_at(self, unix_s: float) -> float:
        """Return the limit at a time."""
        local = datetime.fromtimestamp(unix_s, self._zone)
        minute = local.weekday() * _MINUTES_PER_DAY + local.hour * 60 + local.minute
        # Before the first entry of the week the last entry of the previous week applies: index -1.
        return self._watts[bisect.bisect_right(self._minutes, minute) - 1]

    def steps(self, begin_unix_s: float, end_unix_s: float) -> tuple[LimitStep, ...]:
        """Return the changes of the power limit in a time span, in the order of time.

        The time span begins after `begin_unix_s` and includes `end_unix_s`.
        """
        times = sorted(
            {time for time in self._candidates(begin_unix_s, end_unix_s) if begin_unix_s < time <= end_unix_s}
        )
        return changes_only(
            self.limit_at(begin_unix_s), (LimitStep(time, self.limit_at(time)) for time in times)
        )

    def lowest(self, begin_unix_s: float, end_unix_s: float) -> float:
        """Return the lowest limit between two times, both included."""
        return _lowest(self, begin_unix_s, end_unix_s)

    def _candidates(self, begin_unix_s: float, end_unix_s: float) -> Iterator[float]:
        """Yield all times in a time range at which the limit may change, in no particular order."""
        day = datetime.fromtimestamp(begin_unix_s, self._zone).date()
        last = datetime.fromtimestamp(end_unix_s, self._zone).date()
        while day <= last + _DAY:
            yield from self._candidates_of(day)
            day += _DAY

    def _candidates_of(self, day: date) -> Iterator[float]:
        midnight = datetime(day.year, day.month, day.day, tzinfo=self._zone)
        first = day.weekday() * _MINUTES_PER_DAY
        low = bisect.bisect_left(self._minutes, first)
        for minute in self._minutes[low : bisect.bisect_left(self._minutes, first + _MINUTES_PER_DAY)]:
            local = midnight + timedelta(minutes=minute - first)
            yield local.timestamp()
            yield local.replace(fold=1).timestamp()
        noon = midnight + _DAY / 2  # unlike midnight, no time zone skips or repeats it
        yield from self._clock_change((noon - _DAY).timestamp(), noon.timestamp())

    def _clock_change(self, begin_unix_s: float, end_unix_s: float) -> Iterator[float]:
        """Yield the time at which the clocks change between two times, if they change.

        Such a change is the begin or the end of daylight saving time.
        """
        low, high = int(begin_unix_s), int(end_unix_s)
        offset = self._utc_offset_s(low)
        if self._utc_offset_s(high) == offset:
            return
        while high - low > 1:
            middle = (low + high) // 2
            if self._utc_offset_s(middle) == offset:
                low = middle
            else:
                high = middle
        yield float(high)

    def _utc_offset_s(self, unix_s: float) -> float:
        offset = datetime.fromtimestamp(unix_s, self._zone).astimezone(self._zone).utcoffset()
        return offset.total_seconds() if offset is not None else 0.0


class CalendarLimit:
    """A power limit that changes at the given times, as the rows of a calendar file state it.

    There is no limit before the first change. The last limit has no end.

    Args:
        steps: changes of the limit in ascending order of time.
    """

    def __init__(self, steps: Iterable[LimitStep]) -> None:
        self._steps = tuple(steps)
        self._times = [step.unix_s for step in self._steps]

    @property
    def begin_unix_s(self) -> float:
        """Time of the first change of the limit; infinity without changes."""
        return self._times[0] if self._times else math.inf

    @property
    def end_unix_s(self) -> float:
        """Time of the last change of the limit; minus infinity without changes."""
        return self._times[-1] if self._times else -math.inf

    def limit_at(self, unix_s: float) -> float:
        """Return the limit in watts that the calendar gives for a time."""
        row = bisect.bisect_right(self._times, unix_s)
        return self._steps[row - 1].watts if row else NO_LIMIT

    def steps(self, begin_unix_s: float, end_unix_s: float) -> tuple[LimitStep, ...]:
        """Return the changes of the limit after `begin_unix_s`, up to and including `end_unix_s`, by time."""
        low, high = (bisect.bisect_right(self._times, time) for time in (begin_unix_s, end_unix_s))
        return changes_only(self.limit_at(begin_unix_s), self._steps[low:high])

    def lowest(self, begin_unix_s: float, end_unix_s: float) -> float:
        """Return the lowest limit between two times, both included."""
        return _lowest(self, begin_unix_s, end_unix_s)


@dataclass(frozen=True, slots=True)
class SignalLimit:
    """A power limit whose current value comes from a signal outside slurm-energy.

    The signal counts as lost if its value is missing or older than `max_age_s`. The limit is then the lower
    one of `fallback_watts` and the last value. The loss of a signal therefore never raises the limit. A
    value may have a time in the future, because it was read before the clock was set back. The age of such a
    value is unknown. The signal then counts as lost if the time of the value is more than `max_age_s` ahead.

    Attributes:
        fallback_watts: limit while the signal is lost.
        max_age_s: maximum age of a value in seconds.
        watts: last valid value; None means that there is no value yet.
        written_unix_s: time of the last valid value.
    """

    fallback_watts: float
    max_age_s: float
    watts: float | None = None
    written_unix_s: float = -math.inf

    def is_lost(self, unix_s: float) -> bool:
        """Return whether the signal counts as lost at a time.

        It is lost if it has no value yet, or if the time of its last value differs by more than `max_age_s`
        from the given time.
        """
        return self.watts is None or abs(unix_s - self.written_unix_s) > self.max_age_s

    def limit_at(self, unix_s: float) -> float:
        """Return the limit that applies at a given time.

        The function assumes that no further value of the signal arrives until then.
        """
        if self.watts is None:
            return self.fallback_watts
        return min(self.watts, self.fallback_watts) if self.is_lost(unix_s) else self.watts

    def steps(self, begin_unix_s: float, end_unix_s: float) -> tuple[LimitStep, ...]:
        """Return the known future changes of the limit: none, because the signal is only known up to now.

        A lost signal makes the limit fall. This fall is not included either, because the next value is
        expected to arrive in time.
        """
        return ()

    def lowest(self, begin_unix_s: float, end_unix_s: float) -> float:
        """Return the lowest limit that may apply, because the signal may be lost at any time.

        While the signal is lost, the limit is the lower of the last value and `fallback_watts`.
        """
        return self.fallback_watts if self.watts is None else min(self.watts, self.fallback_watts)


@dataclass(frozen=True, slots=True)
class OverriddenLimit:
    """A live limit that applies until an end time, followed by the configured limit.

    Attributes:
        configured: limit that the configuration states.
        watts: the live limit, which an operator has set while the daemon runs.
        end_unix_s: time from which the configured limit applies again; infinity means never.
    """

    configured: LimitSource
    watts: float
    end_unix_s: float = math.inf

    def limit_at(self, unix_s: float) -> float:
        """Return the budget's limit at a time.

        Until the end of the live limit that an operator has set, the live limit applies. Afterwards the
        configured limit applies.
        """
        return self.watts if unix_s < self.end_unix_s else self.configured.limit_at(unix_s)

    def steps(self, begin_unix_s: float, end_unix_s: float) -> tuple[LimitStep, ...]:
        """Return the changes of the limit in an interval, ordered by time.

        The interval begins after `begin_unix_s` and includes `end_unix_s`.
        """
        if self.end_unix_s > end_unix_s:
            return ()
        begin = max(begin_unix_s, self.end_unix_s)
        later = self.configured.steps(begin, end_unix_s)
        if self.end_unix_s > begin_unix_s:
            later = (LimitStep(begin, self.configured.limit_at(begin)), *later)
        return changes_only(self.limit_at(begin_unix_s), later)

    def lowest(self, begin_unix_s: float, end_unix_s: float) -> float:
        """Return the lowest limit that may apply between two times, both included."""
        begin = max(begin_unix_s, self.end_unix_s)
        live = self.watts if begin_unix_s < self.end_unix_s else NO_LIMIT
        return min(live, self.configured.lowest(begin, end_unix_s)) if begin <= end_unix_s else live


def _lowest(source: LimitSource, begin_unix_s: float, end_unix_s: float) -> float:
    steps = source.steps(begin_unix_s, end_unix_s)
    return min([source.limit_at(begin_unix_s), *(step.watts for step in steps)])


def changes_only(watts: float, steps: Iterable[LimitStep]) -> tuple[LimitStep, ...]:
    """Return those steps of a power limit that change its value.

    Args:
        watts: limit before the first step.
        steps: steps in order of time.
    """
    changed: list[LimitStep] = []
    for step in steps:
        if step.watts != watts:
            changed.append(step)
            watts = step.watts
    return tuple(changed)
