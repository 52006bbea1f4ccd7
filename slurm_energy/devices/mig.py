"""Instances of GPUs that are partitioned (NVIDIA MIG): which there are and how large a part each is.

Energy and power are the whole GPU's; an instance's part of them is only modelled, by its size. Source: NVML
API reference, Multi Instance GPU Management.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from slurm_energy.devices.nvml import Nvml, is_partitioned

_WHOLE_PROFILES = ("NVML_GPU_INSTANCE_PROFILE_7_SLICE", "NVML_GPU_INSTANCE_PROFILE_4_SLICE")
"""Profiles that may be the whole GPU, largest first; a smaller GPU does not support the larger one."""


@dataclass(frozen=True, slots=True)
class MigInstance:
    """One instance.

    Attributes:
        gpu: index of the GPU.
        uuid: `MIG-...`, as CUDA_VISIBLE_DEVICES names it.
        share: part of the GPU, by compute slices.
    """

    gpu: int
    uuid: str
    share: Fraction


def instances(nvml: Nvml, index: int) -> list[MigInstance]:
    """Return the instances of a GPU; empty if it is not partitioned.

    Several compute instances of one GPU instance share its slices; each counts by its own.
    """
    if not is_partitioned(nvml, index):
        return []
    whole = _whole_slices(nvml, index)
    most = nvml.optional("nvmlDeviceGetMaxMigDeviceCount", index) or 0
    found = []
    for number in range(most):
        handle = nvml.optional("nvmlDeviceGetMigDeviceHandleByIndex", index, number)
        attributes = nvml.ask("nvmlDeviceGetAttributes", handle) if handle is not None else None
        uuid = nvml.ask("nvmlDeviceGetUUID", handle) if handle is not None else None
        if attributes is None or uuid is None or not whole:
            continue
        slices = int(attributes.computeInstanceSliceCount or attributes.gpuInstanceSliceCount)
        name = uuid.decode() if isinstance(uuid, bytes) else str(uuid)
        found.append(MigInstance(index, name, min(Fraction(1), Fraction(slices, whole))))
    return found


def _whole_slices(nvml: Nvml, index: int) -> int:
    """Return the compute slices of the whole GPU, 0 if it does not tell."""
    for profile in _WHOLE_PROFILES:
        info = nvml.optional("nvmlDeviceGetGpuInstanceProfileInfo", index, nvml.constant(profile))
        if info is not None:
            return int(info.sliceCount)
    return 0
