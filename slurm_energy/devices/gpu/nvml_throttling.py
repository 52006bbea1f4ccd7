"""Sensor of the time for which a limit or heat slows down an NVIDIA GPU (throttling).

The driver interface NVML reports the reasons as clock event reasons.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slurm_energy.devices.driver import ThrottleSensor

if TYPE_CHECKING:
    from slurm_energy.devices.gpu.nvml import NvmlLibrary


class NvmlThrottleSensor(ThrottleSensor):
    """Sensor of the clock event reasons that slow a GPU down: a power limit, heat or the power brake.

    Args:
        nvml: the open library.
        index: index of the GPU.
        reasons: bit mask of the reasons that count.
    """

    def __init__(self, nvml: NvmlLibrary, index: int, reasons: int) -> None:
        self.component = f"gpu[{index}]"
        self._nvml, self._index, self._reasons = nvml, index, reasons

    def throttled_s(self, interval_s: float) -> float:
        """Return `interval_s` if the GPU is throttled at this moment, else 0."""
        mask = int(self._nvml.call("nvmlDeviceGetCurrentClocksThrottleReasons", self._index))
        return interval_s if mask & self._reasons else 0.0


def slow_reasons() -> int:
    """Return the bit mask of the clock event reasons that slow a GPU down."""
    import pynvml

    return int(
        pynvml.nvmlClocksThrottleReasonSwPowerCap
        | pynvml.nvmlClocksThrottleReasonHwSlowdown
        | pynvml.nvmlClocksThrottleReasonSwThermalSlowdown
        | pynvml.nvmlClocksThrottleReasonHwThermalSlowdown
        | pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown
    )
