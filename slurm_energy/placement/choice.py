"""Choice of a cluster for each job, based on predicted quantities.

The home of a job is the cluster that has its data. A job leaves its home only under two conditions. The
saving exceeds both a minimum and the uncertainty of the forecasts, and the job does not end much later.
These bounds prevent moves without a real advantage.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from slurm_energy.errors import UsageError
from slurm_energy.placement.scores import PlacementScores
from slurm_energy.placement.sites import NO_HOME, Floats, Ints

_SECONDS_PER_HOUR: Final = 3600.0
TERMS: Final = ("cost", "energy", "carbon", "time", "sun")
"""Terms of a weighted objective: unit of the currency, kWh, kg CO2e, hours until the end, mean sunlight."""

POLICIES: Final[Mapping[str, Mapping[str, float]]] = {
    "home": {},
    "cheapest": {"cost": 1.0},
    "cleanest": {"carbon": 1.0},
    "least-energy": {"energy": 1.0},
    "fastest": {"time": 1.0},
    "follow-the-sun": {"sun": -1.0},
}
"""Weights of the terms by name of the policy; the lowest sum is best. `home` never moves a job."""
WEIGHTED: Final = "weighted"
"""Name of the policy with the site's own weights."""


@dataclass(frozen=True, slots=True)
class PlacementOptions:
    """Settings for the choice of a cluster.

    The home of a job is the cluster at which its data are.

    Attributes:
        weights: weights by name of the `TERMS`. A term without a weight has no effect. Without any
            weight, jobs stay at home.
        max_delay_s: maximum time in seconds by which a job may end later at another cluster than at home.
            A job that would end even later stays at home.
        min_saving: minimum saving for which a job leaves its home, as a fraction of its score at home.
        confidence: minimum saving for which a job leaves its home, in standard deviations of the
            difference between the scores of the home and of the other cluster.
    """

    weights: Mapping[str, float] = field(default_factory=dict)
    max_delay_s: float = math.inf
    min_saving: float = 0.05
    confidence: float = 1.0


@dataclass(frozen=True, slots=True)
class PlacementChoice:
    """The chosen clusters of n jobs.

    Attributes:
        site: index of the chosen cluster, shape (n,); -1 if the job can run on none.
        reason: reason for each choice, as a clause that continues "because".
        score: weighted score of each cluster, shape (n, m). Lower is better. NaN if unknown or impossible.
    """

    site: Ints
    reason: list[str]
    score: Floats


def options_of(policy: str, weights: Mapping[str, float], **more: float) -> PlacementOptions:
    """Return the options of the placement policy `policy`.

    Args:
        policy: one of `POLICIES`, or `WEIGHTED`.
        weights: weights for `WEIGHTED`.
        **more: further attributes of `PlacementOptions` by name.

    Raises:
        UsageError: the policy or a term is unknown, or the policy has no weights.
    """
    if unknown := sorted(set(weights) - set(TERMS)):
        raise UsageError(f"placement weight '{unknown[0]}'", "unknown", f"one of {', '.join(TERMS)}")
    if policy == WEIGHTED and not any(weights.values()):
        raise UsageError(f"placement policy '{WEIGHTED}'", "there are no weights", "set placement.weights")
    if policy == WEIGHTED:
        return PlacementOptions(dict(weights), **more)
    if policy not in POLICIES:
        names = ", ".join([*POLICIES, WEIGHTED])
        raise UsageError(f"placement policy '{policy}'", "unknown", f"one of {names}")
    return PlacementOptions(POLICIES[policy], **more)


def choose(scores: PlacementScores, home: Ints, options: PlacementOptions, now_s: float) -> PlacementChoice:
    """Choose a cluster for each of n jobs from the predicted quantities alone.

    The expected load is not updated between jobs. See `assignment` for jobs that are placed one by one.

    Args:
        scores: predicted energy, cost and other quantities of each job on each cluster.
        home: index of each job's home, shape (n,). The home is the cluster at which the job's data are;
            `NO_HOME` for jobs without a home.
        options: settings for the choice of a cluster.
        now_s: time of the submission in seconds, on the clock of the scores.
    """
    total, deviation = _weighted(scores, options, now_s)
    chosen, reasons = [], []
    for row in range(len(home)):
        site, reason = _one(scores.end_s[row], total[row], deviation[row], int(home[row]), options)
        chosen.append(site)
        reasons.append(reason)
    return PlacementChoice(np.array(chosen, np.int64), reasons, total)


def _weighted(scores: PlacementScores, options: PlacementOptions, now_s: float) -> tuple[Floats, Floats]:
    """Return the weighted scores of n jobs on m clusters, and their standard deviations.

    Both arrays have the shape (n, m).
    """
    columns = {
        "cost": scores.cost,
        "energy": scores.kwh,
        "carbon": scores.carbon_kg,
        "time": (scores.end_s - now_s) / _SECONDS_PER_HOUR,
        "sun": scores.sunlight,
    }
    total = np.where(np.isfinite(scores.end_s), 0.0, np.nan)
    for name, weight in options.weights.items():
        if weight:
            total = total + weight * columns[name]
    # The cost and the emissions of one cluster may be correlated: their deviations are added.
    deviation = np.zeros_like(total)
    for name, column in (("cost", scores.cost_deviation), ("carbon", scores.carbon_deviation_kg)):
        if weight := options.weights.get(name, 0.0):
            deviation = deviation + abs(weight) * np.nan_to_num(column)
    return total, deviation


def _one(
    end_s: Floats, total: Floats, deviation: Floats, home: int, options: PlacementOptions
) -> tuple[int, str]:
    possible = np.isfinite(end_s)
    if not possible.any():
        return -1, "no cluster can run it"
    at_home = home != NO_HOME and bool(possible[home])
    if at_home and not any(options.weights.values()):
        return home, "jobs stay at home"
    latest_s = (end_s[home] if at_home else float(np.nanmin(end_s))) + options.max_delay_s
    known = possible & np.isfinite(total) & (end_s <= latest_s)
    if at_home and not np.isfinite(total[home]):
        return home, "its figures at home are unknown"
    if not known.any():
        return int(np.nanargmin(end_s)), "figures are unknown, it ends soonest there"
    best = int(np.argmin(np.where(known, total, np.inf)))
    if not at_home:
        return best, "it has the best score of the clusters that can run it"
    if best == home:
        return home, "home has the best score"
    saving = float(total[home] - total[best])
    least = options.min_saving * abs(float(total[home]))
    if saving <= least:
        return home, f"the saving elsewhere is at most {100 * options.min_saving:g} %"
    if saving <= options.confidence * math.hypot(deviation[home], deviation[best]):
        return home, "the saving elsewhere is within the uncertainty of the forecast"
    return best, "it saves more than the thresholds"
