"""Signals of AMD GPUs through AMD SMI: activity, memory, clock, temperature, throttling.

Values that the GPU does not report are left out. Source: AMD SMI API reference (amdsmi_get_gpu_activity,
amdsmi_get_gpu_vram_usage, amdsmi_get_clock_info, amdsmi_get_temp_metric, amdsmi_get_gpu_metrics_info).
Activity covers only the firmware's last measurement interval; the residency counters of MI300 and newer cover
the whole time between two readings.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeGuard

from slurm_energy.devices.signal_sensor import RateMeter, SignalReading, SignalSensor

_MEBI: Final = 1 << 20
_SAMPLES: Final = "accumulation_counter"
_RESIDENCIES: Final = {
    "throttle_power_percent": ("ppt_residency_acc",),
    "throttle_thermal_percent": (
        "prochot_residency_acc",
        "socket_thm_residency_acc",
        "vr_thm_residency_acc",
        "hbm_thm_residency_acc",
    ),
}


class AmdSmiSignalSensor(SignalSensor):
    """Reader of the signals of one AMD GPU, such as its activity, its memory and its throttling.

    Args:
        call: function that calls a named `amdsmi_...` function for the GPU with the given arguments. The
            result is None if the `amdsmi_...` function fails.
        constant: function that returns a constant of AMD SMI, given its class and name; None if the library
            lacks the constant.
        index: index of the GPU.
    """

    def __init__(self, call: Callable[..., Any], constant: Callable[[str, str], Any], index: int) -> None:
        self.part = f"gpu[{index}]"
        self._call = call
        self._clock = constant("AmdSmiClkType", "GFX")
        self._hot = constant("AmdSmiTemperatureType", "HOTSPOT")
        self._current = constant("AmdSmiTemperatureMetric", "CURRENT")
        self._rates = RateMeter()

    def read(self, now_s: float) -> list[SignalReading]:
        """Return the values of the GPU's signals, for the time since the previous call where possible.

        Signals that the GPU does not report are left out.
        """
        return [*self._activity(), *self._memory(), *self._state(), *self._throttling(now_s)]

    def forget(self) -> None:
        """Discard the previous reading."""
        self._rates.forget()

    def _activity(self) -> Iterator[SignalReading]:
        activity = _mapping(self._call("amdsmi_get_gpu_activity"))
        for key, signal in (("gfx_activity", "gpu_busy_percent"), ("umc_activity", "dram_active_percent")):
            value = activity.get(key)
            if _is_count(value) and value <= 100:
                yield self._reading(signal, value, "activity")

    def _memory(self) -> Iterator[SignalReading]:
        usage = _mapping(self._call("amdsmi_get_gpu_vram_usage"))
        total, used = usage.get("vram_total"), usage.get("vram_used")
        if _is_count(total) and _is_count(used) and total > 0 and used <= total:
            yield self._reading("gpu_memory_used_bytes", used * _MEBI, "vram")
            yield self._reading("gpu_memory_total_bytes", total * _MEBI, "vram")

    def _state(self) -> Iterator[SignalReading]:
        if self._clock is not None:
            clock = _mapping(self._call("amdsmi_get_clock_info", self._clock))
            for key, signal in (("clk", "sm_clock_mhz"), ("max_clk", "max_sm_clock_mhz")):
                if _is_count(mhz := clock.get(key)) and mhz > 0:
                    yield self._reading(signal, mhz, "clock")
        if self._hot is not None and self._current is not None:
            celsius = self._call("amdsmi_get_temp_metric", self._hot, self._current)
            if _is_count(celsius) and 0 < celsius < 200:
                yield self._reading("gpu_temperature_celsius", celsius, "temperature")

    def _throttling(self, now_s: float) -> Iterator[SignalReading]:
        """Yield, per throttling reason, the share of firmware samples in which the reason applied."""
        metrics = _mapping(self._call("amdsmi_get_gpu_metrics_info"))
        samples = metrics.get(_SAMPLES)
        increase = self._rates.increase(_SAMPLES, samples, now_s) if _is_count(samples) else None
        for signal, names in _RESIDENCIES.items():
            known = [name for name in names if _is_count(metrics.get(name))]
            increases = [self._rates.increase(name, metrics[name], now_s) for name in known]
            shares = [one[0] for one in increases if one is not None]
            if increase is not None and increase[0] > 0 and shares:
                yield self._reading(signal, min(100.0, 100 * max(shares) / increase[0]), "residency")

    def _reading(self, signal: str, value: float, interface: str) -> SignalReading:
        return SignalReading(signal, self.part, float(value), f"amdsmi:{interface}")


_VALUES_OF_CARD: Final[Mapping[str, Callable[[Sequence[float]], float]]] = {
    "gpu_memory_used_bytes": sum,
    "gpu_memory_total_bytes": sum,
    "max_sm_clock_mhz": max,
    "gpu_temperature_celsius": max,
    "throttle_power_percent": max,
    "throttle_thermal_percent": max,
}
"""Functions that compute the value of a card from the values of its dies; the mean for other signals."""


class AmdSmiCardSensor(SignalSensor):
    """Reader of the signals of a card with several dies, which counts as one GPU.

    Args:
        dies: sensors of the dies. The signals of the card have the part of the first sensor.
    """

    def __init__(self, dies: Sequence[SignalSensor]) -> None:
        self.part = dies[0].part
        self._dies = tuple(dies)

    def read(self, now_s: float) -> list[SignalReading]:
        """Return the values of the signals that all dies report."""
        dies = [{reading.signal: reading for reading in die.read(now_s)} for die in self._dies]
        readings = []
        for signal, first in dies[0].items():
            if all(signal in die for die in dies):
                combine = _VALUES_OF_CARD.get(signal, statistics.fmean)
                readings.append(first._replace(value=combine([die[signal].value for die in dies])))
        return readings

    def forget(self) -> None:
        """Discard the previous readings."""
        for die in self._dies:
            die.forget()


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _is_count(value: Any) -> TypeGuard[int]:
    """Return whether a value is a number. AMD SMI returns text such as `N/A` for an unknown value."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
