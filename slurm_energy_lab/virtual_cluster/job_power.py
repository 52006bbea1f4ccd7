"""Power of the pending jobs of a virtual cluster, as the controller predicts it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slurm_energy.budget.power_groups import PowerGroups
from slurm_energy.budget.reachable_limits import HOST_SHARE, START_GPU_RATIO, START_SHARE
from slurm_energy.budget.work_price import economic_power
from slurm_energy.controller.budgets.curves import limits_and_times, lowest_power
from slurm_energy.controller.budgets.facts import BudgetedJob
from slurm_energy.scheduling.queue import Floats
from slurm_energy_lab.model import NodeProfile
from slurm_energy_lab.virtual_cluster.workload import ClusterJob


@dataclass(frozen=True, slots=True)
class PendingJobPower:
    """Power that the start of a job adds above idle.

    Attributes:
        watts: power if each device has the power limit at which the job yields the most work per watt
            (economic limit), see `budget.work_price`. Slurm's licenses express this power.
        start_watts: power that must be free at the start, when the devices have their lowest limits.
        reachable_watts: power that the job may draw later although its devices have their lowest limits.
        level: price level of the job: its work per watt, as an index into the prices of `budget.work_price`.
    """

    watts: float
    start_watts: float
    reachable_watts: float
    level: int


def job_power(profile: NodeProfile, job: ClusterJob, known: BudgetedJob) -> PendingJobPower:
    """Return the power that the start of a pending job would add to the idle power.

    Args:
        profile: hardware of the nodes.
        job: the pending job.
        known: what the controller knows about the job's program: its power and its response curve (time and
            power at different power limits).
    """
    groups, idle = pending_groups(profile, job, known)
    economic = economic_power(groups, idle)
    loss = 1.0 + profile.other.loss_share
    low = np.minimum(groups.draw_watts, _lowest_watts(profile, job, known, groups))
    package_watts = groups.draw_watts[0]
    if groups.count > 1:
        package_watts = min(package_watts, HOST_SHARE * groups.max_watts[0])
    start, reachable = (
        float((groups.devices * np.maximum(0.0, watts - idle)).sum())
        for watts in (low, np.array([package_watts, *low[1:]]))
    )
    added = float(economic.added_watts.sum()) * loss
    level = int(economic.level[0])
    return PendingJobPower(added, START_SHARE * start, reachable * loss, level)


def pending_groups(profile: NodeProfile, job: ClusterJob, known: BudgetedJob) -> tuple[PowerGroups, Floats]:
    """Return the devices of a job that waits for whole nodes, in groups of equal devices.

    The second value is the idle power per device.

    Args:
        profile: hardware of the nodes.
        job: the pending job.
        known: what the controller knows about the program: its power, and its response curve (time at
            several power limits).
    """
    cpu, gpu = profile.cpu, profile.gpu if job.partition == "gpu" else None
    count = np.array([cpu.packages, gpu.count] if gpu else [cpu.packages], np.int64) * job.nodes
    kinds = [cpu.model_name, gpu.name] if gpu else [cpu.model_name]
    low = np.array([0.3 * cpu.tdp_watts, gpu.min_limit_watts] if gpu else [0.3 * cpu.tdp_watts])
    high = np.array([cpu.tdp_watts, gpu.default_limit_watts] if gpu else [cpu.tdp_watts])
    idle = np.array([cpu.idle_watts, gpu.idle_watts] if gpu else [cpu.idle_watts])
    draw = np.array([known.draw_watts.get(kind, top) for kind, top in zip(kinds, high, strict=True)])
    is_gpu = np.array([kind != cpu.model_name for kind in kinds])
    ids = [(job.job_id,)] * len(kinds)
    level, time = limits_and_times(ids, kinds, is_gpu, low, draw, {job.job_id: known}, {})
    columns = PowerGroups(
        job_id=np.full(len(kinds), job.job_id),
        devices=count,
        min_watts=low,
        max_watts=high,
        draw_watts=draw,
        floor_watts=low,
        level_watts=level,
        time_ratio=time,
        slowdown_limit=np.full(len(kinds), np.nan),
        weight=np.full(len(kinds), float(job.nodes)),
        deadline_s=np.full(len(kinds), np.inf),
    )
    return columns, idle


def _lowest_watts(profile: NodeProfile, job: ClusterJob, known: BudgetedJob, groups: PowerGroups) -> Floats:
    """Return the lowest power per device that power limits can enforce for a job.

    The result has one value for the CPU packages and one for the GPUs.
    """
    if profile.gpu is None or groups.count == 1:
        return groups.min_watts
    ids, kinds = [(job.job_id,)], [profile.gpu.name]
    columns = np.ones(1, np.bool_), groups.min_watts[1:], groups.draw_watts[1:]
    measured = lowest_power(ids, kinds, *columns, {job.job_id: known}, {})[0]
    gpu_watts = START_GPU_RATIO * groups.min_watts[1] if np.isnan(measured) else measured
    return np.array([groups.min_watts[0], gpu_watts])
