"""HTML page of `senergy simulate --html`.

One file contains the tables and charts of all variants of a scenario.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
from markupsafe import Markup

from slurm_energy.quantities import format_duration
from slurm_energy.reports.html_document import render
from slurm_energy.reports.plots.charts import Bar, BarGroup, Series, bar_chart, embed, max_watts, power_chart
from slurm_energy.reports.plots.policy_charts import (
    ChartSpan,
    Distribution,
    Point,
    distribution_chart,
    scatter_chart,
    schedule_chart,
)
from slurm_energy.reports.sweep_maps import SweepSection
from slurm_energy.scheduling.queue import Floats
from slurm_energy.simulator.power.mean_power import power_by_interval
from slurm_energy.simulator.power.step_function import StepFunction
from slurm_energy.simulator.results.simulation_result import SimulationResult
from slurm_energy.simulator.results.summary_table import Means, summary_rows

_INTERVALS, _COLOURS = 144, 8
_SCHEDULED_JOBS, _ALL_SCHEDULED_JOBS, _MIN_SCHEDULED_JOBS = 200, 12_000, 40
_DISTRIBUTION_POINTS = 300
_POWER_SIZE = (480, 230)
_BARS = (
    ("energy_kwh", "Energy", "{:.2f} kWh", 1.0),
    ("mean_jct_s", "Mean time from submission to end", "{}", 1.0),
    ("jobs_per_hour", "Jobs per hour", "{:.2f}", 1.0),
    ("deadline_miss_rate", "Missed deadlines", "{:.1f} %", 100.0),
    ("jain_jct", "Fairness: Jain's index of the users' times", "{:.3f}", 1.0),
)


@dataclass(frozen=True, slots=True)
class SimulationVariant:
    """Results of one variant of a scenario, by scheduling policy.

    Attributes:
        label: difference between the variant and the others; empty if there is only one variant.
        means: by policy name, mean and standard deviation of each total.
        outcomes: by policy name, the simulation result of the first seed.
        budget: power budget of the cluster in watts over time; None if the cluster has no budget.
        seeds: number of simulations from which the means are computed.
        notes: remarks on the simulations.
    """

    label: str
    means: Mapping[str, Means]
    outcomes: Mapping[str, SimulationResult]
    budget: StepFunction | None
    seeds: int
    notes: Sequence[str] = ()


def page(
    title: str,
    policies: Sequence[str],
    seeds: int,
    variants: Sequence[SimulationVariant],
    sweep: SweepSection | None = None,
    notes: Sequence[str] = (),
    now: datetime | None = None,
) -> str:
    """Return one HTML document with the results of a scenario.

    Args:
        title: title of the scenario.
        policies: the simulated policies.
        seeds: number of simulations from which means are computed.
        variants: variants to show in detail. Each has the results of all `policies`.
        sweep: totals for each combination of the swept values; None if the scenario has no sweep.
        notes: remarks on the simulations.
        now: current time for the footer; None omits the date.
    """
    colors = {name: f"v{(index + 1) % _COLOURS}" for index, name in enumerate(policies)}
    scheduled_jobs = _scheduled_jobs(max(1, len(variants)) * len(policies))
    several = f"means of {seeds} seeds ± one standard deviation; charts over time show seed 0"
    context = {
        "title": title,
        "subtitle": f"Simulated with {', '.join(policies)}" + (f": {several}" if seeds > 1 else ""),
        "legend": list(colors.items()),
        "sweep": None if sweep is None else sweep.context(),
        "bars": _bars(variants, colors),
        "variants": [_variant(variant, colors, scheduled_jobs) for variant in variants],
    }
    return render("simulation.html.j2", context, notes, now)


def _scheduled_jobs(charts: int) -> int:
    """Return how many jobs a schedule chart shows on a page with `charts` schedule charts.

    The number is limited so that the page stays small.
    """
    return min(_SCHEDULED_JOBS, max(_MIN_SCHEDULED_JOBS, _ALL_SCHEDULED_JOBS // charts))


def _variant(variant: SimulationVariant, colors: Mapping[str, str], scheduled_jobs: int) -> dict[str, Any]:
    header, *rows = summary_rows(variant.means, several=variant.seeds > 1)
    return {
        "label": variant.label or "Results",
        "header": header,
        "rows": [(row[0], colors[row[0]], row[1:]) for row in rows],
        "power": _power(variant, colors),
        "budget": variant.budget is not None,
        "charts": [
            {"name": name, "svg": Markup(svg)}
            for name, svg in (
                ("Throughput and energy", _trade_off(variant, colors)),
                ("Time from submission to end", _completion(variant, colors)),
            )
            if svg
        ],
        "schedules": [
            {"name": name, "svg": Markup(_schedule(name, outcome, scheduled_jobs))}
            for name, outcome in variant.outcomes.items()
        ],
    }


def _bars(variants: Sequence[SimulationVariant], colors: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return one bar chart for each total, such as energy, if the total is known for at least one policy.

    A chart has one group of bars for each variant of the simulation, and one bar for each policy.
    """
    charts = []
    for key, name, form, factor in _BARS:
        groups = [_bar_group(variant, key, form, factor, colors) for variant in variants]
        if any(bar.value for group in groups for bar in group.bars):
            charts.append({"name": name, "svg": Markup(bar_chart(groups, name))})
    return charts


