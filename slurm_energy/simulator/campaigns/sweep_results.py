"""Result tables of a parameter sweep of simulations.

There is one table with a row per variant and policy, one table with a row per simulation, and maps of each
result over the two swept parameters (axes).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from slurm_energy.simulator.campaigns.run_result import RunResult
from slurm_energy.simulator.campaigns.sweep_axes import SweepAxis
from slurm_energy.simulator.results.summary_table import Means, means, summary_rows
from slurm_energy.simulator.scenario import Scenario

VariantResults = Sequence[tuple[Scenario, Sequence[RunResult]]]
"""Each variant of a sweep with the results of its simulations."""

MAP_TOTALS: Final = {
    "energy_kwh": "energy (kWh)",
    "mean_jct_s": "mean time from submission to end (s)",
    "jobs_per_hour": "jobs per hour",
    "deadline_miss_rate": "share of missed deadlines",
    "utilisation": "utilisation",
    "cost": "cost",
    "carbon_kg": "emissions (kg CO2)",
}
"""Totals that are shown over the axes of a sweep, with their titles."""


def table_rows(results: VariantResults) -> list[list[str]]:
    """Return the cells of a table of simulation results, as means over the seeds.

    The first row is the header. Each further row is one variant of the scenario with one policy.
    """
    combined: dict[str, Means] = {}
    keys: dict[str, tuple[list[str], str]] = {}
    for number, (scenario, runs) in enumerate(results):
        for policy, row in means(runs).items():
            name = f"{number}/{policy}"
            combined[name], keys[name] = row, ([shown_value(value) for _, value in scenario.point], policy)
    header, *rows = summary_rows(combined, several=results[0][0].schedule.seeds > 1)
    names = [name for name, _ in results[0][0].point]
    return [[*names, *header], *([*keys[row[0]][0], keys[row[0]][1], *row[1:]] for row in rows)]


def run_columns(results: VariantResults) -> dict[str, list[Any]]:
    """Return the results of all simulations as columns, by name of the column.

    Each simulation is one row. The columns are the keys of the sweep, the policy, the seed and all totals.
    """
    runs = [(scenario, run) for scenario, listed in results for run in listed]
    columns: dict[str, list[Any]] = {
        name: [_plain(dict(scenario.point)[name]) for scenario, _ in runs] for name, _ in results[0][0].point
    }
    columns["policy"] = [run.policy for _, run in runs]
    columns["seed"] = [run.seed for _, run in runs]
    totals = dict.fromkeys(name for _, run in runs for name in run.summary)
    return columns | {name: [run.summary.get(name) for _, run in runs] for name in totals}


@dataclass(frozen=True, slots=True)
class SweepMap:
    """Map of one result of a simulated policy over the one or two swept parameters (axes).

    Attributes:
        policy: name of the policy.
        total: name of the result, such as total energy.
        rows: labels of the points of the first axis.
        columns: labels of the points of the second axis. A sweep with one axis has one empty label here.
        values: mean of the result over the seeds, by row and column. None marks an unknown mean.
    """

    policy: str
    total: str
    rows: list[str]
    columns: list[str]
    values: list[list[float | None]]


def maps(axes: Sequence[SweepAxis], results: VariantResults) -> list[SweepMap]:
    """Return tables of the results of a simulated sweep: one table for each result and policy.

    A table has one row or column for each value of the swept settings. The list is empty for a sweep with
    more than two axes.

    Args:
        axes: axes of the sweep.
        results: results of each variant, in the order of `sweeps.variants`.
    """
    if not 1 <= len(axes) <= 2:
        return []
    rows = [_label(point) for point in axes[0].points]
    columns = [_label(point) for point in axes[1].points] if len(axes) == 2 else [""]
    by_variant = [means(runs) for _, runs in results]
    listed = []
    for total in MAP_TOTALS:
        for policy in by_variant[0]:
            flat = [_mean(entry.get(policy, {}), total) for entry in by_variant]
            values = [flat[row * len(columns) : (row + 1) * len(columns)] for row in range(len(rows))]
            if any(value for value in flat):
                listed.append(SweepMap(policy, total, rows, columns, values))
    return listed


def shown_value(value: Any) -> str:
    """Return a value of a sweep as text. Strings are shown without quotation marks."""
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _label(point: Sequence[Any]) -> str:
    return ", ".join(map(shown_value, point))


def _mean(row: Means, total: str) -> float | None:
    value = row.get(total)
    return None if value is None else value.mean


def _plain(value: Any) -> Any:
    return value if isinstance(value, (int, float, str)) else shown_value(value)
