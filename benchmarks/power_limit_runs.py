"""Simulated runs on the measured responses of GPUs to power limits (files `summary_power_*.csv`)."""

from __future__ import annotations

import csv
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from slurm_energy.csv_rows import refuse_too_long
from slurm_energy.errors import UsageError
from slurm_energy.policies.operating_point import UNTUNED, OperatingPoint
from slurm_energy.tuning.progress_window import ProgressSource, ProgressWindow

MIN_STEP_CV = 0.01
FLAT_POWER = 0.1
MIN_LIMITS = 3
COLUMNS = ("dataset", "network", "batch_size", "optimizer", "power_limit", "time_per_epoch", "average_power")


@dataclass(frozen=True)
class MeasuredJob:
    """The response of one network and batch size on one GPU.

    Attributes:
        gpu: name of the GPU, from the name of the file.
        network: data set and network.
        batch: batch size and optimizer.
        limits: measured power limits in watts, rising; the last one is the default.
        time: noise-free time ratios against the default limit.
        watts: noise-free mean power.
        time_cv: standard deviation of the time of a step divided by the time.
        power_cv: the same for the power.
    """

    gpu: str
    network: str
    batch: str
    limits: tuple[float, ...]
    time: tuple[float, ...]
    watts: tuple[float, ...]
    time_cv: float
    power_cv: float

    @property
    def edp(self) -> np.ndarray:
        """Energy-delay product (EDP) at each power limit, divided by that at the default limit."""
        return np.array(self.time) ** 2 * np.array(self.watts) / self.watts[-1]

    @property
    def energy(self) -> np.ndarray:
        """Energy of the job at each power limit, divided by its energy at the default limit."""
        return np.array(self.time) * np.array(self.watts) / self.watts[-1]

    @property
    def responds(self) -> bool:
        """Whether at least one power limit improves the EDP by 1 % over the default limit."""
        return bool(self.edp.min() < 0.99)

    def points(self) -> tuple[OperatingPoint, ...]:
        """Operating points at which the job was measured, in ascending order of their power limits.

        The last limit is the default limit. Its point is the operating point `UNTUNED`.
        """
        return (*(OperatingPoint(gpu_limit_watts=limit) for limit in self.limits[:-1]), UNTUNED)


def load(folder: Path, smooth: bool = True) -> list[MeasuredJob]:
    """Return the measured jobs in all files of a folder, for the replay of tuning.

    Jobs that were measured under fewer than three power limits are left out.

    Args:
        folder: folder with files `summary_power_GPU.csv`.
        smooth: whether to replace the measured times and powers of each job by a monotone curve through
            them. Otherwise the measured values are used unchanged as the true response of the job to
            power limits.
    """
    jobs = []
    for path in sorted(folder.glob("summary_power_*.csv")):
        gpu = path.stem.removeprefix("summary_power_")
        for (network, batch), points in _rows(path).items():
            if len(points) >= MIN_LIMITS:
                jobs.append(_job(gpu, network, batch, points, smooth))
    return _with_common_noise(jobs)


def _rows(path: Path) -> dict[tuple[str, str], dict[float, list[tuple[float, float]]]]:
    """Return the measured times and watts of a file by job and power limit.

    Raises:
        ValueError: the file cannot be read, a column is missing, or a number is not above 0. The message
            names the file, and the line if it is known.
    """
    rows: dict[tuple[str, str], dict[float, list[tuple[float, float]]]] = defaultdict(
        lambda: defaultdict(list)
    )
    try:
        # Spreadsheets put a byte order mark at the beginning of the file.
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, skipinitialspace=True)
            missing = set(COLUMNS) - set(reader.fieldnames or ())
            if missing:
                raise ValueError(f"{path}, line 1: no column {', '.join(sorted(missing))}")
            for row in reader:
                key, limit, point = _measurement(row, f"{path}, line {reader.line_num}")
                rows[key][limit].append(point)
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 ({error.reason}): convert the file to UTF-8") from None
    except csv.Error as error:
        raise ValueError(f"{path}, line {reader.line_num}: {error}") from None
    return rows


def _measurement(row: dict[str, str], place: str) -> tuple[tuple[str, str], float, tuple[float, float]]:
    """Return the measurement in one row of a CSV file of measured power limits.

    The result is the job (network, data set, batch size and optimizer), its power limit in watts, and the
    pair of its time per epoch and mean power.

    Args:
        row: cells by column.
        place: file and line, for error messages.

    Raises:
        ValueError: a value is not a number, or not above 0, or the row is too long.
    """
    try:
        refuse_too_long(row, place)
    except UsageError as error:
        raise ValueError(str(error)) from None
    try:
        limit, time, watts = (float(row[name]) for name in COLUMNS[4:])
    except (TypeError, ValueError):
        raise ValueError(f"{place}: not a number") from None
    if not all(0 < value < np.inf for value in (limit, time, watts)):
        raise ValueError(f"{place}: not above 0")
    key = (f"{row['dataset']}/{row['network']}", f"{row['batch_size']}/{row['optimizer']}")
    return key, limit, (time, watts)


