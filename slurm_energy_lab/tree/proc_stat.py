"""Emulated files /proc/stat and /proc/uptime.

Source: man 5 proc; fs/proc/stat.c. Values that do not depend on the emulated processors (interrupts, context
switches, boot time, forks) are those of the machine.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from slurm_energy_lab.realtime_model import RealtimeModel
from slurm_energy_lab.tree.entries import File, Tree

STAT = "/proc/stat"
UPTIME = "/proc/uptime"
USER_HZ = os.sysconf("SC_CLK_TCK")
_OWN_LINES = ("cpu", "procs_running", "procs_blocked")


class ProcessorTimes:
    """Busy and idle time of the emulated processors since the machine's boot.

    The processors count as idle before the start of the emulator. CPU time of jobs is user time, and CPU time
    of daemons is system time.
    """

    def __init__(
        self,
        realtime_model: RealtimeModel,
        machine: Path = Path(STAT),
        uptime: Callable[[], float] = lambda: time.clock_gettime(time.CLOCK_BOOTTIME),
    ) -> None:
        """Record the start time of the emulator.

        Args:
            realtime_model: the node's model.
            machine: path of the machine's own /proc/stat.
            uptime: function that returns the seconds since boot.
        """
        self._realtime_model = realtime_model
        self._machine = machine
        with realtime_model.now() as model:
            self._start_s = model.now_s
        self._up_before_s = uptime()
        self._shown = [(0, 0, 0)] * (realtime_model.profile.cpu.cpus + 1)

    def stat(self) -> bytes:
        """Return the content of /proc/stat."""
        busy, system_s, up_s, running = self._read()
        times = [(seconds, system_s, up_s - system_s - seconds) for seconds in busy]
        sums = tuple(math.fsum(column) for column in zip(*times, strict=True))
        names = ["cpu ", *[f"cpu{number}" for number in range(len(busy))]]
        self._shown = [_ticks(row, shown) for row, shown in zip([sums, *times], self._shown, strict=True)]
        lines = [
            f"{name} {user} 0 {system} {idle} 0 0 0 0 0 0"
            for name, (user, system, idle) in zip(names, self._shown, strict=True)
        ]
        host = self._machine.read_text().splitlines()
        lines += [line for line in host if not line.startswith(_OWN_LINES) and not line.startswith("softirq")]
        lines += [f"procs_running {max(1, round(running))}", "procs_blocked 0"]
        lines += [line for line in host if line.startswith("softirq")]
        return ("\n".join(lines) + "\n").encode()

    def uptime(self) -> bytes:
        """Return the content of /proc/uptime: seconds since boot, and idle seconds summed over all CPUs."""
        busy, system_s, up_s, _ = self._read()
        idle_s = len(busy) * (up_s - system_s) - sum(busy)
        return f"{up_s:.2f} {max(0.0, idle_s):.2f}\n".encode()

    def _read(self) -> tuple[list[float], float, float, float]:
        """Return the CPU times of the emulated processors and the number of busy CPUs.

        Returns:
            Four values: a list with the seconds for which jobs kept each CPU busy, the system time in
            seconds per CPU, the uptime in seconds, and the number of CPUs that are busy now.
        """
        with self._realtime_model.now() as model:
            usage, now_s = model.usage(), model.now_s
            busy, running = usage.busy_seconds(now_s), usage.busy_cpus()
            system_s = usage.system_cpu_seconds(now_s) / len(busy)
        return busy, system_s, self._up_before_s + now_s - self._start_s, running


def _ticks(seconds: Sequence[float], shown: tuple[int, int, int]) -> tuple[int, int, int]:
    """Return user, system and idle time in clock ticks.

    No value is below the previously shown value.
    """
    user, system, idle = (int(value * USER_HZ) for value in seconds)
    return max(user, shown[0]), max(system, shown[1]), max(idle, shown[2])


def add_proc_stat(tree: Tree, realtime_model: RealtimeModel) -> None:
    """Add /proc/stat and /proc/uptime to a file tree."""
    times = ProcessorTimes(realtime_model)
    tree.add(STAT, File(times.stat, size=0))
    tree.add(UPTIME, File(times.uptime, size=0))
