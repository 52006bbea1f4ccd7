"""Signals of one job from its processes, where its cgroups do not provide them.

Source: man 5 proc (/proc/PID/stat, /proc/PID/io). These signals are less exact than those of a cgroup:
a process that begins and ends between two readings is not seen, and memory that several processes share
counts once for each of them. /proc/PID/io counts the bytes that file systems read from and write to storage,
including network storage.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Set
from pathlib import Path
from typing import Final, NamedTuple

from slurm_energy.devices.cpu.process_tree import NS_PER_TICK, read_head
from slurm_energy.devices.signal_sensor import SignalReading, SignalSensor

MAX_PROCESSES: Final = 256
"""Maximum number of processes of a job that are read. If a job has more processes, its signals stay unknown.
"""
SOURCE: Final = "proc:pid"
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_STAT_BYTES: Final = 1024
_FACTORS: Final = {
    "cpu_busy_cores": NS_PER_TICK / 1e9,
    "page_faults_per_s": 1.0,
    "block_read_bytes_per_s": 1.0,
    "block_write_bytes_per_s": 1.0,
}
_IO: Final = {b"read_bytes:": "block_read_bytes_per_s", b"write_bytes:": "block_write_bytes_per_s"}


class _ProcessCounts(NamedTuple):
    """Counters of one process by signal, and its resident memory in bytes."""

    counts: dict[str, int]
    memory_bytes: int


class ProcessSensor(SignalSensor):
    """Signals from the processes of a job.

    Args:
        root: directory that contains /proc.

    Attributes:
        pids: ids of the processes that the next call of `read` reads.
    """

    def __init__(self, root: Path) -> None:
        self.pids: Set[int] = frozenset()
        self._root = root
        self._last: dict[tuple[int, int], dict[str, int]] | None = None
        self._time_s = 0.0

    def read(self, now_s: float) -> list[SignalReading]:
        """Return the signals of the job's processes since the previous call.

        A process that has started since the previous call is counted from its start. There is one exception:
        in the first call after `forget`, no process is counted from its start.
        """
        if not self.pids or len(self.pids) > MAX_PROCESSES:
            self.forget()
            return []
        processes = {
            key: counts for pid in sorted(self.pids) for key, counts in _read_process(self._root, pid)
        }
        last, before_s = self._last, self._time_s
        self._last, self._time_s = {key: one.counts for key, one in processes.items()}, now_s
        memory = SignalReading(
            "memory_used_bytes", "", float(sum(one.memory_bytes for one in processes.values())), SOURCE
        )
        if last is None or now_s <= before_s:
            return [memory]
        sums: dict[str, int] = {}
        for key, one in processes.items():
            earlier = last.get(key, {})
            for signal, count in one.counts.items():
                sums[signal] = sums.get(signal, 0) + max(0, count - earlier.get(signal, 0))
        per_s = 1 / (now_s - before_s)
        return [
            *(
                SignalReading(name, "", total * _FACTORS[name] * per_s, SOURCE)
                for name, total in sums.items()
            ),
            memory,
        ]

    def forget(self) -> None:
        """Discard the previous reading."""
        self._last = None


def _read_process(root: Path, pid: int) -> Iterator[tuple[tuple[int, int], _ProcessCounts]]:
    """Yield a process's counters with its id and start time. Yield nothing if the process has ended."""
    folder = f"{root}/proc/{pid}"
    fields = read_head(f"{folder}/stat", _STAT_BYTES).rpartition(b")")[2].split()
    if len(fields) < 22 or not all(fields[i].isdigit() for i in (9, 11, 12, 19, 21)):
        return
    counts = {"cpu_busy_cores": int(fields[11]) + int(fields[12]), "page_faults_per_s": int(fields[9])}
    for line in read_head(f"{folder}/io", _STAT_BYTES).splitlines():
        name, _, value = line.partition(b" ")
        if name in _IO and value.isdigit():
            counts[_IO[name]] = int(value)
    yield (pid, int(fields[19])), _ProcessCounts(counts, int(fields[21]) * _PAGE_BYTES)
