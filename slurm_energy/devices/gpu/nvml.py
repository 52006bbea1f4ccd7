"""NVIDIA GPUs through NVML: energy, power limit, clocks, power profile, persistence mode, throttling.

NVML stays open as long as the agent runs. Without persistence mode the driver unloads when its last client
closes NVML. Limits and energy counts are then lost. Source: NVML API reference.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from slurm_energy.devices.driver import (
    DeviceError,
    DeviceGoneError,
    EnergyCounter,
    Knob,
    WriteStage,
)
from slurm_energy.devices.gpu.inventory import GpuDevices
from slurm_energy.devices.gpu.nvml_activity import NvmlActivitySensor
from slurm_energy.devices.gpu.nvml_info import gpu_info
from slurm_energy.devices.gpu.nvml_power_profiles import NvmlPowerProfile
from slurm_energy.devices.gpu.nvml_signals import NvmlSignalSensor
from slurm_energy.devices.gpu.nvml_throttling import NvmlThrottleSensor, slow_reasons
from slurm_energy.devices.hardware import GpuInfo
from slurm_energy.devices.settings import parse_range

_LIMIT_ROUNDING_MW = 100
_DEFAULT_MAX_WATTS = 1500.0
_MIN_PAUSE_S, _MAX_PAUSE_S = 5.0, 60.0
UNLOCKED = "default"


class NvmlLibrary:
    """The open NVML library. GPUs are named by index.

    A GPU that does not respond is tried again every few seconds. Each attempt finds the GPU by its UUID,
    because indices change when a GPU falls off the bus. If the driver itself is gone, a thread opens the
    library again, which may take seconds; until then every call fails. The library is never opened again for
    one GPU while other GPUs respond. Without persistence mode, opening the library again would unload the
    driver, and all limits would be lost.

    Args:
        library: the imported package `pynvml`, already initialised.
        clock: function that returns monotonic seconds.
    """

    def __init__(self, library: Any, clock: Callable[[], float] = time.monotonic) -> None:
        self._library = library
        self._handles: dict[int, Any] = {}
        self._energy: Any = getattr(library, "nvmlDeviceGetTotalEnergyConsumption", None)
        self._clock = clock
        self._uuids: dict[int, Any] = {}
        self._lock = threading.Lock()  # protects the state of lost GPUs: several threads read
        self._lost: dict[int, tuple[float, str]] = {}
        self._reopening: threading.Thread | None = None
        self._reopen_at = 0.0
        self._pause_s = _MIN_PAUSE_S

    @classmethod
    def open(cls) -> NvmlLibrary:
        """Open NVML.

        Raises:
            DeviceError: the library or the driver is absent.
        """
        try:
            import pynvml
        except ImportError as error:
            raise DeviceError("NVML", str(error)) from None
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise DeviceError("NVML", _reason(error)) from None
        return cls(pynvml)

    def find_gpus(self) -> int:
        """Store the handle and the UUID of every GPU, and return the number of GPUs.

        The UUID identifies a GPU even if indices change later. All GPUs are found before any other call, so
        that a GPU that does not respond is known to be one of several. The result is 0 if the driver does not
        respond.
        """
        try:
            count = int(self._library.nvmlDeviceGetCount())
        except self._library.NVMLError:
            return 0
        for index in range(count):
            self._find(index)
        return count

    def call(self, function: str, index: int, *arguments: Any) -> Any:
        """Call an `nvml...` function for one GPU and return its result.

        Args:
            function: name of the function.
            index: index of the GPU.
            arguments: arguments after the handle of the GPU.

        Raises:
            DeviceGoneError: the GPU or the driver is gone.
            DeviceError: the driver refused the call.
        """
        library = self._library
        try:
            handle = self._handles.get(index)
            if handle is None:
                with self._lock:
                    handle = self._handle(index)
            return getattr(library, function)(handle, *arguments)
        except library.NVMLError as error:
            subject = f"gpu{index}: {function}"
            if error.value not in self._gone():
                raise DeviceError(subject, _reason(error)) from None
            with self._lock:
                self._lose(index, error)
            raise DeviceGoneError(subject, _reason(error)) from None

    def energy_mj(self, index: int) -> int:
        """Return the energy of a GPU since the driver was loaded, in millijoules.

        This method replaces `call` for the NVML function that is called most often, because it is faster.

        Raises:
            DeviceGoneError: the GPU or the driver is gone.
            DeviceError: the driver refused the call.
        """
        handle = self._handles.get(index)
        if handle is not None:
            try:
                return self._energy(handle)  # type: ignore[no-any-return]
            except self._library.NVMLError:
                pass  # `call` below repeats the request and states the reason
        return int(self.call("nvmlDeviceGetTotalEnergyConsumption", index))

    def query(self, function: str, *arguments: Any) -> Any:
        """Call an `nvml...` function that takes no GPU and return its result.

        Raises:
            DeviceError: the driver refused the call, or the library is too old.
        """
        try:
            return getattr(self._library, function)(*arguments)
        except AttributeError:
            raise DeviceError(function, "nvidia-ml-py is too old") from None
        except self._library.NVMLError as error:
            raise DeviceError(function, _reason(error)) from None

    def struct(self, name: str) -> Any:
        """Return a new struct of the library, for example `c_nvmlMask255_t`.

        Return None if the installed nvidia-ml-py is too old to have the struct.
        """
        make = getattr(self._library, name, None)
        return None if make is None else make()

    def optional(self, function: str, index: int, *arguments: Any) -> Any:
        """Call an `nvml...` function as `call` does, but return None if the call fails.

        Most failures mean that the GPU does not support the function.
        """
        try:
            return self.call(function, index, *arguments)
        except DeviceError:
            return None

    def close(self) -> None:
        """Close the NVML library. If a thread is opening the library again, wait up to 5 s for the thread."""
        if self._reopening is not None:
            self._reopening.join(_MIN_PAUSE_S)
        with contextlib.suppress(self._library.NVMLError):
            self._library.nvmlShutdown()

    def _find(self, index: int) -> None:
        library = self._library
        self._uuids[index] = None
        try:
            handle = library.nvmlDeviceGetHandleByIndex(index)
            try:
                self._uuids[index] = library.nvmlDeviceGetUUID(handle)
            except library.NVMLError as error:
                if error.value in self._gone():
                    raise
            self._handles[index] = handle
        except library.NVMLError as error:
            self._lost[index] = self._clock() + _MIN_PAUSE_S, _reason(error)

    def _handle(self, index: int) -> Any:
        if self._reopening is not None:
            if self._reopening.is_alive():
                raise DeviceGoneError(f"gpu{index}", "the library is being opened again")
            self._reopening = None
        not_before, why = self._lost.get(index, (0.0, ""))
        if self._clock() < not_before:
            raise DeviceGoneError(f"gpu{index}", why)
        uuid = self._uuids.get(index)
        try:
            if uuid is None:
                handle = self._library.nvmlDeviceGetHandleByIndex(index)
            else:
                handle = self._library.nvmlDeviceGetHandleByUUID(uuid)
        except self._library.NVMLError as error:
            self._lose(index, error)
            raise DeviceGoneError(f"gpu{index}", _reason(error)) from None
        self._lost.pop(index, None)
        self._handles[index] = handle
        return handle

    def _gone(self) -> tuple[int, ...]:
        library = self._library
        return (
            library.NVML_ERROR_UNINITIALIZED,
            library.NVML_ERROR_DRIVER_NOT_LOADED,
            library.NVML_ERROR_GPU_IS_LOST,
        )

    def _lose(self, index: int, error: Any) -> None:
        """Mark a GPU as lost for a few seconds.

        If no GPU responds any more, open the library again in a thread.

        Args:
            index: index of the GPU.
            error: the NVMLError of the last call.
        """
        self._handles.pop(index, None)
        now = self._clock()
        self._lost[index] = now + _MIN_PAUSE_S, _reason(error)
        driver_gone = error.value in self._gone() and error.value != self._library.NVML_ERROR_GPU_IS_LOST
        some_respond = not self._uuids.keys() <= self._lost.keys()
        if (some_respond and not driver_gone) or self._reopening is not None or now < self._reopen_at:
            return
        self._handles.clear()
        if now > self._reopen_at + _MAX_PAUSE_S:
            self._pause_s = _MIN_PAUSE_S
        self._reopen_at = now + self._pause_s
        self._pause_s = min(2 * self._pause_s, _MAX_PAUSE_S)
        self._reopening = threading.Thread(target=self._reopen, name="nvml", daemon=True)
        self._reopening.start()

    def _reopen(self) -> None:
        with contextlib.suppress(self._library.NVMLError):
            self._library.nvmlShutdown()
        with contextlib.suppress(self._library.NVMLError):
            self._library.nvmlInit()
            # Each GPU may be tried now. A GPU stays lost until it responds: nobody may read it for long.
            self._lost = {index: (0.0, reason) for index, (_, reason) in self._lost.items()}


def _reason(error: Any) -> str:
    return str(error)


class NvmlEnergyCounter(EnergyCounter):
    """Energy counter of a GPU (Volta or newer). NVML counts millijoules since the driver was loaded."""

    range_uj = None
    source = "nvml:total_energy"

    def __init__(self, nvml: NvmlLibrary, gpu: GpuInfo) -> None:
        self.key = f"nvml:gpu{gpu.index}"
        self.component = f"gpu[{gpu.index}]"
        self.max_watts = 2 * gpu.max_limit_watts if gpu.max_limit_watts else _DEFAULT_MAX_WATTS
        self._nvml, self._index = nvml, gpu.index

    def read(self) -> int:
        """Return the energy since the driver was loaded, in microjoules."""
        return self._nvml.energy_mj(self._index) * 1000


class _GpuKnob(Knob):
    def __init__(self, nvml: NvmlLibrary, index: int) -> None:
        super().__init__(f"gpu{index}")
        self._nvml, self._index = nvml, index


class NvmlPersistence(_GpuKnob):
    """Persistence mode of a GPU: `1` keeps the driver loaded while it has no clients, `0` does not."""

    name = "nvml.persistence"
    stage = WriteStage.PERSISTENCE

    def read(self) -> str:
        """Return `1` if persistence mode is on, `0` if not."""
        return str(int(self._nvml.call("nvmlDeviceGetPersistenceMode", self._index)))

    def write(self, value: str) -> None:
        """Switch persistence mode on (`1`) or off (`0`). This requires root."""
        self._nvml.call("nvmlDeviceSetPersistenceMode", self._index, int(value))


class NvmlPowerLimit(_GpuKnob):
    """Power limit of a GPU in milliwatts."""

    name = "nvml.power_limit"
    stage = WriteStage.GPU_LIMIT

    def read(self) -> str:
        """Return the limit that was set, in milliwatts as text.

        The limit that the driver enforces may be lower.
        """
        return str(int(self._nvml.call("nvmlDeviceGetPowerManagementLimit", self._index)))

    def write(self, value: str) -> None:
        """Set the limit to `value` milliwatts. NVML refuses a value outside the bounds of the GPU."""
        self._nvml.call("nvmlDeviceSetPowerManagementLimit", self._index, int(value))

    def is_equivalent(self, requested: str, actual: str) -> bool:
        """Return whether two limits in milliwatts are equal, apart from the driver's rounding to 0.1 W."""
        return abs(int(requested) - int(actual)) <= _LIMIT_ROUNDING_MW

    def format_value(self, value: str) -> str:
        """Convert a limit from milliwatts to text in watts."""
        return f"{int(value) / 1e3:g} W"


