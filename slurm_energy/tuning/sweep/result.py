"""Result of a sweep.

The result contains the measurements and gains of each point, the best points, and the Pareto front (points
that no other point surpasses in both time and energy).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slurm_energy.tuning.sweep.design import SweepPoint
from slurm_energy.tuning.sweep.metrics import (
    EDS_FACTORS,
    METRICS,
    PointGains,
    PointSummary,
    Quantity,
    best_points,
    gain_half_width,
    gains,
)
from slurm_energy.tuning.sweep.pareto_front import pareto_front
from slurm_energy.tuning.sweep.requested_settings import requested_settings
from slurm_energy.tuning.sweep.runs import SweepRun, point_summaries, schedule_runs


@dataclass(frozen=True, slots=True)
class PointResult:
    """One point of a sweep.

    Attributes:
        point: settings of the point.
        summary: measurements of the point; None without measurements.
        gains: metrics of the point relative to the reference; None if the point or the reference has no
            measurements.
        gain_half_widths: half-width of the 95 % confidence interval of each gain, by metric, in percentage
            points. A half-width is None if the point or the reference has fewer than two repetitions.
        is_dominated: whether the point is not repeated because another point is faster and needs less energy.
        is_failed: whether the jobs of the point failed.
        notes: reasons of failures, without duplicates.
    """

    point: SweepPoint
    summary: PointSummary | None
    gains: PointGains | None
    gain_half_widths: Mapping[str, float | None]
    is_dominated: bool
    is_failed: bool
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SweepResult:
    """Result of a sweep, which measures a job at several points (combinations of settings).

    Attributes:
        name: name of the sweep.
        points: results of the points. The first point is the reference.
        best: index of the best point by metric of `metrics.METRICS`; empty without measurements.
        front: indices of the points of the Pareto front, by increasing time.
        qualities: the different qualities of the energy figures, such as measured or modelled.
        unmeasured: types of components whose energy is missing in the figures of at least one run.
        is_complete: whether all runs are done.
    """

    name: str
    points: tuple[PointResult, ...]
    best: dict[str, int]
    front: tuple[int, ...]
    qualities: tuple[str, ...]
    unmeasured: tuple[str, ...]
    is_complete: bool

    @property
    def reference(self) -> PointResult:
        """Result at the reference point, which is the first combination of settings of the sweep."""
        return self.points[0]

    @property
    def is_successful(self) -> bool:
        """Whether the sweep has measured all settings that it should measure.

        This is true if all runs are done, the reference settings are measured, and no other settings have
        failed.
        """
        failed = any(point.is_failed for point in self.points)
        return self.is_complete and self.reference.summary is not None and not failed

    def rows(self) -> list[dict[str, Any]]:
        """Return one row of plain values per point, for CSV and data frames. Unknown values are None.

        Each factor is a column with its values as text. The other columns are the keys of
        docs/reference/json.md, with the mean and the standard deviation of each quantity in two columns.
        """
        return [
            {**dict(result.point.settings), **_figures(result), "pareto": index in self.front}
            for index, result in enumerate(self.points)
        ]

    def to_json(self) -> dict[str, Any]:
        """Return the result as a dict for JSON."""
        points = []
        for index, result in enumerate(self.points):
            figures = _figures(result) | {"pareto": index in self.front, "notes": list(result.notes)}
            points.append({"settings": dict(result.point.settings), **figures})
        return {
            "name": self.name,
            "complete": self.is_complete,
            "quality": list(self.qualities),
            "unmeasured": list(self.unmeasured),
            "reference": dict(self.reference.point.settings),
            "points": points,
            "best": {
                metric: {
                    "point": index,
                    "gain_percent": _gain(self.points[index], metric),
                    "gain_percent_ci95": self.points[index].gain_half_widths[metric],
                    **requested_settings(self.points[index].point).to_json(),
                }
                for metric, index in self.best.items()
            },
        }


def sweep_result(
    name: str,
    points: Sequence[SweepPoint],
    runs: Sequence[SweepRun],
    repetitions: int,
    *,
    exhaustive: bool = False,
) -> SweepResult:
    """Compute the result of a sweep from the runs that have ended so far.

    Args:
        name: name of the sweep.
        points: points (combinations of settings) of the sweep. The first one is the reference.
        runs: all runs so far.
        repetitions: number of repetitions of each point.
        exhaustive: whether points that are worse than another one in all respects (dominated) are also
            repeated.
    """
    summaries = point_summaries(runs, len(points))
    reference = summaries[0]
    relative = [
        None if summary is None or reference is None else gains(summary, reference) for summary in summaries
    ]
    schedule = schedule_runs(runs, len(points), repetitions, exhaustive=exhaustive)
    results = [
        PointResult(
            point,
            summaries[index],
            relative[index],
            _half_widths(summaries[index], reference),
            index in schedule.dominated,
            index in schedule.failed,
            tuple(dict.fromkeys(run.note for run in runs if run.point == index and run.note)),
        )
        for index, point in enumerate(points)
    ]
    return SweepResult(
        name,
        tuple(results),
        best_points(relative),
        pareto_front(summaries),
        tuple(sorted({run.quality for run in runs if run.quality})),
        tuple(sorted({component for run in runs for component in run.unmeasured})),
        schedule.is_complete,
    )


def _half_widths(summary: PointSummary | None, reference: PointSummary | None) -> dict[str, float | None]:
    known = summary is not None and reference is not None
    return {
        name: gain_half_width(summary, reference, name) if known else None  # type: ignore[arg-type]
        for name in METRICS
    }


def _gain(result: PointResult, metric: str) -> float | None:
    return None if result.gains is None else result.gains.metric(metric)


def _figures(result: PointResult) -> dict[str, Any]:
    summary, relative = result.summary, result.gains
    figures: dict[str, Any] = {
        "status": _status(result),
        "runs": 0 if summary is None else summary.runs,
        **_quantity("time_s", None if summary is None else summary.time_s),
        **_quantity("energy_joules", None if summary is None else summary.energy_joules),
        **_quantity("mean_watts", None if summary is None else summary.watts),
        "edp_joule_seconds": None if summary is None else summary.edp,
        "energy_gain_percent": None if relative is None else relative.energy_percent,
        "performance_loss_percent": None if relative is None else relative.loss_percent,
        "gain_minus_loss_percent": None if relative is None else relative.gain_minus_loss_percent,
        "edp_gain_percent": None if relative is None else relative.edp_percent,
    }
    for factor in EDS_FACTORS:
        key = f"eds_{factor:g}".replace(".", "_")
        figures[key] = None if relative is None else relative.eds[factor]
        figures[f"{key}_gain_percent"] = None if relative is None else relative.eds_percent(factor)
    for metric, width in result.gain_half_widths.items():
        figures[f"{gain_key(metric)}_ci95"] = width
    return figures


def gain_key(metric: str) -> str:
    """Return the key that contains the gain in a metric, in each row of a sweep's result."""
    name = metric.replace(".", "_")
    return f"{name}_percent" if metric == "gain_minus_loss" else f"{name}_gain_percent"


def _quantity(name: str, quantity: Quantity | None) -> dict[str, float | None]:
    return {
        name: None if quantity is None else quantity.mean,
        f"{name}_deviation": None if quantity is None else quantity.deviation,
        f"{name}_ci95": None if quantity is None else quantity.half_width,
    }


def _status(result: PointResult) -> str:
    if result.is_failed:
        return "failed"
    if result.is_dominated:
        return "dominated"
    return "pending" if result.summary is None else "measured"
