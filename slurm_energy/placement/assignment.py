"""Choice of a cluster for each of several jobs, one job after another.

Each choice uses the expected load of the clusters. This load includes the jobs that have just been placed.
Otherwise the decisions for all jobs of a burst would be based on the same short queue, and all these jobs
would be placed at the same cluster.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from slurm_energy.placement.choice import PlacementOptions, choose
from slurm_energy.placement.expected_load import ExpectedLoad
from slurm_energy.placement.scores import PlacementScores, score
from slurm_energy.placement.sites import Floats, PlacementJobs, Site


@dataclass(frozen=True, slots=True)
class PlacementRequest:
    """A job before its submission, with predictions for each of m clusters.

    Attributes:
        units: number of units (CPUs, GPUs or nodes) that the job needs on each cluster, shape (m,).
        run_s: predicted run time in seconds, shape (m,); NaN if the job cannot run on the cluster.
        watts: predicted mean power in watts, shape (m,).
        home: index of the cluster at which the job's data are, or `NO_HOME`.
        data_bytes: bytes to transfer if the job runs on another cluster than its home.
    """

    units: Floats
    run_s: Floats
    watts: Floats
    home: int
    data_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class PlacementDecision:
    """Decision about the cluster on which one job shall run.

    Attributes:
        site: index of the chosen cluster; -1 if no cluster can run the job.
        reason: reason for the choice, as a clause that continues "because".
        start_s: expected start of the job; NaN if no cluster can run the job.
        scores: predicted energy, cost and other quantities on each cluster, as a table with one row.
        wait_s: expected time in the queue on each cluster, shape (m,); infinite if the job is too large for
            the cluster.
        score: weighted score of each cluster, shape (m,).
    """

    site: int
    reason: str
    start_s: float
    scores: PlacementScores
    wait_s: Floats
    score: Floats


def place(
    request: PlacementRequest,
    sites: Sequence[Site],
    loads: Sequence[ExpectedLoad],
    options: PlacementOptions,
    now_s: float,
) -> PlacementDecision:
    """Choose a cluster for a job, and add the job to the expected load of this cluster."""
    waits = np.full(len(sites), np.inf)
    for at, load in enumerate(loads):
        if np.isfinite(request.run_s[at]):
            start_s = load.earliest_start_s(float(request.units[at]), float(request.run_s[at]), now_s)
            waits[at] = start_s - now_s
    jobs = PlacementJobs(
        run_s=request.run_s[None, :],
        watts=request.watts[None, :],
        wait_s=waits[None, :],
        home=np.array([request.home], np.int64),
        data_bytes=np.array([request.data_bytes], np.float64),
    )
    scores = score(jobs, sites, now_s)
    choice = choose(scores, jobs.home, options, now_s)
    site = int(choice.site[0])
    start_s = float("nan")
    if site >= 0:
        # The data may arrive after the units become free. The units may be taken again by then.
        earliest_s = float(scores.start_s[0, site])
        units, run_s = float(request.units[site]), float(request.run_s[site])
        start_s = loads[site].earliest_start_s(units, run_s, earliest_s)
        loads[site].add(units, start_s, run_s)
    return PlacementDecision(site, choice.reason[0], start_s, scores, waits, choice.score[0])
