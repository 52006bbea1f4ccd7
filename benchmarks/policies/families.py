"""Workload families on which scheduling policies are tuned and evaluated.

Each family gives arrival times, run times in hours and numbers of GPUs of jobs. Real traces and model
workloads come from files; the first half of a file is for tuning, the second half for evaluation. Synthetic
families draw separate random numbers for the two purposes.
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
POISSON = "poisson"
"""Family that the package's own generator draws: Poisson arrivals of trainings of 4 to 15 minutes."""
_TUNING_SEED, _HELD_OUT_SEED = 1_000, 2_000


@dataclass(frozen=True)
class TraceRows:
    """The n jobs of a trace, in order of arrival, as three columns of shape (n,).

    The columns are the arrival time and the run time in seconds, and the number of GPUs.
    """

    submit_s: Floats
    time_s: Floats
    units: NDArray[np.int64]


@dataclass(frozen=True)
class Family:
    """Family of workloads on which scheduling policies are evaluated.

    The jobs of a family are divided into two halves: one to tune policies, and one that is held out for the
    evaluation. Each half is divided into parts.

    Attributes:
        name: name of the family in result tables.
        origin: `real`, `model` (statistical model fitted to real logs) or `synthetic`.
        tuned: whether the tuning half was used to choose weights of policies.
        rows: function that returns the jobs of one part. Its arguments are the folder of the trace files,
            the number of the part, whether the part is from the tuning half (otherwise from the held-out
            half), and the number of jobs per part.
        file: name of the family's file in the folder of the trace files; empty if there is no file.
    """

    name: str
    origin: str
    tuned: bool
    rows: Callable[[Path, int, bool, int], TraceRows]
    file: str = ""


def _cut(rows: TraceRows, part: int, tuning: bool, jobs: int) -> TraceRows:
    """Return a part of a workload trace, with times from the start of the part.

    The trace is divided into two halves. With `tuning`, the part is taken from the first half, otherwise
    from the second half. `part` is the number of the part within the half.
    """
    half = len(rows.submit_s) // 2
    jobs = min(jobs, half)
    parts = half // jobs
    if part >= parts:
        raise IndexError(f"the trace has only {parts} parts of {jobs} jobs in a half")
    # Parts are spread over the half, so that they differ in season.
    start = (0 if tuning else half) + (
        part * (half - jobs) // max(1, parts - 1) if parts < 8 else part * (half // 8)
    )
    cut = slice(start, start + jobs)
    return TraceRows(rows.submit_s[cut] - rows.submit_s[start], rows.time_s[cut], rows.units[cut])


_loaded: dict[Path, TraceRows] = {}


def _from_file(read: Callable[[Path], TraceRows], name: str) -> Callable[[Path, int, bool, int], TraceRows]:
    def rows(folder: Path, part: int, tuning: bool, jobs: int) -> TraceRows:
        path = folder / name
        if path not in _loaded:
            _loaded[path] = read(path)
        return _cut(_loaded[path], part, tuning, jobs)

    return rows


def _sorted(submit_s: Any, time_s: Any, units: Any) -> TraceRows:
    submit, time, size = np.asarray(submit_s, float), np.asarray(time_s, float), np.asarray(units, float)
    usable = np.isfinite(submit) & (time > 1.0) & (size >= 1)
    order = np.argsort(submit[usable], kind="stable")
    return TraceRows(submit[usable][order], time[usable][order], size[usable][order].astype(np.int64))


def _gaia(path: Path) -> TraceRows:
    with path.open(newline="") as file:
        rows = [
            (float(r["arrival_time"]), float(r["length"]), float(r["cpus"])) for r in csv.DictReader(file)
        ]
    columns = np.array(rows).T
    return _sorted(columns[0] * 3600, columns[1] * 3600, columns[2])


def _eagle(path: Path) -> TraceRows:
    with path.open(newline="") as file:
        rows = [
            (
                datetime.fromisoformat(r["submit_time"]).timestamp(),
                float(r["run_time"]),
                float(r["nodes_req"]),
            )
            for r in csv.DictReader(file)
        ]
    columns = np.array(rows).T
    return _sorted(columns[0], columns[1], columns[2])


