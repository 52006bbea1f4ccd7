"""Report of the savings of deferral: actual costs, costs of starting each job at once, and the difference."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from slurm_energy import __version__
from slurm_energy.quantities import JOULES_PER_KWH
from slurm_energy.reports.time_spec import format_time
from slurm_energy.reports.utilization.page import FORMAT_VERSION
from slurm_energy.reports.utilization.table import UNKNOWN, ReportTable
from slurm_energy.safe_text import display_width, escape_controls

_NAMES: Final = ("Cluster", "Account", "Login")
_SECONDS_PER_MINUTE: Final = 60.0
_MAX_DECIMALS: Final = 6
_GRAMS_PER_KG: Final = 1000.0
_COST, _CARBON = "cost", "co2e_g"

Json = Mapping[str, Any]


def savings_table(document: Json, *, exact: bool) -> ReportTable:
    """Return the table of the report on the cost and emissions that the deferral of jobs has saved.

    Args:
        document: response to `GET /v1/deferral/savings`.
        exact: whether amounts are written for programs. If so, known amounts have all digits, and unknown
            ones are empty.
    """
    currency = document.get("currency") or "currency"
    headers = [*_NAMES, "Jobs", "Delay min", "Energy kWh"]
    for unit in (currency, "CO2e kg"):
        headers += [unit, f"{unit} at once", f"{unit} saved", "+-"]
    rows = []
    for row in document["rows"]:
        delay_min, kwh = row["mean_delay_s"] / _SECONDS_PER_MINUTE, row["energy_joules"] / JOULES_PER_KWH
        cells = [document["cluster"], row["account"], row["user"], str(row["jobs"])]
        cells += [_number(delay_min, 1, exact=exact), _number(kwh, 3, exact=exact)]
        cells += _amounts(row.get(_COST), 1.0, 2, exact=exact)
        cells += _amounts(row.get(_CARBON), _GRAMS_PER_KG, 3, exact=exact)
        rows.append(cells)
    count = len(headers)
    is_name = [column < len(_NAMES) for column in range(count)]
    widths = [
        max(display_width(escape_controls(text)) for text in (headers[at], *(row[at] for row in rows)))
        for at in range(count)
    ]
    return ReportTable(headers, widths, is_name, rows, is_name)


def savings_document(document: Json) -> dict[str, Any]:
    """Return the JSON document of the report on savings by deferral of jobs.

    The amounts have no decimal prefixes. The document includes the sum of all rows.
    """
    return {
        "meta": {"format": FORMAT_VERSION, "senergy": __version__},
        "report": "DeferralSavings",
        "window": document["window"],
        "scope": document.get("scope"),
        "currency": document.get("currency") or None,
        "rows": [{"cluster": document["cluster"], **row} for row in document["rows"]],
        "total": {key: _total(document["rows"], key) for key in (_COST, _CARBON)},
    }


def savings_notes(document: Json, *, excludes_today: bool) -> list[str]:
    """Return lines of text about what the deferral of jobs has saved.

    The lines state the savings of all jobs, and the jobs whose savings are unknown.

    Args:
        document: response to `GET /v1/deferral/savings`.
        excludes_today: whether the time window ends at last midnight, because the user gave no end.
    """
    rows = document["rows"]
    if not rows:
        start, end = (format_time(document["window"][name]) for name in ("start", "end"))
        text = f"no job that was deferred ended from {start} to {end}"
        return [text + ("; end=now includes the jobs that ended today" if excludes_today else "")]
    notes = []
    jobs = sum(row["jobs"] for row in rows)
    for key, unit, scale in (
        (_COST, document.get("currency") or "currency", 1.0),
        (_CARBON, "kg CO2e", _GRAMS_PER_KG),
    ):
        total = _total(rows, key)
        if total is None:
            continue
        saved, deviation = (total["at_once"] - total["actual"]) / scale, total["deviation"] / scale
        share = f" ({100.0 * saved / (total['at_once'] / scale):z.1f} %)" if total["at_once"] > 0 else ""
        notes.append(
            f"saved against running at once: {plain_amount(saved, 4)} {unit}{share}, "
            f"uncertain by {plain_amount(deviation, 2)} (standard deviation)"
        )
        if total["jobs"] < jobs:
            notes.append(f"{unit}: unknown for {jobs - total['jobs']} of {jobs} jobs, which are left out")
    return notes


def plain_amount(value: float, digits: int) -> str:
    """Return an amount as text without exponent.

    The text has `digits` significant digits, but at most `_MAX_DECIMALS` decimals.

    The integer part is complete. An amount that rounds to zero is written as `0`, because such an amount is a
    rounding error of the sums.
    """
    exponent = math.floor(math.log10(abs(value))) if value else 0
    text = f"{value:z.{min(max(digits - 1 - exponent, 0), _MAX_DECIMALS)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _total(rows: Sequence[Json], key: str) -> dict[str, Any] | None:
    known = [row[key] for row in rows if row.get(key) is not None]
    if not known:
        return None
    total = {name: math.fsum(one[name] for one in known) for name in ("actual", "at_once", "deviation")}
    return {**total, "jobs": sum(one["jobs"] for one in known)}


def _amounts(amounts: Json | None, scale: float, decimals: int, *, exact: bool) -> list[str]:
    if amounts is None or not amounts["jobs"]:
        return ["" if exact else UNKNOWN] * 4
    actual, at_once, deviation = (amounts[name] / scale for name in ("actual", "at_once", "deviation"))
    values = (actual, at_once, at_once - actual, deviation)
    return [_number(value, decimals, exact=exact) for value in values]


def _number(value: float, decimals: int, *, exact: bool) -> str:
    return f"{value:z.9f}".rstrip("0").rstrip(".") if exact else f"{value:z.{decimals}f}"
