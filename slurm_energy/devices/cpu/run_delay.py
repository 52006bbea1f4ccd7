"""Time for which tasks of a job wait for CPUs.

The module is for Linux kernels without pressure data of the job's cgroup.

Source: Linux, Documentation/scheduler/sched-stats.rst: the second field of /proc/PID/task/TID/schedstat is
the time that a task has waited on a run queue, in nanoseconds. /proc/PID/schedstat covers only the first task
of a process, so the file of each task is read. A task that begins and ends between two readings is not seen.
"""

from __future__ import annotations

from collections.abc import Set
from pathlib import Path
from typing import Final

from slurm_energy.devices.cpu.job_tasks import threads_of
from slurm_energy.devices.cpu.process_tree import read_head
from slurm_energy.devices.signal_sensor import SignalReading, SignalSensor

MAX_TASKS: Final = 1024
"""Maximum number of tasks of a job that are read, at 5 microseconds each. If a job has more tasks, its wait
stays unknown.
"""
SIGNAL: Final = "cpu_waiting_tasks"
SOURCE: Final = "proc:schedstat"
_SCHEDSTAT_BYTES: Final = 128


class RunDelaySensor(SignalSensor):
    """Mean number of a job's tasks that are ready to run but wait for a CPU.

    Args:
        root: directory that contains /proc.

    Attributes:
        pids: ids of the processes whose tasks the next call of `read` reads.
    """

    def __init__(self, root: Path) -> None:
        self.pids: Set[int] = frozenset()
        self._root = root
        self._last: dict[tuple[int, int], int] | None = None
        self._time_s = 0.0

    def read(self, now_s: float) -> list[SignalReading]:
        """Return how many tasks of the job waited for a CPU, on average since the previous call.

        Tasks that have started since the previous call are not counted yet.
        """
        last, before_s = self._last, self._time_s
        delays = self._delays_ns()
        self._last, self._time_s = delays, now_s
        if not delays or last is None or now_s <= before_s:
            return []
        known = [max(0, delay - last[key]) for key, delay in delays.items() if key in last]
        if not known:
            return []
        return [SignalReading(SIGNAL, "", sum(known) / 1e9 / (now_s - before_s), SOURCE)]

    def forget(self) -> None:
        """Discard the previous reading."""
        self._last = None

    def _delays_ns(self) -> dict[tuple[int, int], int] | None:
        """Return the waiting time in nanoseconds of each task, by process id and task id.

        Return None if the job has too many tasks, or if the tasks are unknown.
        """
        delays: dict[tuple[int, int], int] = {}
        for pid in self.pids:
            for tid in threads_of(self._root, (pid,)):
                if len(delays) >= MAX_TASKS:
                    return None
                fields = read_head(f"{self._root}/proc/{pid}/task/{tid}/schedstat", _SCHEDSTAT_BYTES).split()
                if len(fields) >= 2 and fields[1].isdigit():
                    delays[pid, tid] = int(fields[1])
        return delays or None
