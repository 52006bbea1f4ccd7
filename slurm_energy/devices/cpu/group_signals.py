"""Signals of one job from its cgroups: CPU time, throttling, pressure, memory and block I/O.

Sources: Linux, Documentation/admin-guide/cgroup-v2.rst, cgroup-v1/{cpuacct,memory,blkio-controller}.rst and
accounting/psi.rst. A file that the kernel or Slurm's configuration does not provide adds no signal.

Memory in use is the memory charged to the group, minus the page cache that the kernel can drop. Otherwise a
job that reads large files would seem to use all of its memory.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterator
from typing import Final

from slurm_energy.devices.cpu.job_groups import JobGroups
from slurm_energy.devices.kept_file import KeptFile
from slurm_energy.devices.signal_sensor import RateMeter, SignalReading, SignalSensor, numbers

_UNLIMITED_V1: Final = 1 << 62
"""In cgroup v1, a memory limit of at least this value means that there is no limit."""
_TOTAL: Final = re.compile(rb"^some .*total=(\d+)", re.MULTILINE)
_PRESSURES: Final = ("cpu", "io", "memory")
_BLOCK: Final = {
    b"rbytes": "block_read_bytes_per_s",
    b"wbytes": "block_write_bytes_per_s",
    b"rios": "block_reads_per_s",
    b"wios": "block_writes_per_s",
}
_BLKIO: Final = {
    "io_service_bytes": {b"Read": "block_read_bytes_per_s", b"Write": "block_write_bytes_per_s"},
    "io_serviced": {b"Read": "block_reads_per_s", b"Write": "block_writes_per_s"},
}


def group_sensor(groups: JobGroups) -> GroupSensor | None:
    """Return the sensor of a job's cgroups; None if the job has no cgroup."""
    if groups.unified is not None:
        return UnifiedGroupSensor(groups.unified)
    return SplitGroupSensor(groups) if groups.by_controller else None


class GroupSensor(SignalSensor):
    """Base class of the sensors for cgroup v1 and v2.

    The class contains the readings that both versions share.

    Args:
        source: name of the interface from which the signals are read.
    """

    def __init__(self, source: str) -> None:
        self._source = source
        self._rates = RateMeter()
        self._files: dict[str, KeptFile] = {}

    @abstractmethod
    def resources(self) -> frozenset[str]:
        """Return the resources whose use the sensor can read from the cgroups of jobs.

        The possible resources are `cpu`, `memory`, `io` and `pressure` (of the CPUs).
        """

    def forget(self) -> None:
        """Discard the previous reading."""
        self._rates.forget()

    def close(self) -> None:
        """Close all files of the cgroups."""
        for file in self._files.values():
            file.close()

    def _content(self, path: str) -> bytes | None:
        file = self._files.get(path)
        if file is None:
            file = self._files[path] = KeptFile(path)
        return file.read()

    def _reading(self, signal: str, value: float) -> SignalReading:
        return SignalReading(signal, "", value, self._source)

    def _rate(self, signal: str, value: float, now_s: float, factor: float = 1.0) -> Iterator[SignalReading]:
        """Yield the rate of a counter since the previous reading. Yield nothing if the rate is unknown.

        Args:
            signal: name of the signal.
            value: current value of the counter.
            now_s: time of the reading in seconds.
            factor: conversion from counter units per second to the unit of the signal.
        """
        rate = self._rates.per_second(signal, value, now_s)
        if rate is not None:
            yield self._reading(signal, rate * factor)

    def _throttling(self, content: bytes, now_s: float) -> Iterator[SignalReading]:
        """Yield the share of CPU bandwidth periods (`nr_periods`) in which the group was throttled."""
        counts = dict(numbers(content))
        if b"nr_periods" not in counts or b"nr_throttled" not in counts:
            return
        periods = self._rates.increase("nr_periods", counts[b"nr_periods"], now_s)
        throttled = self._rates.increase("nr_throttled", counts[b"nr_throttled"], now_s)
        if periods is not None and throttled is not None:
            share = throttled[0] / periods[0] if periods[0] else 0.0
            yield self._reading("cpu_throttled_percent", min(100.0, 100 * share))

    def _block(self, sums: dict[str, int], now_s: float) -> Iterator[SignalReading]:
        for signal, value in sums.items():
            yield from self._rate(signal, value, now_s)


