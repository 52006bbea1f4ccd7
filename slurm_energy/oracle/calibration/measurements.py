"""Measured training steps as Python objects, and the CSV formats in which they are stored."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from slurm_energy.csv_rows import refuse_too_long
from slurm_energy.errors import NotFoundError, UsageError
from slurm_energy.oracle.hardware import PRECISIONS
from slurm_energy.oracle.workload import find_optimizer, find_profile
from slurm_energy.oracle.workload.profile_files import adopt_profile
from slurm_energy.quantities import shown

COLUMNS = ("model", "batch", "gpus", "precision", "optimizer", "cap_watts", "step_s", "power_watts")
"""Header of the native CSV format.

`cap_watts` may be empty (no limit), and so may `power_watts` (unknown). `model` is a shipped profile or the
path of a profile.
"""

_STUDY_COLUMNS = (
    *("dataset", "network", "batch_size", "optimizer", "power_limit", "time_per_epoch", "average_power"),
)
_STUDIES = {
    ("imagenet", "resnet50"): ("resnet50", 1281167),
    ("cifar100", "shufflenetv2"): ("shufflenetv2-32", 50000),
    ("librispeech", "deepspeech2"): ("deepspeech2", 281241),
    ("movielens-1m", "ncf"): ("ncf", 4970845),
    ("squad", "bert_base_uncased"): ("bert-base", 88524),
    ("sentiment140", "bert_base_uncased"): ("bert-base-48", 1600000),
}
"""Profile and number of training samples of the data sets in the power-limit study of Zeus (NSDI 2023).

The study states neither the sequence lengths nor whether all samples are used. An error there is a constant
factor on time.
"""


@dataclass(frozen=True, slots=True)
class Measurement:
    """One measured configuration.

    Attributes:
        model: profile name of the workload.
        batch: samples per device and step.
        gpus: number of devices that train together.
        precision: precision of matrix products.
        optimizer: name of the optimizer.
        cap_watts: power limit per device; infinity means no limit.
        step_s: seconds per step.
        power_watts: mean power of one device in watts; NaN if not measured.
        looping: whether the framework updates one tensor after the other.
    """

    model: str
    batch: float
    gpus: float
    precision: str
    optimizer: str
    cap_watts: float
    step_s: float
    power_watts: float
    looping: bool = False

    @property
    def row(self) -> tuple[str, float, str]:
        """Profile name, batch size and optimizer of the measurement.

        Measurements with equal values differ only in their power limit.
        """
        return self.model, self.batch, self.optimizer


def read_measurements(path: Path, precision: str = "fp32") -> list[Measurement]:
    """Read measurements from a CSV file.

    The file has the format of `write_measurements`, or the format of the power-limit study. The header line
    distinguishes the two formats.

    Args:
        path: path of the CSV file.
        precision: precision of matrix products in the runs of the power-limit study. The files of the study
            do not state this precision.

    Raises:
        UsageError: the file cannot be read or a value is invalid. The message names the file and the line.
        NotFoundError: a workload profile or optimizer is unknown.
    """
    try:
        # Spreadsheets put a byte order mark at the beginning of the file.
        with path.open(newline="", encoding="utf-8-sig") as stream:
            reader = csv.DictReader(stream, skipinitialspace=True)
            header = set(reader.fieldnames or ())
            rows = [(reader.line_num, row) for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise UsageError(str(path), reason, "name a CSV file of measurements") from None
    is_native = header.issuperset(COLUMNS)
    if not is_native and not header.issuperset(_STUDY_COLUMNS):
        expected = _STUDY_COLUMNS if "dataset" in header else COLUMNS
        raise UsageError(f"{path}: header", "is not known", f"columns: {','.join(expected)}")
    for line, row in rows:
        refuse_too_long(row, f"{path}, line {line}")
    if is_native:
        return [_native_row(path, line, row) for line, row in rows]
    return [_study_row(path, line, row, precision) for line, row in rows]


def _native_row(path: Path, line: int, row: dict[str, str | None]) -> Measurement:
    model, optimizer, precision = (row[key] or "" for key in ("model", "optimizer", "precision"))
    with _located(path, line):
        model = (adopt_profile(Path(model)) if model.endswith(".json") else find_profile(model)).name
        find_optimizer(optimizer)
    if precision not in PRECISIONS:
        raise UsageError(f"{path}, line {line}: precision", f"is not one of {', '.join(PRECISIONS)}")
    return Measurement(
        model=model,
        batch=_count(path, line, row, "batch"),
        gpus=_count(path, line, row, "gpus"),
        precision=precision,
        optimizer=optimizer,
        cap_watts=_number(path, line, row, "cap_watts", math.inf),
        step_s=_number(path, line, row, "step_s"),
        power_watts=_number(path, line, row, "power_watts", math.nan),
    )


def _study_row(path: Path, line: int, row: dict[str, str | None], precision: str) -> Measurement:
    key = (row["dataset"] or "", row["network"] or "")
    if key not in _STUDIES:
        raise UsageError(f"{path}, line {line}: {shown('/'.join(key))}", "no profile is assigned to it")
    model, samples = _STUDIES[key]
    batch = _count(path, line, row, "batch_size")
    with _located(path, line):
        optimizer = find_optimizer(row["optimizer"] or "").name
    return Measurement(
        model=model,
        batch=batch,
        gpus=1.0,
        precision=precision,
        optimizer=optimizer,
        cap_watts=_number(path, line, row, "power_limit"),
        step_s=_number(path, line, row, "time_per_epoch") / (samples / batch),
        power_watts=_number(path, line, row, "average_power"),
        looping=True,  # the study used PyTorch 1.x
    )


@contextlib.contextmanager
def _located(path: Path, line: int) -> Iterator[None]:
    """Add the file and the line to an error about an unknown name."""
    try:
        yield
    except NotFoundError as error:
        raise NotFoundError(f"{path}, line {line}: {error.what}", error.why, error.todo) from None


def _count(path: Path, line: int, row: dict[str, str | None], key: str) -> float:
    value = _number(path, line, row, key)
    if value != int(value):
        raise UsageError(f"{path}, line {line}: {key}", f"'{shown(row[key] or '')}' is not a whole number")
    return value


def _number(path: Path, line: int, row: dict[str, str | None], key: str, empty: float | None = None) -> float:
    text = (row[key] or "").strip()
    if not text and empty is not None:
        return empty
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < 1e12:
        raise UsageError(f"{path}, line {line}: {key}", f"'{shown(text)}' is not a number above 0")
    return value


def column(rows: Iterable[Measurement], name: str) -> NDArray[np.float64]:
    """Return one numeric attribute of all measurements as an array."""
    return np.array([getattr(row, name) for row in rows], dtype=np.float64)


def max_gpus(rows: Iterable[Measurement]) -> dict[str, dict[str, int]]:
    """Return the largest number of devices in the measurements, by profile name and precision."""
    largest: dict[str, dict[str, int]] = {}
    for row in rows:
        by_precision = largest.setdefault(row.model, {})
        by_precision[row.precision] = max(by_precision.get(row.precision, 0), int(row.gpus))
    return largest


def write_measurements(rows: Iterable[Measurement], path: Path) -> None:
    """Write measurements to a CSV file with the columns `COLUMNS`.

    Unknown power (NaN) and a missing power limit (infinity) become empty cells.
    """
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, COLUMNS, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(
            {key: "" if value != value or value == math.inf else value for key, value in plain.items()}
            for plain in map(dataclasses.asdict, rows)
        )
