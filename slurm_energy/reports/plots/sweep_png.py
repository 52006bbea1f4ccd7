"""PNG plots of a sweep with matplotlib: EDP over time, gain by factor value, and the Pareto front."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from slurm_energy.errors import EnergyError, UnavailableError, install_extra
from slurm_energy.reports.sweep_table import METRIC_NAMES
from slurm_energy.tuning.sweep.factors import numeric_value
from slurm_energy.tuning.sweep.result import PointResult, SweepResult

_INK: Final = "#17202c"
_GRID: Final = "#e4e8ee"
_SHORT_NAMES: Final = {
    "energy": "energy",
    "gain_minus_loss": "gain minus loss",
    "edp": "EDP",
    "eds_1.5": "EDS 1.5",
    "eds_2": "EDS 2",
}
_UNITS: Final = {"gpu-cap": "W", "cap": "W", "cpu-freq": "MHz", "gpu-clock": "MHz"}


def write_plots(result: SweepResult, folder: Path) -> list[Path]:
    """Write `edp-over-time.png`, `pareto.png`, and `gain-over-FACTOR.png` for each numeric factor.

    Args:
        result: result of a sweep with at least one measured point.
        folder: folder of the files; created if it is absent.

    Returns:
        The files.

    Raises:
        UnavailableError: matplotlib is not installed.
        EnergyError: no point is measured, or a file cannot be written.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise UnavailableError("--plots", "matplotlib is not installed", install_extra("plots")) from None
    if not result.best:
        raise EnergyError("--plots", "no point and reference are measured yet")
    figures: dict[str, Any] = {}

    def axes(name: str, title: str, x: str, y: str) -> Any:
        figure = figures[name] = Figure(figsize=(8, 5), dpi=120, layout="constrained")
        figure.suptitle(
            f"{result.name}: {title}", x=0.01, ha="left", fontsize=11, fontweight="bold", parse_math=False
        )
        area = figure.add_subplot()
        area.set_xlabel(x)
        area.set_ylabel(y)
        area.grid(color=_GRID)
        area.set_axisbelow(True)
        area.spines[["top", "right"]].set_visible(False)
        return area

    _draw_edp(result, axes("edp-over-time", "energy-delay product over time", "time, s", "EDP, kJ s"))
    _draw_front(result, axes("pareto", "Pareto front of time and energy", "time, s", "energy, kJ"))
    for name, _ in result.reference.point.settings:
        if lines := _gain_lines(result, name):
            unit = f", {_UNITS[name]}" if name in _UNITS else ""
            title = f"gain against the reference over {name}"
            area = axes(f"gain-over-{name.replace('.', '-')}", title, f"{name}{unit}", "gain, %")
            _draw_gains(lines, area)
    return _save(figures, folder)


def _measured(result: SweepResult) -> list[PointResult]:
    return [point for point in result.points if point.summary is not None]


def _draw_edp(result: SweepResult, area: Any) -> None:
    for point in _measured(result):
        if point.summary is not None:
            at = (point.summary.time_s.mean, point.summary.edp / 1e3)
            area.errorbar(*at, xerr=point.summary.time_s.deviation, fmt="o", color="tab:blue", markersize=5)
    _annotate(result, area, lambda point: point.summary.edp / 1e3 if point.summary else 0.0)


def _draw_front(result: SweepResult, area: Any) -> None:
    for point in _measured(result):
        if point.summary is not None:
            time_s, joules = point.summary.time_s, point.summary.energy_joules
            deviation = None if joules.deviation is None else joules.deviation / 1e3
            area.errorbar(
                time_s.mean,
                joules.mean / 1e3,
                deviation,
                time_s.deviation,
                "o",
                color="tab:blue",
                markersize=5,
            )
    front = [result.points[index].summary for index in result.front]
    line = [(point.time_s.mean, point.energy_joules.mean / 1e3) for point in front if point is not None]
    area.plot(*zip(*line, strict=True), color=_INK, linewidth=1, linestyle="--", label="Pareto front")
    _annotate(result, area, lambda point: point.summary.energy_joules.mean / 1e3 if point.summary else 0.0)
    area.legend(frameon=False, fontsize=8)


def _annotate(result: SweepResult, area: Any, height: Callable[[PointResult], float]) -> None:
    """Label the points of a plot that are best by a metric.

    The label of a point contains its settings and the names of the metrics by which it is best.
    """
    metrics: dict[int, list[str]] = {}
    for metric, index in result.best.items():
        metrics.setdefault(index, []).append(_SHORT_NAMES[metric])
    for index, names in metrics.items():
        point = result.points[index]
        if point.summary is not None:
            at = (point.summary.time_s.mean, height(point))
            text = f"{point.point}\nbest {', '.join(names)}"
            area.annotate(
                text, at, (8, 0), textcoords="offset points", fontsize=8, va="center", parse_math=False
            )
    area.margins(x=0.2)


def _gain_lines(result: SweepResult, name: str) -> dict[str, list[tuple[float, float]]]:
    """Return lines for a plot: the gain in percent as a function of one factor of a sweep.

    A factor is a setting that the sweep varies. There is one line for each metric. A line consists of
    pairs of a value of the factor `name` and the gain at this value. On the line, all other factors keep
    the values of the sweep point with the best EDP. The result is empty if fewer than two points of the
    line have a numeric value of the factor.
    """
    best = result.points[result.best["edp"]].point
    others = [pair for pair in best.settings if pair[0] not in (name, "policy")]
    lines: dict[str, list[tuple[float, float]]] = {}
    for point in result.points:
        value = numeric_value(point.point.value(name))
        own = [pair for pair in point.point.settings if pair[0] not in (name, "policy")]
        if value is not None and point.gains is not None and own == others:
            for metric, label in METRIC_NAMES.items():
                lines.setdefault(label, []).append((value, point.gains.metric(metric)))
    return {label: sorted(line) for label, line in lines.items() if len(line) > 1}


def _draw_gains(lines: dict[str, list[tuple[float, float]]], area: Any) -> None:
    for label, line in lines.items():
        area.plot(*zip(*line, strict=True), marker="o", markersize=4, linewidth=1, label=label)
    area.axhline(0.0, color=_INK, linewidth=0.8)
    area.legend(frameon=False, fontsize=8)


def _save(figures: dict[str, Any], folder: Path) -> list[Path]:
    paths: list[Path] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, figure in figures.items():
            paths.append(folder / f"{name}.png")
            figure.savefig(paths[-1], format="png")
    except OSError as error:
        raise EnergyError(str(folder), error.strerror or str(error), "name a writable folder") from None
    return paths
