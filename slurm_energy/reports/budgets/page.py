"""HTML page of `senergy budget history --html`: power under each budget over time, and the audit trail."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from slurm_energy.reports.budgets.power_history import PowerHistory, highest, lowest, regular_history
from slurm_energy.reports.figure_format import plain, with_unit
from slurm_energy.reports.html_document import render
from slurm_energy.reports.plots.budget_charts import LEGEND, budget_chart
from slurm_energy.reports.plots.charts import embed
from slurm_energy.reports.time_spec import format_time

_INTERVALS: Final = 480


def page(
    response: Mapping[str, Any],
    begin: float,
    end: float,
    remarks: Sequence[str] = (),
    now: datetime | None = None,
) -> str:
    """Return one HTML document.

    Args:
        response: response to `GET /v1/budget/history`.
        begin: start of the time range in Unix seconds.
        end: end of the time range in Unix seconds.
        remarks: remarks at the top of the page.
        now: current time for the footer; None omits the date.
    """
    context = {
        "title": "Power budgets",
        "subtitle": f"{format_time(begin)} to {format_time(end)}",
        "legend": LEGEND,
        "budgets": budget_cards(response, begin, end),
        "changes": [_change(change) for change in response.get("changes") or []],
    }
    return render("budget.html.j2", context, remarks, now)


def budget_cards(response: Mapping[str, Any], begin: float, end: float) -> list[dict[str, Any]]:
    """Return the data for one HTML card per budget.

    The data are the variables of the template `budget_card.html.j2`.

    Args:
        response: response to `GET /v1/budget/history`.
        begin: start of the time range in Unix seconds.
        end: end of the time range in Unix seconds.
    """
    return [_budget(series, begin, end) for series in response.get("series") or []]


def _budget(series: Mapping[str, Any], begin: float, end: float) -> dict[str, Any]:
    history = regular_history(series, begin, end, _INTERVALS)
    return {"name": history.budget, "facts": _facts(history), **embed(budget_chart(history))}


def _facts(history: PowerHistory) -> list[tuple[str, str]]:
    low, high = lowest(history.limit_watts), highest(history.limit_watts)
    known = [watts for watts in history.measured_watts if not math.isnan(watts)]
    energy = history.energy_joules
    limit = "none" if low is None else with_unit(low, "W")
    return [
        ("Limit", limit if low == high else f"{limit} to {with_unit(high, 'W')}"),
        ("Measured, mean", with_unit(math.fsum(known) / len(known), "W") if known else "unknown"),
        ("Measured, maximum", with_unit(highest(history.max_watts), "W")),
        ("Energy", with_unit(None if energy is None else energy / 3600, "Wh")),
        ("Above the limit", f"{plain(math.fsum(history.over_s), 1)} s"),
    ]


def _change(change: Mapping[str, Any]) -> dict[str, str]:
    return {
        "time": format_time(change["unix_s"]),
        "budget": str(change.get("budget") or ""),
        "by": str(change.get("by") or "senergyctld"),
        "text": str(change.get("text", "")),
    }
