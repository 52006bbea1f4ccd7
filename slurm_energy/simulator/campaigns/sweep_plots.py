"""Plots of a simulation sweep, one per total such as energy or waiting time. Requires matplotlib.

A sweep over one parameter yields lines, and a sweep over two parameters yields maps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from slurm_energy.simulator.campaigns.sweep_axes import SweepAxis
from slurm_energy.simulator.campaigns.sweep_results import MAP_TOTALS, SweepMap, VariantResults, maps
from slurm_energy.simulator.results.plots import labelled_figure, policy_colour


def sweep_figures(axes: Sequence[SweepAxis], results: VariantResults) -> dict[str, Figure]:
    """Return one figure for each total of the simulation, by file name.

    A sweep with more than two axes has no figures.
    """
    grouped: dict[str, list[SweepMap]] = {}
    for one in maps(axes, results):
        grouped.setdefault(one.total, []).append(one)
    draw = _lines if len(axes) == 1 else _maps
    return {f"sweep-{name.replace('_', '-')}": draw(axes, listed) for name, listed in grouped.items()}


def _lines(axes: Sequence[SweepAxis], listed: Sequence[SweepMap]) -> Figure:
    figure, plot = labelled_figure(MAP_TOTALS[listed[0].total], axes[0].title, "")
    points = [point[0] for point in axes[0].points]
    numeric = all(isinstance(point, (int, float)) for point in points)
    for index, one in enumerate(listed):
        values = [np.nan if row[0] is None else row[0] for row in one.values]
        colour = policy_colour(index)
        plot.plot(points if numeric else one.rows, values, marker="o", label=one.policy, color=colour)
    plot.legend(fontsize=9, frameon=False)
    return figure


def _maps(axes: Sequence[SweepAxis], listed: Sequence[SweepMap]) -> Figure:
    figure = Figure(figsize=(1.0 + 4.0 * len(listed), 4.2), layout="constrained")
    figure.suptitle(MAP_TOTALS[listed[0].total], fontsize=11)
    tables = [np.array([[np.nan if v is None else v for v in row] for row in one.values]) for one in listed]
    low, high = min(map(np.nanmin, tables)), max(map(np.nanmax, tables))
    image: Any = None
    for index, (one, table) in enumerate(zip(listed, tables, strict=True)):
        plot = figure.add_subplot(1, len(listed), index + 1)
        image = plot.imshow(table, aspect="auto", origin="lower", cmap="cividis", vmin=low, vmax=high)
        plot.set_title(one.policy, loc="left", fontsize=10)
        plot.set_xticks(range(len(one.columns)), one.columns, rotation=45, ha="right", fontsize=8)
        plot.set_yticks(range(len(one.rows)), one.rows, fontsize=8)
        plot.set_xlabel(axes[1].title)
        plot.set_ylabel(axes[0].title if index == 0 else "")
    figure.colorbar(image, ax=figure.axes)
    return figure
