"""Number of power licenses that each job should hold.

One license stands for one watt under a power budget. The numbers follow from three sources: the table
of the maximum power that jobs can add (power table), the predicted power, and the licenses that jobs
hold now. All functions are pure. They use the columns of the queue.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from slurm_energy.budget.power_table import PartitionPower, powers_of_partitions
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
        job_id: id of the job record.
        name: name of the job record for scontrol.
        licenses: new list of licenses.
    """

    job_id: int
    name: str
    licenses: str


def kept_caps(
    queue: QueueColumns, powers: Mapping[str, PartitionPower], node_caps: Floats, gpu_caps: Floats
) -> tuple[Floats, Floats]:
    """Return the power caps of each job as far as the devices of its partitions can keep them.

    Without this correction, a cap below the lowest power limits would reduce the licenses of a job, but not
    its power.

    Args:
        queue: n jobs of Slurm's queue.
        powers: power of each partition, including the key `ANY_PARTITION`.
        node_caps: requested cap per node, shape (n,); infinity without a cap.
        gpu_caps: requested cap per GPU, shape (n,); infinity without a cap.

    Returns:
        Cap per node and cap per GPU, shape (n,) each. A job in several partitions has the highest caps.
    """
    node_caps, gpu_caps = node_caps.copy(), gpu_caps.copy()
    for row in np.flatnonzero(np.isfinite(node_caps) | np.isfinite(gpu_caps)).tolist():
        requested = float(node_caps[row]), float(gpu_caps[row])
        gpus = int(queue.gpus[row]) if queue.held_cpus[row] == 0 else math.inf
        rows = powers_of_partitions(queue.partition[row], powers)
        kept = [power.kept_caps(*requested, gpus=gpus) for power in rows]
        node_caps[row], gpu_caps[row] = (max(caps) for caps in zip(*kept, strict=True))
    return node_caps, gpu_caps


def requested_watts(
    queue: QueueColumns,
    powers: Mapping[str, PartitionPower],
    predicted_watts: Floats,
    node_caps: Floats,
    gpu_caps: Floats,
) -> Ints:
    """Return the power that the start of each job adds above idle, shape (n,).

    The result is in whole watts and at least 1.

    Args:
        queue: n jobs of Slurm's queue.
        powers: power of each partition, including the key `ANY_PARTITION`.
        predicted_watts: upper quantile of the predicted power of the whole job, including idle power; NaN
            means unknown.
        node_caps: cap on the power of each node of the job, from `kept_caps`; infinity without a cap.
        gpu_caps: cap on the power of each GPU of the job, from `kept_caps`; infinity without a cap.
    """
    watts = np.empty(queue.count, np.int64)
    for row in range(queue.count):
        nodes, cpus, gpus = int(queue.nodes[row]), int(queue.cpus[row]), int(queue.gpus[row])
        rows = powers_of_partitions(queue.partition[row], powers)
        predicted = float(predicted_watts[row]) - min(power.idle_watts(cpus, gpus) for power in rows)
        # A waiting job of whole nodes shows only the CPUs that it requested; its runs measured whole nodes.
        whole = not math.isnan(predicted)
        limit = max(
            power.job_watts(
                *(nodes, cpus, gpus, queue.gpu_kind[row]),
                exclusive=whole,
                gpu_cap_watts=float(gpu_caps[row]),
            )
            for power in rows
        )
        limit = min(limit, float(node_caps[row]) * max(nodes, 1))
        watts[row] = _count(limit if math.isnan(predicted) else min(predicted, limit))
    return watts


def _count(watts: float) -> int:
    return int(min(max(math.ceil(watts), 1), MAX_COUNT))


def feasible_watts(watts: int, max_watts: float, slowdown: bool, least_watts: float | None = None) -> int:
    """Return the power in watts that a job requests as Slurm licenses, if the budget can provide it.

    The power budget of some jobs is too small for their full power, even when no other job runs. Such a job
    requests only the power that the budget can free. It starts when no other job runs, and the budget lowers
    its power limits.

    Two kinds of jobs still request their full power: jobs with a slowdown limit, and jobs that would
    otherwise start with less than `least_watts`. These jobs wait until the budget can provide this power.

    Args:
        watts: power that the job adds without a limit.
        max_watts: power that is free when no other job runs, at the highest future limit; infinity means no
            limit.
        slowdown: whether the job has a slowdown limit.
        least_watts: power below which the job does not start; None means `MIN_SHARE` of `watts`.
    """
    least = MIN_SHARE * watts if least_watts is None else least_watts
    if slowdown or not least <= max_watts < watts:
        return watts
    return max(1, math.ceil(least), math.floor(max_watts * (1.0 - TOLERANCE)))


def kept_watts(
    queue: QueueColumns, wanted: Ints, predicted: Sequence[bool], license_name: str, max_count: int
) -> Ints:
    """Return the number of power licenses that each job should hold, in watts, shape (n,).

    A Slurm license of a power budget stands for one watt. A job holds licenses for the power that it
    adds. However, a pending job without a prediction keeps its present licenses if their number is
    greater than `wanted`. The job_submit module computed the present number from details that the queue
    does not show, such as a request for whole nodes.

    Args:
        queue: n jobs of Slurm's queue.
        wanted: power that each job adds, shape (n,).
        predicted: whether the power of each job comes from measured runs, n entries.
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
    retained: Ints,
    names_of: Callable[[int], Sequence[str]],
    every_name: Sequence[str],
    targets: dict[int, int],
    max_count: int,
) -> list[LicenseChange]:
    """Return the changes of licenses that make each job request the licenses for its power.

    Running jobs come first, then pending jobs by priority.

    A running job keeps the number of licenses that it held at its start. If the job's owner has removed
    licenses, the job gets them back.

    Args:
        queue: n jobs of Slurm's queue.
        wanted: power that each job adds, shape (n,).
        retained: power that each pending job must leave to running jobs, shape (n,). The job also
            requests licenses for this power.
        names_of: function that returns the names of the licenses of the job with a given index. The
            license of the whole cluster comes first.
        every_name: names of all licenses of budgets.
        targets: number of licenses that each job should hold when it runs, by job id. This function
            updates the numbers. A task of an array that starts gets the number that was stored for the
            array.
        max_count: total number of licenses in Slurm, which no job may exceed.
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
        target = min(target + int(retained[row]), max_count)
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
    """Return the power of each heterogeneous job, by the job id of its first component.

    The power is the sum over all components.
    """
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
