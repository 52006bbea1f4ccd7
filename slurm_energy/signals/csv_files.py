"""Reader of signals in CSV files, with the headers that publishers use.

A file has one column of time, and one or more columns of values. These columns of values are recognised, in
upper or lower case:

- a price with its unit: `Price (USD/MWh)`, `EUR/MWh`, `ct/kWh`; a column named only `price` is per MWh;
- a carbon intensity: `g/kWh`, `avg_CI`, `gco2_per_kwh`;
- a generation mix of the EIA: `WND`, `SUN`, `WAT`, `NG`, ... in MWh, which gives the renewable share;
- `renewable_share` (0 to 1), `watts` (a power budget), `celsius` (the outside temperature).
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from slurm_energy.errors import UsageError
from slurm_energy.grid.csv_series import MAX_ROWS, TimedRows
from slurm_energy.grid.series import GridSeries, SeriesSource, usual_step_s
from slurm_energy.grid.units import carbon_unit_factor, price_unit_factor
from slurm_energy.quantities import shown
from slurm_energy.signals.columns import SignalName
from slurm_energy.signals.signal_series import SignalSeries, from_grid

_TIME_COLUMNS: Final = ("datetime (utc)", "time", "timestamp", "time_s", "datetime")
_RENEWABLE: Final = frozenset({"wnd", "sun", "wat", "geo", "bio"})
_GENERATION: Final = _RENEWABLE | {"oil", "ng", "col", "nuc", "oth"}
_PRICE_UNIT: Final = re.compile(r"(?:.*\()?\s*(?P<unit>[a-z]{2,4}(?:/|_per_)(?:k|m)wh)\s*\)?", re.IGNORECASE)
_CARBON_COLUMNS: Final = {"avg_ci": 1.0, "gco2_per_kwh": 1.0, "carbon_g_per_kwh": 1.0}
_MAX_VALUE: Final = 1e12
_MAX_DEVIATION: Final = 0.1
"""Maximum deviation of the time of a row from equal spacing, as a share of a step."""
_MIN_SINGLE_STEPS: Final = 0.75
"""Minimum share of the distances between rows that are one step, if the rows are equally spaced."""
_MAX_SAMPLING_S: Final = 3600.0
"""Maximum step of four or fewer equally spaced rows with a gap. Periods of tariffs are longer."""
_MIN_STEP_S: Final = 300.0
"""Minimum step of a series with unequally spaced rows. Shorter steps would make forecasts slow."""
_FORMAT: Final = "write a header such as time,EUR/MWh or time,g/kWh, and one row per hour"


@dataclass(frozen=True, slots=True)
class _Column:
    """How the value of a signal, such as the electricity price, follows from a row of a CSV file.

    Attributes:
        fields: indices of the fields that are read.
        value: function that converts the numbers in these fields to the value of the signal, in the unit
            of `SignalName`.
    """

    fields: tuple[int, ...]
    value: Callable[[Sequence[float]], float]


def read_signal(lines: Iterable[str], name: str, signal: SignalName) -> SignalSeries:
    """Return a signal from the lines of a CSV text.

    If the rows are equally spaced, the step of the series is the usual time between two rows, and missing
    rows yield unknown values. If they are not, each value holds until the next row. Empty values are unknown.

    Args:
        lines: lines of the text.
        name: name of the file, for errors.
        signal: the signal to read.

    Raises:
        UsageError: the header has no column for this signal, or a time or a value is wrong. The message names
            file and line.
    """
    reader = csv.reader((line.lstrip("\ufeff") for line in lines), strict=True)
    try:
        header = next(reader, None)
        if not header:
            raise UsageError(name, "is empty", _FORMAT)
        time_field, column = _columns(header, f"{name}:1", signal)
        fields = max(time_field, *column.fields) + 1
        timed = TimedRows(name, _FORMAT, len(header), fields, "has too few columns", time_field)
        times, values = _rows(timed.read(reader), column)
    except (csv.Error, UnicodeDecodeError) as error:
        raise UsageError(f"{name}:{reader.line_num}", str(error), _FORMAT) from None
    if not times:
        raise UsageError(name, "has no rows", _FORMAT)
    step_s = usual_step_s(times)
    if (times[-1] - times[0]) / step_s > MAX_ROWS:
        raise UsageError(name, f"covers more than {MAX_ROWS} steps of {step_s:g} s", "check the times")
    rows = _equal_steps(times, step_s)
    if rows is None:
        return _held_values(times, values, _common_step_s(times) or step_s, name)
    column_values = np.full(int(rows[-1]) + 1, np.nan)
    column_values[rows] = values
    return SignalSeries(times[0], step_s, column_values, name)


def _equal_steps(times: Sequence[float], step_s: float) -> NDArray[np.int64] | None:
    """Return for each row the index of its time step; None if the rows are not equally spaced.

    Rows may be missing, and times may deviate by the share `_MAX_DEVIATION` of a step. A tariff that changes
    at 6:00 and 22:00 is not equally spaced, although its longer period is a multiple of the shorter one.
    Therefore, one of three further conditions must hold: at least the share `_MIN_SINGLE_STEPS` of the
    distances between rows is one step; the distances have more than two different lengths, as with gaps in
    measured values; or there are at most four rows, and the step is at most `_MAX_SAMPLING_S`.
    """
    steps = (np.array(times) - times[0]) / step_s
    rows = np.round(steps).astype(np.int64)
    distances = np.diff(rows)
    is_regular = np.all(np.abs(steps - rows) <= _MAX_DEVIATION) and np.all(distances > 0)
    is_short = len(rows) < 5 and step_s <= _MAX_SAMPLING_S * (1 + _MAX_DEVIATION)
    has_gaps = len(np.unique(distances)) > 2
    is_sampled = is_short or has_gaps or np.mean(distances == 1) >= _MIN_SINGLE_STEPS
    return rows if is_regular and is_sampled else None


def _common_step_s(times: Sequence[float]) -> float | None:
    """Return the longest step that divides all distances of rows.

    With this step, no value of the series is a mean of several rows. The result is None if the step is below
    `_MIN_STEP_S`, or if the series would have more than `MAX_ROWS` steps.
    """
    step_s = int(np.gcd.reduce(np.round(np.array(times) - times[0]).astype(np.int64)))
    if step_s < _MIN_STEP_S or (times[-1] - times[0]) / step_s > MAX_ROWS:
        return None
    return float(step_s)


def _held_values(times: Sequence[float], values: Sequence[float], step_s: float, name: str) -> SignalSeries:
    """Return a series in which each value holds until the next row.

    The last value holds as long as the value before, but not longer than the usual time between two rows.
    """
    last_s = min(usual_step_s(times), times[-1] - times[-2])
    ends = [*times[1:], times[-1] + last_s]
    # Relative times, because the steps of `from_grid` begin at multiples of their length.
    samples = [
        (start - times[0], end - times[0], value)
        for start, end, value in zip(times, ends, values, strict=True)
        if not math.isnan(value)
    ]
    grid = GridSeries(SeriesSource(name), samples)
    return from_grid(grid, 0.0, ends[-1] - times[0], step_s).shifted(times[0])


def _columns(header: list[str], location: str, signal: SignalName) -> tuple[int, _Column]:
    titles = [title.strip().lower() for title in header]
    times = [titles.index(title) for title in _TIME_COLUMNS if title in titles]
    if not times:
        raise UsageError(location, "has no column of time", f"name it one of {', '.join(_TIME_COLUMNS)}")
    column = _FINDERS[signal](titles)
    if column is None:
        raise UsageError(location, f"has no column of {signal.value}", _FORMAT)
    return times[0], column


def _scaled(field: int, factor: float) -> _Column:
    return _Column((field,), lambda row: row[0] * factor)


def _price(titles: list[str]) -> _Column | None:
    for field, title in enumerate(titles):
        if title in ("price", "price_per_mwh"):
            return _scaled(field, 1e-3)
        if title == "price_per_kwh":
            return _scaled(field, 1.0)
        match = _PRICE_UNIT.fullmatch(title)
        if match and not match["unit"].lower().startswith(("g/", "kg/", "lb", "t/")):
            money = match["unit"].replace("_per_", "/").partition("/")[0].upper()
            # A hundredth of any currency is written as ct.
            currency = "XXX" if money in ("CT", "CENT") else money
            return _scaled(field, price_unit_factor(match["unit"], currency))
    return None


def _carbon(titles: list[str]) -> _Column | None:
    for field, title in enumerate(titles):
        try:
            factor = _CARBON_COLUMNS.get(title) or carbon_unit_factor(title)
        except ValueError:
            continue
        return _scaled(field, factor)
    return None


def _renewable(titles: list[str]) -> _Column | None:
    if "renewable_share" in titles:
        return _scaled(titles.index("renewable_share"), 1.0)
    fields = [field for field, title in enumerate(titles) if title in _GENERATION]
    clean = [row for row, field in enumerate(fields) if titles[field] in _RENEWABLE]
    if len(fields) < 2 or not clean:
        return None

    def share(row: Sequence[float]) -> float:
        # A negative generation is consumption, of pumped storage for example.
        total = sum(max(0.0, value) for value in row)
        return sum(max(0.0, row[field]) for field in clean) / total if total > 0 else math.nan

    return _Column(tuple(fields), share)


def _named(*names: str) -> Callable[[list[str]], _Column | None]:
    def find(titles: list[str]) -> _Column | None:
        fields = [titles.index(name) for name in names if name in titles]
        return _scaled(fields[0], 1.0) if fields else None

    return find


_FINDERS: Final[dict[SignalName, Callable[[list[str]], _Column | None]]] = {
    SignalName.PRICE: _price,
    SignalName.CARBON: _carbon,
    SignalName.RENEWABLE: _renewable,
    SignalName.BUDGET: _named("watts", "budget_watts"),
    SignalName.OUTSIDE: _named("celsius", "outside_celsius"),
}


def _rows(rows: Iterable[tuple[str, float, list[str]]], column: _Column) -> tuple[list[float], list[float]]:
    times: list[float] = []
    values: list[float] = []
    for location, time_s, row in rows:
        times.append(time_s)
        values.append(_value(row, column, location))
    return times, values


def _value(row: list[str], column: _Column, location: str) -> float:
    numbers = []
    for field in column.fields:
        text = row[field].strip()
        if not text:
            return math.nan
        try:
            number = float(text)
        except ValueError:
            raise UsageError(location, f"'{shown(text)}' is not a number", _FORMAT) from None
        if not abs(number) <= _MAX_VALUE:
            raise UsageError(location, f"'{shown(text)}' is not a plausible value")
        numbers.append(number)
    return column.value(numbers)
