"""NVIDIA workload power profiles through NVML: profiles of a GPU, and the setting to request one.

The GPU computes the enforced profiles from the requested profiles. A profile with a lower priority number
takes precedence, and profiles that conflict with each other (conflict mask) are never enforced together. A
baseboard controller may request profiles too. Source: NVML API reference, "Power Profile Information" (NVML
13; Blackwell or newer).
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterable
from typing import Any, Final

from slurm_energy.devices.driver import DeviceError, Knob, WriteStage
from slurm_energy.devices.gpu.nvml_caller import NvmlCaller
from slurm_energy.devices.gpu.power_profiles import MAX_PROFILES, profile_name, profile_number

NO_PROFILE: Final = "none"
_PREFIX: Final = "nvmlDeviceWorkloadPowerProfile"
_OPERATION_CLEAR, _OPERATION_OVERWRITE = 0, 2
_ENFORCED_PAUSES_S: Final = (0.0, 0.02, 0.05)
"""Seconds to wait, after a request, before each reading of the enforced profiles."""


def offered_profiles(nvml: NvmlCaller, index: int) -> tuple[int, ...]:
    """Return the numbers of the profiles that a GPU offers, ascending; empty if it offers none.

    Only the list of profiles shows whether a GPU supports them. A query of the current profiles returns "not
    available" both on GPUs without support and on GPUs for which no profile is requested.
    """
    info = nvml.struct("c_nvmlWorkloadPowerProfileProfilesInfo_v1_t")
    if info is None:
        return ()
    try:
        nvml.call(f"{_PREFIX}GetProfilesInfo", index, ctypes.byref(info))
    except DeviceError:
        return ()
    return _numbers(info.perfProfilesMask)


class NvmlPowerProfile(Knob):
    """Workload power profiles requested on a GPU: their names joined by `+`, or `none`.

    An enforced profile may change the power limit and the clocks. The profiles are therefore written before
    the limit and the clocks.
    """

    name = "nvml.power_profile"
    stage = WriteStage.GPU_PROFILE

    def __init__(self, nvml: NvmlCaller, index: int) -> None:
        super().__init__(f"gpu{index}", (f"nvml.power_limit[gpu{index}]",))
        self._nvml, self._index = nvml, index

    def read(self) -> str:
        """Return the requested profiles, which may differ from the enforced ones."""
        return _text(_numbers(self._current().requestedProfilesMask))

    def write(self, value: str) -> None:
        """Request the NVIDIA workload power profiles in `value` and no others. This requires root.

        Raises:
            DeviceError: a name is unknown, the driver refused the request, or the GPU enforces none of the
                requested profiles.
        """
        numbers = [] if value == NO_PROFILE else [profile_number(name) for name in value.split("+")]
        known = [number for number in numbers if number is not None]
        if len(known) < len(numbers):
            raise DeviceError(self.key, f"'{value}' names no power profile")
        self._request(known)
        if not known:
            return
        enforced: tuple[int, ...] = ()
        for pause_s in _ENFORCED_PAUSES_S:
            time.sleep(pause_s)
            enforced = _numbers(self._current().enforcedProfilesMask)
            if set(enforced) & set(known):
                return
        raise DeviceError(self.key, f"{value} is requested, but the GPU enforces {_text(enforced)}")

    def _current(self) -> Any:
        current = self._nvml.struct("c_nvmlWorkloadPowerProfileCurrentProfiles_v1_t")
        self._nvml.call(f"{_PREFIX}GetCurrentProfiles", self._index, ctypes.byref(current))
        return current

    def _request(self, numbers: list[int]) -> None:
        """Replace the requested profiles; an empty list removes all of them."""
        requested = _numbers(self._current().requestedProfilesMask)
        update = self._nvml.struct("c_nvmlWorkloadPowerProfileUpdateProfiles_v1_t")
        if update is not None:
            update.operation = _OPERATION_OVERWRITE if numbers else _OPERATION_CLEAR
            _set(update.updateProfilesMask, numbers or requested)
            try:
                self._nvml.call(f"{_PREFIX}UpdateProfiles_v1", self._index, ctypes.byref(update))
                return
            except DeviceError as error:
                if not _is_missing(error):
                    raise
        # Drivers before NVML 13.1 have only these calls. NVML 13.1 deprecated them.
        for function, mask in (("Clear", set(requested) - set(numbers)), ("Set", set(numbers))):
            if mask:
                change = self._nvml.struct("c_nvmlWorkloadPowerProfileRequestedProfiles_v1_t")
                _set(change.requestedProfilesMask, mask)
                function_name = f"{_PREFIX}{function}RequestedProfiles"
                self._nvml.call(function_name, self._index, ctypes.byref(change))


def _is_missing(error: DeviceError) -> bool:
    """Return whether a call failed because the installed driver does not have the function."""
    return "function not found" in error.why.lower()


def _numbers(mask: Any) -> tuple[int, ...]:
    words = [int(word) for word in mask.mask]
    return tuple(number for number in range(MAX_PROFILES) if words[number // 32] >> number % 32 & 1)


def _set(mask: Any, numbers: Iterable[int]) -> None:
    for number in numbers:
        mask.mask[number // 32] |= 1 << number % 32


def _text(numbers: Iterable[int]) -> str:
    return "+".join(profile_name(number) for number in numbers) or NO_PROFILE
