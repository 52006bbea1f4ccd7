"""CPU time, memory, connections and network traffic of processes, from /proc."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_INTERVAL_S = 0.5


def cpu_s(pid: int) -> float:
    """Return the CPU seconds of a process and its reaped children; 0 if it has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0.0
    return sum(map(int, text.rpartition(")")[2].split()[11:15])) / _TICKS


def with_children(pid: int) -> list[int]:
    """Return the process ids of a process and all its descendants."""
    pids = [pid]
    for parent in pids:
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{parent}/task").iterdir():
                pids += map(int, (task / "children").read_text().split())
    return pids


def resident_mb(pid: int, key: str = "VmRSS") -> float:
    """Return the resident memory of a process in MB.

    With the key `VmHWM`, the result is the maximum so far.
    """
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith(f"{key}:"))) * 1024 / 1e6


def open_sockets(pid: int) -> int:
    """Return the number of open sockets of a process."""
    count = 0
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            count += str(entry.readlink()).startswith("socket:")
    return count


def loopback_bytes() -> int:
    """Return how many bytes were sent over the loopback interface of this network namespace."""
    for line in Path("/proc/self/net/dev").read_text().splitlines():
        name, _, values = line.partition(":")
        if name.strip() == "lo":
            return int(values.split()[8])
    return 0


@dataclass
class ProcessWindow:
    """Resources that processes used during a time window.

    Attributes:
        seconds: length of the time window.
        cpu_s: CPU seconds by name.
        max_mb: maximum resident memory by name.
        max_sockets: maximum number of open sockets by name.
        loopback_bytes: bytes over the loopback interface.
    """

    seconds: float = 0.0
    cpu_s: dict[str, float] = field(default_factory=dict)
    max_mb: dict[str, float] = field(default_factory=dict)
    max_sockets: dict[str, int] = field(default_factory=dict)
    loopback_bytes: int = 0

    def cores(self, name: str) -> float:
        """Return the mean number of cores that a process used in the measurement window.

        The number is the CPU seconds of the process per second.
        """
        return self.cpu_s[name] / self.seconds


@contextlib.contextmanager
def watched(processes: Mapping[str, int], groups: Mapping[str, int] | None = None) -> Iterator[ProcessWindow]:
    """Measure processes during the `with` block.

    Args:
        processes: process ids by name.
        groups: processes that count together with their descendants, by name; only CPU time is measured.
    """
    window, done, groups = ProcessWindow(), threading.Event(), groups or {}

    def totals() -> dict[str, float]:
        single = {name: cpu_s(pid) for name, pid in processes.items()}
        return single | {name: sum(map(cpu_s, with_children(pid))) for name, pid in groups.items()}

    def sample() -> None:
        while not done.wait(_INTERVAL_S):
            for name, pid in processes.items():
                with contextlib.suppress(OSError, StopIteration):
                    window.max_mb[name] = max(window.max_mb.get(name, 0.0), resident_mb(pid))
                    window.max_sockets[name] = max(window.max_sockets.get(name, 0), open_sockets(pid))

    before, begin_s, begin_bytes = totals(), time.monotonic(), loopback_bytes()
    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield window
    finally:
        done.set()
        thread.join()
        window.seconds = time.monotonic() - begin_s
        window.cpu_s = {name: total - before[name] for name, total in totals().items()}
        window.loopback_bytes = loopback_bytes() - begin_bytes
