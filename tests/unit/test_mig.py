"""Tests of GPUs in MIG mode with a stub of NVML that answers as NVML's reference says."""

from __future__ import annotations

from typing import Any

import pytest

from slurm_energy.devices.gpu import nvml
from slurm_energy.devices.gpu.nvml import NvmlLibrary
from slurm_energy.devices.gpu.nvml_info import is_partitioned

NOT_SUPPORTED = 3


class NVMLError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(value)
        self.value = value


class Node:
    """Stub of pynvml on a node with one GPU.

    All functions about the GPU are unsupported, except the query of the MIG mode. The mode is 1 if MIG is
    on. A mode of None means that the query is unsupported too.
    """

    NVMLError = NVMLError
    NVML_ERROR_UNINITIALIZED = 1
    NVML_ERROR_DRIVER_NOT_LOADED = 9
    NVML_ERROR_GPU_IS_LOST = 15

    def __init__(self, mode: int | None) -> None:
        self.mode = mode

    def nvmlDeviceGetCount(self) -> int:
        return 1

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        return f"gpu{index}"

    def nvmlDeviceGetMigMode(self, handle: str) -> list[int]:
        if self.mode is None:
            raise NVMLError(NOT_SUPPORTED)
        return [self.mode, 1]

    def nvmlShutdown(self) -> None:
        return

    def __getattr__(self, name: str) -> Any:
        def refuse(*_: Any) -> None:
            raise NVMLError(NOT_SUPPORTED)

        if not name.startswith("nvmlDevice"):
            raise AttributeError(name)
        return refuse


@pytest.mark.parametrize("mode", [None, 0, 1])
def test_a_gpu_is_partitioned_only_while_mig_mode_is_on(mode: int | None) -> None:
    assert is_partitioned(NvmlLibrary(Node(mode)), 0) is (mode == 1)


@pytest.mark.parametrize("mode", [None, 0, 1])
def test_discovery_notes_a_partitioned_gpu(monkeypatch: pytest.MonkeyPatch, mode: int | None) -> None:
    monkeypatch.setattr(nvml.NvmlLibrary, "open", lambda: NvmlLibrary(Node(mode)))
    found = nvml.discover()
    found.close()
    assert [gpu.index for gpu in found.gpus] == [0]
    assert [("MIG" in note) for note in found.notes] == ([True] if mode else [])
