"""Classes of jobs: a tree of thresholds on size, run time and power of programs. Pure functions.

The thresholds are few and round, so that people can check the classes.

A program is the set of jobs of one user with the same name. Digits in the name do not count. All jobs of a
program are in the same class. If the jobs of a program could be in different classes, tuning could move a job
to another class, because tuning changes the power of the job.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from slurm_energy.quantities import format_duration
from slurm_energy.study.data.jobs_table import Bools, Floats, JobsTable

MAX_CLASSES: Final = 8
_MIN_SHARE: Final = 0.03
_MIN_GAIN: Final = 0.05
_MAX_STEPS: Final = 64
"""Maximum number of thresholds that are tried per feature and class."""
_DIGITS: Final = re.compile(r"\d+")
FEATURES: Final = ("nodes", "gpus_per_node", "run_s", "watts_per_node")
_UNITS: Final[Mapping[str, Callable[[float], str]]] = {
    "nodes": lambda value: f"{value:.3g} " + ("nodes" if value > 1 else "node"),
    "gpus_per_node": lambda value: f"{value:.3g} GPUs per node",
    "run_s": format_duration,
    "watts_per_node": lambda value: f"{value:.0f} W per node",
}


@dataclass(frozen=True, slots=True)
class JobClass:
    """A class of jobs, defined by ranges of features. The ranges give the class its name.

    Attributes:
        name: the ranges as text; unique.
        ranges: lower and upper bound of each feature. A value in the range is above the lower bound and at
            most the upper bound. None means that the column `job_class` of the data names the class.
        programs: programs of the class, in the data from which the class was made.
    """

    name: str
    ranges: Mapping[str, tuple[float, float]] | None = field(default_factory=dict)
    programs: Sequence[str] = ()

    def contains(self, features: Mapping[str, float]) -> bool:
        """Return whether a program's features are within the ranges of the class.

        An unknown feature counts as 0.
        """
        return self.ranges is not None and all(
            low < np.nan_to_num(features[name]) <= high or (low == -np.inf and np.isnan(features[name]))
            for name, (low, high) in self.ranges.items()
        )

    def to_json(self) -> dict[str, Any]:
        """Return the class of jobs as a JSON object. A bound that the class does not have is null."""
        bounds = (
            None
            if self.ranges is None
            else {
                name: [None if np.isinf(value) else value for value in pair]
                for name, pair in self.ranges.items()
            }
        )
        return {"name": self.name, "ranges": bounds, "programs": list(self.programs)}


def job_class_of(data: Mapping[str, Any]) -> JobClass:
    """Return the job class that a JSON object describes. `JobClass.to_json` makes such objects."""
    if data.get("ranges") is None:
        return JobClass(str(data["name"]), None)
    ranges = {
        name: (-np.inf if low is None else float(low), np.inf if high is None else float(high))
        for name, (low, high) in data["ranges"].items()
    }
    return JobClass(str(data["name"]), ranges, tuple(data.get("programs") or ()))


def programs_of(jobs: JobsTable) -> np.ndarray:
    """Return the program to which each job belongs, as `USER/NAME`.

    NAME is the job name in which each number is replaced by a mark. Jobs whose names differ only in numbers
    therefore belong to the same program.
    """
    names = {name: _DIGITS.sub("#", name) for name in set(jobs.name.tolist())}
    return np.array(
        [f"{user}/{names[name]}" for user, name in zip(jobs.user.tolist(), jobs.name.tolist(), strict=True)],
        np.str_,
    )


def program_features(jobs: JobsTable) -> tuple[list[str], Floats, Floats]:
    """Return the names and node-hours of programs, and the median of each feature over a program's jobs.

    Args:
        jobs: jobs. Jobs that have not run are left out.

    Returns:
        Names; features of shape (programs, features), in which NaN means unknown; node-hours of shape
        (programs,).
    """
    ran = jobs.where(jobs.run_s > 0)
    columns = np.column_stack(
        [
            ran.nodes,
            np.nan_to_num(ran.gpus) / np.maximum(1, ran.nodes),
            ran.run_s,
            ran.power_watts / np.maximum(1, ran.nodes),
        ]
    )
    names, row = np.unique(programs_of(ran), return_inverse=True)
    ends = np.cumsum(np.bincount(row, minlength=len(names)))
    ordered = columns[np.argsort(row, kind="stable")]
    features = np.full((len(names), len(FEATURES)), np.nan)
    for index, end in enumerate(ends.tolist()):
        features[index] = _medians(ordered[ends[index - 1] if index else 0 : end])
    hours: Floats = np.bincount(row, np.nan_to_num(ran.work_node_hours), len(names)).astype(np.float64)
    return [str(name) for name in names], features, hours


def _medians(values: Floats) -> list[float]:
    return [
        float(np.median(column[~np.isnan(column)])) if not np.isnan(column).all() else np.nan
        for column in values.T
    ]


def job_classes(jobs: JobsTable, max_classes: int = MAX_CLASSES) -> list[JobClass]:
    """Divide programs into classes with similar size, run time and power, and return the classes.

    Size, run time and power are called features. Each step splits one class in two by a threshold of one
    feature. The split is chosen that removes most variance of the logarithms of the features, weighted by
    node-hours. The division ends with `max_classes` classes, or when no split removes 5 % of the
    variance. A job whose data name a class keeps this class.

    Args:
        jobs: jobs of the programs to classify.
        max_classes: maximum number of classes.

    Source: Blockeel, De Raedt and Ramon 1998, Top-down induction of clustering trees.
    """
    given = [JobClass(str(name), None) for name in np.unique(jobs.job_class) if name]
    return given + _tree(jobs.where(jobs.job_class == ""), max(1, max_classes - len(given)))


def _tree(jobs: JobsTable, max_classes: int) -> list[JobClass]:
    names, features, hours = program_features(jobs)
    if not names:
        return []
    scaled = _scaled(features)
    weights = hours / max(float(hours.sum()), 1e-12)
    total = _variance(scaled, weights)
    leaves: list[tuple[Bools, dict[str, tuple[float, float]]]] = [(np.ones(len(names), np.bool_), {})]
    while len(leaves) < max_classes and total > 0:
        splits = [_best_split(scaled, features, weights, members) for members, _ in leaves]
        index = max(range(len(leaves)), key=lambda number: splits[number][0])
        gain, column, threshold = splits[index]
        if gain < _MIN_GAIN * total:
            break
        members, ranges = leaves.pop(index)
        below = members & (np.nan_to_num(features[:, column]) <= threshold)
        low, high = ranges.get(FEATURES[column], (-np.inf, np.inf))
        leaves.insert(index, (below, ranges | {FEATURES[column]: (low, threshold)}))
        leaves.insert(index + 1, (members & ~below, ranges | {FEATURES[column]: (threshold, high)}))
    return [
        JobClass(_name(ranges), ranges, tuple(names[row] for row in np.flatnonzero(members)))
        for members, ranges in leaves
    ]


def classified(jobs: JobsTable, classes: Sequence[JobClass]) -> JobsTable:
    """Return a copy of the jobs table in which each job has the name of its job class.

    A program is all jobs of a user with the same name. All jobs of a program belong to the same class.
    For a program that is in none of the given classes, the class is chosen whose ranges of features
    contain the features of the program. A job keeps its class if its own data name the class.

    Args:
        jobs: jobs of the programs to classify.
        classes: classes from `job_classes`. If the sequence is empty, the jobs keep their present
            classes.
    """
    if not classes:
        return jobs
    known = {program: one.name for one in classes for program in one.programs}
    names, features, _ = program_features(jobs)
    for name, row in zip(names, features.tolist(), strict=True):
        if name not in known:
            values = dict(zip(FEATURES, row, strict=True))
            known[name] = next((one.name for one in classes if one.contains(values)), "")
    given = {one.name for one in classes if one.ranges is None}
    own = zip(jobs.job_class.tolist(), programs_of(jobs).tolist(), strict=True)
    return jobs.with_columns(
        job_class=[name if name in given else known.get(program, "") for name, program in own]
    )


def _scaled(features: Floats) -> Floats:
    """Return the logarithms of the features of jobs.

    An unknown value is replaced by the mean of its column. If a column has no known value, all its values
    are 0.
    """
    logs = np.log(np.maximum(np.where(np.isnan(features), np.nan, features), 0.1))
    known = ~np.isnan(logs)
    means = np.where(known, logs, 0).sum(axis=0) / np.maximum(1, known.sum(axis=0))
    scaled: Floats = np.where(known, logs, means)
    return scaled


def _variance(values: Floats, weights: Floats) -> float:
    """Return the weighted sum of the squared distances of values from their weighted mean."""
    total = float(weights.sum())
    if total <= 0:
        return 0.0
    mean = weights @ values / total
    return float(weights @ ((values - mean) ** 2).sum(axis=1))


def _best_split(
    scaled: Floats, features: Floats, weights: Floats, members: Bools
) -> tuple[float, int, float]:
    """Return the best way to split a group of jobs in two by the value of one feature.

    The best split reduces the sum of the variances within the groups most. The result is this reduction of
    the variance, the index of the feature, and the threshold of its value.
    """
    best = (0.0, 0, 0.0)
    own, share = scaled[members], weights[members]
    before = _variance(own, share)
    for column in range(len(FEATURES)):
        values = np.nan_to_num(features[members, column])
        steps = np.unique(values)
        if len(steps) > _MAX_STEPS:
            steps = np.unique(np.quantile(steps, np.linspace(0, 1, _MAX_STEPS), method="nearest"))
        for low, high in itertools.pairwise(steps):
            threshold = _round_between(float(low), float(high))
            below = values <= threshold
            if not _MIN_SHARE <= share[below].sum() / max(share.sum(), 1e-12) <= 1 - _MIN_SHARE:
                continue
            gain = before - _variance(own[below], share[below]) - _variance(own[~below], share[~below])
            if gain > best[0] + 1e-12:
                best = (gain, column, threshold)
    return best


def _round_between(low: float, high: float) -> float:
    """Return a number with few digits that lies between two bounds.

    The number is near the geometric mean of the bounds. It is at least `low` and less than `high`.
    """
    middle = (max(low, 0.1) * max(high, 0.1)) ** 0.5 if high > 0 else (low + high) / 2
    for digits in range(1, 8):
        rounded = float(f"{middle:.{digits}g}")
        if low <= rounded < high:
            return rounded
    return low


def _name(ranges: Mapping[str, tuple[float, float]]) -> str:
    parts = []
    for name, (low, high) in ranges.items():
        unit = _UNITS[name]
        if low == -np.inf:
            parts.append(f"up to {unit(high)}")
        elif high == np.inf:
            parts.append(f"over {unit(low)}")
        else:
            parts.append(f"{unit(low)} to {unit(high)}")
    return ", ".join(parts) or "all jobs"
