"""Response of classes of jobs to hardware settings. Pure functions.

The module also finds the best settings for an objective.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from slurm_energy.errors import UsageError
from slurm_energy.study.data.jobs_table import Floats, JobsTable

_DELAY_EXPONENTS: Final = {"energy": 1, "edp": 2, "ed2p": 3}
"""Exponent of the time in the figure that an objective minimizes, power times time to this exponent."""
DEFAULT_SLOWDOWN: Final = 0.05
"""Slowdown limit of the objective `energy`, as the default of `tuning.slowdown_limit_percent`."""


@dataclass(frozen=True, slots=True)
class ClassPoint:
    """A point of the response curve of a class.

    Attributes:
        time_ratio, power_ratio: run time and power relative to the untuned job.
        settings: hardware settings of the point as readable text.
        deviation: relative standard deviation of the ratios; NaN means unknown.
    """

    time_ratio: float
    power_ratio: float
    settings: Mapping[str, Any] = field(default_factory=dict)
    deviation: float = float("nan")


UNTUNED: Final = ClassPoint(1.0, 1.0)


@dataclass(frozen=True, slots=True)
class ClassResponses:
    """Response curves by class of jobs.

    A response curve states the relative time and power of a job at different hardware settings.

    Attributes:
        points: measured points of the curve of each class.
    """

    points: Mapping[str, Sequence[ClassPoint]]

    def best(self, job_class: str, objective: str, slowdown_limit: float | None = None) -> ClassPoint:
        """Return the best operating point of a class of jobs for an objective.

        The result is the untuned point if no other point is better.

        Args:
            job_class: name of the class; a class without a curve stays untuned.
            objective: `energy`, `edp` or `ed2p`.
            slowdown_limit: permitted increase of the run time as a fraction of the untuned run time. None
                means 5 % for `energy`, and no limit for `edp` and `ed2p`.
        """
        if slowdown_limit is None:
            slowdown_limit = DEFAULT_SLOWDOWN if objective == "energy" else float("inf")
        exponent = _DELAY_EXPONENTS[objective]
        permitted = [
            one for one in self.points.get(job_class, ()) if one.time_ratio <= 1 + slowdown_limit + 1e-9
        ]
        return min(
            (UNTUNED, *permitted),
            key=lambda one: (one.power_ratio * one.time_ratio**exponent, one.time_ratio),
        )

    def ratios(
        self,
        jobs: JobsTable,
        objective: str,
        slowdown_limit: float | None,
        random: np.random.Generator | None,
    ) -> tuple[Floats, Floats]:
        """Return the run time and power of tuned jobs relative to untuned jobs, shape (n,) each.

        Args:
            jobs: n jobs with their classes.
            objective: `energy`, `edp` or `ed2p`.
            slowdown_limit: permitted slowdown, as in `best`.
            random: generator of random numbers. It draws one error of the time and one error of the power
                for each class of jobs. The standard deviation of the errors is the deviation of the class's
                response curve. None means no errors.
        """
        time_ratio, power_ratio = np.ones(jobs.count), np.ones(jobs.count)
        for name in self.points:
            point = self.best(name, objective, slowdown_limit)
            deviation = 0.0 if np.isnan(point.deviation) or point is UNTUNED else point.deviation
            errors = np.ones(2) if random is None else np.exp(deviation * random.standard_normal(2))
            members = jobs.job_class == name
            time_ratio[members] = point.time_ratio * errors[0]
            power_ratio[members] = point.power_ratio * errors[1]
        return time_ratio, power_ratio

    def caps(self) -> dict[str, list[tuple[float, float]]]:
        """Return, for each class of jobs, the measured points with less power than the untuned job.

        Each point is a pair of ratios: time and power at this point divided by time and power of the untuned
        job.
        """
        return {
            name: [(one.time_ratio, one.power_ratio) for one in points if one.power_ratio < 1]
            for name, points in self.points.items()
        }

    def covered_share(self, jobs: JobsTable) -> float:
        """Return which fraction of the jobs' energy belongs to job classes with a response curve.

        A job class is a group of similar programs. A response curve states how time and power depend on the
        settings. The result is NaN if no energy is known.
        """
        total = float(np.nansum(jobs.energy_joules))
        covered = np.isin(jobs.job_class, [name for name, points in self.points.items() if points])
        return float(np.nansum(jobs.energy_joules[covered])) / total if total > 0 else float("nan")

    def potential(self, jobs: JobsTable, objective: str, slowdown_limit: float | None = None) -> float:
        """Return the fraction of the jobs' energy that tuning could save.

        Each class of jobs is assumed to run at the best settings for its objective. The result is NaN if no
        energy is known.
        """
        time_ratio, power_ratio = self.ratios(jobs, objective, slowdown_limit, None)
        total = float(np.nansum(jobs.energy_joules))
        tuned = float(np.nansum(jobs.energy_joules * time_ratio * power_ratio))
        return 1 - tuned / total if total > 0 else float("nan")


def responses_of(classes: Sequence[Mapping[str, Any]]) -> ClassResponses:
    """Build the response curves of job classes from the stored result of the step `characterise`.

    A job class is a group of similar programs. Each element of the list has the `name` of a class, and
    `points` with the relative time and power that were measured at some settings.

    Raises:
        UsageError: the list is damaged.
    """
    points: dict[str, list[ClassPoint]] = {}
    try:
        for one in classes:
            points[str(one["name"])] = [
                ClassPoint(
                    float(point["time_ratio"]),
                    float(point["power_ratio"]),
                    dict(point.get("settings") or {}),
                    float("nan") if point.get("deviation") is None else float(point["deviation"]),
                )
                for point in one.get("points") or ()
            ]
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(
            "the classes", f"are damaged: {error!r}", "run senergy study characterise again"
        ) from None
    return ClassResponses(points)
