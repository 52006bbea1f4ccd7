"""Text output of `senergy budget history`: power over time and the audit trail.

All functions are pure.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, Final

from slurm_energy.reports.budgets.budget_table import WIDTH
from slurm_energy.reports.budgets.power_history import PowerHistory, highest, lowest, regular_history
from slurm_energy.reports.figure_format import plain, with_unit
from slurm_energy.reports.plots.text_plot import Glyphs, area_plot
from slurm_energy.reports.time_spec import format_time

PLOT_COLUMNS: Final = 72
_MARGIN: Final = 8
_PLOT_ROWS: Final = 8


def history_lines(response: Mapping[str, Any], begin: float, end: float, glyphs: Glyphs) -> list[str]:
    """Return the history of power budgets as lines of text.

    The lines contain a plot and the totals of each budget, followed by the audit trail.

    Args:
        response: response to `GET /v1/budget/history`.
        begin: start of the time range in Unix seconds.
        end: end of the time range in Unix seconds.
        glyphs: characters that the terminal can show.
    """
    lines: list[str] = []
    for series in response.get("series") or []:
        lines += [*_budget(series, begin, end, glyphs), ""]
    if not lines:
        lines = ["no power has been stored in this time", ""]
    return lines + change_lines(response.get("changes") or [])


def _budget(series: Mapping[str, Any], begin: float, end: float, glyphs: Glyphs) -> list[str]:
    history = regular_history(series, begin, end, PLOT_COLUMNS)
    title = f"Budget {history.budget}, {format_time(begin)} to {format_time(end)}"
    if highest(history.measured_watts) is None:
        return [title, "  no measured power"]
    low, high = lowest(history.limit_watts), highest(history.limit_watts)
    reference = (high, "limit") if high is not None and low == high else None
    plot = area_plot(history.measured_watts, history.duration_s, glyphs, _PLOT_ROWS, reference, _MARGIN)
    return [title, *plot, *_totals(history)]


def _totals(history: PowerHistory) -> list[str]:
    low, high = lowest(history.limit_watts), highest(history.limit_watts)
    limit = "none" if low is None else with_unit(low, "W")
    limit += f" to {with_unit(high, 'W')}" if low != high else ""
    known = [watts for watts in history.measured_watts if not math.isnan(watts)]
    energy = history.energy_joules
    capped = [watts for watts in history.capped_watts if not math.isnan(watts)]
    rows = [
        ("limit", limit),
        (
            "measured",
            f"mean {with_unit(math.fsum(known) / len(known), 'W')}, "
            f"maximum {with_unit(highest(history.max_watts), 'W')}, "
            f"{'' if energy is None else with_unit(energy / 3600, 'Wh')}",
        ),
        ("committed", f"maximum {with_unit(highest(history.committed_watts), 'W')}"),
        ("capped", f"mean {with_unit(math.fsum(capped) / len(capped) if capped else None, 'W')}"),
        ("above limit", f"{plain(math.fsum(history.over_s), 1)} s"),
    ]
    return [f"{name:>12}: {text}" for name, text in rows]


def change_lines(changes: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the changes of power budgets and who made them, as lines of text, oldest first."""
    lines = []
    for change in changes:
        who = change.get("by") or "senergyctld"
        budget = f" {change['budget']}:" if change.get("budget") else ""
        lines += textwrap.wrap(
            f"{format_time(change['unix_s'])} {who}{budget} {change.get('text', '')}",
            WIDTH,
            subsequent_indent=" " * 20,
        )
    return ["Changes", *lines] if lines else []
