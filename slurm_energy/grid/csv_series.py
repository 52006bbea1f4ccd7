"""Series of carbon intensity or price in CSV.

A file has a column of times and a column of values. The header of the second column names the unit.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from slurm_energy.csv_rows import refuse_fields
from slurm_energy.errors import UsageError
from slurm_energy.grid.series import GridSeries, Sample, with_ends
from slurm_energy.grid.units import GridQuantity, carbon_unit_factor, check_value, price_unit_factor
from slurm_energy.quantities import shown

MAX_ROWS: Final = 1_000_000
_MAX_TIME_S: Final = 253402300799.0  # end of the year 9999


class UnitError(UsageError):
    """Error: the CSV header of a series names a unit that does not fit the carbon intensity or price."""


def read_csv(
    lines: Iterable[str], name: str, quantity: GridQuantity, currency: str, max_age_s: float | None = None
) -> list[Sample]:
    """Return the carbon intensities or prices in a CSV text as samples.

    Args:
        lines: lines of the text.
        name: name of the file, for errors.
        quantity: carbon intensity or price.
        currency: currency of a price.
        max_age_s: maximum seconds for which a value is valid; None means twice the median distance of
            successive times.

    Raises:
        UsageError: the header, a time or a value is wrong. The message names file and line.
    """
    reader = csv.reader(lines, strict=True)
    try:
        header = next(reader, None)
        if header is None:
            raise UsageError(name, "is empty", _FORMAT)
        factor = _unit_factor(header, f"{name}:1", quantity, currency)
        rows = TimedRows(name, _FORMAT, len(header)).read(reader)
        points = list(_points(rows, lambda text: _value(text, factor, quantity)))
    except (csv.Error, UnicodeDecodeError) as error:
        raise UsageError(f"{name}:{reader.line_num}", str(error), _FORMAT) from None
    if not any(value is not None for _, value in points):
        raise UsageError(name, "has no values", _FORMAT)
    return with_ends(points, max_age_s)


def write_csv(series: GridSeries, quantity: GridQuantity, currency: str) -> Iterator[str]:
    """Yield the lines of a CSV text that `read_csv` reads as the same series. Gaps are rows without value."""
    unit = "g/kWh" if quantity is GridQuantity.CARBON else f"{currency}/kWh"
    yield f"time,{unit}\n"
    end_s = None
    for start, end, value in series.samples:
        if end_s is not None and start > end_s:
            yield f"{iso_time(end_s)},\n"
        yield f"{iso_time(start)},{value!r}\n"
        end_s = end
    if end_s is not None:
        yield f"{iso_time(end_s)},\n"


def iso_time(time_s: float) -> str:
    """Return a Unix time as ISO 8601 in UTC, with a fraction only if the time has one.

    The last value of a series may apply beyond the year 9999. A time after this year is written as its end.
    """
    text = datetime.fromtimestamp(min(time_s, _MAX_TIME_S), UTC).isoformat()
    return text.replace("+00:00", "Z")


def parse_time(text: str) -> float:
    """Return the Unix time that a text states in ISO 8601 or as seconds. ISO 8601 without a time zone is UTC.

    Raises:
        ValueError: the text is neither of the two.
    """
    try:
        seconds = float(text)
    except ValueError:
        moment = datetime.fromisoformat(text.strip())
        seconds = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    if not 0 <= seconds <= _MAX_TIME_S:
        raise ValueError("the time is before 1970 or after 9999")
    return seconds


_FORMAT: Final = "write a header such as time,g/kWh and rows such as 2026-01-01T00:00Z,213.5"


def _unit_factor(header: list[str], location: str, quantity: GridQuantity, currency: str) -> float:
    if len(header) < 2 or header[0].strip().lstrip("\ufeff").lower() != "time":
        raise UsageError(location, "the first column must be 'time' and the second the value", _FORMAT)
    unit = header[1].strip()
    try:
        if quantity is GridQuantity.CARBON:
            return carbon_unit_factor(unit)
        return price_unit_factor(unit, currency)
    except ValueError as error:
        raise UnitError(location, shown(str(error), 200), _FORMAT) from None


@dataclass(frozen=True, slots=True)
class TimedRows:
    """Rows of a CSV file with a column of ascending times.

    Attributes:
        name: name of the file, for errors.
        expected: description of the format, for errors.
        columns: number of columns in the header.
        fields: number of fields that a row needs at least.
        too_short: text of the error for a row with fewer fields.
        time_field: number of the field with the time.
    """

    name: str
    expected: str
    columns: int
    fields: int = 2
    too_short: str = "needs a time and a value"
    time_field: int = 0

    def read(self, rows: Iterable[list[str]]) -> Iterator[tuple[str, float, list[str]]]:
        """Yield position in the file, Unix time and fields of each row after the header.

        Empty rows are skipped.

        Raises:
            UsageError: a row is too short or too long, its time is wrong or does not ascend, or there are too
                many rows.
        """
        before = -1.0
        for line, row in enumerate(rows, 2):
            if not row:
                continue
            location = f"{self.name}:{line}"
            if line > MAX_ROWS:
                raise UsageError(location, f"has more than {MAX_ROWS} rows")
            if len(row) < self.fields:
                raise UsageError(location, self.too_short, self.expected)
            refuse_fields(row[self.columns :], location)
            text = row[self.time_field]
            try:
                time_s = parse_time(text)
            except (ValueError, OverflowError):
                raise UsageError(location, f"'{shown(text)}' is not a time", self.expected) from None
            if time_s <= before:
                raise UsageError(location, "the times must ascend", "sort the rows and remove duplicates")
            before = time_s
            yield location, time_s, row


def _points(
    rows: Iterable[tuple[str, float, list[str]]], parse_value: Callable[[str], float | None]
) -> Iterator[tuple[float, float | None]]:
    for location, time_s, row in rows:
        try:
            value = parse_value(row[1])
        except ValueError as error:
            raise UsageError(location, f"'{shown(row[1])}': {error}", _FORMAT) from None
        yield time_s, value


def _value(text: str, factor: float, quantity: GridQuantity) -> float | None:
    if not text.strip():
        return None
    try:
        value = float(text)
    except ValueError:
        raise ValueError("not a number") from None
    problem = check_value(quantity, value * factor)
    if problem:
        raise ValueError(problem)
    return value * factor
