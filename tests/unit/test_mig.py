"""MIG instances and their shares, from a library that answers as NVML's reference says."""

from __future__ import annotations

from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import pytest

from slurm_energy.devices import nvml
from slurm_energy.devices.mig import MigInstance, instances
from slurm_energy.devices.nvml import Nvml, is_partitioned


class NVMLError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(value)
        self.value = value


NOT_SUPPORTED, NOT_FOUND = 3, 6


class Library:
    """pynvml for one GPU with `slices` in all and instances (compute slices, gpu slices) in `placed`."""

    NVMLError = NVMLError
    NVML_ERROR_UNINITIALIZED = 1
    NVML_ERROR_DRIVER_NOT_LOADED = 9
    NVML_ERROR_GPU_IS_LOST = 15
    NVML_GPU_INSTANCE_PROFILE_7_SLICE = 4
    NVML_GPU_INSTANCE_PROFILE_4_SLICE = 3

    def __init__(self, slices: int, placed: dict[int, tuple[int, int]], mode: int | None = 1) -> None:
        self.slices, self.placed, self.mode = slices, placed, mode

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        return f"gpu{index}"

    def nvmlDeviceGetMigMode(self, handle: str) -> list[int]:
        if self.mode is None:
            raise NVMLError(NOT_SUPPORTED)
        return [self.mode, 1]

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: str) -> int:
        return self.slices

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: str, number: int) -> int:
        if number not in self.placed:
            raise NVMLError(NOT_FOUND)
        return number

    def nvmlDeviceGetAttributes(self, handle: int) -> Any:
        compute, gpu = self.placed[handle]
        return SimpleNamespace(computeInstanceSliceCount=compute, gpuInstanceSliceCount=gpu)

    def nvmlDeviceGetUUID(self, handle: int) -> bytes:
        return f"MIG-{handle}".encode()

    def nvmlDeviceGetGpuInstanceProfileInfo(self, handle: str, profile: int) -> Any:
        if (profile == self.NVML_GPU_INSTANCE_PROFILE_7_SLICE) != (self.slices == 7):
            raise NVMLError(NOT_SUPPORTED)
        return SimpleNamespace(sliceCount=self.slices)


def test_instances_count_by_their_compute_slices() -> None:
    nvml = Nvml(Library(7, {0: (3, 3), 2: (1, 1), 3: (1, 2)}))
    assert instances(nvml, 0) == [
        MigInstance(0, "MIG-0", Fraction(3, 7)),
        MigInstance(0, "MIG-2", Fraction(1, 7)),
        MigInstance(0, "MIG-3", Fraction(1, 7)),
    ]


def test_a_smaller_gpu_has_fewer_slices() -> None:
    (one,) = instances(Nvml(Library(4, {1: (2, 2)})), 0)
    assert one.share == Fraction(1, 2)


@pytest.mark.parametrize("mode", [0, None])
def test_a_gpu_that_is_not_partitioned_has_no_instances(mode: int | None) -> None:
    nvml = Nvml(Library(7, {0: (7, 7)}, mode))
    assert not is_partitioned(nvml, 0)
    assert instances(nvml, 0) == []


class Node(Library):
    """A node with one GPU that supports nothing but MIG."""

    def nvmlDeviceGetCount(self) -> int:
        return 1

    def nvmlShutdown(self) -> None:
        return

    def __getattr__(self, name: str) -> Any:
        def refuse(*_: Any) -> None:
            raise NVMLError(NOT_SUPPORTED)

        if not name.startswith("nvmlDevice"):
            raise AttributeError(name)
        return refuse


@pytest.mark.parametrize("mode", [None, 0, 1])
def test_discovery_notes_a_partitioned_gpu(monkeypatch: pytest.MonkeyPatch, mode: int | None) -> None:
    monkeypatch.setattr(nvml.Nvml, "open", lambda: Nvml(Node(7, {}, mode)))
    found = nvml.discover()
    found.close()
    assert [gpu.index for gpu in found.gpus] == [0]
    assert [("MIG" in note) for note in found.notes] == ([True] if mode else [])
