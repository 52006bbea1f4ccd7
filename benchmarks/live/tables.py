"""Tables of the benchmark on a live cluster, in Markdown: measured and simulated results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Json = dict[str, Any]
_HEAD = (
    "| run | makespan s | cluster kJ | jobs kJ | jobs/h | mean JCT s | 95 % JCT s | wait s | EDP MJ s |",
    "|---|---|---|---|---|---|---|---|---|",
)


def lines(measured: Mapping[str, Json], simulated: Mapping[str, Json]) -> list[str]:
    """Return tables of measured and simulated results of the live experiment in Markdown.

    Args:
        measured: results of `cluster.run` by policy.
        simulated: summaries of the simulator by policy.
    """
    live = {name: _live(run) for name, run in measured.items()}
    result = {name: _simulated(summary) for name, summary in simulated.items()}
    return [
        *("Measured:", "", *_HEAD, *(_row(name, row) for name, row in live.items())),
        *("", "Simulated, and the difference from the measurement:", "", *_HEAD),
        *(_row(name, row, live[name]) for name, row in result.items()),
        *("", *(_against(name, live) for name in live if name != next(iter(live)))),
    ]


def _live(run: Json) -> list[float]:
    total = run["report"]["total"]
    joules = total["job_energy_joules"]
    return [
        run["makespan_s"],
        run["cluster_joules"] / 1e3,
        joules / 1e3,
        total["completed"] / run["makespan_s"] * 3600,
        total["mean_jct_s"],
        total["p95_jct_s"],
        total["mean_wait_s"],
        joules * total["mean_jct_s"] / 1e6,
    ]


def _simulated(summary: Json) -> list[float]:
    joules = summary["job_kwh"] * 3.6e6
    return [
        summary["makespan_s"],
        summary["energy_kwh"] * 3600,
        joules / 1e3,
        summary["completed"] / summary["makespan_s"] * 3600,
        summary["mean_jct_s"],
        summary["p95_jct_s"],
        summary["mean_wait_s"],
        joules * summary["mean_jct_s"] / 1e6,
    ]


def _row(name: str, row: list[float], beside: list[float] | None = None) -> str:
    cells = [_number(value) for value in row]
    if beside is not None:
        both = zip(cells, row, beside, strict=True)
        cells = [f"{cell} ({100 * (mine / theirs - 1):+.1f} %)" for cell, mine, theirs in both]
    return f"| {name} | " + " | ".join(cells) + " |"


def _number(value: float) -> str:
    return f"{value:.1f}" if value < 1000 else f"{value:.0f}"


def _against(name: str, live: Mapping[str, list[float]]) -> str:
    """Return a sentence that compares the results of one policy with those of a reference policy.

    The reference policy is the first policy in `live`.
    """
    base_name, base = next(iter(live.items()))
    makespan, cluster, jobs, _, jct, _, _, edp = (
        100 * (value / before - 1) for value, before in zip(live[name], base, strict=True)
    )
    return (
        f"{name} against {base_name}: cluster's energy {cluster:+.1f} %, jobs' energy {jobs:+.1f} %, "
        f"makespan {makespan:+.1f} %, mean JCT {jct:+.1f} %, EDP {edp:+.1f} %"
    )
