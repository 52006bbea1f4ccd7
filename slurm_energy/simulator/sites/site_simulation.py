"""Simulation of several sites: places the jobs, simulates each site alone, and merges the results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from slurm_energy.errors import UsageError
from slurm_energy.placement.choice import options_of
from slurm_energy.placement.sites import Floats
from slurm_energy.simulator.cluster import NodeKind
from slurm_energy.simulator.results.simulation_result import EnergyAccounts, JobOutcome, SimulationResult
from slurm_energy.simulator.sites.site_placement import SiteNodes, SitePlan, plan_jobs
from slurm_energy.simulator.sites.site_series import SiteSeries
from slurm_energy.simulator.sites.site_totals import SiteResult, power_until, totals_of
from slurm_energy.simulator.sites.site_workload import on_all_sites, part_at_site
from slurm_energy.simulator.workloads.workload import Workload

if TYPE_CHECKING:
    from slurm_energy.simulator.scenario import Scenario

Simulate = Callable[[Workload, Sequence[NodeKind], float | None], SimulationResult]
"""Function that simulates a workload on kinds of nodes, until a time in seconds or else as configured."""
_SEED: Final = 7919


def simulate_sites(
    scenario: Scenario, work: Workload, placement: str, seed: int, simulate: Simulate
) -> SimulationResult:
    """Simulate a workload at all sites of a scenario. Return the merged result, with `site_totals`.

    Args:
        scenario: scenario with sites.
        work: the jobs of all sites.
        placement: name of the placement policy.
        seed: seed of the random numbers that give each job a home site and a data size.
        simulate: function that simulates the workload of one site.

    Raises:
        UsageError: a file of prices or carbon intensities cannot be read, or the policy is unknown.
    """
    section, names = scenario.placement, list(scenario.kinds)
    options = options_of(
        placement,
        section.weights,
        max_delay_s=section.max_delay_hours * 3600,
        min_saving=section.min_saving_percent / 100,
        confidence=section.confidence,
    )
    numbers = [tuple(names.index(name) for name in site.nodes) for site in scenario.sites.values()]
    kinds = scenario.nodes()
    nodes = [SiteNodes(own, sum(kinds[k].nodes * kinds[k].units for k in own)) for own in numbers]
    series = [SiteSeries.read(scenario, site) for site in scenario.sites.values()]
    last_s = float(work.submit_s[-1]) if work.count else 0.0
    sites = [
        one.site(name, site, section.start_unix_s, last_s)
        for one, (name, site) in zip(series, scenario.sites.items(), strict=True)
    ]
    if not scenario.models:
        factors = (
            [site.speed for site in scenario.sites.values()],
            [s.power for s in scenario.sites.values()],
        )
        work = on_all_sites(work, numbers, *factors)
    home, data_bytes = _homes(scenario, work.count, seed)
    plan = plan_jobs(
        *(work, sites, nodes, home, data_bytes, options, section.known_hours * 3600, section.start_unix_s)
    )
    own_kinds = [[kinds[kind] for kind in own] for own in numbers]
    parts: list[Workload] = []
    results: list[SiteResult] = []
    for at, name in enumerate(scenario.sites):
        jobs = np.flatnonzero(plan.site == at)
        arrival_s = work.submit_s[jobs] + plan.transfer_s[jobs]
        # The queue of each site contains the jobs in this order. `jobs` must have the same order.
        order = np.argsort(arrival_s, kind="stable")
        parts.append(part_at_site(work, jobs, arrival_s, numbers[at]))
        result = simulate(parts[at], own_kinds[at], None) if len(jobs) else None
        results.append(SiteResult(name, jobs[order], result))
    if scenario.powers_nodes_down:
        results = _until_last_end(results, parts, own_kinds, simulate)
    idle_watts = [sum(kinds[k].nodes * kinds[k].idle_watts for k in own) for own in numbers]
    whole = _merged(work, results, numbers, kinds, plan, idle_watts)
    totals = totals_of(whole, results, series, sites, plan, idle_watts)
    return replace(whole, site_totals=totals)


def _end_s(results: Sequence[SiteResult]) -> float:
    return max((site.result.end_s for site in results if site.result), default=0.0)


def _until_last_end(
    results: Sequence[SiteResult],
    parts: Sequence[Workload],
    kinds: Sequence[Sequence[NodeKind]],
    simulate: Simulate,
) -> list[SiteResult]:
    """Return the results of all sites with the power of their nodes until the last site finishes.

    A site that finishes earlier is simulated again until this time, because its idle nodes are powered down
    one by one. The results of its jobs are kept, and agree with the new power if the policy is deterministic.

    Args:
        results: results of the simulations that ended with the last job of each site.
        parts: the jobs of each site.
        kinds: the kinds of nodes of each site.
        simulate: function that simulates the workload of one site.
    """
    end_s = _end_s(results)
    return [
        site
        if site.result is not None and site.result.end_s >= end_s
        else _with_power_of(site, simulate(work, own_kinds, end_s), end_s)
        for site, work, own_kinds in zip(results, parts, kinds, strict=True)
    ]


def _with_power_of(site: SiteResult, longer: SimulationResult, end_s: float) -> SiteResult:
    """Return the result of a site with power and energy of a longer simulation that ends at `end_s`."""
    if site.result is None:
        return replace(site, result=longer)
    result = replace(
        site.result,
        end_s=end_s,
        power=longer.power,
        energy_joules=longer.energy_joules,
        idle_joules=longer.idle_joules,
    )
    return replace(site, result=result)


def _homes(scenario: Scenario, count: int, seed: int) -> tuple[np.ndarray, Floats]:
    """Draw where the jobs of a simulation of several sites have their data.

    Two random values are returned for each job. The first is the index of its home, the site at which its
    data are. The second is the size of the data in bytes.
    """
    shares = np.array([site.share for site in scenario.sites.values()])
    if not shares.sum() > 0:
        raise UsageError("[site.*] share", "all shares are 0", "give at least one site a share of the jobs")
    random = np.random.default_rng((seed, _SEED))
    home = random.choice(len(shares), count, p=shares / shares.sum())
    return home.astype(np.int64), random.exponential(scenario.placement.data_gb * 1e9, count)


def _merged(
    work: Workload,
    results: Sequence[SiteResult],
    numbers: Sequence[tuple[int, ...]],
    kinds: Sequence[NodeKind],
    plan: SitePlan,
    idle_watts: Sequence[float],
) -> SimulationResult:
    """Merge the results of the simulations of all sites into one result.

    A site that finishes earlier is idle until the last site finishes.
    """
    accounts = EnergyAccounts.empty(work.count)
    accounts.outcome[plan.site < 0] = JobOutcome.UNRUNNABLE
    end_s = _end_s(results)
    energy = idle = over_s = 0.0
    powers, passes, notes = [], 0, list[str]()
    for at, site in enumerate(results):
        powers.append(power_until(site.result, end_s, idle_watts[at]))
        if site.result is None:
            energy, idle = energy + idle_watts[at] * end_s, idle + idle_watts[at] * end_s
            continue
        result, rest = site.result, idle_watts[at] * max(0.0, end_s - site.result.end_s)
        _copy_accounts(work, accounts, site.jobs, result, numbers[at])
        energy, idle = energy + result.energy_joules + rest, idle + result.idle_joules + rest
        passes, over_s = passes + result.passes, over_s + result.over_budget_s
        notes += [f"{site.name}: {note}" for note in result.notes]
    times = np.unique(np.concatenate([times for times, _ in powers])) if powers else np.zeros(1)
    total = np.zeros(len(times))
    for own_times, watts in powers:
        total += watts[np.maximum(0, np.searchsorted(own_times, times, "right") - 1)]
    return SimulationResult(
        *(work, accounts, end_s, energy, idle, (times, total), float(np.max(total)), passes, over_s),
        units=sum(kinds[k].nodes * kinds[k].units for own in numbers for k in own),
        notes=notes,
    )


def _copy_accounts(
    work: Workload,
    accounts: EnergyAccounts,
    jobs: np.ndarray,
    result: SimulationResult,
    kinds: tuple[int, ...],
) -> None:
    for field in fields(accounts):
        if field.name != "shape":
            getattr(accounts, field.name)[jobs] = getattr(result.accounts, field.name)
    for row, job in enumerate(jobs.tolist()):
        own = [shape for shape in work.shapes(job) if int(work.hardware[shape]) in kinds]
        shape = int(result.accounts.shape[row])
        accounts.shape[job] = own[shape - int(result.workload.first[row])] if shape >= 0 else -1
