"""Limits of budgets: parsers of calendar files and signals, and the limit of a table `[[budgets]]`.

The functions take text and do not read files.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, tzinfo
from typing import Any, Final

from slurm_energy.budget.limit_sources import (
    NO_LIMIT,
    CalendarLimit,
    ConstantLimit,
    LimitSource,
    LimitStep,
    SignalLimit,
    WeeklyLimit,
)
from slurm_energy.config.budget_tables import BudgetTable
from slurm_energy.config.weekly_schedule import MAX_LIMIT_WATTS, MIN_LIMIT_WATTS, parse_schedule
from slurm_energy.quantities import is_number, shown

MAX_CALENDAR_ROWS: Final = 200_000
_HEADER: Final = ["time", "watts"]
_MAX_UNIX_S: Final = 1e11
_EXAMPLE: Final = "write 2026-12-24T18:00, 2026-12-24T18:00+01:00 or Unix seconds"


@dataclass(frozen=True, slots=True)
class SignalValue:
    """A valid value of a signal, with which a program outside slurm-energy limits a power budget.

    Attributes:
        watts: limit in watts.
        unix_s: time of the value as stated by the signal; None means that the signal states no time.
    """

    watts: float
    unix_s: float | None = None


def configured_limit(table: BudgetTable, zone: tzinfo | None, calendar: str | None = None) -> LimitSource:
    """Return the power limit that a valid table `[[budgets]]` of the configuration states.

    Args:
        table: the table. If the table takes its limit from a signal (a file or URL), the limit has no value
            before the first signal.
        zone: time zone of schedules, and of calendar times without an offset; None means the time zone of
            this host.
        calendar: text of the calendar file; required if the table names a calendar.

    Raises:
        ValueError: the calendar is malformed, or the table has no limit.
    """
    if table.watts is not None:
        return ConstantLimit(table.watts)
    if table.schedule:
        return WeeklyLimit(parse_schedule(table.schedule), zone)
    if table.calendar is not None and calendar is not None:
        return parse_calendar(calendar, zone)
    if table.signal and table.fallback_watts is not None:
        return SignalLimit(table.fallback_watts, table.max_age_s)
    raise ValueError(f"budget '{table.name}' has no limit")


def parse_signal(text: str, accept_watts: tuple[float, float]) -> SignalValue:
    """Parse the content of a file that contains a power value, with or without its time.

    Args:
        text: a number of watts as text, or a JSON object with the key `watts` and the optional key `unix_s`,
            the time of the value.
        accept_watts: lowest and highest plausible value.

    Raises:
        ValueError: the text is malformed, or the value is not plausible.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    number: Any = value.get("watts") if isinstance(value, dict) else value
    unix_s: Any = value.get("unix_s") if isinstance(value, dict) else None
    if not is_number(number):
        raise ValueError(
            f"'{shown(text.strip())}' is neither a number of watts nor JSON such as {{\"watts\": 400000}}"
        )
    watts = float(number)
    if not accept_watts[0] <= watts <= accept_watts[1]:
        raise ValueError(f"{watts:g} W is not from {accept_watts[0]:g} to {accept_watts[1]:g} W")
    if unix_s is None:
        return SignalValue(watts)
    if not is_number(unix_s) or not 0 <= unix_s <= _MAX_UNIX_S:
        raise ValueError("unix_s is not a time in Unix seconds")
    return SignalValue(watts, float(unix_s))


def parse_calendar(text: str, zone: tzinfo | None = None) -> CalendarLimit:
    """Parse the limits of a calendar.

    A local time in an hour that a clock change skips or repeats has two interpretations. A lower limit begins
    at the earlier of the two times, a higher limit at the later.

    Args:
        text: CSV with the header `time,watts`. Lines that begin with # are comments. Times are ISO 8601 or
            Unix seconds in ascending order; an empty `watts` means no limit.
        zone: time zone of times without an offset; None means the time zone of this host.

    Raises:
        ValueError: the text is malformed. The message names the line, counted from 1.
    """
    rows: list[_Row] = []
    for line, cells in _records(text):
        try:
            row = _row(line, cells, zone)
            if rows:
                _check_order(rows[-1], row)
        except ValueError as error:
            raise ValueError(f"line {line}: {error}") from None
        rows.append(row)
    if not rows:
        raise ValueError("has no rows")
    return CalendarLimit(_steps(rows))


