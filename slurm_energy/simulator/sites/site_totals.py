"""Totals of a simulation of several sites.

The totals are costs, emissions and transfers of data. They are computed for each site and for all
sites together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from slurm_energy.placement.sites import Floats, Site
from slurm_energy.quantities import JOULES_PER_KWH
from slurm_energy.simulator.power.step_function import StepFunction, integral_of_product
from slurm_energy.simulator.results.simulation_result import SimulationResult
from slurm_energy.simulator.sites.site_placement import SitePlan
from slurm_energy.simulator.sites.site_series import SiteSeries

_JOULES_PER_MWH: Final = 3.6e9
_GRAMS_PER_KG: Final = 1e3


@dataclass(frozen=True, slots=True)
class SiteResult:
    """Result of the simulation of one site (a computing centre).

    Attributes:
        name: name of the site.
        jobs: indices of the jobs that were placed at the site, in the workload of all sites.
        result: result of the simulation of the site; None if no job was placed at the site and its nodes
            stay on.
    """

    name: str
    jobs: np.ndarray
    result: SimulationResult | None


def totals_of(
    whole: SimulationResult,
    results: Sequence[SiteResult],
    series: Sequence[SiteSeries],
    sites: Sequence[Site],
    plan: SitePlan,
    idle_watts: Sequence[float],
) -> dict[str, Any]:
    """Return the totals by name. Totals of a site have the name of the site as prefix.

    `cost` and `carbon_kg` cover all energy until the end of the last site. `job_cost` and `job_carbon_kg`
    cover the energy of the jobs and of the transfers. A total is None if the price or the carbon intensity of
    a site is unknown.
    """
    moved = int(np.sum((plan.site >= 0) & (plan.site != plan.home)))
    placed = int(np.sum(plan.site >= 0))
    totals: dict[str, Any] = {
        "moved_share": moved / placed if placed else None,
        "transfer_kwh": float(np.sum(plan.transfer_kwh)),
    }
    sums: dict[str, list[float]] = {}
    for at, (site, steps) in enumerate(zip(results, series, strict=True)):
        power = power_until(site.result, whole.end_s, idle_watts[at])
        own: dict[str, float | None] = {
            "jobs": float(len(site.jobs)),
            "energy_kwh": integral_of_product(*power, StepFunction.constant(1.0)) / JOULES_PER_KWH,
            "mean_wait_s": _mean_wait(site.result),
        }
        for name, weights, unit in (
            ("cost", steps.price, _JOULES_PER_MWH),
            ("carbon_kg", steps.carbon, JOULES_PER_KWH * _GRAMS_PER_KG),
        ):
            figures = _figures(whole, site, weights, power, sites[at].pue, plan, at)
            for total, joules in zip((name, f"job_{name}"), figures, strict=True):
                own[total] = joules / unit
                sums.setdefault(total, []).append(joules / unit)
        totals |= {f"{site.name}.{name}": _known_or_none(value) for name, value in own.items()}
    return totals | {name: _known_or_none(math.fsum(values)) for name, values in sums.items()}


def power_until(result: SimulationResult | None, end_s: float, idle_watts: float) -> tuple[Floats, Floats]:
    """Return the power of a site over time until `end_s`. A site without jobs draws its idle power."""
    if result is None:
        return np.array([0.0, end_s]), np.array([idle_watts, idle_watts])
    times, watts = result.power
    if end_s <= result.end_s:
        return times, watts
    before = times < result.end_s
    return np.append(times[before], [result.end_s, end_s]), np.append(watts[before], [idle_watts, idle_watts])


def _figures(
    whole: SimulationResult,
    site: SiteResult,
    weights: StepFunction | None,
    power: tuple[Floats, Floats],
    pue: float,
    plan: SitePlan,
    at: int,
) -> tuple[float, float]:
    """Return the cost or the emissions of the energy of one site, and of its jobs alone.

    Both results are integrals of power over time, weighted by the step function `weights`, for example the
    price of energy. They include the power usage effectiveness `pue` and the transfers of data. Both results
    are NaN if `weights` is None.
    """
    if weights is None:
        return math.nan, math.nan
    network = plan.transfer_kwh[:, at] * JOULES_PER_KWH
    rows = np.flatnonzero(network)
    begin_s = whole.workload.submit_s[rows]
    transfers = _weighted(weights, begin_s, begin_s + plan.transfer_s[rows], network[rows])
    jobs = 0.0
    if site.result is not None:
        accounts = site.result.accounts
        ran = np.flatnonzero(~np.isnan(accounts.start_s))
        end_s = np.where(np.isnan(accounts.end_s), site.result.end_s, accounts.end_s)[ran]
        jobs = _weighted(weights, accounts.start_s[ran], end_s, accounts.energy_joules[ran])
    return pue * integral_of_product(*power, weights) + transfers, pue * jobs + transfers


def _weighted(weights: StepFunction, start_s: Floats, end_s: Floats, joules: Floats) -> float:
    """Return the sum of energies, each weighted by a price or carbon intensity.

    The weight of an energy is the mean of the step function `weights` over the time in which the energy was
    used.
    """
    edges = weights.times_s
    lengths = np.diff(edges, append=edges[-1])
    before = np.concatenate([[0.0], np.cumsum(weights.values * lengths)])

    def integral(time_s: Floats) -> Floats:
        row = np.maximum(0, np.searchsorted(edges, time_s, "right") - 1)
        result: Floats = before[row] + weights.values[row] * (time_s - edges[row])
        return result

    span = np.maximum(end_s - start_s, 1e-6)
    return float(np.sum(joules * (integral(start_s + span) - integral(start_s)) / span))


def _mean_wait(result: SimulationResult | None) -> float | None:
    waited = result.wait_s() if result is not None else ()
    return float(np.mean(waited)) if len(waited) else None


def _known_or_none(value: float | None) -> float | None:
    return None if value is None or math.isnan(value) else value
