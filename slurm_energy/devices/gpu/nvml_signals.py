"""Reader of signals of NVIDIA GPUs through the library NVML.

The signals are utilisation, activity, traffic, memory, clock, heat and throttling. Each signal comes from
the best interface that the GPU offers. On GPUs from Hopper on, the interface GPM gives means over the whole
interval. On older GPUs, the driver's utilisation covers only the last 1/6 to 1 second of an interval. On
older GPUs, PCIe traffic is measured over 20 ms, and the call blocks for this time. Source: NVML API
reference ("GPM Functions", "Field Value Queries", "Device Queries").
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from slurm_energy.devices.driver import DeviceError
from slurm_energy.devices.gpu.nvml_caller import NvmlCaller
from slurm_energy.devices.gpu.nvml_gpm import GpmSampler, supports_gpm
from slurm_energy.devices.signal_sensor import RateMeter, SignalReading, SignalSensor

_MEBI: Final = 1 << 20
_GPM: Final = {  # metric: signal, factor
    2: ("sm_active_percent", 1.0),
    5: ("tensor_active_percent", 1.0),
    10: ("dram_active_percent", 1.0),
    20: ("pcie_transmit_bytes_per_s", _MEBI),
    21: ("pcie_receive_bytes_per_s", _MEBI),
    60: ("nvlink_receive_bytes_per_s", _MEBI),
    61: ("nvlink_transmit_bytes_per_s", _MEBI),
}
_POLICY_POWER, _POLICY_THERMAL = 74, 75
_ALL_LINKS: Final = 0xFFFFFFFF
_MAX_LINKS: Final = 18
_NVLINK: Final = {138: "nvlink_transmit_bytes_per_s", 139: "nvlink_receive_bytes_per_s"}
_FIELDS: Final = (_POLICY_POWER, _POLICY_THERMAL, *((field, _ALL_LINKS) for field in _NVLINK))
_KIBI: Final = 1024
_REASONS: Final = {
    "throttle_power_percent": 0x4 | 0x80,  # software power cap, power brake
    "throttle_thermal_percent": 0x20 | 0x40,  # software and hardware thermal slowdown
}
_POLICIES: Final = {
    _POLICY_POWER: "throttle_power_percent",
    _POLICY_THERMAL: "throttle_thermal_percent",
}
_SM_CLOCK, _CORE_TEMPERATURE = 1, 0
_PCIE: Final = {"pcie_transmit_bytes_per_s": 0, "pcie_receive_bytes_per_s": 1}
_PCIE_UNIT: Final = 1000
_PCIE_PAUSE_S: Final = 9.5
"""Minimum seconds between two readings of the PCIe traffic. A reading blocks for 20 ms per direction."""


class NvmlSignalSensor(SignalSensor):
    """Sensor of the signals of one NVIDIA GPU, for example its throttling.

    Args:
        nvml: the open library.
        index: index of the GPU.
        partitioned: whether the GPU is divided into MIG instances. The signals describe the whole GPU in
            any case.
    """

    def __init__(self, nvml: NvmlCaller, index: int, *, partitioned: bool = False) -> None:
        self.part = f"gpu[{index}]"
        self._nvml, self._index = nvml, index
        self._note = " (whole GPU with MIG)" if partitioned else ""
        self._rates = RateMeter()
        has_gpm = not partitioned and supports_gpm(nvml, index)
        self._gpm = GpmSampler(nvml, index, _GPM) if has_gpm else None
        self._has_links = _has_links(nvml, index)
        self._pcie_read_s = -math.inf

    def read(self, now_s: float) -> list[SignalReading]:
        """Return the signals since the previous call, without those that the GPU does not report."""
        readings = {reading.signal: reading for reading in self._throttle_reasons()}
        readings |= {reading.signal: reading for reading in self._fields(now_s)}
        means = self._means(self._gpm) if self._gpm else self._pcie(now_s)
        readings |= {reading.signal: reading for reading in means}
        return [*readings.values(), *self._present()]

    def forget(self) -> None:
        """Discard the previous reading."""
        self._rates.forget()
        self.close()

    def close(self) -> None:
        """Free the memory of GPM samples."""
        if self._gpm:
            self._gpm.forget()

    def _present(self) -> Iterator[SignalReading]:
        nvml, index = self._nvml, self._index
        if (rates := nvml.optional("nvmlDeviceGetUtilizationRates", index)) is not None:
            yield self._reading("gpu_busy_percent", rates.gpu, "utilization")
        if (memory := nvml.optional("nvmlDeviceGetMemoryInfo", index)) is not None:
            yield self._reading("gpu_memory_used_bytes", memory.used, "memory")
            yield self._reading("gpu_memory_total_bytes", memory.total, "memory")
        if (mhz := nvml.optional("nvmlDeviceGetClockInfo", index, _SM_CLOCK)) is not None:
            yield self._reading("sm_clock_mhz", mhz, "clock")
        if (mhz := nvml.optional("nvmlDeviceGetMaxClockInfo", index, _SM_CLOCK)) is not None:
            yield self._reading("max_sm_clock_mhz", mhz, "clock")
        if (celsius := nvml.optional("nvmlDeviceGetTemperature", index, _CORE_TEMPERATURE)) is not None:
            yield self._reading("gpu_temperature_celsius", celsius, "temperature")

    def _throttle_reasons(self) -> Iterator[SignalReading]:
        """Yield one signal per throttle reason: 100 if the reason slows the GPU down at present, else 0."""
        mask = self._nvml.optional("nvmlDeviceGetCurrentClocksThrottleReasons", self._index)
        if mask is not None:
            for signal, reasons in _REASONS.items():
                yield self._reading(signal, 100.0 if int(mask) & reasons else 0.0, "throttle_reasons")

    def _fields(self, now_s: float) -> Iterator[SignalReading]:
        """Yield the signals that are rates of counters: time of throttling, and NVLink traffic."""
        values = self._nvml.optional("nvmlDeviceGetFieldValues", self._index, _FIELDS)
        for value in values if values is not None else ():
            if value.nvmlReturn != 0:
                continue
            count, field = int(value.value.ullVal), int(value.fieldId)
            rate = self._rates.per_second(str(field), count, now_s)
            if rate is None:
                continue
            if field in _NVLINK and self._has_links:
                yield self._reading(_NVLINK[field], rate * _KIBI, "nvlink")
            elif field in _POLICIES and count:  # a driver that does not count this reason shows 0
                yield self._reading(_POLICIES[field], min(100.0, rate / 1e7), "perf_policy")

    def _means(self, gpm: GpmSampler) -> Iterator[SignalReading]:
        """Yield the means of the signals since the previous call.

        NVIDIA's GPU performance monitoring (GPM) measures them.
        """
        try:
            means = gpm.read() or {}
        except DeviceError:
            return
        for number, value in means.items():
            signal, factor = _GPM[number]
            is_known = math.isfinite(value) and value >= 0
            if is_known and (self._has_links or not signal.startswith("nvlink")):
                yield self._reading(signal, value * factor, "gpm")

    def _pcie(self, now_s: float) -> Iterator[SignalReading]:
        if now_s - self._pcie_read_s < _PCIE_PAUSE_S:
            return
        self._pcie_read_s = now_s
        for signal, counter in _PCIE.items():
            kilobytes = self._nvml.optional("nvmlDeviceGetPcieThroughput", self._index, counter)
            if kilobytes is not None:
                yield self._reading(signal, kilobytes * _PCIE_UNIT, "pcie (20 ms)")

    def _reading(self, signal: str, value: float, interface: str) -> SignalReading:
        return SignalReading(signal, self.part, float(value), f"nvml:{interface}{self._note}")


def _has_links(nvml: NvmlCaller, index: int) -> bool:
    """Return whether the GPU has an active NVLink. Without an active NVLink GPM reports a traffic of 0."""
    return any(nvml.optional("nvmlDeviceGetNvLinkState", index, link) == 1 for link in range(_MAX_LINKS))