@dataclass(frozen=True, slots=True)
class _Row:
    """One line of a calendar of power limits: a local time and the limit from this time on.

    The local time is stored as two Unix times, an earlier and a later one. They differ only if a clock
    change makes the local time ambiguous.
    """

    line: int
    earlier_unix_s: float
    later_unix_s: float
    watts: float


def _records(text: str) -> Iterator[tuple[int, list[str]]]:
    """Yield line number and cells of each row of a budget calendar (a CSV file) after the header."""
    lines = text.removeprefix("\ufeff").splitlines()
    kept = [(n, line) for n, line in enumerate(lines, 1) if line.strip() and not line.startswith("#")]
    if len(kept) > MAX_CALENDAR_ROWS:
        raise ValueError(f"has more than {MAX_CALENDAR_ROWS} rows")
    for position, (number, line) in enumerate(kept):
        try:
            cells = [cell.strip() for cell in next(csv.reader([line], strict=True))]
        except csv.Error as error:
            raise ValueError(f"line {number}: {error}") from None
        if position == 0:
            if [cell.lower() for cell in cells] != _HEADER:
                raise ValueError(f"line {number}: the header must be {','.join(_HEADER)}")
        else:
            yield number, cells


def _row(line: int, cells: Sequence[str], zone: tzinfo | None) -> _Row:
    if len(cells) != len(_HEADER):
        raise ValueError(f"has {len(cells)} cells instead of {len(_HEADER)}")
    earlier, later = _times(cells[0], zone)
    return _Row(line, earlier, later, _watts(cells[1]))


def _watts(text: str) -> float:
    if not text:
        return NO_LIMIT
    try:
        watts = float(text)
    except ValueError:
        watts = math.nan
    if not MIN_LIMIT_WATTS <= watts <= MAX_LIMIT_WATTS:
        raise ValueError(f"'{shown(text)}' is not a limit from {MIN_LIMIT_WATTS:g} to {MAX_LIMIT_WATTS:g} W")
    return watts


def _times(text: str, zone: tzinfo | None) -> tuple[float, float]:
    """Return the two times that a local time may mean, in Unix seconds, the earlier time first.

    The times differ only if a clock change repeats or skips the local time.
    """
    try:
        unix_s = float(text)
    except ValueError:
        unix_s = math.nan
    if 0 <= unix_s <= _MAX_UNIX_S:
        return unix_s, unix_s
    try:
        local = datetime.fromisoformat(text)
        if local.tzinfo is not None:
            return local.timestamp(), local.timestamp()
        readings = [local.replace(tzinfo=zone, fold=fold).timestamp() for fold in (0, 1)]
    except (ValueError, OverflowError, OSError):
        raise ValueError(f"'{shown(text)}' is not a time: {_EXAMPLE}") from None
    return min(readings), max(readings)


def _check_order(previous: _Row, row: _Row) -> None:
    if row.later_unix_s < previous.earlier_unix_s:
        raise ValueError(f"is earlier than line {previous.line}")
    exact = previous.earlier_unix_s == previous.later_unix_s == row.earlier_unix_s == row.later_unix_s
    if exact:
        raise ValueError(f"has the same time as line {previous.line}")


def _steps(rows: Sequence[_Row]) -> Iterator[LimitStep]:
    """Yield the steps of a power limit from the rows of a calendar.

    Each row has an earlier and a later possible start, which differ only around a clock change. If the limit
    of the row is lower than the limit before, the earlier start is used. If it is higher, the later start is
    used.
    """
    times: list[float] = []
    watts_before = NO_LIMIT
    for row in rows:
        times.append(row.earlier_unix_s if row.watts < watts_before else row.later_unix_s)
        watts_before = row.watts
    for position in range(len(times) - 2, -1, -1):  # the later reading may lie behind the next row
        times[position] = min(times[position], times[position + 1])
    for position, row in enumerate(rows):
        if position + 1 == len(rows) or times[position] < times[position + 1]:
            yield LimitStep(times[position], row.watts)
