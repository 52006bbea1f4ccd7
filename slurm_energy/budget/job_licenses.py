"""Licenses in watts that jobs should hold, from the power table, predictions and their present licenses.

Pure decisions on the columns of the queue.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from slurm_energy.budget.power_table import ANY_PARTITION, PartitionPower
from slurm_energy.scheduling.queue import Floats, Ints
from slurm_energy.slurm.licenses import MAX_COUNT, join_licenses, split_licenses
from slurm_energy.slurm.queue.columns import PENDING, QueueColumns

TOLERANCE: Final = 0.05
"""Relative difference below which the license of a pending job is not corrected."""
MIN_SHARE: Final = 0.4
"""Minimum share of its power with which a job starts; devices cannot be limited much further."""
_MAX_LIST: Final = 1000  # longer lists of array tasks are replaced by the whole array


@dataclass(frozen=True, slots=True)
class LicenseChange:
    """Change of the licenses of one job record.

    Attributes:
        job_id: the record.
        name: name of the record for scontrol.
        licenses: new list of licenses.
    """

    job_id: int
    name: str
    licenses: str


def requested_watts(
    queue: QueueColumns,
    powers: Mapping[str, PartitionPower],
    predicted_watts: Floats,
    max_watts: Floats,
) -> Ints:
    """Return the power that the start of each job adds above idle in whole watts, at least 1; shape (n,).

    Args:
        queue: the jobs.
        powers: power of each partition, with `ANY_PARTITION`.
        predicted_watts: upper quantile of the power of the whole job, with idle power; NaN: unknown.
        max_watts: maximum power of the whole job under its power caps; infinity without one.
    """
    watts = np.empty(queue.count, np.int64)
    fallback = powers[ANY_PARTITION]
    for row in range(queue.count):
        nodes, cpus, gpus = int(queue.nodes[row]), int(queue.cpus[row]), int(queue.gpus[row])
        rows = [powers.get(name, fallback) for name in queue.partition[row].split(",")]
        predicted = float(predicted_watts[row]) - min(power.idle_watts(cpus, gpus) for power in rows)
        # A waiting job of whole nodes shows only the CPUs that it requested; its runs measured whole nodes.
        whole = not math.isnan(predicted)
        limit = max(
            power.job_watts(nodes, cpus, gpus, queue.gpu_kind[row], exclusive=whole) for power in rows
        )
        limit = min(limit, float(max_watts[row]))
        watts[row] = _count(limit if math.isnan(predicted) else min(predicted, limit))
    return watts


def _count(watts: float) -> int:
    return int(min(max(math.ceil(watts), 1), MAX_COUNT))


def feasible_watts(watts: int, max_watts: float, slowdown: bool, least_watts: float | None = None) -> int:
    """Return the license of a job that is larger than everything the budget can free.

    Such a job starts when no other job runs, and the budget then lowers its power limits. A job with a limit
    of its slowdown keeps its license, so that it starts only where it can run at that power. So does a job
    that would start with less than `least_watts`.

    Args:
        watts: power that the job adds without a limit.
        max_watts: power that is free when no other job runs, at the highest coming limit; infinity: no limit.
        slowdown: whether the job has a limit of its slowdown.
        least_watts: power below which the job does not start; None: `MIN_SHARE` of its power.
    """
    least = MIN_SHARE * watts if least_watts is None else least_watts
    if slowdown or not least <= max_watts < watts:
        return watts
    return max(1, math.ceil(least), math.floor(max_watts * (1.0 - TOLERANCE)))


def kept_watts(
    queue: QueueColumns, wanted: Ints, predicted: Sequence[bool], license_name: str, max_count: int
) -> Ints:
    """Return the power of each job, where pending jobs without a prediction keep a larger count.

    The job_submit module computes this count from details that the queue does not show, such as whole nodes.

    Args:
        queue: the jobs.
        wanted: power that each job adds, shape (n,).
        predicted: whether the power comes from measured runs, n entries.
        license_name: name of the cluster's license.
        max_count: total of the license in Slurm.
    """
    watts = wanted.copy()
    for row in np.flatnonzero((queue.state == PENDING) & (queue.het_job_id == 0)).tolist():
        if not predicted[row]:
            current = split_licenses(queue.licenses[row], [license_name])[1].get(license_name) or 0
            watts[row] = max(int(watts[row]), min(current, max_count))
    return watts


def license_changes(
    queue: QueueColumns,
    wanted: Ints,
    names_of: Callable[[int], Sequence[str]],
    every_name: Sequence[str],
    targets: dict[int, int],
    max_count: int,
) -> list[LicenseChange]:
    """Return the changes that give each job its licenses: running jobs first, then by priority.

    A running job keeps the licenses that it held when it started, and gets them back if its owner removed
    them.

    Args:
        queue: the jobs.
        wanted: power that each job adds, shape (n,).
        names_of: names of the licenses of the job in a row; the cluster's license first.
        every_name: names of all licenses of budgets.
        targets: count that each job should hold, by job id; updated by this function. Tasks of an array that
            start get that of the array.
        max_count: total of the license in Slurm.
    """
    totals = _het_totals(queue, wanted)
    changes: list[LicenseChange] = []
    order = np.lexsort((queue.job_id, -queue.priority, queue.state == PENDING)).tolist()
    new_targets: dict[int, int] = {}
    for row in order:
        job_id, het = int(queue.job_id[row]), int(queue.het_job_id[row])
        others, counts = split_licenses(queue.licenses[row], every_name)
        names = [] if 0 < het != job_id else list(names_of(row))  # the first component holds it for all
        is_pending = bool(queue.state[row] == PENDING)
        target = watts = totals.get(job_id, int(wanted[row]))
        if not is_pending:
            current = (counts.get(names[0]) if names else None) or 0
            known = targets.get(job_id) or targets.get(int(queue.array_job_id[row]))
            target = known or (watts if current < watts / 2 else current)
        target = min(target, max_count)
        if names:
            new_targets[job_id] = target
        if set(names) == set(counts) and all(
            _is_near(counts[name], target, can_exceed=not is_pending) for name in names
        ):
            continue
        new = dict.fromkeys(names, target)
        changes.append(LicenseChange(job_id, _name(queue, row), join_licenses(others, new)))
    targets.clear()
    targets.update(new_targets)
    return changes


def _is_near(count: int | None, target: int, *, can_exceed: bool) -> bool:
    if count is None or count < (1.0 - TOLERANCE) * target:
        return False
    return can_exceed or count <= (1.0 + TOLERANCE) * target


def _het_totals(queue: QueueColumns, wanted: Ints) -> dict[int, int]:
    """Return the sum over all components by job id of the first component of each heterogeneous job."""
    totals: dict[int, int] = {}
    for row in np.flatnonzero(queue.het_job_id > 0).tolist():
        leader = int(queue.het_job_id[row])
        totals[leader] = totals.get(leader, 0) + int(wanted[row])
    return totals


def _name(queue: QueueColumns, row: int) -> str:
    tasks, array = queue.array_tasks[row], int(queue.array_job_id[row])
    if array and int(queue.array_task_id[row]) < 0 and tasks:
        return f"{array}_[{tasks}]" if len(tasks) <= _MAX_LIST else str(array)
    # The id of the first component would address all components of a heterogeneous job.
    is_first = int(queue.het_job_id[row]) == int(queue.job_id[row])
    return f"{queue.job_id[row]}+0" if is_first else queue.scontrol_name(row)
