"""Workloads of simulations with several sites (clusters).

Before the choice of a site, each job gets shapes (possible sets of resources) on the nodes of each site.
After the choice, the module selects the jobs that run at one site.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np

from slurm_energy.scheduling.queue import Floats, Ints
from slurm_energy.simulator.workloads.workload import SHAPE_COLUMNS, Workload


def on_all_sites(
    work: Workload, kinds_of_site: Sequence[Sequence[int]], speed: Sequence[float], power: Sequence[float]
) -> Workload:
    """Return a workload in which each job can run at each site.

    A shape of a job is one possible allocation: a kind of node and a number of units. The shapes
    that a job has at a site are kept. If a job has no shape on the nodes of a site, the job's
    shapes are copied to the first kind of nodes of this site. All times at a site are divided by
    the site's `speed`, and all powers are multiplied by the site's `power`.

    Args:
        work: workload with the jobs.
        kinds_of_site: kinds of nodes of each site.
        speed: speed of the units of each site, relative to the units for which the workload states
            times.
        power: power of the units of each site, relative to the units for which the workload states
            powers.
    """
    site_of = {kind: site for site, kinds in enumerate(kinds_of_site) for kind in kinds}
    sites = np.array([site_of[kind] for kind in range(len(site_of))], np.int64)
    rows: list[int] = []
    hardware: list[int] = []
    counts = []
    for job in range(work.count):
        shapes = work.shapes(job)
        before = len(rows)
        present = {int(sites[work.hardware[shape]]) for shape in shapes}
        for site, kinds in enumerate(kinds_of_site):
            for shape in shapes:
                kind = int(work.hardware[shape])
                if site in present and int(sites[kind]) != site:
                    continue
                rows.append(shape)
                hardware.append(kind if site in present else kinds[0])
        counts.append(len(rows) - before)
    columns: dict[str, Any] = {name: getattr(work, name)[rows] for name in SHAPE_COLUMNS}
    at = sites[np.array(hardware, np.int64)] if rows else np.zeros(0, np.int64)
    columns["hardware"] = np.array(hardware, np.int64)
    for name in ("time_s", "predicted_time_s"):
        columns[name] = columns[name] / np.asarray(speed)[at]
    for name in ("power_watts", "predicted_watts"):
        columns[name] = columns[name] * np.asarray(power)[at]
    if np.any(np.asarray(speed) != 1.0) and not np.all(np.isnan(work.time_limit_s)):
        slowest = float(np.min(speed))
        columns["time_limit_s"] = work.time_limit_s / min(1.0, slowest)
    return replace(work, first=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64), **columns)


def part_at_site(work: Workload, jobs: Ints, submit_s: Floats, kinds: Sequence[int]) -> Workload:
    """Return a workload with only the jobs that run at one site, for the simulation of this site.

    Each job has several possible sets of resources. The result keeps only those sets that are possible at
    this site. It names a kind of nodes by its index in `kinds`.

    Args:
        work: workload with all jobs.
        jobs: rows of the site's jobs in `work`.
        submit_s: time at which each of these jobs enters the site's queue; an array as long as `jobs`.
        kinds: kinds of nodes of the site.
    """
    order = np.argsort(submit_s, kind="stable")
    jobs, submit_s = jobs[order], submit_s[order]
    number = {kind: at for at, kind in enumerate(kinds)}
    shapes: list[int] = []
    first = [0]
    for job in jobs.tolist():
        shapes += [shape for shape in work.shapes(job) if int(work.hardware[shape]) in number]
        first.append(len(shapes))
    columns: dict[str, Any] = {}
    for field in fields(work):
        values = getattr(work, field.name)
        if field.name in SHAPE_COLUMNS:
            columns[field.name] = values[shapes]
        elif isinstance(values, np.ndarray) and field.name != "first":
            columns[field.name] = values[jobs]
    columns["submit_s"] = submit_s
    columns["hardware"] = np.array([number[int(kind)] for kind in columns["hardware"]], np.int64)
    names = tuple(work.names[job] for job in jobs.tolist()) if work.names else ()
    caps = {row: work.cap_points[job] for row, job in enumerate(jobs.tolist()) if job in work.cap_points}
    return replace(work, first=np.array(first, np.int64), names=names, cap_points=caps, **columns)
