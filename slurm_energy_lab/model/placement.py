"""Placement of a kernel: its cores or GPUs, and the logical CPUs whose time it uses. Pure functions."""

from __future__ import annotations

from dataclasses import dataclass

from slurm_energy.errors import UsageError
from slurm_energy_lab.model.profile import NodeProfile
from slurm_energy_lab.model.requests import KernelRequest


@dataclass(frozen=True, slots=True)
class Placement:
    """Placement of one kernel part.

    Attributes:
        units: the cores that share the part, or its one GPU.
        cpus: logical CPUs that the part keeps busy.
    """

    units: tuple[int, ...]
    cpus: tuple[int, ...]


def placements(profile: NodeProfile, request: KernelRequest) -> list[Placement]:
    """Return the placements of a kernel's parts: one for all cores, or one per GPU.

    Raises:
        UsageError: unknown device, CPU or GPU.
    """
    for cpu in request.cpus:
        check_cpu(profile, cpu)
    if request.device == "cpu":
        cpus = request.cpus or tuple(range(profile.cpu.cpus))
        return [Placement(tuple(sorted({profile.cpu.core_of(cpu) for cpu in cpus})), cpus)]
    if request.device != "gpu" or not profile.gpu:
        raise UsageError(f"device '{request.device[:40]}' does not exist on {profile.name}")
    gpus = tuple(dict.fromkeys(request.gpus)) or tuple(range(profile.gpu.count))
    for gpu in gpus:
        check_gpu(profile, gpu)
    return [Placement((gpu,), (_feeding_cpu(profile, gpu, request.cpus),)) for gpu in gpus]


def host_package(profile: NodeProfile, gpu: int) -> int:
    """Return the package whose thread feeds a GPU."""
    return gpu * profile.cpu.packages // max(1, profile.gpu_count)


def check_cpu(profile: NodeProfile, cpu: int) -> None:
    """Raise UsageError for a logical CPU that the node does not have."""
    if not 0 <= cpu < profile.cpu.cpus:
        raise UsageError(f"CPU {cpu} does not exist", todo=f"0 to {profile.cpu.cpus - 1}")


def check_gpu(profile: NodeProfile, gpu: int) -> None:
    """Raise UsageError for a GPU that the node does not have."""
    if not 0 <= gpu < profile.gpu_count:
        raise UsageError(f"GPU {gpu} does not exist", why=f"{profile.name} has {profile.gpu_count}")


def check_gpu_limit(profile: NodeProfile, gpu: int, limit_watts: float) -> None:
    """Raise UsageError for a power limit outside the range of the node's GPUs."""
    bounds = profile.gpu
    if bounds is not None and not bounds.min_limit_watts <= limit_watts <= bounds.max_limit_watts:
        raise UsageError(
            f"GPU {gpu}: limit {limit_watts} W is out of range",
            todo=f"{bounds.min_limit_watts:g} to {bounds.max_limit_watts:g} W",
        )


def _feeding_cpu(profile: NodeProfile, gpu: int, cpus: tuple[int, ...]) -> int:
    """Return the CPU whose thread feeds a GPU: one of `cpus`, or of the GPU's package if that is empty."""
    near = cpus or profile.cpu.package_cpus(host_package(profile, gpu))
    return near[gpu % len(near)]