def _bar_group(
    variant: SimulationVariant, key: str, form: str, factor: float, colors: Mapping[str, str]
) -> BarGroup:
    bars = []
    for name, means in variant.means.items():
        pair = means.get(key)
        value = None if pair is None else factor * pair[0]
        written = format_duration(value) if key.endswith("_s") else value
        text = "unknown" if value is None else form.format(written)
        bars.append(Bar(name, colors[name], value, text))
    return BarGroup(variant.label or "All jobs", bars, next((bar.value for bar in bars if bar.value), 0.0))


def _power(variant: SimulationVariant, colors: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return one chart of power over time for each scheduling policy of a simulated variant.

    The charts have the same range of power.
    """
    lines = {name: _power_lines(o, variant.budget, colors[name]) for name, o in variant.outcomes.items()}
    top_watts = max(map(max_watts, lines.values()), default=1.0) * 1.03
    return [
        {
            "name": name,
            **embed(power_chart(series, f"Power of the cluster: {name}", _POWER_SIZE, top_watts=top_watts)),
        }
        for name, series in lines.items()
    ]


def _power_lines(outcome: SimulationResult, budget: StepFunction | None, color: str) -> list[Series]:
    interval_s, mean, maximum = power_by_interval(*outcome.power, outcome.end_s, _INTERVALS)
    lines = [Series("highest", "other", maximum, interval_s), Series("mean", color, mean, interval_s)]
    if budget is not None:
        middles = [(index + 0.5) * interval_s for index in range(len(mean))]
        lines.append(Series("budget", "text", [budget.at(time_s) for time_s in middles], interval_s))
    return lines


def _trade_off(variant: SimulationVariant, colors: Mapping[str, str]) -> str:
    points = []
    for name, means in variant.means.items():
        energy, speed = means.get("energy_kwh"), means.get("jobs_per_hour")
        if energy and speed:
            text = f"{energy[0]:.3g} kWh, {speed[0]:.3g} jobs per hour"
            points.append(Point(name, colors[name], energy[0], speed[0], energy[1], speed[1], text))
    return scatter_chart(points, "Throughput and energy", ("energy, kWh", "jobs per hour")) if points else ""


def _completion(variant: SimulationVariant, colors: Mapping[str, str]) -> str:
    series = [
        Distribution(name, colors[name], _thinned(np.sort(outcome.jct_s())).tolist())
        for name, outcome in variant.outcomes.items()
    ]
    nonempty = [distribution for distribution in series if distribution.values]
    return distribution_chart(nonempty, "Time from submission to end") if nonempty else ""


def _thinned(values: Floats) -> Floats:
    """Return ascending values, reduced to some hundred evenly spaced ones if there are more.

    The last value is always kept.
    """
    if len(values) <= _DISTRIBUTION_POINTS:
        return values
    positions = np.linspace(0, len(values), _DISTRIBUTION_POINTS + 1)[1:] - 1
    chosen: Floats = values[np.ceil(positions).astype(np.int64)]
    return chosen


def _schedule(policy: str, outcome: SimulationResult, count: int) -> str:
    """Draw the first `count` jobs as bars in the order of their start.

    The colour of a bar shows the job's user.
    """
    accounts, work = outcome.accounts, outcome.workload
    started = np.flatnonzero(~np.isnan(accounts.start_s))
    order = started[np.argsort(accounts.start_s[started], kind="stable")][:count].tolist()
    ends = np.where(np.isnan(accounts.end_s), outcome.end_s, accounts.end_s)
    spans = []
    for row, job in enumerate(order):
        start_s, end_s, user = float(accounts.start_s[job]), float(ends[job]), int(work.user[job])
        text = f"job {work.job_id[job]} of {work.users[user]}: {format_duration(end_s - start_s)}"
        spans.append(ChartSpan(row, start_s, end_s, f"v{(user + 1) % _COLOURS}", text))
    return schedule_chart(spans, f"Schedule: {policy}")