class NvmlLockedClocks(_GpuKnob):
    """Range to which the graphics clock of a GPU is locked, as `LOW-HIGH` in MHz; `default`: not locked.

    NVML cannot report the range, so a restore always unlocks the clock.
    """

    name = "nvml.locked_clocks"
    stage = WriteStage.GPU_CLOCK
    readable = False

    def read(self) -> str:
        """Return `default`, which means that no clocks are locked.

        NVML cannot report a locked range. A restore therefore always unlocks the clocks.
        """
        return UNLOCKED

    def write(self, value: str) -> None:
        """Lock the graphics clock to `LOW-HIGH` in MHz, or unlock it if `value` is `default`."""
        if value == UNLOCKED:
            self._nvml.call("nvmlDeviceResetGpuLockedClocks", self._index)
        else:
            self._nvml.call("nvmlDeviceSetGpuLockedClocks", self._index, *parse_range(value))

    def format_value(self, value: str) -> str:
        """Return a range of clocks with its unit MHz; the value `default` stays unchanged."""
        return value if value == UNLOCKED else f"{value} MHz"


def discover() -> GpuDevices:
    """Open NVML and return the GPUs with the counters, knobs and sensors that each GPU supports."""
    try:
        nvml = NvmlLibrary.open()
    except DeviceError as error:
        return GpuDevices([], [], [], [], lambda: None, reason=error.why)
    devices = GpuDevices([], [], [], [], nvml.close)
    for index in range(nvml.find_gpus()):
        _add(devices, nvml, index)
    return devices if devices.gpus else replace(devices, reason="the driver shows no GPU")


