"""Step functions of time, such as budgets, prices and carbon intensities, and their integrals with power."""

from __future__ import annotations

import csv
import math
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from slurm_energy.csv_rows import refuse_too_long
from slurm_energy.errors import UsageError
from slurm_energy.scheduling.queue import Floats


class StepFunction:
    """A function of time that is constant between given times.

    Args:
        times_s: ascending times in seconds. The first value also holds before the first time.
        values: one value per time. Each value holds until the next time.
    """

    def __init__(self, times_s: Sequence[float], values: Sequence[float]) -> None:
        if len(times_s) != len(values) or not len(times_s) or any(np.diff(times_s) <= 0):
            raise ValueError("times must rise, with one value each")
        self.times_s = np.asarray(times_s, np.float64)
        self.values = np.asarray(values, np.float64)
        self._times_s: list[float] = self.times_s.tolist()
        self._values: list[float] = self.values.tolist()

    @classmethod
    def constant(cls, value: float) -> StepFunction:
        """Return a step function with the same value at all times."""
        return cls([0.0], [value])

    def at(self, time_s: float) -> float:
        """Return the value of the step function at the time `time_s`."""
        index = int(np.searchsorted(self.times_s, time_s, "right"))
        return float(self.values[max(0, index - 1)])

    def lowest(self, begin_s: float, end_s: float) -> float:
        """Return the lowest value from the time `begin_s` to the time `end_s`, both included."""
        first = max(0, bisect_right(self._times_s, begin_s) - 1)
        last = max(0, bisect_right(self._times_s, end_s) - 1)
        return min(self._values[first : last + 1])

    def highest(self, begin_s: float, end_s: float = math.inf) -> float:
        """Return the highest value from the time `begin_s` to the time `end_s`, both included."""
        first = max(0, bisect_right(self._times_s, begin_s) - 1)
        last = max(0, bisect_right(self._times_s, end_s) - 1)
        return max(self._values[first : last + 1])

    def after(self, time_s: float) -> float:
        """Return the time in seconds of the first change after `time_s`; infinity if no change follows."""
        index = int(np.searchsorted(self.times_s, time_s, "right"))
        return float(self.times_s[index]) if index < len(self.times_s) else math.inf


def integral_of_product(times_s: Floats, watts: Floats, weights: StepFunction) -> float:
    """Return the exact integral of power times a step function, for example of a price.

    Args:
        times_s: ascending times in seconds; the last one ends the integral.
        watts: power from each of these times until the next one.
        weights: step function by which the power is multiplied.

    Returns:
        Joules times the unit of the weights.
    """
    inside = weights.times_s[(weights.times_s > times_s[0]) & (weights.times_s < times_s[-1])]
    edges = np.union1d(times_s, inside)
    left = edges[:-1]
    power = watts[np.searchsorted(times_s, left, "right") - 1]
    rows = np.maximum(0, np.searchsorted(weights.times_s, left, "right") - 1)
    return math.fsum(power * weights.values[rows] * np.diff(edges))


def read_steps(path: Path, column: str) -> StepFunction:
    """Read a step function from a CSV file with the columns `time_s` and `column`.

    Raises:
        UsageError: the file is unreadable, lacks a column, contains a value that is not a number, a row with
            more fields than the header, or times that do not ascend. The message names file and line.
    """
    times: list[float] = []
    values: list[float] = []
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            if not {"time_s", column} <= set(reader.fieldnames or []):
                raise UsageError(f"{path}:1", f"needs the columns time_s and {column}")
            for row in reader:
                refuse_too_long(row, f"{path}:{reader.line_num}")
                time_s, value = _pair(row, column, f"{path}:{reader.line_num}")
                if times and time_s <= times[-1]:
                    raise UsageError(f"{path}:{reader.line_num}", "the time does not rise")
                times.append(time_s)
                values.append(value)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"{path}", str(getattr(error, "strerror", None) or error)) from None
    if not times:
        raise UsageError(f"{path}", "has no values")
    return StepFunction(times, values)


def _pair(row: dict[str, str], column: str, location: str) -> tuple[float, float]:
    try:
        time_s, value = float(row["time_s"]), float(row[column])
    except (TypeError, ValueError):
        raise UsageError(location, f"time_s and {column} must be numbers") from None
    if not (math.isfinite(time_s) and math.isfinite(value)):
        raise UsageError(location, f"time_s and {column} must be numbers")
    return time_s, value
