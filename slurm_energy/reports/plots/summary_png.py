"""PNG chart of `senergy experiment`, which compares groups of jobs.

matplotlib is imported at the first use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from slurm_energy.errors import EnergyError, NotFoundError, UnavailableError, install_extra
from slurm_energy.reports.summary import Summary
from slurm_energy.reports.summary_page import Report

_MAX_GROUPS: Final = 20
_COLOURS: Final = ("#3e74d6", "#1d9e86", "#e0832b", "#a3663a")
_PANELS: Final[Mapping[str, Callable[[Summary], float | None]]] = {
    "energy, kWh": lambda group: None if group.energy_joules is None else group.energy_joules / 3.6e6,
    "jobs per hour": lambda group: group.jobs_per_hour,
    "mean JCT, min": lambda group: None if group.mean_jct_s is None else group.mean_jct_s / 60,
    "EDP, MJ s": lambda group: None if group.edp_js is None else group.edp_js / 1e6,
}


def write_png(report: Report, path: Path) -> None:
    """Write the energy summary of groups of jobs as a PNG chart.

    The chart has one panel for each summed quantity. Each panel has one bar for each group. If there are
    many groups, only the groups with the most energy are shown.

    Raises:
        UnavailableError: matplotlib is not installed.
        EnergyError: the file cannot be written.
        NotFoundError: there is no job to show.
    """
    if not report.groups:
        raise NotFoundError("--png", "no job ended in the window", "give other times, or -a")
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise UnavailableError("--png", "matplotlib is not installed", install_extra("plots")) from None
    largest = sorted(report.groups, key=lambda name: -(report.groups[name].energy_joules or 0.0))[
        :_MAX_GROUPS
    ]
    groups = [(name, group) for name, group in report.groups.items() if name in largest]
    size = (12, 1.4 + 0.34 * len(groups))
    figure = Figure(figsize=size, dpi=120, layout="constrained")
    panels = figure.subplots(1, len(_PANELS), sharey=True)
    for axes, (title, value), colour in zip(panels, _PANELS.items(), _COLOURS, strict=True):
        values = [value(group) for _, group in groups]
        _bars(axes, title, [name or "(none)" for name, _ in groups], values, colour)
    figure.suptitle(f"{report.total.jobs} jobs by {report.by}", x=0.01, ha="left", fontweight="bold")
    try:
        figure.savefig(path, format="png")
    except OSError as error:
        raise EnergyError(str(path), error.strerror or str(error), "name a writable file") from None


def _bars(axes: Any, title: str, names: list[str], values: list[float | None], colour: str) -> None:
    positions = range(len(names))
    bars = axes.barh(positions, [value or 0.0 for value in values], color=colour, height=0.7)
    axes.bar_label(bars, ["unknown" if v is None else f"{v:.3g}" for v in values], padding=3, fontsize=8)
    axes.set_yticks(positions, names, parse_math=False)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.margins(x=0.18)
    axes.set_title(title, fontsize=10, loc="left")
    axes.spines[["top", "right"]].set_visible(False)
