"""PNG plot of the power under budgets over time. matplotlib is imported at the first use."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from slurm_energy.errors import EnergyError, NotFoundError, UnavailableError, install_extra
from slurm_energy.reports.budgets.power_history import (
    PowerHistory,
    clock_label,
    clock_ticks,
    highest,
    regular_history,
)
from slurm_energy.reports.plots.axis import value_ticks, watt_label

_INTERVALS: Final = 480
_MAX_PANELS: Final = 12
_COLOURS: Final = {"measured": "#3e74d6", "committed": "#dd7d1f", "capped": "#a3663a", "limit": "#17202c"}


def write_png(response: Mapping[str, Any], begin: float, end: float, path: Path) -> None:
    """Write a plot of power against time, with one panel per power budget, to a PNG file.

    Args:
        response: response to `GET /v1/budget/history`.
        begin: start of the time range in Unix seconds.
        end: end of the time range in Unix seconds.
        path: path of the PNG file.

    Raises:
        UnavailableError: matplotlib is not installed.
        EnergyError: the file cannot be written.
        NotFoundError: no power has been stored in this time range.
    """
    histories = [regular_history(s, begin, end, _INTERVALS) for s in response.get("series") or []]
    if not any(highest(history.measured_watts) for history in histories):
        raise NotFoundError("--png", "no power has been stored in this time", "give other times")
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise UnavailableError("--png", "matplotlib is not installed", install_extra("plots")) from None
    shown = histories[:_MAX_PANELS]
    figure = Figure(figsize=(10, 1.0 + 3.0 * len(shown)), dpi=120, layout="constrained")
    panels = figure.subplots(len(shown), 1, squeeze=False)[:, 0]
    for axes, history in zip(panels, shown, strict=True):
        _panel(axes, history)
    panels[0].legend(loc="upper left", bbox_to_anchor=(0, 1.2), ncols=4, frameon=False)
    count = f": {len(shown)} of {len(histories)}" if len(shown) < len(histories) else ""
    figure.suptitle(f"Power budgets{count}", x=0.01, ha="left", fontsize=11, fontweight="bold")
    try:
        figure.savefig(path, format="png")
    except OSError as error:
        raise EnergyError(str(path), error.strerror or str(error), "name a writable file") from None


def _panel(axes: Any, history: PowerHistory) -> None:
    begin, end = history.begin_unix_s, history.begin_unix_s + history.duration_s
    edges = [begin + index * history.interval_s for index in range(len(history.limit_watts) + 1)]
    middles = [time + history.interval_s / 2 for time in edges[:-1]]
    axes.fill_between(middles, history.measured_watts, color=_COLOURS["measured"], alpha=0.15, linewidth=0)
    for name, values in (
        ("measured", history.measured_watts),
        ("committed", history.committed_watts),
        ("capped", history.capped_watts),
    ):
        axes.plot(middles, values, color=_COLOURS[name], linewidth=1.4, label=name)
    style = {"color": _COLOURS["limit"], "linestyle": "--", "linewidth": 1.3}
    axes.stairs(history.limit_watts, edges, baseline=None, label="limit", **style)
    columns = (history.limit_watts, history.max_watts, history.committed_watts)
    y_ticks = value_ticks(max(1.0, 1.02 * max(highest(values) or 0.0 for values in columns)))
    x_ticks = clock_ticks(begin, end, 8)
    axes.set_xticks(x_ticks, [clock_label(time, begin, end) for time in x_ticks])
    axes.set_yticks(y_ticks, [watt_label(watts, y_ticks[-1]) for watts in y_ticks])
    axes.set_xlim(begin, end)
    axes.set_ylim(0, y_ticks[-1])
    axes.grid(axis="y", color="#e4e8ee")
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.set_title(history.budget, loc="left", fontsize=10, parse_math=False)