def _add(devices: GpuDevices, nvml: NvmlLibrary, index: int) -> None:
    gpu = gpu_info(nvml, index)
    devices.gpus.append(gpu)
    if nvml.optional("nvmlDeviceGetTotalEnergyConsumption", index) is not None:
        devices.counters.append(NvmlEnergyCounter(nvml, gpu))
    if nvml.optional("nvmlDeviceGetPersistenceMode", index) is not None:
        devices.knobs.append(NvmlPersistence(nvml, index))
    if gpu.limit_watts is not None:
        devices.knobs.append(NvmlPowerLimit(nvml, index))
    if gpu.clocks_mhz is not None:
        devices.knobs.append(NvmlLockedClocks(nvml, index))
    if gpu.power_profiles:
        devices.knobs.append(NvmlPowerProfile(nvml, index))
    if nvml.optional("nvmlDeviceGetCurrentClocksThrottleReasons", index) is not None:
        devices.throttle_sensors.append(NvmlThrottleSensor(nvml, index, slow_reasons()))
    if not gpu.partitioned and (activity := NvmlActivitySensor.open(nvml, index)) is not None:
        devices.activity_sensors.append(activity)
    devices.signal_sensors.append(NvmlSignalSensor(nvml, index, partitioned=gpu.partitioned))
    if gpu.partitioned:
        devices.notes.append(
            f"nvml:gpu{index} is partitioned (MIG): energy and limits are those of the whole GPU"
        )
