"""Computation of the problem size of a compute kernel.

The problem size follows from the run time on an idle device at full speed.
"""

from __future__ import annotations

import math

from slurm_energy.errors import UsageError
from slurm_energy_lab.model.cpu_physics import CpuPhysics
from slurm_energy_lab.model.gpu_physics import GpuPhysics
from slurm_energy_lab.model.kernels import DEFAULT_SECONDS, KernelSpec
from slurm_energy_lab.model.profile import NodeProfile
from slurm_energy_lab.model.programs import workload_spec
from slurm_energy_lab.model.requests import KernelRequest


def size_of(profile: NodeProfile, request: KernelRequest) -> float:
    """Return the problem size of a request to run a compute kernel.

    If the request states no size, the size is computed from the requested run time on the whole idle device
    at full speed.

    Raises:
        UsageError: the kernel or device is unknown, the run time is not positive, or the node has no such
            device.
    """
    if request.size is not None:
        return request.size
    seconds = {} if request.full_speed_s is None else {"full_speed_s": request.full_speed_s}
    return default_size(profile, request.kernel, request.device, **seconds)


def default_size(
    profile: NodeProfile, kernel: str, device: str, full_speed_s: float = DEFAULT_SECONDS
) -> float:
    """Return the problem size that takes `full_speed_s` seconds on the idle device at full speed.

    The device is all CPU packages of the node, or one GPU. At full speed there is no power limit, and all
    cores run at the maximum frequency for their number. A looped kernel repeats its phases once per unit of
    size. If its size is below 1, it runs one shortened cycle.

    Raises:
        UsageError: the kernel or device is unknown, the run time is not positive, or the profile has no such
            device.
    """
    spec = workload_spec(kernel)
    if not (math.isfinite(full_speed_s) and full_speed_s > 0):
        raise UsageError(f"{kernel}: {full_speed_s!r} seconds are invalid")
    return float((full_speed_s / full_speed_seconds(profile, spec, device)) ** (1.0 / spec.exponent))


def full_speed_seconds(profile: NodeProfile, spec: KernelSpec, device: str) -> float:
    """Return the seconds that a compute kernel of size 1 takes at full speed on a whole idle device.

    Raises:
        UsageError: the profile does not have the device.
    """
    if device == "cpu":
        return CpuPhysics(profile).full_speed_s(spec)
    if device == "gpu" and profile.gpu is not None:
        return GpuPhysics(profile.gpu).full_speed_s(spec, CpuPhysics(profile).turbo_khz(1))
    raise UsageError(f"device '{device[:40]}' does not exist on {profile.name}", todo="cpu or gpu")
