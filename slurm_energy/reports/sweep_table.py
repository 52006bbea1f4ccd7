"""Result of a sweep as a text table, as sentences about the best sweep points, and as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from typing import Final

from slurm_energy.reports.figure_format import with_unit
from slurm_energy.tuning.sweep.design import SweepPoint
from slurm_energy.tuning.sweep.factors import NAMES
from slurm_energy.tuning.sweep.metrics import Quantity
from slurm_energy.tuning.sweep.requested_settings import requested_settings
from slurm_energy.tuning.sweep.result import PointResult, SweepResult

METRIC_NAMES: Final = {
    "energy": "energy",
    "gain_minus_loss": "energy gain minus performance loss",
    "edp": "EDP",
    "eds_1.5": "EDS (k = 1.5)",
    "eds_2": "EDS (k = 2)",
}
"""Names of the metrics as in power-capping, Table 1."""
_HEADER: Final = (
    "POINT", "RUNS", "TIME", "±", "ENERGY", "±", "POWER",
    "GAIN", "LOSS", "GAIN-LOSS", "EDP", "EDS1.5", "EDS2", "",
)  # fmt: skip


def table_lines(result: SweepResult) -> Iterator[str]:
    """Yield the lines of the result table of a sweep: a header, then one line per sweep point.

    A sweep point is a measured combination of settings. The first point is the reference. The table shows
    the gain of each point in percent, relative to the reference. The last column marks the reference, the
    Pareto front, dominated points and failed points.
    """
    texts = _point_texts(result)
    rows = [list(_HEADER), *(_row(result, index, text) for index, text in enumerate(texts))]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADER))]
    for row in rows:
        cells = [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        cells[-1] = row[-1]
        yield "  ".join([row[0].ljust(widths[0]), *cells]).rstrip()


def best_lines(result: SweepResult) -> Iterator[str]:
    """Yield one line per metric: the best point, and its gain with 95 % confidence interval."""
    texts = _point_texts(result)
    for metric, index in result.best.items():
        best = result.points[index]
        if best.gains is not None:
            gain = f"{best.gains.metric(metric):+.2f} %"
            width = best.gain_half_widths[metric]
            interval = "" if width is None else f"± {width:.2f}"
            yield f"best {METRIC_NAMES[metric]:<35} {gain:>9} {interval:<8} {texts[index]}"


def request_lines(result: SweepResult, metric: str) -> Iterator[str]:
    """Yield the best settings by a metric as lines for a batch script. Yield nothing without measurements."""
    if metric in result.best:
        yield f"# best {METRIC_NAMES[metric]} of sweep {result.name}"
        yield from requested_settings(result.points[result.best[metric]].point).lines()


def csv_text(result: SweepResult) -> str:
    """Return the result as CSV: a header and one row per sweep point. Unknown values are empty."""
    rows = result.rows()
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _point_texts(result: SweepResult) -> list[str]:
    """Return the settings of each sweep point as text.

    A variable or sbatch option is left out if its value is the same at all points, or always equals the value
    of another variable or option.
    """
    columns = list(zip(*(point.point.settings for point in result.points), strict=True))
    values = [tuple(value for _, value in column) for column in columns]
    kept = [
        number
        for number, column in enumerate(columns)
        if column[0][0] in NAMES or (len(set(values[number])) > 1 and values[number] not in values[:number])
    ]
    points = (tuple(point.point.settings[number] for number in kept) for point in result.points)
    return [str(SweepPoint(settings)) for settings in points]


def _row(result: SweepResult, index: int, text: str) -> list[str]:
    point = result.points[index]
    summary, relative = point.summary, point.gains
    figures = ["", "", "", "", "", ""]
    if summary is not None:
        time_s, joules = summary.time_s, summary.energy_joules
        figures = [str(summary.runs), f"{time_s.mean:.1f} s", _spread(time_s)]
        figures += [with_unit(joules.mean, "J"), _spread(joules), with_unit(summary.watts.mean, "W")]
    metrics: Sequence[str] = [""] * 6
    if relative is not None:
        values = (
            relative.energy_percent,
            relative.loss_percent,
            relative.gain_minus_loss_percent,
            relative.edp_percent,
            relative.eds_percent(1.5),
            relative.eds_percent(2.0),
        )
        metrics = [f"{value:+.2f}" for value in values]
    return [text, *figures, *metrics, _remark(result, point, index)]


def _spread(quantity: Quantity) -> str:
    return "" if quantity.deviation is None else f"{100 * quantity.deviation / quantity.mean:.1f} %"


def _remark(result: SweepResult, point: PointResult, index: int) -> str:
    remarks = ["reference"] if index == 0 else []
    if index in result.front:
        remarks.append("front")
    if point.is_dominated:
        remarks.append("dominated")
    if point.is_failed:
        remarks.append("failed: " + "; ".join(point.notes))
    return ", ".join(remarks)
