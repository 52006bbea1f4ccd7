"""PNG plot of carbon intensity and price over time. matplotlib is imported at the first use."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from slurm_energy.errors import EnergyError, NotFoundError, UnavailableError, install_extra
from slurm_energy.grid.factor import GridFactor
from slurm_energy.grid.footprint import GridFactors
from slurm_energy.reports.budgets.power_history import clock_label, clock_ticks

_COLOUR: Final = {"series": "#3e74d6", "fallback": "#dd7d1f"}
_MAX_POINTS: Final = 2000


def write_grid_png(factors: GridFactors, start: float, end: float, path: Path) -> None:
    """Write a plot with a panel for the carbon intensity and a panel for the price.

    A signal that is not configured has no panel.

    Args:
        factors: carbon intensity and price over time.
        start: start of the time window in Unix time.
        end: end of the time window in Unix time.
        path: path of the PNG file.

    Raises:
        UnavailableError: matplotlib is not installed.
        EnergyError: the file cannot be written.
        NotFoundError: neither carbon intensity nor price is configured.
    """
    panels = [
        (factor, title)
        for factor, title in (
            (factors.carbon, "g CO2e/kWh"),
            (factors.price, f"{factors.currency}/kWh"),
        )
        if factor is not None
    ]
    if not panels:
        why = "neither carbon intensity nor price is configured"
        raise NotFoundError("--png", why, "set carbon.country, or see docs/carbon-and-price.md")
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise UnavailableError("--png", "matplotlib is not installed", install_extra("plots")) from None
    figure = Figure(figsize=(10, 1.0 + 3.0 * len(panels)), dpi=120, layout="constrained")
    axes = figure.subplots(len(panels), 1, squeeze=False)[:, 0]
    for panel, (factor, title) in zip(axes, panels, strict=True):
        _panel(panel, factor, title, start, end)
    try:
        figure.savefig(path, format="png")
    except OSError as error:
        raise EnergyError(str(path), error.strerror or str(error), "name a writable file") from None


def _panel(axes: Any, factor: GridFactor, title: str, start: float, end: float) -> None:
    edges = _edges(factor, start, end)
    middles = [(first + last) / 2 for first, last in itertools.pairwise(edges)]
    series = [_value(factor, time_s) for time_s in middles]
    fallback = factor.fallback.values[0] if factor.fallback is not None else None
    missing = [fallback if math.isnan(value) and fallback is not None else math.nan for value in series]
    for name, values in (("series", series), ("fallback", missing)):
        if not all(math.isnan(value) for value in values):
            label = factor.sources[0 if name == "series" else -1].text
            axes.stairs(values, edges, baseline=None, label=label, color=_COLOUR[name], linewidth=1.5)
    ticks = clock_ticks(start, end, 8)
    axes.set_xticks(ticks, [clock_label(time_s, start, end) for time_s in ticks])
    axes.set_xlim(start, end)
    axes.set_ylabel(title)
    if title.startswith("g"):
        axes.set_ylim(bottom=0)
    axes.grid(axis="y", color="#e4e8ee")
    axes.set_axisbelow(True)
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=2, frameon=False)


def _value(factor: GridFactor, time_s: float) -> float:
    value = factor.series.at(time_s) if factor.series is not None else None
    return math.nan if value is None else value


def _edges(factor: GridFactor, start: float, end: float) -> Sequence[float]:
    """Return the times in a time window at which the carbon intensity or price may change.

    If there are many of these times, only every nth one is returned.
    """
    inside = {start, end}
    if factor.series is not None and not factor.series.is_constant:
        for begin, until, _ in factor.series.samples:
            inside |= {time_s for time_s in (begin, until) if start < time_s < end}
    edges = sorted(inside)
    step = -(-len(edges) // _MAX_POINTS)
    return edges if step == 1 else [*edges[:-1:step], edges[-1]]
