"""AMD GPUs through AMD SMI: energy accumulator, power cap, throttling by the power limit or by heat.

Importing the vendor's Python package `amdsmi` loads libamd_smi.so. Energy in microjoules is the accumulator
times its resolution; caps are in microwatts. Source: AMD SMI API reference (amdsmi_get_energy_count,
amdsmi_get_power_cap_info, amdsmi_set_power_cap, amdsmi_get_gpu_metrics_info). amdsmi_get_violation_status is
not used, because it takes two samples and waits 100 ms between them.

Some early releases of the package state power caps in watts.

GPUs have the indices of the library. Slurm with AutoDetect=rsmi numbers them in the same way: both use the
order of ROCm SMI, which is that of the PCI addresses. Source: AMD SMI, src/amd_smi/amd_smi_system.cc; Slurm,
src/plugins/gpu/rsmi/gpu_rsmi.c.

A card with two dies (MI250, MI250X) shows each die as a GPU. The accumulator and the cap of the primary die
are those of the card; those of the secondary die are 0. Both dies therefore count as one GPU, which has the
index of the primary die. Otherwise a job on the secondary die would seem to use no energy, and a cap of a job
on the primary die would slow it down. Source: Linux, drivers/gpu/drm/amd/pm/swsmu/smu13/aldebaran_ppt.c.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from slurm_energy.devices.driver import DeviceError, EnergyCounter, Knob, ThrottleSensor, WriteStage
from slurm_energy.devices.gpu.amd_smi_signals import AmdSmiCardSensor, AmdSmiSignalSensor
from slurm_energy.devices.gpu.inventory import GpuDevices
from slurm_energy.devices.hardware import GpuInfo

_LIMIT_ROUNDING_UW = 1_000_000
_DEFAULT_MAX_WATTS = 1500.0
_SENSOR = 0
_NOT_AVAILABLE = 2**64 - 1


class AmdSmiLibrary:
    """The open AMD SMI library. GPUs are named by index.

    Args:
        library: the imported package `amdsmi`, already initialised.
    """

    def __init__(self, library: Any) -> None:
        self._library = library
        self._handles: list[Any] = []
        with contextlib.suppress(library.AmdSmiException):
            self._handles = list(library.amdsmi_get_processor_handles())

    @classmethod
    def open(cls) -> AmdSmiLibrary | None:
        """Open AMD SMI; return None if the Python package, the library or the driver is absent."""
        try:
            # Without the library the package prints advice for its own users, and then fails in a way
            # that depends on its version.
            with contextlib.redirect_stdout(io.StringIO()):
                import amdsmi
        except (ImportError, OSError, KeyError, AttributeError):
            return None
        try:
            amdsmi.amdsmi_init()
        except amdsmi.AmdSmiException:
            return None
        return cls(amdsmi)

    def count(self) -> int:
        """Return the number of GPUs."""
        return len(self._handles)

    def call(self, function: str, index: int, *arguments: Any) -> Any:
        """Call an `amdsmi_...` function for one GPU and return its result.

        Args:
            function: name of the function.
            index: index of the GPU.
            arguments: arguments after the handle of the GPU.

        Raises:
            DeviceError: the driver refused the call or is gone, or this release lacks the function.
        """
        try:
            return getattr(self._library, function)(self._handles[index], *arguments)
        except self._library.AmdSmiException as error:
            raise DeviceError(f"gpu{index}: {function}", _reason(error)) from None
        except AttributeError as error:
            raise DeviceError(f"gpu{index}: {function}", f"not in this release: {error}") from None

    def optional(self, function: str, index: int, *arguments: Any) -> Any:
        """Call an `amdsmi_...` function as `call` does, but return None if the call fails.

        Most failures mean that the GPU does not support the function.
        """
        try:
            return self.call(function, index, *arguments)
        except DeviceError:
            return None

    def constant(self, kind: str, name: str) -> Any:
        """Return a constant of the library AMD SMI, given the constant's class and name.

        The result is None if this release of the library lacks the constant.
        """
        return getattr(getattr(self._library, kind, None), name, None)

    def close(self) -> None:
        """Close the AMD SMI library."""
        with contextlib.suppress(self._library.AmdSmiException):
            self._library.amdsmi_shut_down()


def _reason(error: Any) -> str:
    return " ".join(str(getattr(error, "err_info", "") or error).split())


class AmdSmiEnergyCounter(EnergyCounter):
    """Counter that reads the energy accumulator of one GPU."""

    range_uj = None
    source = "amdsmi:energy"

    def __init__(self, smi: AmdSmiLibrary, gpu: GpuInfo) -> None:
        self.key = f"amdsmi:gpu{gpu.index}"
        self.component = f"gpu[{gpu.index}]"
        self.max_watts = 2 * gpu.max_limit_watts if gpu.max_limit_watts else _DEFAULT_MAX_WATTS
        self._smi, self._index = smi, gpu.index

    def read(self) -> int:
        """Return the energy that the GPU has used since its driver was loaded, in microjoules."""
        energy = self._smi.call("amdsmi_get_energy_count", self._index)
        try:
            count = int(energy["energy_accumulator"])
            resolution_uj = Fraction(energy["counter_resolution"])
        except (KeyError, TypeError, ValueError) as error:
            raise DeviceError(self.key, f"unknown form of the value: {error!r}") from None
        if count == _NOT_AVAILABLE:
            raise DeviceError(self.key, "the driver has no value now")
        return int(count * resolution_uj)


class AmdSmiPowerLimit(Knob):
    """Power cap of an AMD GPU in microwatts. The driver accepts only whole watts."""

    name = "amdsmi.power_limit"
    stage = WriteStage.GPU_LIMIT

    def __init__(self, smi: AmdSmiLibrary, index: int) -> None:
        super().__init__(f"gpu{index}")
        self._smi, self._index = smi, index

    def read(self) -> str:
        """Return the current cap in microwatts, as text."""
        try:
            return str(int(self._smi.call("amdsmi_get_power_cap_info", self._index)["power_cap"]))
        except (KeyError, TypeError, ValueError) as error:
            raise DeviceError(self.key, f"unknown form of the value: {error!r}") from None

    def write(self, value: str) -> None:
        """Set the cap to `value` microwatts."""
        self._smi.call("amdsmi_set_power_cap", self._index, _SENSOR, int(value))

    def is_equivalent(self, requested: str, actual: str) -> bool:
        """Return whether two caps in microwatts differ by no more than the rounding of the driver."""
        return abs(int(requested) - int(actual)) <= _LIMIT_ROUNDING_UW

    def format_value(self, value: str) -> str:
        """Convert a cap from microwatts to text in watts."""
        return f"{int(value) / 1e6:g} W"


class AmdSmiThrottleSensor(ThrottleSensor):
    """Sensor of the time for which heat or the power limit throttled a GPU (MI300 and newer).

    The firmware samples the state of the GPU. The firmware counts all samples and, for each throttling
    reason, the samples in which this reason applied.
    """

    _ALL = "accumulation_counter"
    _REASONS = (
        "ppt_residency_acc",
        "prochot_residency_acc",
        "socket_thm_residency_acc",
        "vr_thm_residency_acc",
        "hbm_thm_residency_acc",
    )

    def __init__(self, smi: AmdSmiLibrary, index: int) -> None:
        """Read the initial counts.

        Args:
            smi: the open library.
            index: index of the GPU.

        Raises:
            DeviceError: the GPU does not count throttling.
        """
        self.component = f"gpu[{index}]"
        self._smi, self._index = smi, index
        self._last = self._counts()

    def throttled_s(self, interval_s: float) -> float:
        """Return for how many of the last `interval_s` seconds the GPU was throttled.

        If there were several reasons, the reason that applied longest counts.

        Args:
            interval_s: seconds since the previous call.
        """
        last, self._last = self._last, self._counts()
        samples = self._last[self._ALL] - last[self._ALL]
        throttled_samples = max(
            self._last[name] - last[name] for name in self._REASONS if name in last and name in self._last
        )
        return interval_s * min(1.0, max(0.0, throttled_samples / samples)) if samples > 0 else 0.0

    def _counts(self) -> dict[str, int]:
        metrics = self._smi.call("amdsmi_get_gpu_metrics_info", self._index)
        counts = {name: metrics.get(name) for name in (self._ALL, *self._REASONS)}
        available = {name: count for name, count in counts.items() if isinstance(count, int)}
        if self._ALL not in available or len(available) < 2:
            raise DeviceError(self.component, "the GPU does not count throttling")
        return available


def discover() -> GpuDevices:
    """Open the library AMD SMI and return the GPUs of this node.

    Each GPU has the energy counters, settings (knobs) and sensors that it supports.
    """
    smi = AmdSmiLibrary.open()
    devices = GpuDevices([], [], [], [], smi.close if smi else lambda: None)
    if smi is None:
        return devices
    gpus = [_gpu(smi, index) for index in range(smi.count())]
    secondary_of = _secondary_dies(gpus, [_accumulator(smi, gpu.index) for gpu in gpus])
    for gpu in gpus:
        if gpu.index not in secondary_of.values():
            _add(devices, smi, gpu, secondary_of.get(gpu.index))
    return devices


def _add(devices: GpuDevices, smi: AmdSmiLibrary, gpu: GpuInfo, secondary: int | None) -> None:
    index, signals = gpu.index, _signal_sensor(smi, gpu.index)
    if secondary is None:
        devices.gpus.append(gpu)
        devices.signal_sensors.append(signals)
    else:
        devices.gpus.append(dataclasses.replace(gpu, other_indices=(secondary,)))
        devices.signal_sensors.append(AmdSmiCardSensor((signals, _signal_sensor(smi, secondary))))
    if smi.optional("amdsmi_get_energy_count", index) is not None:
        devices.counters.append(AmdSmiEnergyCounter(smi, gpu))
    if gpu.limit_watts is not None:
        devices.knobs.append(AmdSmiPowerLimit(smi, index))
    with contextlib.suppress(DeviceError):
        devices.throttle_sensors.append(AmdSmiThrottleSensor(smi, index))


def _secondary_dies(gpus: Sequence[GpuInfo], accumulators: Sequence[int | None]) -> dict[int, int]:
    """Return the index of each secondary die, by the index of the primary die of the same card.

    A secondary die has no power cap, and its energy accumulator is 0. Its index is one above or one below
    that of its primary die, in the same way for all cards of a node. Source: ROCm SMI,
    `rocm-smi --showpower`.

    Args:
        gpus: all GPUs of the library, in the order of their indices.
        accumulators: energy accumulator of each GPU; None if unknown.
    """
    counts = dict(zip(gpus, accumulators, strict=True))
    secondary = {gpu.index for gpu in gpus if gpu.limit_watts is None and counts[gpu] == 0}
    orders: list[dict[int, int]] = []
    for step in (1, -1):
        pairs = {gpu.index: gpu.index + step for gpu in gpus if counts[gpu] and gpu.index + step in secondary}
        orders.append({one: other for one, other in pairs.items() if gpus[one].name == gpus[other].name})
    return next((pairs for pairs in orders if len(pairs) == len(secondary)), orders[0])


def _accumulator(smi: AmdSmiLibrary, index: int) -> int | None:
    energy = smi.optional("amdsmi_get_energy_count", index)
    count = energy.get("energy_accumulator") if isinstance(energy, dict) else None
    return count if isinstance(count, int) else None


def _signal_sensor(smi: AmdSmiLibrary, index: int) -> AmdSmiSignalSensor:
    def call(function: str, *arguments: Any) -> Any:
        return smi.optional(function, index, *arguments)

    return AmdSmiSignalSensor(call, smi.constant, index)


def _gpu(smi: AmdSmiLibrary, index: int) -> GpuInfo:
    asic = smi.optional("amdsmi_get_gpu_asic_info", index) or {}
    cap = smi.optional("amdsmi_get_power_cap_info", index) or {}
    return GpuInfo(
        index=index,
        minor=None,
        name=str(asic.get("market_name") or "AMD GPU"),
        limit_watts=_watts(cap.get("power_cap")),
        min_limit_watts=_watts(cap.get("min_power_cap")),
        max_limit_watts=_watts(cap.get("max_power_cap")),
        clocks_mhz=None,
        interface="amdsmi",
    )


def _watts(microwatts: Any) -> float | None:
    # Numbers below 1,000,000 are watts, which some early releases return. The cap of such a GPU is treated as
    # unknown and never set.
    usable = isinstance(microwatts, int) and 1_000_000 <= microwatts < _NOT_AVAILABLE
    return microwatts / 1e6 if usable else None
