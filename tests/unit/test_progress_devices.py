"""Tests of the devices that show the progress of a job, and of the access to these devices.

The devices provide the activity of NVIDIA GPUs and the number of retired instructions.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pynvml
import pytest
from hardware_tree import Tree

from slurm_energy.agent.tuning.job_signals import JobSignals
from slurm_energy.devices.cpu import instructions
from slurm_energy.devices.cpu.instructions import InstructionCounter
from slurm_energy.devices.discovery import discover
from slurm_energy.devices.driver import Activity, DeviceError
from slurm_energy.devices.gpu.nvml import NvmlLibrary
from slurm_energy.devices.gpu.nvml_activity import NvmlActivitySensor


class Gpu:
    """Substitute for pynvml with one GPU on which a program runs.

    The test sets the clock of the GPU, and whether the GPU supports GPM metrics.
    """

    def __init__(self, *, gpm: bool = True) -> None:
        self.gpm = gpm
        self.mhz = 1500.0
        self.percent = {5: 40.0, 10: 30.0, 11: 0.0, 12: 10.0, 13: 0.0}
        self.samples: list[float] = []
        self.failing = False

    def __getattr__(self, name: str) -> Any:
        return getattr(pynvml, name)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        return f"gpu{index}"

    def nvmlDeviceGetUtilizationRates(self, _: str) -> Any:
        return SimpleNamespace(gpu=97, memory=40)

    def nvmlDeviceGetClockInfo(self, _: str, kind: int) -> float:
        return {pynvml.NVML_CLOCK_SM: self.mhz, pynvml.NVML_CLOCK_MEM: 2600.0}[kind]

    def nvmlGpmQueryDeviceSupport(self, _: str) -> Any:
        if not self.gpm:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        return SimpleNamespace(isSupportedDevice=1)

    def nvmlGpmSampleAlloc(self) -> Any:
        return pynvml.c_nvmlGpmSample_t()

    def nvmlGpmSampleGet(self, _: str, sample: Any) -> Any:
        if self.failing:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_UNKNOWN)
        return sample

    def nvmlGpmMetricsGet(self, request: Any) -> Any:
        assert request.version == pynvml.NVML_GPM_METRICS_GET_VERSION
        for slot in range(request.numMetrics):
            metric = request.metrics[slot]
            metric.value, metric.nvmlReturn = self.percent.get(metric.metricId, 0.0), 0
        return request


def sensor(gpu: Gpu) -> NvmlActivitySensor | None:
    return NvmlActivitySensor.open(NvmlLibrary(gpu), 0)


def test_work_is_activity_times_clock() -> None:
    gpu = Gpu()
    opened = sensor(gpu)
    assert opened is not None
    assert opened.read() == Activity(0.97, {})
    assert opened.read().work == {"compute": 50.0 * 1500, "memory": 30.0 * 2600}
    gpu.mhz = 1200.0  # as many operations per cycle at a lower clock are less work per second
    opened.read()
    assert opened.read().work == {"compute": 50.0 * 1200, "memory": 30.0 * 2600}


def test_an_older_gpu_has_utilisation_only() -> None:
    opened = sensor(Gpu(gpm=False))
    assert opened is not None
    assert [opened.read() for _ in range(3)] == [Activity(0.97, {})] * 3


def test_unused_units_are_no_work() -> None:
    gpu = Gpu()
    gpu.percent = {5: 0.3, 10: 45.0}
    opened = sensor(gpu)
    assert opened is not None
    opened.read()
    assert set(opened.read().work) == {"memory"}


def test_a_failed_reading_starts_again() -> None:
    gpu = Gpu()
    opened = sensor(gpu)
    assert opened is not None
    opened.read()
    gpu.failing = True
    with pytest.raises(DeviceError):
        opened.read()
    gpu.failing = False
    assert opened.read().work == {}
    assert opened.read().work


def test_a_library_without_gpm_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(pynvml, "c_nvmlGpmMetricsGet_t")
    opened = sensor(Gpu())
    assert opened is not None
    assert opened.read() == opened.read() == Activity(0.97, {})


class Kernel:
    """Emulation of perf events. The count of each CPU is the content of a file."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.refused: set[int] = set()
        self.descriptors: list[int] = []
        monkeypatch.setattr(instructions, "open_event", self.open_event)
        monkeypatch.setattr(
            instructions, "read_count", lambda fd: int.from_bytes(os.pread(fd, 8, 0), "little")
        )

    def open_event(self, kind: int, config: int, cpu: int, *, user_only: bool) -> int:
        assert (kind, config, user_only) == (0, 1, True)
        if cpu in self.refused:
            raise OSError(errno.EACCES, "not permitted")
        path = self.folder / f"cpu{cpu}"
        path.write_bytes((1000 * (cpu + 1)).to_bytes(8, "little"))
        self.descriptors.append(os.open(path, os.O_RDONLY))
        return self.descriptors[-1]


def test_instructions_of_all_cpus_are_added_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Kernel(tmp_path, monkeypatch)
    counter = InstructionCounter((0, 2))
    assert counter.read() == 4000
    counter.close()
    assert counter.read() is None


def test_instructions_are_unknown_if_one_cpu_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = Kernel(tmp_path, monkeypatch)
    kernel.refused = {2}
    assert InstructionCounter((0, 2)).read() is None
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(kernel.descriptors[0])


class Sensor:
    """A fake sensor of GPU activity that counts how often it is read."""

    def __init__(self, index: int, utilisation: float, **work: float) -> None:
        self.component, self.activity, self.reads = f"gpu[{index}]", Activity(utilisation, work), 0

    def read(self) -> Activity:
        self.reads += 1
        return self.activity


def test_the_gpus_of_the_job_are_read_once_a_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Kernel(tmp_path, monkeypatch)
    sensors = [Sensor(0, 0.9, compute=100.0), Sensor(1, 0.7, compute=50.0), Sensor(2, 0.1, compute=7.0)]
    devices = discover(Tree(tmp_path / "node").cpus(4).root)
    signals = JobSignals(cast(Any, SimpleNamespace(activity_sensors=sensors, root=devices.root)))
    job = cast(Any, SimpleNamespace(key=(5, 0), gpus=(0, 1), whole_node=True, cpu_list=None))
    read = [signals.read(job, now / 10) for now in range(11)]
    assert read[0] == read[10] == {"utilisation": 0.8, "activity": {"compute": 75.0}, "instructions": 10_000}
    assert read[1:10] == [{}] * 9
    assert [sensor.reads for sensor in sensors] == [2, 2, 0]
    shared = cast(Any, SimpleNamespace(key=(6, 0), gpus=(), whole_node=False, cpu_list=None))
    assert signals.read(shared, 3.0) == {"instructions": None}
    signals.forget((5, 0))
    signals.forget((6, 0))