def _job(
    gpu: str, network: str, batch: str, points: dict[float, list[tuple[float, float]]], smooth: bool
) -> MeasuredJob:
    limits = tuple(sorted(points))
    log_time = np.log([np.mean([pair[0] for pair in points[limit]]) for limit in limits])
    log_watts = np.log([np.mean([pair[1] for pair in points[limit]]) for limit in limits])
    fitted_time, time_cv = monotone(-log_time)
    fitted_watts, power_cv = monotone(log_watts)
    fitted_time = -fitted_time
    if np.ptp(log_watts) < FLAT_POWER:
        # No limit reaches the draw: the differences between the limits are noise.
        fitted_time, fitted_watts = (
            np.full_like(log_time, log_time.mean()),
            np.full_like(log_time, log_watts.mean()),
        )
        time_cv, power_cv = float(np.std(log_time, ddof=1)), float(np.std(log_watts, ddof=1))
    time_cv, power_cv = (max(cv, _scatter(points, column)) for column, cv in enumerate((time_cv, power_cv)))
    if not smooth:
        fitted_time, fitted_watts = log_time, log_watts
    return MeasuredJob(
        gpu,
        network,
        batch,
        limits,
        tuple(np.exp(fitted_time - fitted_time[-1])),
        tuple(np.exp(fitted_watts)),
        time_cv,
        power_cv,
    )


def _scatter(points: dict[float, list[tuple[float, float]]], column: int) -> float:
    """Return the scatter of repeated measurements: the standard deviation of their logarithms.

    The result is 0 if no power limit was measured more than once.
    """
    rows = [np.log([pair[column] for pair in pairs]) for pairs in points.values() if len(pairs) > 1]
    free = sum(len(one) - 1 for one in rows)
    squares = sum(float(((one - one.mean()) ** 2).sum()) for one in rows)
    return float(np.sqrt(squares / free)) if free else 0.0


def monotone(values: np.ndarray) -> tuple[np.ndarray, float]:
    """Return the rising curve that fits the values best, and the standard deviation of the residuals.

    The fit is by least squares. Values that already rise everywhere are returned unchanged.
    """
    blocks = [[float(value), 1] for value in values]
    number = 0
    while number < len(blocks) - 1:
        one, other = blocks[number], blocks[number + 1]
        if other[0] < one[0]:
            count = one[1] + other[1]
            blocks[number : number + 2] = [[(one[0] * one[1] + other[0] * other[1]) / count, count]]
            number = max(number - 1, 0)
        else:
            number += 1
    fitted = np.concatenate([np.full(int(count), level) for level, count in blocks])
    free = max(len(values) - len(blocks), 1)
    return fitted, float(np.sqrt(((values - fitted) ** 2).sum() / free))


def _with_common_noise(jobs: list[MeasuredJob]) -> list[MeasuredJob]:
    """Raise the measurement noise of jobs that is implausibly low.

    The noise of a job becomes at least the median of the jobs on the same GPU. The relative noise of time is
    also at least `MIN_STEP_CV`, that of power at least half of it.
    """
    result = []
    for job in jobs:
        same = [other for other in jobs if other.gpu == job.gpu]
        time_cv = max(job.time_cv, float(np.median([other.time_cv for other in same])), MIN_STEP_CV)
        power_cv = max(job.power_cv, float(np.median([other.power_cv for other in same])), MIN_STEP_CV / 2)
        values = {**job.__dict__, "time_cv": time_cv, "power_cv": power_cv}
        result.append(MeasuredJob(**values))
    return result


class SimulatedRun:
    """Simulated run of a job that proceeds in steps, for the benchmark of tuning.

    A window consists of several steps. The power limit may change between windows. All steps at the default
    limit take the same time without noise; this time is the unit of time.

    Attributes:
        time: noise-free time so far, in units of the time of a step at the default limit.
        energy: noise-free energy so far, in watts times the same unit of time.
        steps: number of steps so far.
        log: index of the limit in force for each step.
    """

    def __init__(
        self, job: MeasuredJob, generator: np.random.Generator, step_cv: float | None = None
    ) -> None:
        """Start a simulated run of a measured job.

        Args:
            job: measured time and power of the job at several power limits.
            generator: source of the noise.
            step_cv: minimum relative noise of a step; None means that only the measured noise of the job
                counts.
        """
        self.job = job
        self.time = self.energy = 0.0
        self.steps = 0
        self.log: list[int] = []
        self._generator = generator
        self._cv = max(job.time_cv, step_cv or 0.0)
        self._squares, self._count = 0.03**2 * 2, 2
        self._clock_s = 0.0
        self._points = job.points()

    def advance(self, index: int, steps: int) -> ProgressWindow:
        """Simulate some training steps at one power limit, and return them as a measurement window."""
        job = self.job
        noise = np.exp(self._generator.normal(0.0, self._cv, steps))
        times = job.time[index] * noise
        watts = job.watts[index] * np.exp(self._generator.normal(0.0, job.power_cv / np.sqrt(steps)))
        self.time += job.time[index] * steps
        self.energy += job.time[index] * steps * job.watts[index]
        self.steps += steps
        self.log += [index] * steps
        if steps > 1:
            # The tracker of progress estimates the noise of a step from all windows so far.
            self._squares += float(((times / times.mean() - 1.0) ** 2).sum())
            self._count += steps - 1
        error = float(np.sqrt(self._squares / self._count / steps))
        duration = float(times.sum())
        window = ProgressWindow(
            self._points[index],
            self._clock_s,
            duration,
            steps / duration,
            error,
            watts,
            ProgressSource.REPORTED,
            gpu_watts=watts,
        )
        self._clock_s += duration
        return window
