"""Power that pending jobs add when they start.

The power of a job is its power at its economic limit, at which it does the most work per watt. The budget
may lower the power limits of the job to the economic limit. The simulator uses the same function to decide
which jobs may start.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from slurm_energy.budget.power_groups import PowerGroups
from slurm_energy.budget.power_table import PartitionPower, powers_of_partitions
from slurm_energy.budget.reachable_limits import HOST_SHARE, START_GPU_RATIO, START_SHARE
from slurm_energy.budget.work_price import MIN_GAIN, PRICES, economic_power, price_levels
from slurm_energy.controller.budgets.curves import limits_and_times, lowest_power
from slurm_energy.controller.budgets.facts import BudgetedJob
from slurm_energy.scheduling.queue import Floats, Ints
from slurm_energy.slurm.queue.columns import QueueColumns
from slurm_energy.slurm.script_fingerprint import FINGERPRINT_FORM
from slurm_energy.tuning.response_curve import ResponseCurve


class ProgramKey(NamedTuple):
    """Identification of a program on one kind of device.

    The measured power of the program is stored under this key.
    """

    user: str
    fingerprint: str | None
    model: str | None
    kind: str


@dataclass(frozen=True, slots=True)
class PendingPower:
    """Power that the start of each of n pending jobs adds above idle power.

    A lowest limit is the lowest power limit that a budget may set for a job's devices. An economic limit is
    the power limit at which a job yields the most work per watt.

    Attributes:
        watts: power at the economic limits, in whole watts, shape (n,).
        floor_watts: power at the lowest limits. A job without a predicted power counts with its full power.
            Shape (n,).
        start_watts: power that must be free when the jobs start with the lowest limits. Shape (n,).
        reachable_watts: power that the jobs may draw although their devices have the lowest limits. GPUs may
            exceed these limits; packages count with their expected power. Shape (n,).
        levels: price level of each job, shape (n,). The price is the work per joule that the job yields; the
            level is its index in `work_price.PRICES`.
        programs: programs of the jobs. If the response of a program to power limits (its response curve) is
            known, the computation uses it.
    """

    watts: Ints
    floor_watts: Floats
    start_watts: Floats
    reachable_watts: Floats
    levels: Ints
    programs: frozenset[ProgramKey]


class _Part(NamedTuple):
    """The devices of one type (processor packages or GPUs) that a pending job needs in one partition.

    From the power of these devices follows how much power the job would add under the budgets. All powers
    are in watts of one device.
    """

    pair: int
    row: int
    nodes: int
    kind: str
    is_gpu: bool
    devices: int
    idle_watts: float
    min_watts: float
    max_watts: float
    draw_watts: float
    can_lower: bool


def program_key(user: str, flags: Mapping[str, str], kind: str) -> ProgramKey | None:
    """Return the program that a job's flags name, as a key with the kind of device.

    The result is None if no flag names a program, or if `kind` is empty because the kind of device is
    unknown.
    """
    fingerprint = flags.get("ENERGY_FINGERPRINT", "")
    known = fingerprint if FINGERPRINT_FORM.fullmatch(fingerprint) else None
    model = flags.get("ENERGY_MODEL") or None
    return ProgramKey(user, known, model, kind) if kind and (known or model) else None


def pending_power(
    queue: QueueColumns,
    full_watts: Ints,
    predicted: Sequence[bool],
    powers: Mapping[str, PartitionPower],
    slowdown_limits: Floats,
    floor_percent: float,
    curves: Mapping[ProgramKey, ResponseCurve],
) -> PendingPower:
    """Return the power that each pending job will add when it starts.

    The power budgets decide from this power whether the job may start. A job without a predicted power
    counts with `full_watts`. The predicted power of a job is divided between its processor packages and its
    GPUs in the ratio of their maximum power. A package that a job uses only in part counts with its full
    power, because its lowest limit holds for the whole node.

    Args:
        queue: the jobs.
        full_watts: power that each job adds without limits, shape (n,).
        predicted: whether the power of each job is predicted from measured runs, n entries.
        powers: power of each partition by name; the key `ANY_PARTITION` applies to all other partitions.
        slowdown_limits: maximum increase of each job's run time as a fraction of the untuned run time; NaN
            means no limit. Shape (n,).
        floor_percent: lowest power limit that running jobs may get, as a position in a device's range of
            power limits: 0 is the device's minimum limit, 100 its maximum.
        curves: response curves by program.
    """
    parts: list[_Part] = []
    pairs: list[int] = []  # row by pair of a job and a partition
    for row in np.flatnonzero(np.asarray(predicted, np.bool_)).tolist():
        for power in powers_of_partitions(queue.partition[row], powers):
            parts += _parts(queue, row, len(pairs), power, float(full_watts[row]))
            pairs.append(row)
    nodes = np.maximum(1, queue.nodes).astype(np.float64)
    levels = price_levels(nodes * (1.0 - MIN_GAIN) / np.maximum(1, full_watts))
    if not parts:
        full = full_watts.astype(np.float64)
        return PendingPower(full_watts, full, START_SHARE * full, full.copy(), levels, frozenset())
    keys = [program_key(queue.user[part.row], queue.flags[part.row], part.kind) for part in parts]
    groups, lowest = _groups(parts, keys, slowdown_limits, floor_percent, curves)
    idle = np.array([part.idle_watts for part in parts])
    can_lower = np.array([part.can_lower for part in parts], np.bool_)
    is_gpu = np.array([part.is_gpu for part in parts], np.bool_)
    of_gpus = np.where(np.isnan(lowest), START_GPU_RATIO * groups.min_watts, lowest)
    of_gpus = np.minimum(groups.draw_watts, of_gpus)
    economic = economic_power(groups, idle)
    of_pair, rows = [part.pair for part in parts], np.array(pairs, np.int64)

    def at_power(device_watts: Floats) -> Floats:
        watts = np.where(can_lower, device_watts, groups.draw_watts)
        return _by_job(groups.devices * np.maximum(0.0, watts - idle), of_pair, rows, full_watts)

    # A job that may run in several partitions has the price of the partition where it needs the most power.
    levels[rows[of_pair]] = len(PRICES) - 1
    np.minimum.at(levels, rows[of_pair], economic.level)
    return PendingPower(
        watts=_by_job(economic.added_watts, of_pair, rows, full_watts).astype(full_watts.dtype),
        floor_watts=at_power(groups.floor_watts),
        start_watts=START_SHARE * at_power(np.where(is_gpu, of_gpus, groups.min_watts)),
        reachable_watts=at_power(np.where(is_gpu, of_gpus, _package_watts(parts, groups))),
        levels=levels,
        programs=frozenset(key for key in keys if key is not None),
    )


def _by_job(part_watts: Floats, of_pair: Sequence[int], rows: Ints, full_watts: Ints) -> Floats:
    """Return the power that each pending job adds when it starts, in whole watts.

    The packages and GPUs of a job in one partition are its parts. The power of a job is the sum of the
    power of its parts. If a job may run in several partitions, the result is the maximum over these
    partitions. The result is never above the job's power without limits (`full_watts`). A job without
    parts adds its power without limits.

    Args:
        part_watts: power of each part, shape (n,).
        of_pair: for each part, the number of the pair of job and partition to which the part belongs.
        rows: for each pair of job and partition, the index of its job.
        full_watts: power that each job adds without limits.
    """
    needed = np.full(len(full_watts), -1.0)
    np.maximum.at(needed, rows, np.bincount(of_pair, weights=part_watts, minlength=len(rows)))
    # Rounding must not add a watt to a sum of parts that equals the whole.
    ceiled = np.maximum(1.0, np.ceil(needed - 1e-6))
    watts: Floats = np.where(needed >= 0, np.minimum(full_watts, ceiled), full_watts)
    return watts


def _package_watts(parts: Sequence[_Part], groups: PowerGroups) -> Floats:
    """Return the assumed power of the processor packages when they have their lowest power limits.

    The result has one value for each part of a job, shape (n,). A part is all packages or all GPUs that the
    job uses in a partition. The values for parts that consist of GPUs have no meaning.
    """
    with_gpus = {part.pair for part in parts if part.is_gpu}
    feeds_gpus = np.array([part.pair in with_gpus for part in parts], np.bool_)
    watts: Floats = np.where(feeds_gpus, HOST_SHARE * groups.max_watts, np.inf)
    return np.minimum(groups.draw_watts, watts)


def _parts(queue: QueueColumns, row: int, pair: int, power: PartitionPower, watts: float) -> list[_Part]:
    """Return the expected power and the power limits of a pending job in a partition.

    The result has one entry for the processor packages that the job would use, and one for its GPUs.
    """
    cpus, gpus = int(queue.cpus[row]), int(queue.gpus[row])
    nodes = power.node_count(int(queue.nodes[row]), cpus)
    all_gpus_watts = gpus * power.gpu_kinds.get(queue.gpu_kind[row], power.gpu_watts)
    total = power.job_watts(int(queue.nodes[row]), cpus, gpus, queue.gpu_kind[row], exclusive=False)
    on_gpus = all_gpus_watts / total if total > 0 else 0.0
    fills_nodes = cpus >= nodes * power.cpus
    result = []
    if on_gpus < 1.0:
        idle = cpus * power.idle_cpu_watts / nodes
        draw = idle + (1.0 - on_gpus) * watts / nodes
        low = power.node_min_watts if power.node_min_watts is not None else draw
        highest = max(power.node_watts + power.cpus * power.idle_cpu_watts, draw, low)
        can_lower = fills_nodes and power.node_min_watts is not None
        result.append(
            _Part(pair, row, nodes, power.package_model, False, nodes, idle, low, highest, draw, can_lower)
        )
    if on_gpus > 0.0:
        idle = power.idle_gpu_watts
        draw = idle + on_gpus * watts / gpus
        low = power.gpu_min_watts if power.gpu_min_watts is not None else draw
        highest = max(all_gpus_watts / gpus + idle, draw, low)
        can_lower = power.gpu_min_watts is not None
        result.append(
            _Part(pair, row, nodes, power.gpu_model, True, gpus, idle, low, highest, draw, can_lower)
        )
    return result


def _groups(
    parts: Sequence[_Part],
    keys: Sequence[ProgramKey | None],
    slowdown_limits: Floats,
    floor_percent: float,
    curves: Mapping[ProgramKey, ResponseCurve],
) -> tuple[PowerGroups, Floats]:
    """Return the devices of pending jobs in groups, and the power of each group at its lowest limit.

    A group consists of the packages or of the GPUs of one job. The second result is the power that a
    group is expected to draw at its lowest power limit. It comes from measured runs, and is NaN without
    such runs.
    """
    low = np.array([part.min_watts for part in parts])
    high = np.array([part.max_watts for part in parts])
    draw = np.array([part.draw_watts for part in parts])
    can_lower = np.array([part.can_lower for part in parts], np.bool_)
    jobs = {
        number: BudgetedJob(number, curves={key.kind: curves[key]})
        for number, key in enumerate(keys)
        if key is not None and key in curves
    }
    ids, kinds = [(number,) for number in range(len(parts))], [part.kind for part in parts]
    is_gpu = np.array([part.is_gpu for part in parts], np.bool_)
    level, time = limits_and_times(ids, kinds, is_gpu, low, draw, jobs, {})
    columns = PowerGroups(
        job_id=np.array([part.pair for part in parts], np.int64),
        devices=np.array([part.devices for part in parts], np.int64),
        min_watts=low,
        max_watts=high,
        draw_watts=draw,
        floor_watts=np.where(can_lower, low + floor_percent / 100.0 * (high - low), draw),
        level_watts=level,
        time_ratio=time,
        slowdown_limit=slowdown_limits[[part.row for part in parts]],
        weight=np.array([part.nodes for part in parts], np.float64),
        deadline_s=np.full(len(parts), math.inf),
    )
    return columns, lowest_power(ids, kinds, is_gpu, low, draw, jobs, {})
