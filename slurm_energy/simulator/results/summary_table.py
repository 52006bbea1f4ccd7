"""Text tables of simulation totals: one row per policy, with means over the seeds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from slurm_energy.simulator.campaigns.run_result import RunResult
from slurm_energy.simulator.results.result_files import SeedMean, mean_and_deviation

Means = Mapping[str, SeedMean | None]
"""Mean and standard deviation by name of the quantity."""

_COLUMNS = {
    "completed": ("done", 1.0, 0),
    "timeouts": ("timeouts", 1.0, 0),
    "jobs_per_hour": ("jobs/h", 1.0, 2),
    "energy_kwh": ("kWh", 1.0, 2),
    "mean_jct_s": ("JCT min", 1 / 60, 1),
    "mean_wait_s": ("wait min", 1 / 60, 1),
    "max_wait_s": ("max wait min", 1 / 60, 1),
    "deadline_miss_rate": ("missed %", 100.0, 1),
    "late_start_rate": ("late %", 100.0, 1),
    "suspensions": ("suspended", 1.0, 1),
    "preemptions": ("preempt", 1.0, 1),
    "utilisation": ("used %", 100.0, 0),
    "peak_watts": ("peak kW", 1e-3, 2),
    "jain_jct": ("Jain JCT", 1.0, 3),
    "jain_energy": ("Jain J", 1.0, 3),
    "over_budget_s": ("over min", 1 / 60, 1),
    "cost": ("cost", 1.0, 2),
    "carbon_kg": ("kg CO2", 1.0, 2),
    "job_cost": ("jobs' cost", 1.0, 2),
    "job_carbon_kg": ("jobs' kg CO2", 1.0, 2),
    "moved_share": ("moved %", 100.0, 0),
    "transfer_kwh": ("transfer kWh", 1.0, 2),
}
_ONLY_IF_ANY = ("timeouts", "preemptions", "suspensions", "over_budget_s", "transfer_kwh")


def means(results: Iterable[RunResult]) -> dict[str, Means]:
    """Return each total of the simulations as mean and standard deviation, by policy name.

    The mean is taken over the seeds of the simulations.
    """
    grouped: dict[str, list[dict[str, Any]]] = {}
    for result in results:
        grouped.setdefault(result.policy, []).append(result.summary)
    return {name: mean_and_deviation(rows) for name, rows in grouped.items()}


def summary_lines(by_policy: Mapping[str, Means], *, several: bool) -> list[str]:
    """Return the totals as a text table with one line per policy.

    The arguments are those of `summary_rows`.
    """
    return aligned(summary_rows(by_policy, several=several), left=1)


def summary_rows(by_policy: Mapping[str, Means], *, several: bool) -> list[list[str]]:
    """Return the cells of a table of simulation results: a header row, then one row per policy.

    Args:
        by_policy: for each policy name, the mean and the standard deviation of each result.
        several: whether there are several seeds. If so, the table shows standard deviations.
    """
    shown = [
        name for name in _COLUMNS if any(_is_informative(row.get(name), name) for row in by_policy.values())
    ]
    lines = [["policy", *(_COLUMNS[name][0] for name in shown)]]
    for policy, row in by_policy.items():
        lines.append([policy, *(_cell(row.get(name), name, several) for name in shown)])
    return lines


def aligned(lines: Sequence[Sequence[str]], left: int) -> list[str]:
    """Return rows of cells as lines of text with aligned columns.

    Args:
        lines: cells of each row.
        left: number of left-aligned columns. All further columns are right-aligned.
    """
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]

    def put(index: int, word: str) -> str:
        return word.ljust(widths[index]) if index < left else word.rjust(widths[index])

    return ["  ".join(put(i, word) for i, word in enumerate(line)).rstrip() for line in lines]


def _is_informative(value: SeedMean | None, name: str) -> bool:
    """Return whether the summary table gets a column for the total `name`.

    An unknown total gets no column. Some totals get a column only if their mean is above 0.
    """
    return value is not None and (name not in _ONLY_IF_ANY or value.mean > 0)


def _cell(value: SeedMean | None, name: str, several: bool) -> str:
    """Return a mean as text, with the number of known values if some seeds have none: `3.1±0.2 (2/3)`."""
    if value is None:
        return "-"
    _, factor, digits = _COLUMNS[name]
    mean, deviation = value.mean * factor, value.deviation * factor
    text = (
        f"{mean:.{digits}f}±{deviation:.{digits}f}" if several and value.known > 1 else f"{mean:.{digits}f}"
    )
    return text if value.known == value.seeds else f"{text} ({value.known}/{value.seeds})"
