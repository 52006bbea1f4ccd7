"""Signals of processors: busy time of each CPU, and the mean clock of some CPUs.

Sources: man 5 proc (/proc/stat); Linux, Documentation/admin-guide/pm/cpufreq.rst. These signals describe
CPUs, not jobs: on CPUs that several jobs use, the signals include the activity of all these jobs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from slurm_energy.devices.cpu.process_tree import NS_PER_TICK
from slurm_energy.devices.kept_file import KeptFile
from slurm_energy.devices.signal_sensor import RateMeter, SignalReading, SignalSensor

MAX_CPUS: Final = 128
"""Maximum number of CPUs whose busy time is reported separately, in the order of their numbers."""
_MAX_CLOCKS: Final = 16
"""Maximum number of CPUs whose clock is read. A reading may interrupt the CPU, so only a few CPUs are read.
"""
_STAT_BYTES: Final = 1 << 20
_CLOCK: Final = "sys/devices/system/cpu/cpu{}/cpufreq/scaling_cur_freq"


class CpuBusySensor(SignalSensor):
    """Sensor for the percentage of time in which each CPU of the node was busy.

    Args:
        root: directory that contains /proc.
    """

    def __init__(self, root: Path) -> None:
        self._file = KeptFile(str(root / "proc/stat"), _STAT_BYTES)
        self._rates = RateMeter()

    def read(self, now_s: float) -> list[SignalReading]:
        """Return how busy each CPU was since the previous call, as signals in percent."""
        readings = []
        for line in (self._file.read() or b"").splitlines()[1:]:
            if not line.startswith(b"cpu"):
                break
            words = line.split(maxsplit=8)
            try:
                user, nice, system, _idle, _iowait, irq, softirq = map(int, words[1:8])
            except ValueError:
                continue
            number = words[0][3:].decode("ascii", "replace")
            rate = self._rates.per_second(number, user + nice + system + irq + softirq, now_s)
            if rate is not None:
                percent = min(100.0, rate * NS_PER_TICK / 1e7)
                readings.append(SignalReading("cpu_busy_percent", f"cpu[{number}]", percent, "proc:stat"))
        return readings

    def forget(self) -> None:
        """Discard the previous reading."""
        self._rates.forget()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class CpuClockSensor(SignalSensor):
    """Mean clock of some CPUs.

    Args:
        root: directory that contains /sys.
        cpus: numbers of the CPUs; at most 16 of them, evenly spread, are read.
    """

    def __init__(self, root: Path, cpus: Sequence[int]) -> None:
        step = max(1, math.ceil(len(cpus) / _MAX_CLOCKS))
        self._files = [KeptFile(str(root / _CLOCK.format(cpu))) for cpu in cpus[::step]]

    def read(self, now_s: float) -> list[SignalReading]:
        """Return the mean of the current clocks of the CPUs."""
        contents = (file.read() for file in self._files)
        khz = [int(content) for content in contents if content is not None and content.strip().isdigit()]
        return [SignalReading("cpu_mhz", "", math.fsum(khz) / len(khz) / 1000, "cpufreq")] if khz else []

    def close(self) -> None:
        """Close the files."""
        for file in self._files:
            file.close()
