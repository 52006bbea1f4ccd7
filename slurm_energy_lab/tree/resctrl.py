"""Emulated files below /sys/fs/resctrl: monitoring of memory traffic and core energy by resctrl group.

Sources: Linux, Documentation/filesystems/resctrl.rst; fs/resctrl/monitor.c and rdtgroup.c. Differences from
the kernel: the traffic of a package is divided evenly among its L3 caches; llc_occupancy is always 0; a
schemata file is read-only.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from slurm_energy_lab.model import NodeProfile
from slurm_energy_lab.model.profile import ResctrlProfile
from slurm_energy_lab.model.task_counters import Task, TaskCount
from slurm_energy_lab.realtime_model import RealtimeModel
from slurm_energy_lab.tree.entries import File, GroupDirectory, Tree, refuse
from slurm_energy_lab.tree.process_groups import ROOT_GROUP, ProcessGroups

ROOT = "/sys/fs/resctrl"
_MON_GROUPS = "mon_groups"
_RESERVED = frozenset({"info", "mon_data", _MON_GROUPS})
_BYTES_UNIT = 65536
_FEATURES = ("llc_occupancy", "mbm_total_bytes", "mbm_local_bytes")


@dataclass(slots=True)
class _CountedTask:
    """A task that runs in a resctrl group.

    Attributes:
        base: counter values of the task (memory traffic and core energy) when the task joined the
            group, per package.
        pids: function that returns the ids of the task's processes.
    """

    base: list[TaskCount]
    pids: Callable[[], list[int]]


@dataclass(slots=True)
class _MonitoringGroup:
    """A group of tasks in resctrl that the processor counts under one monitoring id.

    The group is a control group or a monitoring group.

    Attributes:
        ended: memory traffic and core energy of tasks that have left the group, per package.
        tasks: running tasks in the group.
    """

    ended: list[TaskCount]
    tasks: dict[Task, _CountedTask] = field(default_factory=dict)


class ResctrlFiles:
    """The emulated file system resctrl of one node.

    Args:
        tree: file tree in which the files appear.
        realtime_model: the node's model. The profile of the node must have resctrl.
        processes: table that states the resctrl group of each process of this machine.
        caller: function that returns the id of the process whose request is served. It returns 0 for a
            process in the PID namespace of the emulator.
    """

    def __init__(
        self,
        tree: Tree,
        realtime_model: RealtimeModel,
        processes: ProcessGroups,
        caller: Callable[[], int] = lambda: 0,
    ) -> None:
        profile = realtime_model.profile.resctrl
        assert profile is not None
        self._profile: ResctrlProfile = profile
        self._tree, self._model = tree, realtime_model
        self._processes, self._caller = processes, caller
        self._packages = realtime_model.profile.cpu.packages
        self._groups: dict[str, _MonitoringGroup] = {}
        self._freed_s: list[float] = []
        self._lock = threading.RLock()
        tree.directory(ROOT)
        if profile.mounted:
            tree.add(ROOT, GroupDirectory(self._make_control, self._remove_control))
            self._add_info()
            self._add_group(ROOT_GROUP, control=True)

    def start_task(self, task: Task, pids: Callable[[], list[int]]) -> None:
        """Start to count a task in the resctrl group to which the task's processes belong.

        Args:
            task: run of a compute kernel, or real programs of a job, see `task_counters`.
            pids: function that returns the ids of the task's processes. The first process determines the
                group.
        """
        with self._lock:
            if self._groups:
                self._join(self._group_of(pids()), task, pids)

    def end_task(self, task: Task) -> None:
        """Stop counting the resource use of a task that ends or leaves its group."""
        with self._lock:
            for group in self._groups.values():
                if task in group.tasks:
                    self._leave(group, task)

    def settle(self) -> None:
        """Update which resctrl group each task is in, after processes were moved between groups."""
        with self._lock:
            self._settle()

    def _settle(self) -> None:
        for name, group in list(self._groups.items()):
            for task, counted in list(group.tasks.items()):
                target = self._group_of(counted.pids())
                if target != name:
                    self._leave(group, task)
                    self._join(target, task, counted.pids)

    def _group_of(self, pids: Iterable[int]) -> str:
        pid = next(iter(pids), None)
        name = ROOT_GROUP if pid is None else self._processes.group_of(pid)
        return name if name in self._groups else ROOT_GROUP

    def _join(self, name: str, task: Task, pids: Callable[[], list[int]]) -> None:
        self._groups[name].tasks[task] = _CountedTask(self._counts(task), pids)

    def _leave(self, group: _MonitoringGroup, task: Task) -> None:
        counted = group.tasks.pop(task)
        for package, (now, base) in enumerate(zip(self._counts(task), counted.base, strict=True)):
            group.ended[package] = group.ended[package].plus(now.plus(base, -1))

    def _counts(self, task: Task) -> list[TaskCount]:
        with self._model.now() as model:
            return [counters.count(task, model.now_s) for counters in model.task_counters()]

    def _count(self, name: str, package: int, file: str) -> TaskCount:
        """Return the counted memory traffic of an emulated resctrl group on a package.

        The count of a control group includes the counts of the monitoring groups below it. A monitoring
        group whose own file reports a failure is left out, as in Linux (mon_event_count).

        Args:
            name: name of the group.
            package: number of the package.
            file: path of the counter below the directory of the group.
        """
        total = TaskCount()
        with self._lock:
            self._settle()
            below = (one for one in self._monitors_of(name) if f"{ROOT}/{one}/{file}" not in self._tree.texts)
            names = [name, *below]
            for group in (self._groups[one] for one in names):
                total = total.plus(group.ended[package])
                for task, counted in group.tasks.items():
                    total = total.plus(self._counts(task)[package]).plus(counted.base[package], -1)
        return total

    def _monitors_of(self, name: str) -> list[str]:
        """Return the monitoring groups below a resctrl control group."""
        below = f"{name}/{_MON_GROUPS}/".lstrip("/")
        return [other for other in self._groups if _is_control(name) and other.startswith(below)]

    def _add_info(self) -> None:
        info: dict[str, tuple[int, tuple[str, ...]]] = {"L3_MON": (self._profile.num_rmids, _FEATURES)}
        if self._profile.core_energy_rmids:
            info["PERF_PKG_MON"] = (self._profile.core_energy_rmids, ("core_energy",))
        for name, (rmids, features) in info.items():
            self._tree.text(f"{ROOT}/info/{name}/num_rmids", str(rmids))
            self._tree.text(f"{ROOT}/info/{name}/mon_features", "\n".join(features))
        self._tree.text(f"{ROOT}/info/last_cmd_status", "ok")

    def _add_group(self, name: str, *, control: bool) -> None:
        self._groups[name] = _MonitoringGroup([TaskCount()] * self._packages)
        base = f"{ROOT}/{name}".rstrip("/")
        tasks = File(
            lambda: self._read_tasks(name), 0o644, lambda data: self._write_tasks(name, data), size=0
        )
        self._tree.add(f"{base}/tasks", tasks)
        if control:
            self._tree.add(
                f"{base}/{_MON_GROUPS}",
                GroupDirectory(
                    lambda one: self._make_monitor(name, one), lambda one: self._remove_monitor(name, one)
                ),
            )
            self._tree.text(f"{base}/schemata", "")
        for package in range(self._packages):
            self._add_counters(base, name, package)

    def _add_counters(self, base: str, name: str, package: int) -> None:
        domains = l3_domains(self._model.profile, package)
        for domain in domains:
            folder = f"mon_data/mon_L3_{domain:02d}"
            self._tree.text(f"{base}/{folder}/llc_occupancy", "0")
            for file in (f"{folder}/mbm_total_bytes", f"{folder}/mbm_local_bytes"):
                self._tree.add(f"{base}/{file}", self._traffic_file(name, package, file, len(domains)))
        if self._profile.core_energy_rmids:
            file = f"mon_data/mon_PERF_PKG_{package:02d}/core_energy"
            self._tree.add(f"{base}/{file}", self._energy_file(name, package, file))

    def _traffic_file(self, name: str, package: int, file: str, domains: int) -> File:
        def render() -> bytes:
            count = int(self._count(name, package, file).traffic_bytes / domains)
            return b"%d\n" % (count - count % _BYTES_UNIT)

        return File(render, size=0)

    def _energy_file(self, name: str, package: int, file: str) -> File:
        def render() -> bytes:
            return f"{self._count(name, package, file).core_joules:.6f}\n".encode()

        return File(render, size=0)

    def _read_tasks(self, name: str) -> bytes:
        tids = self._processes.members(name)
        for other in self._monitors_of(name):
            tids += self._processes.members(other)
        numbers = self._processes.numbers_for(sorted(tids), self._caller())
        return "".join(f"{number}\n" for number in numbers).encode()

    def _write_tasks(self, name: str, data: bytes) -> None:
        self.settle()
        for word in data.decode("ascii", "replace").strip().split(","):
            if not word.isdecimal():
                refuse(errno.EINVAL)
            tid = self._processes.local_tid(int(word), self._caller())
            if tid is None:
                refuse(errno.ESRCH)
            if not _is_control(name) and _control_of(self._processes.group_of(tid)) != _control_of(name):
                refuse(errno.EINVAL)
            try:
                self._processes.move(tid, name)
            except ProcessLookupError:
                refuse(errno.ESRCH)
        self.settle()

    def _make_control(self, name: str) -> None:
        if sum(map(_is_control, self._groups)) >= self._profile.closids:
            refuse(errno.ENOSPC)
        self._make(name, name, control=True)

    def _make_monitor(self, control: str, name: str) -> None:
        self._make(f"{control}/{_MON_GROUPS}/{name}".lstrip("/"), name, control=False)

    def _make(self, path: str, name: str, *, control: bool) -> None:
        if path in self._groups or name in _RESERVED:
            refuse(errno.EEXIST)
        now_s = self._model.clock()
        self._freed_s = [freed_s for freed_s in self._freed_s if now_s - freed_s < self._profile.limbo_s]
        rmids = self._profile.num_rmids
        if self._profile.core_energy_rmids:
            rmids = min(rmids, self._profile.core_energy_rmids)
        if len(self._groups) >= rmids:
            refuse(errno.ENOSPC)
        if len(self._groups) + len(self._freed_s) >= rmids:
            refuse(errno.EBUSY)
        self._add_group(path, control=control)

    def _remove_control(self, name: str) -> None:
        if name not in self._groups:
            refuse(errno.EPERM)
        for path in [*self._monitors_of(name), name]:
            self._remove(path, ROOT_GROUP)

    def _remove_monitor(self, control: str, name: str) -> None:
        path = f"{control}/{_MON_GROUPS}/{name}".lstrip("/")
        if path not in self._groups:
            refuse(errno.ENOENT)
        self._remove(path, control)

    def _remove(self, path: str, target: str) -> None:
        with self._lock:
            self._processes.move_all(path, target)
            group = self._groups.pop(path)
            for task, counted in list(group.tasks.items()):
                self._leave(group, task)
                self._join(target, task, counted.pids)
        self._freed_s.append(self._model.clock())
        self._tree.remove(f"{ROOT}/{path}")


def l3_domains(profile: NodeProfile, package: int) -> list[int]:
    """Return the numbers of the L3 caches of a package on an emulated node.

    The numbers are those in the topology files of the node.
    """
    cpu = profile.cpu
    shared = next((cache.shared_cores for cache in cpu.caches if cache.level == 3), cpu.cores_per_package)
    first = package * cpu.cores_per_package
    return sorted({(first + core) // shared for core in range(0, cpu.cores_per_package, shared)})


def _is_control(name: str) -> bool:
    return "/" not in name


def _control_of(name: str) -> str:
    """Return the resctrl control group to which a resctrl group belongs."""
    return name if _is_control(name) else name.rpartition(f"{_MON_GROUPS}/")[0].rstrip("/")
