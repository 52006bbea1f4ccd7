"""NVIDIA GPUs through NVML: energy counter, power limit, locked clocks, persistence, throttle reasons.

NVML stays open as long as the agent runs: without persistence mode and without a client the driver
unloads and forgets limits and counters. Source: NVML API reference.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from typing import Any

from slurm_energy.devices.gpus import GpuDevices
from slurm_energy.devices.hardware import Gpu, read_range
from slurm_energy.devices.interface import DeviceError, EnergyCounter, Knob, Stage, ThrottleSensor

_LIMIT_ROUNDING_MW = 100
_DEFAULT_MOST_WATTS = 1500.0
_REOPEN_S = 10.0
RESET = "default"


class Nvml:
    """The open library. Every call names a GPU by index; after a driver reload the library is opened anew."""

    def __init__(self, library: Any, clock: Callable[[], float] = time.monotonic) -> None:
        self._library = library
        self._handles: dict[int, Any] = {}
        self._clock = clock
        self._reopened = -math.inf

    @classmethod
    def open(cls) -> Nvml | None:
        """Return the library, or None where there is no NVIDIA driver."""
        try:
            import pynvml
        except ImportError:
            return None
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError:
            return None
        return cls(pynvml)

    def count(self) -> int:
        """Return the number of GPUs, 0 if the driver does not answer."""
        try:
            return int(self._library.nvmlDeviceGetCount())
        except self._library.NVMLError:
            return 0

    def call(self, function: str, index: int, *arguments: Any) -> Any:
        """Call a per-device function.

        Raises:
            DeviceError: the driver refused or is gone.
        """
        library = self._library
        try:
            return getattr(library, function)(self._handle(index), *arguments)
        except library.NVMLError as error:
            if not self._may_reopen(error.value, index):
                raise DeviceError(f"gpu{index}: {function}", _reason(error)) from None
        try:
            self._reopen()
            return getattr(library, function)(self._handle(index), *arguments)
        except library.NVMLError as error:
            raise DeviceError(f"gpu{index}: {function}", _reason(error)) from None

    def optional(self, function: str, index: int, *arguments: Any) -> Any:
        """Call a per-device function; None if the GPU does not support it."""
        try:
            return self.call(function, index, *arguments)
        except DeviceError:
            return None

    def ask(self, function: str, handle: Any) -> Any:
        """Call a function of a handle that is not a GPU's own; None if it does not support it."""
        try:
            return getattr(self._library, function)(handle)
        except self._library.NVMLError:
            return None

    def constant(self, name: str) -> Any:
        """Return a constant of the library."""
        return getattr(self._library, name)

    def close(self) -> None:
        """Leave the library."""
        with contextlib.suppress(self._library.NVMLError):
            self._library.nvmlShutdown()

    def _handle(self, index: int) -> Any:
        if index not in self._handles:
            self._handles[index] = self._library.nvmlDeviceGetHandleByIndex(index)
        return self._handles[index]

    def _may_reopen(self, error: int, index: int) -> bool:
        """Return whether opening the library anew may help, and is not tried too often.

        It takes up to seconds, and without persistence mode it unloads the driver, which then forgets all
        limits: never for one GPU that fell off the bus while others answer.
        """
        library = self._library
        lost = error == library.NVML_ERROR_GPU_IS_LOST
        if not lost and error not in (library.NVML_ERROR_UNINITIALIZED, library.NVML_ERROR_DRIVER_NOT_LOADED):
            return False
        now = self._clock()
        if now - self._reopened < _REOPEN_S:
            return False
        self._reopened = now
        return not (lost and any(self._answers(other) for other in range(self.count()) if other != index))

    def _answers(self, index: int) -> bool:
        try:
            self._library.nvmlDeviceGetName(self._handle(index))
        except self._library.NVMLError:
            return False
        return True

    def _reopen(self) -> None:
        self._handles.clear()
        self.close()
        self._library.nvmlInit()


def _reason(error: Any) -> str:
    return str(error)


class GpuEnergy(EnergyCounter):
    """Energy since the driver was loaded (Volta and newer); NVML counts millijoules."""

    range_uj = None
    source = "nvml:total_energy"

    def __init__(self, nvml: Nvml, gpu: Gpu) -> None:
        self.key = f"nvml:gpu{gpu.index}"
        self.component = f"gpu[{gpu.index}]"
        self.most_watts = 2 * gpu.most_watts if gpu.most_watts else _DEFAULT_MOST_WATTS
        self._nvml, self._index = nvml, gpu.index

    def read(self) -> int:
        """Return microjoules since the driver was loaded."""
        return int(self._nvml.call("nvmlDeviceGetTotalEnergyConsumption", self._index)) * 1000


class _GpuKnob(Knob):
    def __init__(self, nvml: Nvml, index: int) -> None:
        super().__init__(f"gpu{index}")
        self._nvml, self._index = nvml, index


class Persistence(_GpuKnob):
    """Whether the driver stays loaded without clients: `1` or `0`."""

    kind = "nvml.persistence"
    stage = Stage.PERSISTENCE

    def read(self) -> str:
        """Return `1` if persistence mode is on."""
        return str(int(self._nvml.call("nvmlDeviceGetPersistenceMode", self._index)))

    def write(self, value: str) -> None:
        """Switch persistence mode; root only."""
        self._nvml.call("nvmlDeviceSetPersistenceMode", self._index, int(value))


