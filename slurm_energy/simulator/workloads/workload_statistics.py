"""Statistics of a workload: period, sizes, run times, users, and the load on a cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np

from slurm_energy.scheduling.queue import Floats, Ints
from slurm_energy.simulator.cluster import NodeKind
from slurm_energy.simulator.inputs import LoadedWorkload
from slurm_energy.simulator.inputs.trace_selection import FIRST_DATE_S
from slurm_energy.simulator.workloads.offered_load import offered_load
from slurm_energy.simulator.workloads.workload import Workload

_QUANTILES: Final = {"min": 0.0, "p25": 0.25, "median": 0.5, "p75": 0.75, "p95": 0.95, "max": 1.0}
_TOP: Final = 5


def statistics(loaded: LoadedWorkload, kinds: Sequence[NodeKind] = ()) -> dict[str, Any]:
    """Return the statistics of the jobs of workload files, by name.

    NaN or None marks an unknown value. A shape is a possible choice of resources. For a job with several
    shapes, the first shape counts.

    Args:
        loaded: the jobs, with the problems found in their files.
        kinds: kinds of nodes of the cluster. If empty, there is no cluster, and the load is unknown.
    """
    work, problems = loaded.workload, loaded.problems
    first = work.first[:-1]
    units, time_s = work.units[first], work.time_s[first]
    limit_s, watts = work.time_limit_s, work.power_watts[first] / units
    span_s = float(work.submit_s[-1] - work.submit_s[0])
    return {
        "jobs": work.count,
        "shapes": len(work.units),
        "rows": problems.rows,
        "rejected": problems.skipped,
        "problems": problems.table(),
        "remarks": loaded.remarks,
        "period": _period(loaded.begin_s, span_s, loaded.unix_start_s),
        "users": len(work.users),
        "partitions": list(work.partitions),
        "qos": list(work.qos_names),
        "licenses": list(work.license_names),
        "quantities": {
            "units": quantiles(units),
            "time_s": quantiles(time_s),
            "time_limit_s": quantiles(limit_s),
            "time_per_limit": quantiles(time_s / limit_s),
            "interarrival_s": quantiles(np.diff(work.submit_s)),
            "watts_per_unit": quantiles(np.where(watts > 0, watts, np.nan)),  # 0: the file has none
            "unit_memory_gib": quantiles(work.unit_memory_gib),
        },
        "outlasting_limit": int(np.sum(time_s > limit_s)),
        "sizes": sizes(units, time_s),
        "unit_hours": float(np.sum(units * time_s)) / 3600,
        "busiest_users": _busiest_users(work, units * time_s),
        "mean_demand_units": float(np.sum(units * time_s)) / span_s if span_s else None,
        "peak_demand_units": _peak_demand(work.submit_s, work.submit_s + time_s, units),
        "cluster": cluster_load(work, kinds) if kinds else None,
    }


def quantiles(values: Floats | Ints) -> dict[str, float] | None:
    """Return number, mean and quantiles of the known values; None if no value is known."""
    known = values[~np.isnan(values)]
    if not len(known):
        return None
    points = np.quantile(known, list(_QUANTILES.values()))
    named = dict(zip(_QUANTILES, points.tolist(), strict=True))
    return {"count": len(known), "mean": float(np.mean(known)), **named}


def sizes(units: Ints, time_s: Floats) -> list[dict[str, float]]:
    """Return the fraction of the jobs, and the fraction of the work, in each class of sizes.

    Each class spans the sizes from one power of two to the next.
    """
    seconds = units * time_s
    upper = np.ceil(np.log2(np.maximum(units, 1))).astype(np.int64)
    classes = []
    for power in np.unique(upper).tolist():
        members = upper == power
        low = 2 ** (power - 1) + 1 if power else 1
        classes.append(
            {
                "min_units": low,
                "max_units": 2**power,
                "jobs": int(np.sum(members)),
                "job_share": float(np.mean(members)),
                "work_share": float(np.sum(seconds[members]) / np.sum(seconds)),
            }
        )
    return classes


def cluster_load(work: Workload, kinds: Sequence[NodeKind]) -> dict[str, Any]:
    """Describe the load of a workload on a cluster.

    The result contains the size of the cluster, the offered load, and the number of jobs that are larger
    than the cluster.
    """
    total = np.array([kind.nodes * kind.units for kind in kinds], np.int64)
    fits = np.logical_or.reduceat(work.units <= total[work.hardware], work.first[:-1])
    return {
        "units": int(np.sum(total)),
        "nodes": sum(kind.nodes for kind in kinds),
        "offered_load": offered_load(work, total),
        "too_large_jobs": int(np.sum(~fits)),
    }


def _period(begin_s: float, span_s: float, unix_start_s: float) -> dict[str, Any]:
    unix_s = begin_s + unix_start_s
    dates = [
        datetime.fromtimestamp(time_s, UTC).isoformat(timespec="seconds") if unix_s > FIRST_DATE_S else None
        for time_s in (unix_s, unix_s + span_s)
    ]
    return {
        "begin_s": begin_s,
        "end_s": begin_s + span_s,
        "span_s": span_s,
        "begin": dates[0],
        "end": dates[1],
    }


def _busiest_users(work: Workload, unit_s: Floats) -> list[Mapping[str, Any]]:
    """Return the users with the most work, each with number of jobs and fraction of the total work."""
    seconds = np.bincount(work.user, unit_s, len(work.users))
    jobs = np.bincount(work.user, minlength=len(work.users))
    order = np.argsort(-seconds, kind="stable")[:_TOP].tolist()
    return [
        {
            "user": work.users[row],
            "jobs": int(jobs[row]),
            "work_share": float(seconds[row] / np.sum(seconds)),
        }
        for row in order
    ]


def _peak_demand(start_s: Floats, end_s: Floats, units: Ints) -> int:
    """Return the maximum number of units (GPUs, cores or nodes) that are in use at one time.

    The result assumes that every job starts at its submission.
    """
    times = np.concatenate([end_s, start_s])
    change = np.concatenate([-units, units])
    order = np.lexsort((change, times))  # at equal times ends come first
    return int(np.max(np.cumsum(change[order])))
