"""Values that the thesis reads from its Figures 5.3 to 5.9.

Each value is compared with the value from the simulator. Source: thesis, 5.5.2.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slurm_energy.simulator.campaigns.run_result import RunResult

SCENARIOS = (
    "thesis-malleability",
    "thesis-pareto",
    "thesis-sla",
    "thesis-budget",
    "thesis-fairness",
    "thesis-load",
)
"""Experiments 5.5.2.1 to 5.5.2.6 of the thesis in its order: names of files in scenarios/."""
_RIGID, _MALLEABLE = "workload.rigid = true", "workload.rigid = false"

Results = Mapping[tuple[str, str], Sequence[RunResult]]
"""Results of all runs by scenario and variant."""


@dataclass(frozen=True, slots=True)
class ThesisClaim:
    """Comparison of one quantity in the thesis with its simulated value.

    Attributes:
        figure: number of the figure in the thesis.
        quantity: name and unit of the quantity.
        thesis: value or statement of the thesis, as text.
        ours: mean and standard deviation of the simulated value over the seeds; None if no run has the
            quantity.
        agrees: `yes`: same direction and similar size; `direction`: same direction only; `no`; `-`: not
            judged.
    """

    figure: str
    quantity: str
    thesis: str
    ours: tuple[float, float] | None
    agrees: str


class _Figures:
    """Results by scenario, variant and policy.

    Each result is a list with one value per random seed, in the order of the seeds.
    """

    def __init__(self, runs: Results) -> None:
        self._runs = runs

    def values(self, scenario: str, policy: str, name: str, variant: str = "") -> list[float]:
        rows = [result for result in self._runs[scenario, variant] if result.policy == policy]
        ordered = sorted(rows, key=lambda result: result.seed)
        return [float("nan") if (v := row.summary.get(name)) is None else float(v) for row in ordered]

    def variants(self, scenario: str) -> list[str]:
        return [variant for name, variant in self._runs if name == scenario]


def claims(runs: Results) -> list[ThesisClaim]:
    """Return every quantity that the thesis states, compared with its simulated value.

    Args:
        runs: results of all `SCENARIOS`; every policy ran with the same seeds.
    """
    figures = _Figures(runs)
    parts = (_malleability, _pareto, _deadlines, _budget, _fairness, _load)
    return [claim for part in parts for claim in part(figures)]


def _malleability(at: _Figures) -> Iterator[ThesisClaim]:
    for policy, thesis in (("pollux", "2.2 to 2.3"), ("themis", "about 2.2")):
        rigid = at.values("thesis-malleability", policy, "jobs_per_hour", _RIGID)
        malleable = at.values("thesis-malleability", policy, "jobs_per_hour", _MALLEABLE)
        if policy == "pollux":
            yield _claim("5.3", "pollux, rigid, jobs/h", "4.7", rigid, (3.5, 6))
            yield _claim("5.3", "pollux, malleable, jobs/h", "10.9", malleable, (8, 14))
        ratios = [m / r for m, r in zip(malleable, rigid, strict=True)]
        yield _claim("5.3", f"{policy}, malleable / rigid", thesis, ratios, (1.7, 3), (1.1, 99))


def _pareto(at: _Figures) -> Iterator[ThesisClaim]:
    name = "thesis-pareto"
    pollux, zeus = (at.values(name, policy, "energy_kwh") for policy in ("pollux", "zeus"))
    rates = {p: at.values(name, p, "jobs_per_hour") for p in ("pollux", "zeus", "aurachronos")}
    sigma = _deviation(rates["pollux"])
    more = [z - p for p, z in zip(rates["pollux"], rates["zeus"], strict=True)]
    yield _claim("5.4", "pollux, kWh", "57", pollux, (50, 64))
    yield _claim("5.4", "zeus, kWh", "51", zeus, (45, 57))
    saved = _percent(zeus, pollux)
    yield _claim("5.4", "zeus against pollux, energy %", "-10.5", saved, (-16, -6), (-99, -1))
    yield _claim("5.4", "zeus less pollux, jobs/h", "0.1, within 1 sigma", more, (-sigma, sigma))
    lost = [a / z for a, z in zip(rates["aurachronos"], rates["zeus"], strict=True)]
    yield _claim("5.4", "aurachronos / zeus, jobs/h", "0.80", lost, (0.7, 0.9), (0, 0.98))


def _deadlines(at: _Figures) -> Iterator[ThesisClaim]:
    missed = {
        policy: [100 * x for x in at.values("thesis-sla", policy, "deadline_miss_rate")]
        for policy in ("pollux", "zeus", "aurachronos")
    }
    yield _claim("5.5", "pollux, missed deadlines %", "15", missed["pollux"], (8, 30), (3, 100))
    yield _claim("5.5", "zeus, missed deadlines %", "9", missed["zeus"], (5, 18), (3, 100))
    difference = [z - p for p, z in zip(missed["pollux"], missed["zeus"], strict=True)]
    yield _claim("5.5", "zeus less pollux, points", "-6", difference, (-15, -3), (-99, -1))
    yield _claim("5.5", "aurachronos, missed deadlines %", "under 1", missed["aurachronos"], (0, 1), (0, 3))


def _budget(at: _Figures) -> Iterator[ThesisClaim]:
    name = "thesis-budget"
    peak = [max(at.values(name, "charon", "peak_watts"))]
    yield _claim("5.6", "charon, highest W of all runs", "4500", peak, (0, 4500))
    over = at.values(name, "charon", "over_budget_s")
    yield _claim("5.6", "charon, s above the budget", "0", over, (0, 0))
    others = [w for p in ("pollux", "zeus", "aurachronos") for w in at.values(name, p, "peak_watts")]
    yield _claim("5.6", "others, peak W", "5000 to 7500", others, (5000, 8500), (4500, 99_999))
    yield _claim("5.6", "charon, jobs/h", "8.3", at.values(name, "charon", "jobs_per_hour"), (7, 10))
    less = _percent(at.values(name, "charon", "energy_kwh"), at.values(name, "pollux", "energy_kwh"))
    yield _claim("5.6", "charon against pollux, energy %", "under -50", less, (-65, -40), (-99, -10))


def _fairness(at: _Figures) -> Iterator[ThesisClaim]:
    name = "thesis-fairness"
    jain = {
        policy: at.values(name, policy, "jain_jct")
        for policy in ("pollux", "zeus", "themis", "hades", "themis-printed", "hades-printed")
    }
    blind = min(statistics.fmean(jain[policy]) for policy in ("pollux", "zeus"))
    for policy, values in jain.items():
        if policy in ("pollux", "zeus"):
            yield _claim("5.7", f"{policy}, Jain of JCT", "about 1.0", values, (0.95, 1))
        else:
            yield _claim(
                "5.7", f"{policy}, Jain of JCT", "0.8 to 0.9", values, (0.75, 0.92), (0, blind - 0.01)
            )
    for suffix in ("", "-printed"):
        hades, themis = (at.values(name, f"{policy}{suffix}", "energy_kwh") for policy in ("hades", "themis"))
        what = f"hades{suffix} against themis{suffix}, energy %"
        yield _claim("5.8", what, "-2", _percent(hades, themis), (-5, -1), (-99, -0.5))
    rates = (at.values(name, policy, "jobs_per_hour") for policy in ("hades", "themis"))
    more = [h - t for h, t in zip(*rates, strict=True)]
    yield _claim("5.8", "hades less themis, jobs/h", "significantly more", more, (0.5, 9), (0.1, 9))


def _load(at: _Figures) -> Iterator[ThesisClaim]:
    name = "thesis-load"
    variants = at.variants(name)
    policies = ("pollux", "themis", "chronos", "zeus", "hades", "aurachronos")
    jct = {(v, p): at.values(name, p, "mean_jct_s", v) for v in variants for p in policies}
    for variant in variants:
        rate = variant.rpartition(" ")[2]
        for policy in policies:
            minutes = [seconds / 60 for seconds in jct[variant, policy]]
            yield _claim("5.9", f"{policy} at {rate}/s, JCT min", "(curve)", minutes)
    low, high = variants[0], variants[-1]
    mean = {key: statistics.fmean(values) for key, values in jct.items()}
    spread = [max(mean[low, p] for p in policies) / min(mean[low, p] for p in policies)]
    yield _claim("5.9", "slowest / fastest policy at the lowest load", "about 1", spread, (1, 1.2))
    for policy, thesis in (("zeus", "much under 1"), ("hades", "much under 1")):
        ratios = [z / p for p, z in zip(jct[high, "pollux"], jct[high, policy], strict=True)]
        what = f"{policy} / pollux, JCT at the highest load"
        yield _claim("5.9", what, thesis, ratios, (0, 0.8), (0, 0.95))
    least = min(mean[high, policy] for policy in policies)
    yield _claim(
        "5.9", "hades / best policy at the highest load", "1", [mean[high, "hades"] / least], (1, 1.05)
    )


Range = tuple[float, float]


def _claim(
    figure: str,
    quantity: str,
    thesis: str,
    values: Sequence[float],
    size: Range | None = None,
    direction: Range | None = None,
) -> ThesisClaim:
    """Compare a claim of the thesis with own results, and return the claim with a verdict.

    The verdict depends on the mean of `values`:
    - `yes`: the mean is in the range `size`;
    - `direction`: the mean is outside `size`, but in the range `direction`;
    - `no`: the mean is in neither range;
    - `-`: there is no value to compare, or `size` is None.
    """
    numbers = [value for value in values if value == value]
    if not numbers:
        return ThesisClaim(figure, quantity, thesis, None, "-")
    mean = statistics.fmean(numbers)
    agrees = "-" if size is None else "yes" if _within(mean, size) else "no"
    if agrees == "no" and direction is not None and _within(mean, direction):
        agrees = "direction"
    return ThesisClaim(figure, quantity, thesis, (mean, _deviation(numbers)), agrees)


def _within(value: float, bounds: Range) -> bool:
    return bounds[0] <= value <= bounds[1]


def _percent(values: Sequence[float], against: Sequence[float]) -> list[float]:
    return [100 * (value / other - 1) for value, other in zip(values, against, strict=True)]


def _deviation(values: Sequence[float]) -> float:
    return statistics.stdev(values) if len(values) > 1 else 0.0


def rows(claims: Sequence[ThesisClaim]) -> list[list[str]]:
    """Return the rows of a text table that compares the claims of the thesis with our results.

    The first row is the header.
    """
    header = ["figure", "quantity", "thesis", "ours", "agrees"]
    return [header, *([c.figure, c.quantity, c.thesis, _text(c.ours), c.agrees] for c in claims)]


def objects(claims: Sequence[ThesisClaim]) -> list[dict[str, Any]]:
    """Return the comparisons with claims of the thesis as objects for JSON."""
    return [
        {
            "figure": claim.figure,
            "quantity": claim.quantity,
            "thesis": claim.thesis,
            "mean": claim.ours[0] if claim.ours else None,
            "deviation": claim.ours[1] if claim.ours else None,
            "agrees": claim.agrees,
        }
        for claim in claims
    ]


def _text(value: tuple[float, float] | None) -> str:
    if value is None:
        return "-"
    mean, deviation = value
    digits = 0 if abs(mean) >= 1000 else 1 if abs(mean) >= 3 else 2
    return f"{mean:.{digits}f}±{deviation:.{digits}f}"
