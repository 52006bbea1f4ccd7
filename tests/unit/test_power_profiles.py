"""Tests of NVIDIA workload power profiles.

The tests check the names, the masks, and the setting and restoring of profiles with drivers of several
releases.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pynvml
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_energy.agent.tuning.tunable_hardware import TunableHardware
from slurm_energy.devices.driver import DeviceError
from slurm_energy.devices.gpu import nvml
from slurm_energy.devices.gpu.nvml import NvmlLibrary
from slurm_energy.devices.gpu.nvml_power_profiles import NvmlPowerProfile, offered_profiles
from slurm_energy.devices.gpu.power_profiles import (
    MAX_PROFILES,
    POWER_PROFILES,
    canonical_name,
    profile_name,
    profile_number,
)
from slurm_energy.devices.hardware import GpuInfo, NodeHardware
from slurm_energy.policies import JobScope, OperatingPoint

PREFIX = "nvmlDeviceWorkloadPowerProfile"
NOT_SUPPORTED, NOT_FOUND = pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND


class Board:
    """Stand-in for pynvml with a GPU whose firmware enforces only some requested power profiles.

    `enforces` is a function that returns the enforced profiles among the requested ones.
    """

    def __init__(self, offered: set[int], missing: tuple[str, ...] = ()) -> None:
        self.offered, self.missing = offered, missing
        self.requested: set[int] = set()
        self.enforces: Callable[[set[int]], set[int]] = set
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name == "nvmlDeviceGetHandleByIndex":
            return lambda index: index
        if not name.startswith(PREFIX):
            return getattr(pynvml, name)
        return lambda _handle, pointer: self._call(name.removeprefix(PREFIX), pointer._obj)

    def _call(self, function: str, struct: Any) -> None:
        if function in self.missing:
            raise pynvml.NVMLError(NOT_FOUND)
        if not self.offered:
            raise pynvml.NVMLError(NOT_SUPPORTED)
        self.calls.append(function)
        if function == "GetProfilesInfo":
            assert struct.version == 0x1002BF8
            put(struct.perfProfilesMask, self.offered)
        elif function == "GetCurrentProfiles":
            assert struct.version == 0x1000064
            put(struct.requestedProfilesMask, self.requested)
            put(struct.enforcedProfilesMask, self.enforces(self.requested))
        elif function == "UpdateProfiles_v1":
            numbers = taken(struct.updateProfilesMask)
            changes = [self.requested - numbers, self.requested | numbers, numbers]
            self.requested = changes[struct.operation]
        else:
            assert struct.version == 0x1000024
            numbers = taken(struct.requestedProfilesMask)
            added = function == "SetRequestedProfiles"
            self.requested = self.requested | numbers if added else self.requested - numbers


def put(mask: Any, numbers: set[int]) -> None:
    for word in range(8):
        mask.mask[word] = sum(1 << number % 32 for number in numbers if number // 32 == word)


def taken(mask: Any) -> set[int]:
    return {number for number in range(256) if mask.mask[number // 32] >> number % 32 & 1}


def knob(board: Board) -> NvmlPowerProfile:
    return NvmlPowerProfile(NvmlLibrary(board), 0)


AGES = pytest.mark.parametrize("missing", [(), ("UpdateProfiles_v1",)], ids=["13.1", "13.0"])


def test_names_and_numbers_are_those_of_nvml() -> None:
    constants = {
        name.removeprefix("NVML_POWER_PROFILE_"): value
        for name, value in vars(pynvml).items()
        if name.startswith("NVML_POWER_PROFILE_") and "OPERATION" not in name and not name.endswith("E_MAX")
    }
    assert constants == POWER_PROFILES
    assert all(profile_number(profile_name(number)) == number for number in range(MAX_PROFILES))
    assert profile_name(40) == "PROFILE_40" and profile_number("PROFILE_255") is None


@given(st.text(max_size=12))
def test_any_text_is_a_profile_or_none(text: str) -> None:
    name = canonical_name(text)
    assert name is None or profile_number(name) in range(MAX_PROFILES)


@AGES
def test_the_requested_profile_is_replaced_and_restored(missing: tuple[str, ...]) -> None:
    board = Board({0, 1, 13, 40}, missing)
    profile = knob(board)
    assert offered_profiles(NvmlLibrary(board), 0) == (0, 1, 13, 40)
    assert profile.read() == "none"
    profile.write("MAX_Q")
    assert board.requested == {1} and profile.read() == "MAX_Q"
    profile.write("PROFILE_40")
    assert board.requested == {40}
    profile.write("MAX_P+HPC")
    assert board.requested == {0, 13} and profile.read() == "MAX_P+HPC"
    profile.write("none")
    assert board.requested == set()
    profile.write("none")


@AGES
def test_a_profile_that_the_gpu_does_not_enforce_is_an_error(missing: tuple[str, ...]) -> None:
    board = Board({0, 1, 4}, missing)
    board.enforces = lambda requested: {4}  # requested through the baseboard controller
    with pytest.raises(DeviceError, match="MAX_Q is requested, but the GPU enforces NETWORK"):
        knob(board).write("MAX_Q")
    with pytest.raises(DeviceError, match="'MAX_X' names no power profile"):
        knob(board).write("MAX_X")


def test_a_driver_that_refuses_is_an_error() -> None:
    board = Board({1}, ("UpdateProfiles_v1", "SetRequestedProfiles"))
    with pytest.raises(DeviceError, match="Not Found"):
        knob(board).write("MAX_Q")


def test_gpus_without_profiles_offer_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert offered_profiles(NvmlLibrary(Board(set())), 0) == ()
    assert offered_profiles(NvmlLibrary(Board({1}, ("GetProfilesInfo",))), 0) == ()
    monkeypatch.delattr(pynvml, "c_nvmlWorkloadPowerProfileProfilesInfo_v1_t")  # an older nvidia-ml-py
    assert offered_profiles(NvmlLibrary(Board({1})), 0) == ()
    assert nvml.NvmlPowerProfile.stage < nvml.NvmlPowerLimit.stage < nvml.NvmlLockedClocks.stage


def test_profiles_of_all_gpus_are_candidates_of_a_search() -> None:
    gpus = [
        GpuInfo(index, index, "NVIDIA B200", 1000.0, 200.0, 1000.0, (120, 1965), power_profiles=names)
        for index, names in enumerate((("MAX_P", "MAX_Q", "HPC", "NETWORK"), ("HPC", "MAX_Q", "MAX_Q_1")))
    ]
    hardware = NodeHardware("x", 4, gpus=tuple(gpus))

    def profiles(*blocked: str) -> set[OperatingPoint]:
        tunable = TunableHardware(hardware, JobScope(True, (0, 1), gpu_job=True), frozenset(blocked))
        return {point for point in tunable.candidates(900.0) if point.gpu_power_profile is not None}

    assert profiles() == {OperatingPoint(gpu_power_profile=name) for name in ("MAX_Q", "HPC")}
    assert profiles("gpu_power_profile") == set()
