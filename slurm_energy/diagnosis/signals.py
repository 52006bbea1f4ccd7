"""Registry of the signals that senergyd samples for jobs, and series of their values.

Names carry their unit. A signal that a node cannot measure has no series, because absent hardware means an
unknown value, never 0.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

MAX_POINTS: Final = 720
"""Maximum number of values per series. In a longer series, neighbours are merged and the interval doubles."""


SHARED_MARKS: Final = ("(shared ", "(whole GPU")
"""Beginnings of remarks in the source of a series whose values include use by other jobs."""


class SignalScope(StrEnum):
    """The object that one series of a signal describes.

    Attributes:
        NODE: the node, or the part of the node that the job uses; the `part` of the series is empty.
        GPU: one GPU; the part is `gpu[INDEX]`.
        CPU: one CPU; the part is `cpu[INDEX]`.
        INTERFACE: one network interface; the part is its name.
        JOB: the job's cgroup on the node; the part is empty.
        COMPONENT: an energy component; the part is `cpu`, `dram`, `gpu[INDEX]`, `other` or `node`.
    """

    NODE = "node"
    GPU = "gpu"
    CPU = "cpu"
    INTERFACE = "interface"
    JOB = "job"
    COMPONENT = "component"


@dataclass(frozen=True, slots=True)
class Signal:
    """A quantity of a job that is sampled over time, such as memory in use.

    Attributes:
        name: name with unit.
        unit: unit of the values.
        scope: kind of object that each series describes.
        description: meaning and usual source.
    """

    name: str
    unit: str
    scope: SignalScope
    description: str


_GPU, _JOB, _NODE = SignalScope.GPU, SignalScope.JOB, SignalScope.NODE
_INTERFACE = SignalScope.INTERFACE


def _registry(*signals: Signal) -> Mapping[str, Signal]:
    return {signal.name: signal for signal in signals}


SIGNALS: Final[Mapping[str, Signal]] = _registry(
    Signal("power_watts", "W", SignalScope.COMPONENT, "mean power of a component: power trace"),
    Signal("gpu_busy_percent", "%", _GPU, "time with a kernel on the GPU: NVML utilization"),
    Signal("sm_active_percent", "%", _GPU, "SMs with a warp resident: GPM or DCGM"),
    Signal("dram_active_percent", "%", _GPU, "cycles with GPU memory traffic: GPM or DCGM"),
    Signal("tensor_active_percent", "%", _GPU, "cycles with a tensor pipe active: GPM or DCGM"),
    Signal("pcie_receive_bytes_per_s", "B/s", _GPU, "PCIe traffic to the GPU: NVML"),
    Signal("pcie_transmit_bytes_per_s", "B/s", _GPU, "PCIe traffic from the GPU: NVML"),
    Signal("nvlink_receive_bytes_per_s", "B/s", _GPU, "NVLink traffic to the GPU: NVML"),
    Signal("nvlink_transmit_bytes_per_s", "B/s", _GPU, "NVLink traffic from the GPU: NVML"),
    Signal("gpu_memory_used_bytes", "B", _GPU, "allocated GPU memory: NVML"),
    Signal("gpu_memory_total_bytes", "B", _GPU, "size of the GPU memory: NVML"),
    Signal("sm_clock_mhz", "MHz", _GPU, "clock of the SMs: NVML"),
    Signal("max_sm_clock_mhz", "MHz", _GPU, "highest SM clock of the GPU: NVML"),
    Signal("gpu_temperature_celsius", "degC", _GPU, "temperature of the GPU: NVML"),
    Signal("throttle_power_percent", "%", _GPU, "samples with clocks lowered by a power limit"),
    Signal("throttle_thermal_percent", "%", _GPU, "samples with clocks lowered by temperature"),
    Signal("cpu_busy_cores", "cores", _JOB, "CPU time per time: cgroup cpu.stat"),
    Signal("cpu_allocated_cores", "cores", _JOB, "CPUs of the job on the node"),
    Signal("cpu_throttled_percent", "%", _JOB, "time throttled by the CPU quota: cgroup cpu.stat"),
    Signal("cpu_pressure_percent", "%", _JOB, "time a task waited for a CPU: cgroup PSI"),
    Signal(
        "cpu_waiting_tasks", "tasks", _JOB, "tasks ready to run without a CPU: /proc/PID/task/TID/schedstat"
    ),
    Signal("io_pressure_percent", "%", _JOB, "time a task waited for I/O: cgroup PSI"),
    Signal("memory_pressure_percent", "%", _JOB, "time a task waited for memory: PSI"),
    Signal("cpu_mhz", "MHz", _NODE, "mean clock of the job's CPUs: cpufreq"),
    Signal("cpu_busy_percent", "%", SignalScope.CPU, "time the CPU was not idle: /proc/stat"),
    Signal("memory_used_bytes", "B", _JOB, "memory in use without page cache: cgroup"),
    Signal("memory_limit_bytes", "B", _JOB, "memory limit: cgroup"),
    Signal("page_cache_bytes", "B", _JOB, "page cache charged to the job: cgroup"),
    Signal("page_faults_per_s", "1/s", _JOB, "major page faults: cgroup memory.stat"),
    Signal("memory_bandwidth_bytes_per_s", "B/s", _JOB, "DRAM traffic: resctrl"),
    Signal("block_read_bytes_per_s", "B/s", _JOB, "bytes read: cgroup io.stat"),
    Signal("block_write_bytes_per_s", "B/s", _JOB, "bytes written: cgroup io.stat"),
    Signal("block_reads_per_s", "1/s", _JOB, "read requests: cgroup io.stat"),
    Signal("block_writes_per_s", "1/s", _JOB, "write requests: cgroup io.stat"),
    Signal("network_receive_bytes_per_s", "B/s", _INTERFACE, "received: /proc/net/dev"),
    Signal("network_transmit_bytes_per_s", "B/s", _INTERFACE, "sent: /proc/net/dev"),
    Signal("infiniband_receive_bytes_per_s", "B/s", _INTERFACE, "received: port counters"),
    Signal("infiniband_transmit_bytes_per_s", "B/s", _INTERFACE, "sent: port counters"),
)
"""All signals by name.

An observation also keeps series of unknown names, which a newer release may have sampled.
"""


@dataclass(frozen=True, slots=True)
class ObservedSeries:
    """Mean values of one signal in consecutive intervals of equal length.

    The signal describes one part of a node.

    Attributes:
        name: name of the signal, a key of `SIGNALS` or of a newer release.
        part: part of the node, see `SignalScope`.
        node: name of the node.
        source: interface that supplied the values, with a restriction if there is one, such as `nvml (shared
            GPU)`.
        start_s: start of the first interval, Unix seconds.
        interval_s: seconds per interval.
        values: one mean per interval; NaN means unknown.
    """

    name: str
    part: str
    node: str
    source: str
    start_s: float
    interval_s: float
    values: array[float]

    @property
    def end_s(self) -> float:
        """End of the last interval, Unix seconds."""
        return self.start_s + len(self.values) * self.interval_s

    @property
    def is_shared(self) -> bool:
        """Whether the values include use by other jobs, according to the source."""
        return any(mark in self.source for mark in SHARED_MARKS)

    def known(self) -> list[float]:
        """Return the known values in order of time."""
        return [value for value in self.values if not math.isnan(value)]

    def mean(self) -> float | None:
        """Return the mean of the known values; None if no value is known."""
        known = self.known()
        return math.fsum(known) / len(known) if known else None
