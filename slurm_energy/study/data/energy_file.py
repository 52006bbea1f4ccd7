"""CSV files of the energy of all nodes over time: columns start_s, end_s and joules."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Final

import numpy as np

from slurm_energy.csv_rows import refuse_too_long
from slurm_energy.errors import UsageError
from slurm_energy.quantities import shown
from slurm_energy.study.data.kpis import EnergySeries

COLUMNS: Final = ("start_s", "end_s", "joules")
_TODO: Final = "write the columns start_s, end_s (Unix seconds) and joules"


def read_energy(path: Path) -> EnergySeries:
    """Read the measured energy of nodes over time from a CSV file.

    The format is that of `energy_csv`. An empty field means that the energy is unknown.

    Raises:
        UsageError: the file cannot be read, or a line is malformed. The message names file and line.
    """
    rows: list[tuple[float, float, float]] = []
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
            if missing:
                raise UsageError(f"{path}:1", f"there is no column {missing[0]}", _TODO)
            for row in reader:
                refuse_too_long(row, f"{path}:{reader.line_num}")
                rows.append(_interval(row, f"{path}:{reader.line_num}"))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"{path}", str(error), _TODO) from None
    if not rows:
        raise UsageError(f"{path}", "has no intervals", _TODO)
    rows.sort()
    start_s, end_s, joules = (np.array(column, np.float64) for column in zip(*rows, strict=True))
    if np.any(start_s[1:] < end_s[:-1]):
        at = int(np.argmax(start_s[1:] < end_s[:-1]))
        raise UsageError(
            f"{path}", f"intervals overlap at {start_s[at + 1]:.0f} s", "write each interval once"
        )
    return EnergySeries(start_s, end_s, joules, f"file {path.name}")


def energy_csv(energy: EnergySeries) -> str:
    """Return the energy of each interval as CSV."""
    lines = [",".join(COLUMNS)]
    for start, end, joules in zip(
        energy.start_s.tolist(), energy.end_s.tolist(), energy.joules.tolist(), strict=True
    ):
        lines.append(f"{start!r},{end!r},{'' if joules != joules else repr(joules)}")
    return "\n".join(lines) + "\n"


def _interval(row: dict[str, str], location: str) -> tuple[float, float, float]:
    values = []
    for name in COLUMNS:
        text = (row.get(name) or "").strip()
        try:
            value = float(text) if text or name != "joules" else math.nan
        except ValueError:
            raise UsageError(location, f"{name}: '{shown(text)}' is not a number", _TODO) from None
        if math.isinf(value) or (math.isnan(value) and name != "joules") or value < 0:
            raise UsageError(location, f"{name}: '{shown(text)}' is not possible", _TODO)
        values.append(value)
    if values[1] <= values[0]:
        raise UsageError(location, "the interval ends before it begins", _TODO)
    return values[0], values[1], values[2]
