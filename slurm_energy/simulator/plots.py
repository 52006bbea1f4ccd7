"""Pictures of simulations: schedules, power, trade-offs, distributions. Needs matplotlib."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from slurm_energy.simulator.outcome import Outcome
from slurm_energy.simulator.steps import Steps

_GANTT_JOBS = 400
_SIZE = (8.0, 4.2)


def gantt(outcome: Outcome, title: str) -> Figure:
    """Return the first jobs as bars from start to end, a row each in order of their start, by user."""
    figure, axes = _figure(title, "time (h)", "jobs by start")
    accounts = outcome.accounts
    started = np.flatnonzero(~np.isnan(accounts.start_s))
    order = started[np.argsort(accounts.start_s[started], kind="stable")][:_GANTT_JOBS]
    ends = np.where(np.isnan(accounts.end_s), outcome.end_s, accounts.end_s)
    for user, name in enumerate(outcome.workload.users):
        rows = np.flatnonzero(outcome.workload.user[order] == user)
        jobs = order[rows]
        if len(jobs):
            length = (ends[jobs] - accounts.start_s[jobs]) / 3600
            axes.barh(rows, length, left=accounts.start_s[jobs] / 3600, height=0.9, label=name)
    axes.invert_yaxis()
    if 1 < len(outcome.workload.users) <= 10:
        axes.legend(fontsize="small")
    return figure


def power(outcomes: Mapping[str, Outcome], budget: Steps | None) -> Figure:
    """Return the cluster's power over time by policy, with the budget."""
    figure, axes = _figure("Power of the cluster", "time (h)", "kW")
    last_s = 0.0
    for name, outcome in outcomes.items():
        times, watts = outcome.power
        axes.step(times / 3600, watts / 1e3, where="post", linewidth=0.8, label=name)
        last_s = max(last_s, float(times[-1]))
    if budget is not None:
        times = np.append(budget.times_s[budget.times_s < last_s], last_s)
        watts = np.array([budget.at(time_s) for time_s in times])
        axes.step(times / 3600, watts / 1e3, where="post", color="black", linestyle="--", label="budget")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize="small")
    return figure


def trade_off(means: Mapping[str, Mapping[str, Any]]) -> Figure:
    """Return throughput against energy by policy, one standard deviation as bars."""
    figure, axes = _figure("Throughput and energy", "energy (kWh)", "jobs per hour")
    for name, row in means.items():
        if row.get("energy_kwh") and row.get("jobs_per_hour"):
            (x, dx), (y, dy) = row["energy_kwh"], row["jobs_per_hour"]
            axes.errorbar(x, y, xerr=dx, yerr=dy, fmt="o", capsize=2)
            axes.annotate(name, (x, y), xytext=(5, 5), textcoords="offset points", fontsize="small")
    return figure


def completion_times(outcomes: Mapping[str, Outcome]) -> Figure:
    """Return the distribution of completion times by policy."""
    figure, axes = _figure("Completion times", "from submission to end (min)", "share of jobs")
    for name, outcome in outcomes.items():
        jct = np.sort(outcome.jct_s()) / 60
        if len(jct):
            axes.step(jct, np.arange(1, len(jct) + 1) / len(jct), where="post", label=name)
    axes.legend(fontsize="small")
    return figure


def bars(means: Mapping[str, Mapping[str, Any]], figure_name: str, title: str) -> Figure | None:
    """Return one figure of the summary by policy as bars; None where no policy has it."""
    rows = {name: row[figure_name] for name, row in means.items() if row.get(figure_name) is not None}
    if not rows:
        return None
    figure, axes = _figure(title, "", "")
    heights, errors = [mean for mean, _ in rows.values()], [deviation for _, deviation in rows.values()]
    axes.bar(list(rows), heights, yerr=errors, capsize=3)
    axes.tick_params(axis="x", rotation=30)
    return figure


def all_figures(
    outcomes: Mapping[str, Outcome], means: Mapping[str, Mapping[str, Any]], budget: Steps | None
) -> dict[str, Figure]:
    """Return every figure that makes sense, by file name without ending."""
    found: dict[str, Figure | None] = {
        "power": power(outcomes, budget),
        "trade-off": trade_off(means),
        "completion-times": completion_times(outcomes),
        "fairness": bars(means, "jain_jct", "Jain's index of the users' completion times"),
        "deadline-misses": bars(means, "deadline_miss_rate", "Share of missed deadlines"),
    }
    found |= {f"gantt-{name}": gantt(outcome, f"Schedule: {name}") for name, outcome in outcomes.items()}
    return {name: figure for name, figure in found.items() if figure is not None}


def page(title: str, table: Sequence[str], figures: Mapping[str, Figure]) -> str:
    """Return one HTML page with a table as text and all figures inside."""
    pictures = "\n".join(
        f'<figure><img alt="{html.escape(name)}" src="data:image/png;base64,{_png(figure)}"></figure>'
        for name, figure in figures.items()
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{html.escape(title)}</title><style>body{{font:15px system-ui,sans-serif;margin:2rem auto;"
        "max-width:60rem;padding:0 1rem}pre{overflow-x:auto}img{max-width:100%}figure{margin:1.5rem 0}"
        f"</style></head><body>\n<h1>{html.escape(title)}</h1>\n"
        f"<pre>{html.escape(chr(10).join(table))}</pre>\n{pictures}\n</body></html>\n"
    )


def _figure(title: str, x: str, y: str) -> tuple[Figure, Any]:
    figure = Figure(figsize=_SIZE, layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(title)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    return figure, axes


def _png(figure: Figure) -> str:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    return base64.b64encode(buffer.getvalue()).decode()
