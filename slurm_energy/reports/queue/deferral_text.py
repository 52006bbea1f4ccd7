"""Text about deferred jobs for `senergy prio`, `senergy job` and `senergy status`.

All functions are pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slurm_energy.grid.amount_text import cost_text
from slurm_energy.quantities import format_duration
from slurm_energy.reports.acct.fields import Style
from slurm_energy.reports.figure_format import figure
from slurm_energy.reports.time_spec import format_time

_PER_MEGAWATT_HOUR = 1000.0


def deferral_lines(job: Mapping[str, Any], style: Style) -> list[str]:
    """Return why a pending job is deferred, as lines of `senergy prio JOBID`; empty for other jobs.

    Args:
        job: entry of the job in the response to `GET /v1/priority`.
        style: format of times.
    """
    facts = job.get("deferral")
    if not facts:
        return []
    until = format_time(facts.get("planned_start_s"), style.time_format, style.now)
    latest = format_time(facts.get("latest_start_s"), style.time_format, style.now)
    words = [f"until {until}", *_signal_words(facts), f"at the latest {latest}"]
    label = "suspended " if facts.get("suspensions") else "deferred  "
    return [f"{label} {', '.join(words)}{_saving_text(facts)}"]


def deferral_change(decision: Mapping[str, Any], style: Style) -> str:
    """Return the change that a deferral or suspension decision made to a job, as text.

    `senergy job` shows this text, for example `deferred until ...`.
    """
    if decision["kind"] == "not_suspended":
        return "not suspended"
    if decision["kind"] == "release":
        return f"no longer deferred, after {format_duration(decision.get('held_s') or 0.0)}"
    until = format_time(decision.get("planned_start_s"), style.time_format, style.now)
    change = "deferred"
    if decision["kind"] == "suspend":
        change = f"suspended after {format_duration(decision.get('work_s') or 0.0)} of work,"
    words = [f"{change} until {until}", *_signal_words(decision)]
    return ", ".join(words) + _saving_text(decision)


def deferral_status(status: Mapping[str, Any]) -> list[str]:
    """Return the lines of `senergy status` about deferral; empty if no jobs are deferred."""
    if status.get("policy", "off") == "off":
        return []
    error = f"; {status['error']}" if status.get("error") else ""
    jobs = f"{status.get('held_jobs', 0)} of {status.get('deferrable_jobs', 0)} deferrable jobs held"
    return [f"  deferral  by {status['policy']}, {jobs}{error}"]


def _signal_words(facts: Mapping[str, Any]) -> list[str]:
    now, planned = facts.get("signal_now"), facts.get("signal_planned")
    if now is None or planned is None:
        return []
    if facts.get("unit") == "g":
        return [f"carbon forecast {planned:.4g} against {now:.4g} g/kWh now"]
    prices = (f"{_PER_MEGAWATT_HOUR * value:.4g}" for value in (planned, now))
    unit = f"{facts.get('currency') or 'currency'}/MWh"
    return ["price forecast {} against {} {} now".format(*prices, unit)]


def _saving_text(facts: Mapping[str, Any]) -> str:
    now, planned = facts.get("cost_now"), facts.get("cost_planned")
    if now is None or planned is None:
        return ""
    deviation = facts.get("cost_deviation") or 0.0
    share = f" ({100.0 * (now - planned) / now:.0f} %)" if now > 0 else ""
    spread = f", uncertain by {_amount(deviation, facts)}" if deviation > 0 else ""
    return f"; expected saving {_amount(now - planned, facts)}{share}{spread}"


def _amount(value: float, facts: Mapping[str, Any]) -> str:
    if facts.get("unit") == "g":
        return f"{figure(value)} g"
    return cost_text(value, facts.get("currency") or "") or f"{figure(value)}"
