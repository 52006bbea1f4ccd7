"""Drawing of the figures of the thesis sweep as SVG files. The module needs matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from sweep_points import QUANTITIES, QuantityVerdict, ThesisPoint, verdicts

mpl.rcParams["svg.hashsalt"] = "slurm-energy"
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")
_X_LABELS = {
    "length": "length of all jobs, relative",
    "speedup": "speed-up per doubling of GPUs",
    "age": "W_age per second",
    "load": "arrivals per second",
}
_PANELS = {
    "length": ("pollux, jobs/h", "pollux, utilisation %", "pollux, missed %"),
    "speedup": ("zeus against pollux, energy %", "zeus, jobs/h", "zeus, missed %"),
    "age": ("zeus against pollux, energy %", "zeus, jobs/h", "zeus, missed %"),
    "load": ("pollux, jobs/h", "zeus against pollux, energy %", "pollux, missed %"),
}
"""Quantities that each figure shows."""


def draw(name: str, results: Mapping[ThesisPoint, Mapping[str, Sequence[float]]], path: Path) -> None:
    """Draw one figure: a panel for each quantity and, in each panel, a curve for each label.

    The panels also show the thesis' value and the tolerated band around this value.
    """
    judged = {point: verdicts(sample) for point, sample in results.items() if point.figure == name}
    panels = _PANELS[name]
    figure = Figure(figsize=(10.5, 3.4), layout="constrained")
    for number, quantity in enumerate(panels, 1):
        _panel(figure.add_subplot(1, len(panels), number), name, quantity, judged)
    figure.axes[0].legend(frameon=False, fontsize=8)
    figure.savefig(path, metadata={"Date": None})


def _panel(
    axes: Axes, name: str, quantity: str, judged: Mapping[ThesisPoint, Mapping[str, QuantityVerdict]]
) -> None:
    thesis = next(entry for entry in QUANTITIES if entry.name == quantity)
    bands = [of_point[quantity].band for of_point in judged.values()]
    band = sum(bands) / len(bands)
    axes.axhspan(thesis.thesis - band, thesis.thesis + band, color="#dddddd", label="thesis, band")
    axes.axhline(thesis.thesis, color="#333333", linewidth=1, linestyle="--")
    for index, label in enumerate(dict.fromkeys(point.label for point in judged)):
        curve = [(point.x, of_point[quantity]) for point, of_point in judged.items() if point.label == label]
        axes.errorbar(
            [x for x, _ in curve],
            [v.mean for _, v in curve],
            [v.half_width for _, v in curve],
            label=label,
            color=_COLOURS[index],
            marker="os^D"[index],
            markersize=4,
            linewidth=1.3,
            capsize=2,
        )
    if name == "age":
        axes.set_xscale("log")
    axes.set_xlabel(_X_LABELS[name])
    axes.set_title(quantity, fontsize=10)
    axes.grid(color="#eeeeee")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
