"""Division of a node's dynamic power among jobs, as the reference for other methods.

Dynamic power is the power that packages, memory and GPUs draw above idle. Methods that are based on
measurements are compared with this division. It therefore follows the physics alone and does not use CPU
time. The rule is in docs/lab-physics.md, section 10. The shares of a component add up to its dynamic power.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from slurm_energy_lab.model.cpu_physics import CoreLoad, CpuOperatingPoint, CpuPhysics, FedGpu
from slurm_energy_lab.model.gpu_physics import GpuOperatingPoint, GpuPhysics
from slurm_energy_lab.model.job_integrals import Job
from slurm_energy_lab.model.kernel_run import KernelPart
from slurm_energy_lab.model.kernels import REAL_ACTIVITY, REAL_BYTES_PER_CYCLE
from slurm_energy_lab.model.task_counters import TaskShares


@dataclass(slots=True)
class CpuShares:
    """Power and memory traffic of one package by job.

    Attributes:
        watts: power above idle.
        bytes_per_s: memory traffic.
    """

    watts: dict[Job, float] = field(default_factory=dict)
    bytes_per_s: dict[Job, float] = field(default_factory=dict)


def cpu_shares(
    physics: CpuPhysics,
    loads: Sequence[CoreLoad],
    operation: CpuOperatingPoint,
    ceiling_khz: int,
    fed: Sequence[FedGpu],
) -> CpuShares:
    """Divide the power of a package above idle among the jobs on the package.

    Args:
        physics: physics of the package.
        loads: busy cores of the package.
        operation: operating point of the package.
        ceiling_khz: maximum frequency of every core.
        fed: the busy GPUs whose work comes from threads on this package.
    """
    idle_watts = physics.cpu.idle_watts
    jobs = _jobs(loads, fed)
    if len(jobs) <= 1:
        return CpuShares(
            dict.fromkeys(jobs, operation.watts - idle_watts), dict.fromkeys(jobs, operation.bytes_per_s)
        )
    own = dict.fromkeys(jobs, 0.0)
    traffic = dict.fromkeys(jobs, 0.0)
    for load in loads:
        _add_cores(own, traffic, physics, load, operation, min(load.khz, ceiling_khz))
    for part, demand in operation.demands.items():
        traffic[part.job] += part.task.bytes / demand.period_s
    for gpu in fed:
        watts = physics.feed_watts(gpu, ceiling_khz)
        for part in gpu.parts:
            own[part.job] += watts / len(gpu.parts)
    active = len(fed) + sum(load.count * load.busy for load in loads)
    awake_watts = physics.cpu.awake_watts * min(1.0, active)
    return CpuShares(_with_shared_power(own, traffic, physics, awake_watts), traffic)


def task_shares(
    physics: CpuPhysics, loads: Iterable[CoreLoad], operation: CpuOperatingPoint, ceiling_khz: int
) -> TaskShares:
    """Return the memory traffic and the core power of each task on a package.

    Args:
        physics: physics of the package.
        loads: busy cores of the package.
        operation: operating point of the package.
        ceiling_khz: maximum frequency of every core.
    """
    shares = TaskShares()
    for load in loads:
        khz = min(load.khz, ceiling_khz)
        for part in load.parts:
            watts = physics.active_watts(operation.demands[part].activity, khz)
            shares.add_core_watts(part.run_id, load.count * watts / len(load.parts))
        for job, share in load.real_jobs:
            task, cores = -(job or 0), load.count * share
            shares.add_core_watts(task, cores * physics.active_watts(REAL_ACTIVITY, khz))
            shares.add_traffic(task, cores * REAL_BYTES_PER_CYCLE * khz * 1e3)
    for part, demand in operation.demands.items():
        shares.add_traffic(part.run_id, part.task.bytes / demand.period_s)
    return shares


def _jobs(loads: Iterable[CoreLoad], fed: Iterable[FedGpu]) -> set[Job]:
    jobs: set[Job] = {part.job for gpu in fed for part in gpu.parts}
    for load in loads:
        jobs.update(part.job for part in load.parts)
        jobs.update(job for job, _ in load.real_jobs)
    return jobs


def _add_cores(
    own: dict[Job, float],
    traffic: dict[Job, float],
    physics: CpuPhysics,
    load: CoreLoad,
    operation: CpuOperatingPoint,
    khz: int,
) -> None:
    """Add the power of a group of cores, in watts, to `own`.

    `own` contains the totals by job. Programs outside the model may cause memory traffic on these cores. The
    traffic is added to `traffic`, which contains the totals by job in bytes per second.
    """
    for part in load.parts:
        watts = physics.active_watts(operation.demands[part].activity, khz)
        own[part.job] += load.count * watts / len(load.parts)
    for job, share in load.real_jobs:
        own[job] += load.count * share * physics.active_watts(REAL_ACTIVITY, khz)
        traffic[job] += load.count * share * REAL_BYTES_PER_CYCLE * khz * 1e3


def _with_shared_power(
    own: dict[Job, float], traffic: dict[Job, float], physics: CpuPhysics, awake_watts: float
) -> dict[Job, float]:
    """Return the power of each job on a package in watts, with its part of the shared power.

    The shared power has two parts. The uncore power is divided in proportion to the jobs' memory traffic.
    The power that the package draws while it is awake is divided in proportion to the jobs' own power.
    """
    per_byte = physics.cpu.uncore_joules_per_byte
    weights = own if sum(own.values()) > 0 else dict.fromkeys(own, 1.0)
    total = sum(weights.values())
    return {
        job: watts + per_byte * traffic[job] + awake_watts * weights[job] / total
        for job, watts in own.items()
    }


def gpu_shares(
    physics: GpuPhysics, parts: tuple[KernelPart, ...], operation: GpuOperatingPoint, mhz: float
) -> dict[Job, float]:
    """Return the power above idle that each job causes on one GPU, in watts by job.

    If the kernel parts of several jobs share the GPU's time, the power is divided among these
    jobs.

    Args:
        physics: physics of the GPU.
        parts: kernel parts on the GPU.
        operation: operating point of the GPU.
        mhz: graphics clock.
    """
    jobs = {part.job for part in parts}
    gpu = physics.profile
    if len(jobs) <= 1:
        return dict.fromkeys(jobs, operation.watts - gpu.idle_watts)
    watts: dict[Job, float] = dict.fromkeys(jobs, 0.0)
    for part in parts:
        rate = operation.rates[part]
        core = physics.core_watts(operation.activities[part], mhz) / len(parts)
        watts[part.job] += core + gpu.joules_per_byte * part.task.bytes * rate
    return watts