def _swf(path: Path) -> TraceRows:
    lines = [
        line.split() for line in path.read_text().splitlines() if line.strip() and not line.startswith(";")
    ]
    columns = np.array([[float(line[1]), float(line[3]), float(line[4])] for line in lines]).T
    return _sorted(*columns)


def _random(part: int, tuning: bool, number: int) -> np.random.Generator:
    return np.random.default_rng([_TUNING_SEED if tuning else _HELD_OUT_SEED, number, part])


def _sizes(random: np.random.Generator, jobs: int) -> NDArray[np.int64]:
    return 2 ** random.choice(4, jobs, p=[0.55, 0.15, 0.15, 0.15])


def _generated(_: Path, part: int, tuning: bool, jobs: int) -> TraceRows:
    raise AssertionError(f"the jobs of {POISSON} come from the package's generator of model workloads")


def _diurnal(_: Path, part: int, tuning: bool, jobs: int) -> TraceRows:
    """Return synthetic jobs that arrive more often at some times of the day and week.

    The arrivals are a Poisson process with a varying rate. The run times are lognormal.
    """
    random = _random(part, tuning, 2)
    now_h = 0.0
    arrivals: list[float] = []
    while len(arrivals) < jobs:
        now_h += random.exponential(1 / 20.0)
        rate = 0.5 + 0.45 * np.sin(2 * np.pi * (now_h - 9) / 24)
        if now_h % 168 >= 120:
            rate *= 0.4
        if random.random() < rate:
            arrivals.append(now_h)
    return TraceRows(np.array(arrivals) * 3600, random.lognormal(8.0, 1.2, jobs), _sizes(random, jobs))


def _bursty(_: Path, part: int, tuning: bool, jobs: int) -> TraceRows:
    """Return a random workload whose jobs arrive in bursts.

    The arrivals are a Poisson process that switches at random between two states (Markov-modulated). The
    rate of arrivals in a burst is 20 times the rate outside of bursts.
    """
    random = _random(part, tuning, 3)
    now, burst = 0.0, False
    arrivals: list[float] = []
    while len(arrivals) < jobs:
        rate, leave = (20.0, 1 / 1.5) if burst else (1.0, 1 / 15.0)
        step = random.exponential(1 / (rate + leave))
        now += step
        if random.random() < leave / (rate + leave):
            burst = not burst
        else:
            arrivals.append(now)
    return TraceRows(np.array(arrivals) * 600, random.lognormal(7.5, 1.0, jobs), _sizes(random, jobs))


def _heavy(_: Path, part: int, tuning: bool, jobs: int) -> TraceRows:
    """Return jobs with Poisson arrivals and heavy-tailed run times.

    The run times have a bounded Pareto distribution with exponent 1.1 from 2 minutes to 2 days.
    """
    random = _random(part, tuning, 4)
    low, high, exponent = 120.0, 172_800.0, 1.1
    u = random.random(jobs)
    time_s = low * (1 - u * (1 - (low / high) ** exponent)) ** (-1 / exponent)
    return TraceRows(np.cumsum(random.exponential(600.0, jobs)), time_s, _sizes(random, jobs))


FAMILIES = {
    family.name: family
    for family in (
        Family("pai", "real", True, _from_file(_gaia, "pai-100k.csv"), "pai-100k.csv"),
        Family("lublin", "model", True, _from_file(_swf, "lublin_256.swf"), "lublin_256.swf"),
        Family(POISSON, "synthetic", True, _generated),
        Family("eagle", "real", False, _from_file(_eagle, "sample_eagle_data.csv"), "sample_eagle_data.csv"),
        Family("azure", "real", False, _from_file(_gaia, "azure-100k.csv"), "azure-100k.csv"),
        Family(
            "mustang",
            "real",
            False,
            _from_file(_gaia, "mustang-trace-2015-100k.csv"),
            "mustang-trace-2015-100k.csv",
        ),
        Family("diurnal", "synthetic", False, _diurnal),
        Family("bursty", "synthetic", False, _bursty),
        Family("heavy", "synthetic", False, _heavy),
    )
}
