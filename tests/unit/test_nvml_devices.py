"""Tests of the devices of NVIDIA GPUs with a stand-in for nvidia-ml-py: lost GPUs and reloaded drivers."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import pytest

from slurm_energy.devices.driver import DeviceError, DeviceGoneError
from slurm_energy.devices.gpu import nvml


class FakeLibrary:
    """A partial stand-in for nvidia-ml-py, as far as the tests need it.

    `loaded` states whether the driver is loaded. `fallen` contains the UUIDs of GPUs that have
    fallen off the bus.
    """

    NVML_ERROR_UNINITIALIZED, NVML_ERROR_DRIVER_NOT_LOADED, NVML_ERROR_GPU_IS_LOST = 1, 9, 15
    NVML_ERROR_NOT_SUPPORTED = 3

    class NVMLError(Exception):
        def __init__(self, value: int) -> None:
            super().__init__(f"error {value}")
            self.value = value

    def __init__(self) -> None:
        self.limit = 400_000
        self.uuids = ["GPU-a", "GPU-b"]
        self.loaded, self.usable = True, True
        self.fallen: set[str] = set()
        self.opened = 1

    def nvmlInit(self) -> None:
        self.opened += 1
        if not self.loaded:
            raise self.NVMLError(self.NVML_ERROR_DRIVER_NOT_LOADED)
        self.usable = True

    def nvmlShutdown(self) -> None:
        self.usable = False

    def nvmlDeviceGetCount(self) -> int:
        return len(self.uuids)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        return self._checked(self.uuids[index])

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        return self._checked(uuid)

    def nvmlDeviceGetUUID(self, handle: str) -> str:
        return handle

    def __getattr__(self, name: str) -> Any:
        def refuse(handle: str, *_: Any) -> None:
            self._checked(handle)
            raise self.NVMLError(self.NVML_ERROR_NOT_SUPPORTED)

        if not name.startswith("nvmlDevice"):
            raise AttributeError(name)
        return refuse

    def _checked(self, handle: str) -> str:
        if not self.usable:
            raise self.NVMLError(self.NVML_ERROR_UNINITIALIZED)
        if handle in self.fallen:
            raise self.NVMLError(self.NVML_ERROR_GPU_IS_LOST)
        return handle

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: str) -> int:
        return {"GPU-a": 1234, "GPU-b": 777}[self._checked(handle)]

    def nvmlDeviceGetPowerManagementLimit(self, handle: str) -> int:
        self._checked(handle)
        return self.limit

    def nvmlDeviceSetPowerManagementLimit(self, handle: object, limit: int) -> None:
        if limit > 400_000:
            raise self.NVMLError(2)
        self.limit = limit


def nvml_counters(library: FakeLibrary, now: list[float]) -> list[nvml.NvmlEnergyCounter]:
    opened = nvml.NvmlLibrary(library, lambda: now[0])
    assert opened.find_gpus() == 2
    return [
        nvml.NvmlEnergyCounter(opened, nvml.GpuInfo(index, 0, "A100", 400.0, 100.0, 400.0, None))
        for index in range(2)
    ]


def settled(counter: nvml.NvmlEnergyCounter) -> int:
    """Read an energy counter repeatedly until the NVML library has been opened again.

    The function returns the value of the counter.
    """
    deadline = time.time() + 60
    while time.time() < deadline:
        try:
            return counter.read()
        except DeviceGoneError as error:
            if "opened again" not in str(error):
                raise
            time.sleep(0.01)
    raise AssertionError("still being opened")


def test_nvml_is_reopened_after_a_driver_reload_without_blocking() -> None:
    library, now = FakeLibrary(), [1000.0]
    counter, other = nvml_counters(library, now)
    assert counter.read() == 1_234_000
    library.usable = library.loaded = False
    with pytest.raises(DeviceGoneError):
        counter.read()
    with pytest.raises(DeviceGoneError):
        settled(counter)
    for _ in range(100):  # no storm of attempts
        with pytest.raises(DeviceGoneError):
            settled(other)
    assert library.opened == 2
    library.loaded = True
    now[0] += 5.1
    with pytest.raises(DeviceGoneError):
        counter.read()
    assert (settled(counter), settled(other)) == (1_234_000, 777_000)
    assert library.opened == 3


def test_a_gpu_that_falls_off_the_bus_does_not_affect_the_others() -> None:
    library, now = FakeLibrary(), [1000.0]
    counter, other = nvml_counters(library, now)
    assert (counter.read(), other.read()) == (1_234_000, 777_000)
    library.fallen = {"GPU-a"}
    library.uuids = ["GPU-b"]  # indices move
    for _ in range(10):
        with pytest.raises(DeviceGoneError):
            counter.read()
        assert other.read() == 777_000
        now[0] += 6
    assert library.opened == 1
    library.fallen, library.uuids = set(), ["GPU-b", "GPU-a"]
    assert counter.read() == 1_234_000


@pytest.mark.parametrize("lost", ["GPU-a", "GPU-b"])
def test_a_gpu_that_is_lost_at_the_start_does_not_affect_the_others(
    monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    library, now = FakeLibrary(), [1000.0]
    library.fallen = {lost}
    monkeypatch.setattr(nvml.NvmlLibrary, "open", lambda: nvml.NvmlLibrary(library, lambda: now[0]))
    devices = nvml.discover()
    other = 1 - library.uuids.index(lost)
    assert [gpu.index for gpu in devices.gpus] == [0, 1]
    assert [counter.key for counter in devices.counters] == [f"nvml:gpu{other}"]
    assert [knob.key for knob in devices.knobs] == [f"nvml.power_limit[gpu{other}]"]
    for _ in range(10):  # the lost GPU is tried again
        for sensor in devices.signal_sensors:
            with contextlib.suppress(DeviceError):
                sensor.read(now[0])
        assert devices.counters[0].read() > 0
        now[0] += 6
    assert library.opened == 1
    devices.close()


def test_a_lost_gpu_does_not_close_a_driver_that_was_loaded_again_slowly() -> None:
    library, now = FakeLibrary(), [1000.0]
    counter, other = nvml_counters(library, now)
    library.usable, library.fallen = False, {"GPU-a"}
    with pytest.raises(DeviceGoneError):
        counter.read()
    now[0] += 30
    with pytest.raises(DeviceGoneError, match="error 15"):
        settled(counter)
    assert (settled(other), library.opened) == (777_000, 2)


def test_a_gpu_limit_out_of_range_is_refused() -> None:
    knob = nvml.NvmlPowerLimit(nvml.NvmlLibrary(FakeLibrary()), 0)
    knob.write("300000")
    assert (knob.read(), knob.format_value(knob.read())) == ("300000", "300 W")
    with pytest.raises(DeviceError, match="error 2"):
        knob.write("500000")
