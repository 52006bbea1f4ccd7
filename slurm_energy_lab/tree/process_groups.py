"""Resctrl monitoring groups of the processes of this machine. A child inherits the group of its parent.

The emulator keeps this state instead of Linux. A process that a client moves belongs to the new group.
Any other process belongs to the group to which its parent belonged when the process was created. A process
whose parent has ended belongs to the root group, because its ancestry is unknown.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT_GROUP = ""
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_MAX_DEPTH = 100


@dataclass(frozen=True, slots=True)
class TaskOrigin:
    """Process that created a task (a thread), and the time of its creation.

    Attributes:
        parent: process that created the task.
        start_s: start of the task in seconds since boot, at most one clock tick too early.
    """

    parent: int
    start_s: float


@dataclass(frozen=True, slots=True)
class _Move:
    start_s: float
    time_s: float
    group: str


class ProcessGroups:
    """Assignment of processes to resctrl monitoring groups in an emulated node.

    Args:
        proc: the machine's /proc.
        clock: clock in seconds since boot.
    """

    def __init__(
        self,
        proc: Path = Path("/proc"),
        clock: Callable[[], float] = lambda: time.clock_gettime(time.CLOCK_BOOTTIME),
    ) -> None:
        self._proc = proc
        self._clock = clock
        self._moves: dict[int, list[_Move]] = {}

    def move(self, tid: int, group: str) -> None:
        """Move a task to a resctrl group.

        Raises:
            ProcessLookupError: the task does not exist.
        """
        origin = self._origin(tid)
        if origin is None:
            raise ProcessLookupError(tid)
        moves = [move for move in self._moves.get(tid, []) if move.start_s == origin.start_s]
        self._moves[tid] = [*moves, _Move(origin.start_s, self._clock(), group)]

    def move_all(self, group: str, target: str) -> None:
        """Move all tasks of a removed group to another group."""
        for tid, moves in self._moves.items():
            if moves[-1].group == group:
                self._moves[tid] = [*moves, _Move(moves[-1].start_s, self._clock(), target)]

    def group_of(self, tid: int) -> str:
        """Return the resctrl group of a task."""
        return self._group_at(tid, self._clock(), {})

    def members(self, group: str) -> list[int]:
        """Return the tasks of a resctrl group."""
        now_s, origins = self._clock(), dict[int, TaskOrigin | None]()
        return sorted(tid for tid in self._all_tasks() if self._group_at(tid, now_s, origins) == group)

    def local_tid(self, number: int, caller: int) -> int | None:
        """Convert the id of a task from the PID namespace of a process to that of the emulator.

        The result is None if the task does not exist.

        Args:
            number: id of the task in the PID namespace of `caller`.
            caller: id of a process in the emulator's namespace; 0 if the process itself runs in the
                emulator's namespace.
        """
        if not caller or self._namespace(caller) == self._namespace(os.getpid()):
            return number
        seen = self._seen_from(caller, self._all_tasks())
        return next((own for own, local in seen.items() if local == number), None)

    def numbers_for(self, tids: Iterable[int], caller: int) -> list[int]:
        """Convert task ids of the emulator's PID namespace to ids that the process `caller` sees.

        A task that has no id in the PID namespace of `caller` is left out.
        """
        if not caller or self._namespace(caller) == self._namespace(os.getpid()):
            return list(tids)
        seen = self._seen_from(caller, tids)
        return [seen[tid] for tid in tids if tid in seen]

    def _group_at(self, tid: int, time_s: float, origins: dict[int, TaskOrigin | None]) -> str:
        """Return the resctrl group to which a task belonged at a given time.

        Args:
            tid: id of the task.
            time_s: the time in seconds since boot.
            origins: cache of the parent and the start time of each task.
        """
        for _ in range(_MAX_DEPTH):
            if tid not in origins:
                origins[tid] = self._origin(tid)
            origin = origins[tid]
            if origin is None:
                return ROOT_GROUP
            moves = [
                m for m in self._moves.get(tid, []) if m.start_s == origin.start_s and m.time_s <= time_s
            ]
            if moves:
                return moves[-1].group
            tid, time_s = origin.parent, origin.start_s + 1 / _TICKS_PER_S
        return ROOT_GROUP

    def _origin(self, tid: int) -> TaskOrigin | None:
        """Return the parent process and the start time of a Linux task (process or thread).

        The parent of a thread is the process to which the thread belongs. The result is None if the task
        does not exist.
        """
        try:
            fields = (self._proc / str(tid) / "stat").read_bytes().rpartition(b")")[2].split()
            leader = _leader((self._proc / str(tid) / "status").read_text())
        except (OSError, ValueError):
            return None
        start_s = int(fields[19]) / _TICKS_PER_S
        return TaskOrigin(int(fields[1]) if leader == tid else leader, start_s)

    def _all_tasks(self) -> list[int]:
        pids = [int(path.name) for path in self._proc.iterdir() if path.name.isdecimal()]
        return [tid for pid in pids for tid in self._threads(pid)]

    def _threads(self, pid: int) -> list[int]:
        try:
            return [int(path.name) for path in (self._proc / str(pid) / "task").iterdir()]
        except OSError:
            return []

    def _namespace(self, pid: int) -> str:
        try:
            return str((self._proc / str(pid) / "ns/pid").readlink())
        except OSError:
            return ""

    def _seen_from(self, caller: int, tids: Iterable[int]) -> Mapping[int, int]:
        """Map task ids in the emulator's PID namespace to task ids in the namespace of a process."""
        depth = len(self._ids(caller))
        numbers: dict[int, int] = {}
        for tid in tids:
            ids = self._ids(tid)
            if len(ids) >= depth and self._shares_namespace(tid, caller, ids, depth):
                numbers[tid] = ids[depth - 1]
        return numbers

    def _shares_namespace(self, tid: int, caller: int, ids: list[int], depth: int) -> bool:
        """Return whether a task is in the PID namespace of `caller` or in a descendant of this namespace.

        A descendant namespace is recognised by its depth alone. The depth is sufficient, because the nodes of
        a lab are sibling namespaces, and each task of a node has an ancestor in the node's namespace.
        """
        if len(ids) == depth:
            return self._namespace(tid) == self._namespace(caller)
        origin = self._origin(tid)
        while origin is not None and len(self._ids(origin.parent)) > depth:
            origin = self._origin(origin.parent)
        return origin is not None and self._namespace(origin.parent) == self._namespace(caller)

    def _ids(self, tid: int) -> list[int]:
        try:
            text = (self._proc / str(tid) / "status").read_text()
        except OSError:
            return []
        line = next((line for line in text.splitlines() if line.startswith("NSpid:")), "NSpid:")
        return [int(word) for word in line.split()[1:]]


def _leader(status: str) -> int:
    """Return the id of the process to which a thread belongs.

    `status` is the text of /proc/TID/status.

    Raises:
        ValueError: the text does not contain the process id.
    """
    for line in status.splitlines():
        if line.startswith("Tgid:"):
            return int(line.split()[1])
    raise ValueError("no Tgid")
