"""Plots of simulations: schedules, power, trade-offs and distributions. Requires matplotlib."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from slurm_energy.simulator.power.mean_power import power_by_interval
from slurm_energy.simulator.power.step_function import StepFunction
from slurm_energy.simulator.results.simulation_result import SimulationResult

_GANTT_JOBS, _INTERVALS = 400, 96
_SIZE = (8.0, 4.2)
_INK, _GRID = "#333333", "#dddddd"
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a5195", "#8c8c8c")
"""Colours that colour-blind readers can distinguish. Source: Okabe, Ito 2008, "Color Universal Design"."""
_MARKERS = "osD^vPX*"


def gantt(outcome: SimulationResult, title: str) -> Figure:
    """Return a Gantt chart of the first jobs: one row per job, in order of start, coloured by user."""
    figure, axes = labelled_figure(title, "time (h)", "jobs by start")
    accounts = outcome.accounts
    started = np.flatnonzero(~np.isnan(accounts.start_s))
    order = started[np.argsort(accounts.start_s[started], kind="stable")][:_GANTT_JOBS]
    ends = np.where(np.isnan(accounts.end_s), outcome.end_s, accounts.end_s)
    for user, name in enumerate(outcome.workload.users):
        rows = np.flatnonzero(outcome.workload.user[order] == user)
        jobs = order[rows]
        if len(jobs):
            length = (ends[jobs] - accounts.start_s[jobs]) / 3600
            colour = _COLOURS[user % len(_COLOURS)]
            starts = accounts.start_s[jobs] / 3600
            axes.barh(rows, length, left=starts, height=0.9, label=name, color=colour)
    axes.invert_yaxis()
    if 1 < len(outcome.workload.users) <= 10:
        _legend(axes)
    return figure


def power(outcomes: Mapping[str, SimulationResult], budget: StepFunction | None) -> Figure:
    """Return a plot of the cluster's mean power per interval over time, by policy, with the budget."""
    figure, axes = labelled_figure("Power of the cluster, means of intervals", "time (h)", "kW")
    last_s = 0.0
    for index, (name, outcome) in enumerate(outcomes.items()):
        interval_s, mean, _ = power_by_interval(*outcome.power, outcome.end_s, _INTERVALS)
        middles_h = [(index + 0.5) * interval_s / 3600 for index in range(len(mean))]
        kilowatts = [watts / 1e3 for watts in mean]
        axes.plot(middles_h, kilowatts, linewidth=1.5, label=name, color=policy_colour(index))
        last_s = max(last_s, outcome.end_s)
    if budget is not None:
        times = np.append(budget.times_s[budget.times_s < last_s], last_s)
        watts = np.array([budget.at(time_s) for time_s in times])
        axes.step(times / 3600, watts / 1e3, where="post", color=_INK, linestyle="--", label="budget")
    axes.set_ylim(bottom=0)
    _legend(axes)
    return figure


def trade_off(means: Mapping[str, Mapping[str, Any]]) -> Figure:
    """Return a plot of throughput against energy, with one point per scheduling policy.

    Error bars show one standard deviation.
    """
    figure, axes = labelled_figure("Throughput and energy", "energy (kWh)", "jobs per hour")
    for index, (name, row) in enumerate(means.items()):
        if row.get("energy_kwh") and row.get("jobs_per_hour"):
            x, y = row["energy_kwh"], row["jobs_per_hour"]
            look = {"color": policy_colour(index), "fmt": _MARKERS[index % len(_MARKERS)]}
            axes.errorbar(
                *(x.mean, y.mean, y.deviation, x.deviation), capsize=2, elinewidth=0.7, label=name, **look
            )
    _legend(axes)
    return figure


def completion_times(outcomes: Mapping[str, SimulationResult]) -> Figure:
    """Return a plot that shows the distribution of the jobs' completion times for each policy."""
    figure, axes = labelled_figure("Completion times", "from submission to end (min)", "share of jobs")
    for index, (name, outcome) in enumerate(outcomes.items()):
        jct = np.sort(outcome.jct_s()) / 60
        if len(jct):
            share = np.arange(1, len(jct) + 1) / len(jct)
            axes.step(jct, share, where="post", label=name, color=policy_colour(index))
    axes.set_xlim(left=0)
    axes.set_ylim(0, 1)
    _legend(axes)
    return figure


def bars(means: Mapping[str, Mapping[str, Any]], figure_name: str, title: str) -> Figure | None:
    """Return a bar chart that compares one result of the simulation between scheduling policies.

    Return None if no policy has this result.

    Args:
        means: for each policy name, the mean and the standard deviation of each result over the seeds.
        figure_name: name of the result in the summary.
        title: title of the figure.
    """
    rows = {name: row[figure_name] for name, row in means.items() if row.get(figure_name) is not None}
    if not rows:
        return None
    figure, axes = labelled_figure(title, "", "")
    heights, errors = [row.mean for row in rows.values()], [row.deviation for row in rows.values()]
    colours = [policy_colour(list(means).index(name)) for name in rows]
    axes.bar(list(rows), heights, yerr=errors, capsize=3, width=0.6, color=colours, ecolor=_INK)
    axes.set_ylim(bottom=0)
    axes.tick_params(axis="x", rotation=30)
    axes.grid(visible=False, axis="x")
    return figure


def all_figures(
    outcomes: Mapping[str, SimulationResult],
    means: Mapping[str, Mapping[str, Any]],
    budget: StepFunction | None,
) -> dict[str, Figure]:
    """Return every figure for which there is data, by file name without suffix."""
    figures: dict[str, Figure | None] = {
        "power": power(outcomes, budget),
        "trade-off": trade_off(means),
        "completion-times": completion_times(outcomes),
        "fairness": bars(means, "jain_jct", "Jain's index of the users' completion times"),
        "deadline-misses": bars(means, "deadline_miss_rate", "Share of missed deadlines"),
    }
    figures |= {f"gantt-{name}": gantt(outcome, f"Schedule: {name}") for name, outcome in outcomes.items()}
    return {name: figure for name, figure in figures.items() if figure is not None}


def labelled_figure(title: str, x: str, y: str) -> tuple[Figure, Any]:
    """Return an empty figure in the style of all plots, and its axes.

    The figure has a title and labels.
    """
    figure = Figure(figsize=_SIZE, layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(title, loc="left", fontsize=11, color=_INK)
    axes.set_xlabel(x, color=_INK)
    axes.set_ylabel(y, color=_INK)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(_GRID)
    axes.tick_params(colors=_INK, length=0, labelsize=9)
    axes.grid(color=_GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    return figure, axes


def policy_colour(index: int) -> str:
    """Return the colour of a policy. The colour is the same in all figures.

    Args:
        index: position of the policy in the list of compared policies.
    """
    return _COLOURS[index % len(_COLOURS)]


def _legend(axes: Any) -> None:
    """Put the legend to the right of the plot, where it covers no data."""
    axes.legend(fontsize=9, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0), labelcolor=_INK)
