"""Choice of the CPU cores or GPUs on which a compute kernel runs.

The result also lists the logical CPUs whose time the kernel uses.
"""

from __future__ import annotations

from dataclasses import dataclass

from slurm_energy.errors import UsageError
from slurm_energy_lab.model.profile import NodeProfile
from slurm_energy_lab.model.requests import KernelRequest


@dataclass(frozen=True, slots=True)
class Placement:
    """Place where one piece of a compute kernel's work runs: a set of CPUs, or one GPU.

    Attributes:
        units: numbers of the cores that share the piece of work. If the piece runs on a GPU, the number of
            this GPU.
        cpus: logical CPUs that the work keeps busy.
    """

    units: tuple[int, ...]
    cpus: tuple[int, ...]


def placements(profile: NodeProfile, request: KernelRequest) -> list[Placement]:
    """Return the placements of a compute kernel's parts: one part for all cores, or one part per GPU.

    Raises:
        UsageError: the device, a CPU or a GPU does not exist.
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
    """Return the number of the CPU package with the thread that supplies a GPU with work."""
    return gpu * profile.cpu.packages // max(1, profile.gpu_count)


def check_cpu(profile: NodeProfile, cpu: int) -> None:
    """Check that an emulated node has the logical CPU with the number `cpu`.

    Raises:
        UsageError: the node does not have the CPU.
    """
    if not 0 <= cpu < profile.cpu.cpus:
        raise UsageError(f"CPU {cpu} does not exist", todo=f"0 to {profile.cpu.cpus - 1}")


def check_gpu(profile: NodeProfile, gpu: int) -> None:
    """Check that the node has a GPU.

    Raises:
        UsageError: the node does not have the GPU.
    """
    if not 0 <= gpu < profile.gpu_count:
        raise UsageError(f"GPU {gpu} does not exist", why=f"{profile.name} has {profile.gpu_count}")


def check_gpu_limit(profile: NodeProfile, gpu: int, limit_watts: float) -> None:
    """Check that a power limit is within the range of the node's GPUs.

    Raises:
        UsageError: the limit is outside the range.
    """
    bounds = profile.gpu
    if bounds is not None and not bounds.min_limit_watts <= limit_watts <= bounds.max_limit_watts:
        raise UsageError(
            f"GPU {gpu}: limit {limit_watts} W is out of range",
            todo=f"{bounds.min_limit_watts:g} to {bounds.max_limit_watts:g} W",
        )


def _feeding_cpu(profile: NodeProfile, gpu: int, cpus: tuple[int, ...]) -> int:
    """Return the logical CPU whose thread feeds a GPU.

    The CPU is one of `cpus`. If `cpus` is empty, the CPU belongs to the same package as the GPU.
    """
    near = cpus or profile.cpu.package_cpus(host_package(profile, gpu))
    return near[gpu % len(near)]
