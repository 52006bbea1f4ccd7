"""Emulated signals of one GPU: activity, PCIe and NVLink traffic, memory in use, temperature, throttling.

The activity follows the model. A running program may state other values. If neither model nor program has a
value, the assumed constants of this module apply. Counters are integrals of the values.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from slurm_energy_lab.model import GpuProfile, GpuState

RECORD: Final = struct.Struct("<10Q5I")
STATED: Final = (
    "sm_active_percent",
    "tensor_active_percent",
    "dram_active_percent",
    "gpu_busy_percent",
    "pcie_transmit_bytes_per_s",
    "pcie_receive_bytes_per_s",
    "nvlink_transmit_bytes_per_s",
    "nvlink_receive_bytes_per_s",
    "gpu_memory_used_bytes",
    "gpu_temperature_celsius",
    "throttle_power_percent",
    "throttle_thermal_percent",
)
"""Signals that a program may state."""
_BUSY_MEMORY_SHARE: Final = 0.4
_COLD_CELSIUS, _RISE_CELSIUS = 30.0, 45.0
_GPM_ARCHITECTURES: Final = ("hopper", "blackwell")
_LINKED_ARCHITECTURES: Final = ("volta", "ampere", "hopper", "blackwell")
_LINKS: Final = 12
_INTEGRATED: Final = (
    *("sm_active_percent", "tensor_active_percent", "dram_active_percent"),
    *("pcie_transmit_bytes_per_s", "pcie_receive_bytes_per_s"),
    *("nvlink_transmit_bytes_per_s", "nvlink_receive_bytes_per_s"),
    *("throttle_power_percent", "throttle_thermal_percent"),
)
_NS: Final = 1e9


@dataclass(frozen=True, slots=True)
class GpuSignalValues:
    """Present values of some signals of an emulated GPU.

    The binary record of the GPU's state contains these values.

    Attributes:
        busy: share of time for which a compute kernel runs, 0 to 1.
        memory_used_mib: memory in use.
        is_hot: whether heat lowers the clock.
    """

    busy: float
    memory_used_mib: int
    is_hot: bool


class GpuSignals:
    """Emulated signals of one GPU (such as its activity), and their values summed over time.

    Args:
        profile: profile of the GPU.
        now_s: present time in seconds.
    """

    def __init__(self, profile: GpuProfile, now_s: float) -> None:
        self._profile = profile
        self._lock = threading.Lock()
        self._stated: dict[int, Mapping[str, float]] = {}
        self._integrals = dict.fromkeys(_INTEGRATED, 0.0)
        self._values = dict.fromkeys(_INTEGRATED, 0.0)
        self._time_s = now_s

    def state(self, run_id: int, values: Mapping[str, float]) -> None:
        """Store the values of GPU signals that a program reports about its activity.

        The values apply from now on.

        Args:
            run_id: id of the program's run.
            values: values by signal name. The names are those in `STATED`.
        """
        with self._lock:
            self._stated[run_id] = dict(values)

    def end(self, run_id: int) -> None:
        """Discard the values that a program has reported."""
        with self._lock:
            self._stated.pop(run_id, None)

    def record(self, state: GpuState, now_s: float) -> tuple[GpuSignalValues, bytes]:
        """Return present values of signals, and the record `struct snv_signals` of `native/nvidia_device.h`.

        Args:
            state: the GPU's state in the model.
            now_s: present time in seconds.
        """
        with self._lock:
            for name, value in self._values.items():
                self._integrals[name] += value * max(0.0, now_s - self._time_s)
            self._time_s = now_s
            values = self._present(state)
            self._values = {name: values[name] for name in _INTEGRATED}
            return self._shown(values), self._packed(values, now_s)

    def _present(self, state: GpuState) -> dict[str, float]:
        busy = 100 * state.utilisation
        memory = self._profile.memory_mb << 20
        limit_watts = max(1.0, self._profile.default_limit_watts)
        values = {
            "gpu_busy_percent": busy,
            "sm_active_percent": busy,
            "tensor_active_percent": 0.0,
            "dram_active_percent": 100 * state.memory_utilisation,
            "pcie_transmit_bytes_per_s": 0.0,
            "pcie_receive_bytes_per_s": 0.0,
            "nvlink_transmit_bytes_per_s": 0.0,
            "nvlink_receive_bytes_per_s": 0.0,
            "gpu_memory_used_bytes": 0.0 if state.idle else _BUSY_MEMORY_SHARE * memory,
            "gpu_temperature_celsius": _COLD_CELSIUS + _RISE_CELSIUS * state.power_watts / limit_watts,
            "throttle_power_percent": 100.0 if state.throttle_power_cap else 0.0,
            "throttle_thermal_percent": 0.0,
        }
        for stated in self._stated.values():
            values |= stated
        values["gpu_memory_used_bytes"] = min(values["gpu_memory_used_bytes"], float(memory))
        return values

    @staticmethod
    def _shown(values: Mapping[str, float]) -> GpuSignalValues:
        return GpuSignalValues(
            min(1.0, values["gpu_busy_percent"] / 100),
            round(values["gpu_memory_used_bytes"] / (1 << 20)),
            values["throttle_thermal_percent"] >= 50,
        )

    def _packed(self, values: Mapping[str, float], now_s: float) -> bytes:
        architecture = self._profile.arch.lower()
        counts = [round(self._integrals[name] * 1e7) for name in _INTEGRATED[:3]]  # % s as ns
        counts += [round(self._integrals[name]) for name in _INTEGRATED[3:7]]
        counts += [round(self._integrals[name] * 1e7) for name in _INTEGRATED[7:]]
        has_links = architecture in _LINKED_ARCHITECTURES and self._profile.count > 1
        return RECORD.pack(
            *counts,
            round(now_s * _NS),
            round(values["gpu_temperature_celsius"]),
            round(values["pcie_transmit_bytes_per_s"] / 1000),
            round(values["pcie_receive_bytes_per_s"] / 1000),
            architecture in _GPM_ARCHITECTURES,
            _LINKS if has_links else 0,
        )
