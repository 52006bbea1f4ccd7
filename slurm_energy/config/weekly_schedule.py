"""Parser of weekly schedules of power limits, as in the key `schedule` of `[[budgets]]`. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from slurm_energy.quantities import is_number, shown

DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
"""Names of weekdays; the position is the number of `datetime.weekday`."""

MIN_LIMIT_WATTS: Final = 1.0
MAX_LIMIT_WATTS: Final = 2e9
"""Maximum of a limit: a count of Slurm licenses is a signed integer of 32 bits."""

_CLOCK: Final = re.compile(r"([01]?[0-9]|2[0-3]):([0-5][0-9])", re.ASCII)
_KEYS: Final = ("days", "from", "watts")
_MAX_ENTRIES: Final = 1000


@dataclass(frozen=True, slots=True)
class ScheduleEntry:
    """A limit that applies from a time of day on, until the next entry of the schedule.

    Attributes:
        days: weekdays on which the limit begins; 0 is Monday.
        minute: minute of the day at which the limit begins, in local time.
        watts: the limit in watts.
    """

    days: frozenset[int]
    minute: int
    watts: float


def parse_schedule(tables: Sequence[Mapping[str, Any]]) -> tuple[ScheduleEntry, ...]:
    """Return the entries of a schedule, in the order of the tables.

    Args:
        tables: tables such as `{days = "mon-fri", from = "08:00", watts = 400000.0}`. An entry without `days`
            applies to every day. An entry without `from` begins at midnight.

    Raises:
        ValueError: a table is malformed, or two entries begin at the same time. The message names the table
            by its position, counted from 1.
    """
    if not 1 <= len(tables) <= _MAX_ENTRIES:
        raise ValueError(f"must have 1 to {_MAX_ENTRIES} entries")
    entries: list[ScheduleEntry] = []
    begins: dict[tuple[int, int], int] = {}
    for position, table in enumerate(tables, 1):
        try:
            entry = _entry(table)
        except ValueError as error:
            raise ValueError(f"entry {position}: {error}") from None
        for day in sorted(entry.days):
            other = begins.setdefault((day, entry.minute), position)
            if other != position:
                clock = f"{entry.minute // 60:02d}:{entry.minute % 60:02d}"
                raise ValueError(f"entries {other} and {position} both begin on {DAYS[day]} at {clock}")
        entries.append(entry)
    return tuple(entries)


def check_schedule(tables: Sequence[Mapping[str, Any]]) -> str | None:
    """Check a schedule. Return a description of the fault, or None if the schedule is valid."""
    try:
        parse_schedule(tables)
    except ValueError as error:
        return str(error)
    return None


def _entry(table: Mapping[str, Any]) -> ScheduleEntry:
    for key in table:
        if key not in _KEYS:
            raise ValueError(f"'{shown(key)}' is not one of {', '.join(_KEYS)}")
    if "watts" not in table:
        raise ValueError("has no watts")
    watts = table["watts"]
    if not is_number(watts) or not MIN_LIMIT_WATTS <= watts <= MAX_LIMIT_WATTS:
        raise ValueError(f"watts must be a number from {MIN_LIMIT_WATTS:g} to {MAX_LIMIT_WATTS:g}")
    return ScheduleEntry(_weekdays(table.get("days", "mon-sun")), _minute(table.get("from", "00:00")), watts)


def _minute(text: Any) -> int:
    match = _CLOCK.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise ValueError("from must be a time of day such as '08:00'")
    return int(match[1]) * 60 + int(match[2])


def _weekdays(text: Any) -> frozenset[int]:
    days: set[int] = set()
    for part in text.lower().split(",") if isinstance(text, str) else [""]:
        first, dash, last = (word.strip() for word in part.partition("-"))
        last = last if dash else first
        if first not in DAYS or last not in DAYS:
            raise ValueError("days must be weekdays such as 'mon-fri' or 'sat,sun'")
        count = (DAYS.index(last) - DAYS.index(first)) % 7 + 1
        days.update((DAYS.index(first) + offset) % 7 for offset in range(count))
    return frozenset(days)
