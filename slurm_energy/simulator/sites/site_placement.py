"""Decisions of a placement policy for all jobs of a scenario with several sites.

Jobs are placed one by one at their submission, by `placement.assignment`, as `senergy where` does. The
expected load of a site includes the jobs that have already been placed at this site. Each of these jobs is
assumed to run for its predicted run time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from slurm_energy.placement.assignment import PlacementRequest, place
from slurm_energy.placement.choice import PlacementOptions
from slurm_energy.placement.expected_load import ExpectedLoad
from slurm_energy.placement.scores import transfer_seconds
from slurm_energy.placement.sites import Floats, Ints, Site
from slurm_energy.signals import SignalColumns, SignalForecast, SignalName
from slurm_energy.simulator.workloads.workload import Workload


@dataclass(frozen=True, slots=True)
class SitePlan:
    """Placement of all n jobs of a workload.

    Attributes:
        site: index of the site at which each job runs, shape (n,); -1 if the job fits at no site.
        home: index of the site with each job's data, shape (n,).
        transfer_s: seconds that the transfer of each job's data takes, shape (n,).
        transfer_kwh: electricity in kWh that the network uses for this transfer, by job and site, shape (n,
            m).
    """

    site: Ints
    home: Ints
    transfer_s: Floats
    transfer_kwh: Floats


@dataclass(frozen=True, slots=True)
class SiteNodes:
    """Nodes of one site: indices of its kinds of nodes, and total number of units."""

    kinds: tuple[int, ...]
    units: int


def plan_jobs(
    work: Workload,
    sites: Sequence[Site],
    nodes: Sequence[SiteNodes],
    home: Ints,
    data_bytes: Floats,
    options: PlacementOptions,
    known_s: float,
    start_unix_s: float,
) -> SitePlan:
    """Choose a site (cluster at one location) for every job of a workload, in order of submission.

    Args:
        work: the jobs. A job has shapes (numbers of GPUs) on the nodes of each site at which it can run.
        sites: the m sites, each with its signals (electricity price and carbon intensity) in Unix time.
        nodes: nodes of each site.
        home: index of the home site of each job.
        data_bytes: size of the data of each job.
        options: settings for the choice of a site.
        known_s: seconds. At each time, the signals of the next `known_s` seconds are known.
        start_unix_s: Unix time of the start of the simulation.
    """
    loads = [ExpectedLoad(one.units, start_unix_s) for one in nodes]
    chosen = np.full(work.count, -1)
    transfer_s, transfer_kwh = np.zeros(work.count), np.zeros((work.count, len(sites)))
    for job in range(work.count):
        now_s = start_unix_s + float(work.submit_s[job])
        for load in loads:
            load.advance(now_s)
        at = int(home[job])
        request = _request(work, job, nodes, at, float(data_bytes[job]))
        decision = place(request, [_known(site, now_s, known_s) for site in sites], loads, options, now_s)
        site = chosen[job] = decision.site
        if site >= 0 and site != at:
            transfer_s[job] = transfer_seconds(sites[site], sites[at], float(data_bytes[job]))
            for end in (site, at):
                transfer_kwh[job, end] = data_bytes[job] / 1e9 * sites[end].transfer_kwh_per_gb
    return SitePlan(chosen, home, transfer_s, transfer_kwh)


def _request(
    work: Workload, job: int, nodes: Sequence[SiteNodes], home: int, data_bytes: float
) -> PlacementRequest:
    """Return the request to choose a site (cluster) for a simulated job.

    A job can have several possible sets of resources (shapes) at a site. The one with the shortest predicted
    time represents the job there.
    """
    units, run_s, watts = (np.full(len(nodes), np.nan) for _ in range(3))
    for at, site in enumerate(nodes):
        fitting = [
            shape
            for shape in work.shapes(job)
            if int(work.hardware[shape]) in site.kinds and work.units[shape] <= site.units
        ]
        if fitting:
            best = min(fitting, key=lambda shape: float(work.predicted_time_s[shape]))
            units[at], run_s[at] = work.units[best], work.predicted_time_s[best]
            watts[at] = work.predicted_watts[best]
    return PlacementRequest(units, run_s, watts, home, data_bytes)


def _known(site: Site, now_s: float, known_s: float) -> Site:
    """Return a copy of a site with only those signal values that are known at `now_s`.

    These are the values from `now_s` until `known_s` seconds later.
    """
    signals = site.signals
    if signals is None:
        return site
    first = max(0, math.floor((now_s - signals.start_s) / signals.step_s))
    last = max(first + 1, math.ceil((now_s + known_s - signals.start_s) / signals.step_s))
    columns: dict[str, Any] = {
        name.value: SignalForecast(column.mean[first:last], column.deviation[first:last], column.source)
        for name in (SignalName.PRICE, SignalName.CARBON)
        if (column := signals.forecast(name)) is not None
    }
    start_s = signals.start_s + first * signals.step_s
    return replace(site, signals=SignalColumns(start_s, signals.step_s, **columns))
