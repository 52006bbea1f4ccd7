"""Properties of an NVIDIA GPU: name, power limit and its bounds, clocks, MIG, power profiles."""

from __future__ import annotations

from slurm_energy.devices.gpu.nvml_caller import NvmlCaller
from slurm_energy.devices.gpu.nvml_power_profiles import offered_profiles
from slurm_energy.devices.gpu.power_profiles import profile_names
from slurm_energy.devices.hardware import GpuInfo


def is_partitioned(nvml: NvmlCaller, index: int) -> bool:
    """Return whether a GPU is divided into MIG instances now; False for GPUs without MIG."""
    mode = nvml.optional("nvmlDeviceGetMigMode", index)
    return bool(mode) and mode[0] == 1


def gpu_info(nvml: NvmlCaller, index: int) -> GpuInfo:
    """Return the properties of a GPU. A property that NVML does not report is None."""
    name = nvml.optional("nvmlDeviceGetName", index) or "NVIDIA GPU"
    limit = nvml.optional("nvmlDeviceGetPowerManagementLimit", index)
    bounds = nvml.optional("nvmlDeviceGetPowerManagementLimitConstraints", index)
    return GpuInfo(
        index=index,
        minor=nvml.optional("nvmlDeviceGetMinorNumber", index),
        name=name.decode() if isinstance(name, bytes) else str(name),
        limit_watts=limit / 1000 if limit is not None else None,
        min_limit_watts=bounds[0] / 1000 if bounds else None,
        max_limit_watts=bounds[1] / 1000 if bounds else None,
        clocks_mhz=_clocks(nvml, index),
        partitioned=is_partitioned(nvml, index),
        power_profiles=profile_names(offered_profiles(nvml, index)),
    )


def _clocks(nvml: NvmlCaller, index: int) -> tuple[int, int] | None:
    memory = nvml.optional("nvmlDeviceGetSupportedMemoryClocks", index)
    clocks = nvml.optional("nvmlDeviceGetSupportedGraphicsClocks", index, max(memory)) if memory else None
    return (min(clocks), max(clocks)) if clocks else None