class UnifiedGroupSensor(GroupSensor):
    """Signals from a cgroup of version 2.

    Args:
        folder: directory of the job's cgroup.
    """

    def __init__(self, folder: str) -> None:
        super().__init__("cgroup2")
        self._folder = folder

    def resources(self) -> frozenset[str]:
        """Return which of `cpu`, `memory`, `io` and `pressure` the cgroup accounts for."""
        files = {
            "cpu": "cpu.stat",
            "memory": "memory.current",
            "io": "io.stat",
            "pressure": "cpu.pressure",
        }
        return frozenset(name for name, file in files.items() if self._file(file) is not None)

    def read(self, now_s: float) -> list[SignalReading]:
        """Return the signals of a job's cgroup for the time since the previous call."""
        readings: list[SignalReading] = []
        if content := self._file("cpu.stat"):
            if (usec := dict(numbers(content)).get(b"usage_usec")) is not None:
                readings += self._rate("cpu_busy_cores", usec, now_s, 1e-6)
            readings += self._throttling(content, now_s)
        for resource in _PRESSURES:
            content = self._file(f"{resource}.pressure")
            if content and (match := _TOTAL.search(content)):
                readings += self._rate(f"{resource}_pressure_percent", int(match[1]), now_s, 1e-4)
        readings += self._memory(now_s)
        if (content := self._file("io.stat")) is not None:
            readings += self._block(_unified_block(content), now_s)
        return readings

    def _memory(self, now_s: float) -> Iterator[SignalReading]:
        current, limit = self._file("memory.current"), self._file("memory.max")
        stat = dict(numbers(self._file("memory.stat") or b""))
        files = stat.get(b"inactive_file", 0) + stat.get(b"active_file", 0)
        if stat and current and current.strip().isdigit():
            droppable = files + stat.get(b"slab_reclaimable", 0)
            yield self._reading("memory_used_bytes", max(0, int(current) - droppable))
        if limit and limit.strip().isdigit():
            yield self._reading("memory_limit_bytes", int(limit))
        if stat:
            yield self._reading("page_cache_bytes", files)
        if b"pgmajfault" in stat:
            yield from self._rate("page_faults_per_s", stat[b"pgmajfault"], now_s)

    def _file(self, name: str) -> bytes | None:
        return self._content(f"{self._folder}/{name}")


class SplitGroupSensor(GroupSensor):
    """Sensor that reads signals such as CPU use and throttling from a job's cgroups of version 1.

    Version 1 has a separate directory for each controller, for example `cpu` and `blkio`.

    Args:
        groups: directories of the job's cgroups.
    """

    def __init__(self, groups: JobGroups) -> None:
        super().__init__("cgroup1")
        self._folders = groups.by_controller

    def resources(self) -> frozenset[str]:
        """Return which of `cpu`, `memory` and `io` the cgroups account for; version 1 has no pressure."""
        controllers = {"cpu": "cpuacct", "memory": "memory", "io": "blkio"}
        return frozenset(name for name, controller in controllers.items() if controller in self._folders)

    def read(self, now_s: float) -> list[SignalReading]:
        """Return the signals of a job's cgroups (version 1) for the time since the previous call."""
        readings: list[SignalReading] = []
        usage = self._file("cpuacct", "cpuacct.usage")
        if usage and usage.strip().isdigit():
            readings += self._rate("cpu_busy_cores", int(usage), now_s, 1e-9)
        if content := self._file("cpu", "cpu.stat"):
            readings += self._throttling(content, now_s)
        readings += self._memory(now_s)
        sums: dict[str, int] = {}
        for file, rows in _BLKIO.items():
            content = self._file("blkio", f"blkio.throttle.{file}_recursive")
            if content is None:
                content = self._file("blkio", f"blkio.throttle.{file}")
            if content is not None:
                sums |= _split_block(content, rows)
        readings += self._block(sums, now_s)
        return readings

    def _memory(self, now_s: float) -> Iterator[SignalReading]:
        usage = self._file("memory", "memory.usage_in_bytes")
        limit = self._file("memory", "memory.limit_in_bytes")
        stat = dict(numbers(self._file("memory", "memory.stat") or b""))
        files = stat.get(b"total_inactive_file", 0) + stat.get(b"total_active_file", 0)
        if stat and usage and usage.strip().isdigit():
            yield self._reading("memory_used_bytes", max(0, int(usage) - files))
        if limit and limit.strip().isdigit() and int(limit) < _UNLIMITED_V1:
            yield self._reading("memory_limit_bytes", int(limit))
        if stat:
            yield self._reading("page_cache_bytes", files)
        if b"total_pgmajfault" in stat:
            yield from self._rate("page_faults_per_s", stat[b"total_pgmajfault"], now_s)

    def _file(self, controller: str, name: str) -> bytes | None:
        folder = self._folders.get(controller)
        return None if folder is None else self._content(f"{folder}/{name}")


def _unified_block(content: bytes) -> dict[str, int]:
    """Sum the values in io.stat over all devices; a line is `MAJOR:MINOR rbytes=N wbytes=N ...`."""
    sums = dict.fromkeys(_BLOCK.values(), 0)
    for line in content.splitlines():
        for word in line.split()[1:]:
            name, _, value = word.partition(b"=")
            if name in _BLOCK and value.isdigit():
                sums[_BLOCK[name]] += int(value)
    return sums


def _split_block(content: bytes, rows: dict[bytes, str]) -> dict[str, int]:
    """Sum the values in a file of the blkio controller over all devices.

    A line of the file is `MAJOR:MINOR OPERATION N`.

    Args:
        content: content of the file.
        rows: operations to count, each with its key in the result.
    """
    sums = dict.fromkeys(rows.values(), 0)
    for line in content.splitlines():
        words = line.split()
        if len(words) == 3 and words[1] in rows and words[2].isdigit():
            sums[rows[words[1]]] += int(words[2])
    return sums
