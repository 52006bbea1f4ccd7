"""Files of a job's emulated cgroup that contain the signals which the program of the job has stated.

These files exist only after the program has stated signals. Like many real Linux kernels, the emulated kernel
otherwise has neither PSI nor the cgroup controllers memory and io. Sources: Linux,
Documentation/admin-guide/cgroup-v2.rst and accounting/psi.rst.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from slurm_energy_lab.tree.entries import File, Tree

STATED: Final = (
    "cpu_pressure_percent",
    "io_pressure_percent",
    "memory_pressure_percent",
    "memory_used_bytes",
    "memory_limit_bytes",
    "page_cache_bytes",
    "block_read_bytes_per_s",
    "block_write_bytes_per_s",
    "block_reads_per_s",
)
"""Signals of a job that a program may state."""
_RATES: Final = tuple(name for name in STATED if name.endswith(("_percent", "_per_s")))


class StatedSignals:
    """Files of an emulated cgroup that show the signal values stated by the job's programs.

    An example of such a value is the memory pressure.

    Args:
        tree: file tree of the node.
        folder: directory of the cgroup.
        clock: monotonic clock in seconds.
    """

    def __init__(self, tree: Tree, folder: str, clock: Callable[[], float]) -> None:
        self._tree = tree
        self._folder = folder
        self._clock = clock
        self._lock = threading.Lock()
        self._runs: dict[int, Mapping[str, float]] = {}
        self._counts = dict.fromkeys(_RATES, 0.0)
        self._counted_s = clock()

    def state(self, run_id: int, values: Mapping[str, float]) -> None:
        """Show a program's signal values in the files of its emulated cgroup from now on.

        Missing files are created.

        Args:
            run_id: id of the program's run.
            values: values by signal name. The names are those in `STATED`.
        """
        with self._lock:
            self._count()
            self._runs[run_id] = dict(values)
        for resource in ("cpu", "io", "memory"):
            if f"{resource}_pressure_percent" in values:
                self._add(f"{resource}.pressure", partial(self._pressure, resource))
        if any(name.startswith("block") for name in values):
            self._add("io.stat", self._io)
        if values.keys() & {"memory_used_bytes", "page_cache_bytes"}:
            self._add("memory.current", self._memory)
            self._add("memory.stat", self._memory_stat)
        if "memory_limit_bytes" in values:
            self._add("memory.max", lambda: self._number("memory_limit_bytes"))

    def end(self, run_id: int) -> None:
        """Discard the signal values that a program has set. The cgroup files with the signals remain."""
        with self._lock:
            self._count()
            self._runs.pop(run_id, None)

    def _add(self, name: str, content: Callable[[], bytes]) -> None:
        path = f"{self._folder}/{name}"
        if self._tree.get(path) is None:
            self._tree.add(path, File(content, size=0))

    def _value(self, name: str) -> float:
        return sum(values.get(name, 0.0) for values in self._runs.values())

    def _count(self) -> None:
        """Increase the emulated counters by the rates that a program has stated.

        The rates are multiplied by the time since the last call.
        """
        now_s = self._clock()
        for name in _RATES:
            self._counts[name] += self._value(name) * (now_s - self._counted_s)
        self._counted_s = now_s

    def _total(self, name: str) -> float:
        with self._lock:
            self._count()
            return self._counts[name]

    def _pressure(self, resource: str) -> bytes:
        total_us = round(self._total(f"{resource}_pressure_percent") * 1e4)
        averages = "avg10=0.00 avg60=0.00 avg300=0.00"
        return f"some {averages} total={total_us}\nfull {averages} total={total_us}\n".encode()

    def _io(self) -> bytes:
        read, written, reads = (
            round(self._total(name))
            for name in ("block_read_bytes_per_s", "block_write_bytes_per_s", "block_reads_per_s")
        )
        return f"8:0 rbytes={read} wbytes={written} rios={reads} wios=0 dbytes=0 dios=0\n".encode()

    def _memory(self) -> bytes:
        with self._lock:
            return f"{round(self._value('memory_used_bytes') + self._value('page_cache_bytes'))}\n".encode()

    def _memory_stat(self) -> bytes:
        with self._lock:
            used, cache = self._value("memory_used_bytes"), self._value("page_cache_bytes")
        lines = {"anon": used, "file": cache, "inactive_file": cache, "active_file": 0, "pgmajfault": 0}
        return "".join(f"{name} {round(value)}\n" for name, value in lines.items()).encode()

    def _number(self, name: str) -> bytes:
        with self._lock:
            return f"{round(self._value(name)) or 'max'}\n".encode()