class GpuLimit(_GpuKnob):
    """Power limit in milliwatts."""

    kind = "nvml.power_limit"
    stage = Stage.GPU_LIMIT

    def read(self) -> str:
        """Return the limit that was set, in mW; the enforced one may be lower."""
        return str(int(self._nvml.call("nvmlDeviceGetPowerManagementLimit", self._index)))

    def write(self, value: str) -> None:
        """Set the limit in mW; refused outside the GPU's constraints."""
        self._nvml.call("nvmlDeviceSetPowerManagementLimit", self._index, int(value))

    def accepts(self, asked: str, found: str) -> bool:
        """Allow the driver a tenth of a watt."""
        return abs(int(asked) - int(found)) <= _LIMIT_ROUNDING_MW

    def shown(self, value: str) -> str:
        """Return the limit in watts."""
        return f"{int(value) / 1e3:g} W"


class LockedClocks(_GpuKnob):
    """Range of the graphics clock in MHz, or `default`. NVML has no way to ask: restoring is a reset."""

    kind = "nvml.locked_clocks"
    stage = Stage.GPU_CLOCK
    readable = False

    def read(self) -> str:
        """Return `default`: what is restored."""
        return RESET

    def write(self, value: str) -> None:
        """Lock the graphics clock to LOW-HIGH MHz, or unlock it."""
        if value == RESET:
            self._nvml.call("nvmlDeviceResetGpuLockedClocks", self._index)
        else:
            self._nvml.call("nvmlDeviceSetGpuLockedClocks", self._index, *read_range(value))

    def shown(self, value: str) -> str:
        """Return the range in MHz."""
        return value if value == RESET else f"{value} MHz"


class GpuThrottle(ThrottleSensor):
    """Clock event reasons of a GPU that mean slower than asked: a power limit, heat or the power brake."""

    def __init__(self, nvml: Nvml, index: int, reasons: int) -> None:
        self.component = f"gpu[{index}]"
        self._nvml, self._index, self._reasons = nvml, index, reasons

    def seconds(self, interval_s: float) -> float:
        """Return the whole interval if the GPU is throttled now, else 0."""
        mask = int(self._nvml.call("nvmlDeviceGetCurrentClocksThrottleReasons", self._index))
        return interval_s if mask & self._reasons else 0.0


def discover() -> GpuDevices:
    """Open NVML and find the GPUs with what each supports."""
    nvml = Nvml.open()
    found = GpuDevices([], [], [], [], nvml.close if nvml else lambda: None)
    for index in range(nvml.count() if nvml else 0):
        assert nvml is not None
        _add(found, nvml, index)
    return found


def _add(found: GpuDevices, nvml: Nvml, index: int) -> None:
    gpu = _gpu(nvml, index)
    found.gpus.append(gpu)
    if nvml.optional("nvmlDeviceGetTotalEnergyConsumption", index) is not None:
        found.counters.append(GpuEnergy(nvml, gpu))
    if nvml.optional("nvmlDeviceGetPersistenceMode", index) is not None:
        found.knobs.append(Persistence(nvml, index))
    if gpu.found_watts is not None:
        found.knobs.append(GpuLimit(nvml, index))
    if gpu.clocks_mhz is not None:
        found.knobs.append(LockedClocks(nvml, index))
    if nvml.optional("nvmlDeviceGetCurrentClocksThrottleReasons", index) is not None:
        found.throttles.append(GpuThrottle(nvml, index, _slow_reasons()))


def _gpu(nvml: Nvml, index: int) -> Gpu:
    name = nvml.optional("nvmlDeviceGetName", index) or "NVIDIA GPU"
    limit = nvml.optional("nvmlDeviceGetPowerManagementLimit", index)
    bounds = nvml.optional("nvmlDeviceGetPowerManagementLimitConstraints", index)
    return Gpu(
        index=index,
        minor=nvml.optional("nvmlDeviceGetMinorNumber", index),
        name=name.decode() if isinstance(name, bytes) else str(name),
        found_watts=limit / 1000 if limit is not None else None,
        least_watts=bounds[0] / 1000 if bounds else None,
        most_watts=bounds[1] / 1000 if bounds else None,
        clocks_mhz=_clocks(nvml, index),
    )


def _clocks(nvml: Nvml, index: int) -> tuple[int, int] | None:
    memory = nvml.optional("nvmlDeviceGetSupportedMemoryClocks", index)
    clocks = nvml.optional("nvmlDeviceGetSupportedGraphicsClocks", index, max(memory)) if memory else None
    return (min(clocks), max(clocks)) if clocks else None


def _slow_reasons() -> int:
    import pynvml

    return int(
        pynvml.nvmlClocksThrottleReasonSwPowerCap
        | pynvml.nvmlClocksThrottleReasonHwSlowdown
        | pynvml.nvmlClocksThrottleReasonSwThermalSlowdown
        | pynvml.nvmlClocksThrottleReasonHwThermalSlowdown
        | pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown
    )
