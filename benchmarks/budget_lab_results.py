"""Results of the power-budget benchmark on emulated nodes (the lab).

The module computes a table of the results and the ratios between the methods. It also tests the statements
(claims) that the benchmark makes about the methods.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from claims import Claim, at_least, at_most

KEPT = " kept"
"""Ending of the names of baselines whose own limit is so low that the power stays within the budget."""
BASELINES = {
    "equal watts": 0.10,
    "equal share": 0.10,
    "cray": 0.05,
    "cray improved": 0.0,
    "equal watts kept": 0.10,
    "equal share kept": 0.10,
    "cray kept": 0.05,
    "cray improved kept": 0.05,
}
"""Methods to compare with, and the target: the relative gain in throughput and energy-delay product."""
METHODS = (*BASELINES, "budget", "suite")
BOUNDS = ("clairvoyant", "clairvoyant ordered", "cray ordered", "cray improved ordered", "unlimited")
"""Bounds and counterfactuals. They are not among the default methods."""
ALLOWED_S = 5.0


@dataclass(frozen=True)
class LabResult:
    """Result of one benchmark run in a lab (cluster of emulated nodes).

    A run has one method of power control and one random seed.

    Attributes:
        seed, method: seed and control method of the run.
        throughput: work per second.
        edp: energy times time per unit of work squared.
        kilojoules: energy of the cluster.
        ended: number of ended jobs.
        killed: number of jobs that ran longer than their time limit.
        above_s: seconds with power above the limit during the first `ALLOWED_S` seconds after each change
            of the limit.
        otherwise_s: seconds with power above the limit at all other times.
        max_share: highest power divided by the limit, at the times that `otherwise_s` covers.
        used_share: mean power divided by the mean limit.
        mean_wait_s, max_wait_s: seconds from submission to start. For a job that still waits, seconds
            from its submission to the end of the run.
        user_wait_ratio: mean wait of the user who waits longest, divided by the mean wait of the user who
            waits least.
        limit_factor: limit that the method kept, divided by the limit of the budget.
    """

    seed: int
    method: str
    throughput: float
    edp: float
    kilojoules: float
    ended: int
    killed: int
    above_s: float
    otherwise_s: float
    max_share: float
    used_share: float
    mean_wait_s: float
    max_wait_s: float
    user_wait_ratio: float
    limit_factor: float = 1.0


def ratio(
    results: Sequence[LabResult], method: str, value: Callable[[LabResult], float], of: str = "budget"
) -> float:
    """Return by which factor a measured value changes between two control methods, on average.

    Both methods were run with the same random seeds. For each seed, the value of method `of` is divided
    by the value of method `method`. The result is the geometric mean of these quotients.
    """
    own = {item.seed: value(item) for item in results if item.method == of}
    logs = [math.log(own[i.seed] / value(i)) for i in results if i.method == method and i.seed in own]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan


def table(results: Sequence[LabResult]) -> str:
    """Return the benchmark's results as a Markdown table.

    There is one row for each pair of a seed and a method.
    """
    rows = [
        "| seed | method | work per s | EDP | energy | jobs ended | over time limit | power used | "
        "highest power | above after a step | above otherwise | mean wait | longest wait | users | "
        "own limit |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    order = {method: index for index, method in enumerate(METHODS)}
    for item in sorted(results, key=lambda item: (item.seed, order.get(item.method, 0))):
        rows.append(
            f"| {item.seed} | {item.method} | {item.throughput:.2f} | {item.edp:.0f} |"
            f" {item.kilojoules / 1e3:.1f} MJ | {item.ended} | {item.killed} | {item.used_share:.0%} |"
            f" {item.max_share:.1%} | {item.above_s:.1f} s | {item.otherwise_s:.1f} s |"
            f" {item.mean_wait_s:.0f} s | {item.max_wait_s:.0f} s | {item.user_wait_ratio:.2f} |"
            f" {item.limit_factor:.1%} |"
        )
    methods = {item.method for item in results}
    for of in (one for one in ("budget", "suite", *BOUNDS) if one in methods):
        for method in (one for one in (*BASELINES, "budget") if one in methods and one != of):
            gains = [ratio(results, method, value, of) for value in (_throughput, _edp)]
            rows.append(f"\n{of} / {method}: throughput {gains[0]:.3f}, EDP {gains[1]:.3f}")
    return "\n".join(rows)


def _throughput(result: LabResult) -> float:
    return result.throughput


def _edp(result: LabResult) -> float:
    return result.edp


def lab_claims(results: Sequence[LabResult]) -> Iterable[Claim]:
    """Return the claims (tested statements) about results of the budget benchmark in the lab.

    The claims concern the power limit, killed jobs, throughput and energy-delay product. The result is empty
    if there are no results of the methods `budget` and `suite`.
    """
    own = [item for item in results if item.method in ("budget", "suite")]
    if not own:
        return []
    claims = [
        at_most("budget_lab_above_after_step_s", max(item.above_s for item in own), ALLOWED_S),
        at_most("budget_lab_above_otherwise_s", max(item.otherwise_s for item in own), 0.0),
        at_most("budget_lab_killed_jobs", float(sum(item.killed for item in own)), 0.0),
    ]
    known = {item.method for item in results}
    for of, prefix in (("budget", "budget_lab"), ("suite", "budget_suite")):
        for method, gain in BASELINES.items() if of in known else ():
            if method in known:
                name = method.replace(" ", "_")
                throughput, edp = (ratio(results, method, value, of) for value in (_throughput, _edp))
                claims.append(at_least(f"{prefix}_throughput_over_{name}", throughput, 1.0 + gain))
                claims.append(at_most(f"{prefix}_edp_over_{name}", edp, 1.0 - gain))
    return claims
