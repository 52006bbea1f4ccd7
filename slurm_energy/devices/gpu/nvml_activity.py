"""Work of NVIDIA GPUs through NVML: utilisation, and activity of the execution units and memory (GPM).

GPM exists from Hopper on. GPM reports activity as a share of the peak at the current clock, so work per
second is this share times the clock. The activity of the SMs does not count as work, because an SM that waits
for memory is active, too. Source: NVML API reference, "GPM Functions".
"""

from __future__ import annotations

from typing import Final

from slurm_energy.devices.driver import Activity, ActivitySensor
from slurm_energy.devices.gpu.nvml_caller import NvmlCaller
from slurm_energy.devices.gpu.nvml_gpm import GpmSampler, supports_gpm

_ANY_TENSOR, _DRAM, _FP64, _FP32, _FP16 = 5, 10, 11, 12, 13
_METRICS: Final = (_ANY_TENSOR, _DRAM, _FP64, _FP32, _FP16)
_MIN_PERCENT: Final = 2.0
"""Minimum activity in percent that counts. A lower value is mostly noise."""
_SM_CLOCK, _MEMORY_CLOCK = 1, 2  # NVML_CLOCK_SM, NVML_CLOCK_MEM


class NvmlActivitySensor(ActivitySensor):
    """Sensor of a GPU's utilisation and activity.

    The activity is read only if the GPU supports GPM, NVIDIA's performance monitoring of GPUs.

    Args:
        nvml: the open library.
        index: index of the GPU.
        has_gpm: whether the GPU supports GPM.
    """

    def __init__(self, nvml: NvmlCaller, index: int, *, has_gpm: bool) -> None:
        self.component = f"gpu[{index}]"
        self._nvml, self._index = nvml, index
        self._gpm = GpmSampler(nvml, index, _METRICS) if has_gpm else None
        self._clocks_mhz: tuple[float, float] | None = None

    @classmethod
    def open(cls, nvml: NvmlCaller, index: int) -> NvmlActivitySensor | None:
        """Return the sensor of a GPU; None if the GPU reports neither utilisation nor work."""
        support = supports_gpm(nvml, index)
        if not support and nvml.optional("nvmlDeviceGetUtilizationRates", index) is None:
            return None
        return cls(nvml, index, has_gpm=support)

    def read(self) -> Activity:
        """Return the utilisation of the GPU and the work that it has done.

        The driver averages the utilisation over 1/6 to 1 second. The work is a mean rate since the previous
        call, by kind of work. It is the activity of a hardware unit of the GPU multiplied by the unit's
        clock.
        """
        rates = self._nvml.optional("nvmlDeviceGetUtilizationRates", self._index)
        utilisation = None if rates is None else rates.gpu / 100
        return Activity(utilisation, self._work(self._gpm) if self._gpm else {})

    def _work(self, gpm: GpmSampler) -> dict[str, float]:
        """Return how much work of each kind the GPU has done since the previous call.

        The work is the activity in percent multiplied by the clock in MHz. The result is empty at the first
        call.
        """
        percent = gpm.read()
        clocks, last = self._read_clocks(), self._clocks_mhz
        self._clocks_mhz = clocks
        if percent is None or clocks is None or last is None:
            return {}
        sm_mhz, memory_mhz = ((new + old) / 2 for new, old in zip(clocks, last, strict=True))
        compute = sum(percent.get(number, 0.0) for number in _METRICS if number != _DRAM)
        work = {"compute": (compute, sm_mhz), "memory": (percent.get(_DRAM, 0.0), memory_mhz)}
        return {kind: share * mhz for kind, (share, mhz) in work.items() if share >= _MIN_PERCENT}

    def _read_clocks(self) -> tuple[float, float] | None:
        """Return the clocks of SMs and memory in MHz; None if unknown."""
        clocks = [
            self._nvml.optional("nvmlDeviceGetClockInfo", self._index, kind)
            for kind in (_SM_CLOCK, _MEMORY_CLOCK)
        ]
        return None if None in clocks else (float(clocks[0]), float(clocks[1]))
