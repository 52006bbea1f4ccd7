"""Monitoring groups of the kernel's resctrl file system, which count memory traffic and core energy.

Source: Linux, Documentation/filesystems/resctrl.rst. A monitoring group counts the tasks (threads) whose ids
are written to its file `tasks`, and the children that they create later. A monitoring group is created below
the resctrl control group to which its tasks belong, because a task moved below another control group would
get the cache limits of that control group. The counts of a control group include its own tasks and all its
monitoring groups.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from slurm_energy.devices.driver import DeviceError
from slurm_energy.devices.sysfs import error_reason, read_optional

MOUNT_POINT = "sys/fs/resctrl"
ROOT_GROUP = ""
"""Name of the root resctrl control group. The names of other groups are their paths below the mount point."""
TRAFFIC, CORE_ENERGY = "memory traffic", "core energy"
_CPU_FLAG = "cqm_mbm_total"
_MON_GROUPS = "mon_groups"
_RESERVED = frozenset({"info", "mon_data", _MON_GROUPS})
_MILLION = 1_000_000
_DOMAIN = re.compile(r"mon_(L3|PERF_PKG)_(\d{1,6})")
_FILES = {"L3": (TRAFFIC, "mbm_total_bytes"), "PERF_PKG": (CORE_ENERGY, "core_energy")}
_COUNT = re.compile(r"(\d{1,20})(?:\.(\d{1,18}))?")
_DIVIDES = {TRAFFIC: "dram", CORE_ENERGY: "cpu"}
"""For each quantity, the component whose energy is divided among jobs in proportion to this quantity."""

Counts = Mapping[str, Mapping[int, int | None]]
"""Counts of a resctrl group, in bytes or microjoules, by quantity and number of the L3 cache or package.

None if the file has no number."""


@dataclass(frozen=True, slots=True)
class ResctrlSupport:
    """Capabilities of the node for monitoring groups of tasks.

    Attributes:
        capable: whether the processor counts memory traffic by task, according to /proc/cpuinfo.
        offered: whether the kernel provides the mount point of the file system.
        mounted: whether the file system is mounted.
        quantities: quantities that the mounted file system counts: TRAFFIC (bytes), CORE_ENERGY
            (microjoules).
    """

    capable: bool
    offered: bool
    mounted: bool
    quantities: tuple[str, ...] = ()


def find_support(root: Path) -> ResctrlSupport:
    """Return what the node's processor can count for groups of tasks (resctrl monitoring groups).

    Args:
        root: directory that contains /sys and /proc.
    """
    info = root / MOUNT_POINT / "info"
    quantities = [
        quantity
        for folder, quantity, feature in (
            ("L3_MON", TRAFFIC, "mbm_total_bytes"),
            ("PERF_PKG_MON", CORE_ENERGY, "core_energy"),
        )
        if feature in (read_optional(info / folder / "mon_features") or "").split()
    ]
    flags = (read_optional(root / "proc/cpuinfo") or "").partition("flags")[2].partition("\n")[0].split()
    return ResctrlSupport(_CPU_FLAG in flags, (root / MOUNT_POINT).is_dir(), info.is_dir(), tuple(quantities))


def mount(root: Path) -> None:
    """Mount the resctrl file system with the kernel's default options.

    Raises:
        DeviceError: the kernel refused.
    """
    target = root / MOUNT_POINT
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"resctrl", os.fsencode(target), b"resctrl", ctypes.c_ulong(0), None) != 0:
        code = ctypes.get_errno()
        raise DeviceError(str(target), f"not mounted: {os.strerror(code)}")


def mount_if_offered(root: Path) -> None:
    """Mount the resctrl file system if the kernel provides its mount point and it is not mounted yet.

    Raises:
        DeviceError: the kernel refused.
    """
    support = find_support(root)
    if support.offered and not support.mounted:
        mount(root)


def open_monitoring(root: Path, mode: str, components: Container[str]) -> MonitoringFiles | None:
    """Open the monitoring groups by which the node's energy is attributed to jobs; None if not available.

    Args:
        root: directory that contains /sys and /proc.
        mode: `auto`: use the file system if it is mounted. `mount`: mount it if it is not mounted. `off`:
            return None.
        components: components whose energy is measured.

    Raises:
        DeviceError: the file system cannot be mounted.
    """
    if mode == "off":
        return None
    if mode == "mount":
        mount_if_offered(root)
    useful = [q for q in find_support(root).quantities if _DIVIDES[q] in components]
    return MonitoringFiles(root, useful) if useful else None


def parse_count(text: str) -> int | None:
    """Return a count in millionths of its unit; None for `Unavailable`, `Unassigned`, `Error` or other text.

    Digits after the sixth decimal place are dropped.
    """
    match = _COUNT.fullmatch(text.strip())
    if match is None:
        return None
    return int(match[1]) * _MILLION + int((match[2] or "")[:6].ljust(6, "0"))


class MonitoringFiles:
    """Monitoring groups of the mounted resctrl file system.

    Args:
        root: directory that contains /sys and /proc.
        quantities: quantities to read, see `ResctrlSupport`.
    """

    def __init__(self, root: Path, quantities: Iterable[str]) -> None:
        self._mount_point = root / MOUNT_POINT
        self.quantities = tuple(quantities)

    def control_groups(self) -> list[str]:
        """Return the resctrl control groups that can have monitoring groups.

        Raises:
            DeviceError: the file system is no longer mounted.
        """
        names = [name for name in self.entries(ROOT_GROUP) if name not in _RESERVED]
        return [ROOT_GROUP, *(name for name in names if _MON_GROUPS in self._entries_if_any(name))]

    def monitoring_groups(self, control: str) -> list[str]:
        """Return the monitoring groups below a resctrl control group.

        Raises:
            DeviceError: the control group has been removed.
        """
        folder = _joined(control, _MON_GROUPS)
        return [_joined(folder, name) for name in self.entries(folder)]

    def create(self, control: str, name: str) -> str:
        """Create a monitoring group below a resctrl control group. Return the monitoring group's name.

        If a monitoring group with this name exists already, it is used.

        Raises:
            OSError: the kernel refused; ENOSPC or EBUSY if no monitoring id is free.
        """
        folder = _joined(control, _MON_GROUPS)
        with contextlib.suppress(FileExistsError):
            self.make(folder, name)
        return _joined(folder, name)

    def remove(self, group: str) -> None:
        """Remove a monitoring group. Its tasks return to the resctrl control group.

        If the monitoring group is missing, nothing is done.

        Raises:
            OSError: the kernel refused.
        """
        folder, _, name = group.rpartition("/")
        with contextlib.suppress(FileNotFoundError):
            self.discard(folder, name)

    def tasks(self, group: str) -> set[int]:
        """Return the task ids of a resctrl group.

        The tasks of a control group include those of its monitoring groups.

        Raises:
            DeviceError: the group has been removed.
        """
        path = _joined(group, "tasks")
        try:
            return {int(word) for word in self.text(path).split()}
        except ValueError:
            raise DeviceError(path, "not a list of task ids") from None

    def add_tasks(self, group: str, tids: Iterable[int]) -> None:
        """Move tasks to a resctrl group. Tasks that have ended are skipped.

        Raises:
            DeviceError: the kernel refused a task.
        """
        try:
            self.write_tasks(group, tids)
        except OSError as error:
            raise DeviceError(_joined(group, "tasks"), error_reason(error)) from None

    def read(self, group: str) -> Counts:
        """Return the counts of a resctrl group.

        If the directory of a cache has subdirectories for parts of the cache (sub-NUMA clusters), only the
        count of the whole cache is read.

        Raises:
            DeviceError: the group has been removed.
        """
        folder = _joined(group, "mon_data")
        counts: dict[str, dict[int, int | None]] = {quantity: {} for quantity in self.quantities}
        for entry in self.entries(folder):
            match = _DOMAIN.fullmatch(entry)
            quantity, file = _FILES[match[1]] if match else ("", "")
            if match is None or quantity not in counts:
                continue
            count = self._count(f"{folder}/{entry}/{file}")
            if count is not None and quantity == TRAFFIC:
                count //= _MILLION
            counts[quantity][int(match[2])] = count
        return counts

    def entries(self, folder: str) -> list[str]:
        """Return the names of the directories in a directory below the mount point.

        Raises:
            DeviceError: the directory cannot be read.
        """
        path = self._mount_point / folder
        try:
            with os.scandir(path) as listed:
                return sorted(entry.name for entry in listed if entry.is_dir(follow_symlinks=False))
        except OSError as error:
            raise DeviceError(str(path), error_reason(error)) from None

    def text(self, path: str) -> str:
        """Return the whole text of a file below the mount point.

        Raises:
            DeviceError: the file cannot be read.
        """
        try:
            return (self._mount_point / path).read_text(encoding="ascii", errors="replace")
        except OSError as error:
            raise DeviceError(str(self._mount_point / path), error_reason(error)) from None

    def make(self, folder: str, name: str) -> None:
        """Create the directory of a monitoring group.

        Args:
            folder: parent directory, relative to the mount point of resctrl.
            name: name of the directory.

        Raises:
            OSError: the kernel refused.
        """
        (self._mount_point / folder / name).mkdir()

    def discard(self, folder: str, name: str) -> None:
        """Remove the directory of a monitoring group.

        Args:
            folder: parent directory, relative to the mount point of resctrl.
            name: name of the directory.

        Raises:
            OSError: the kernel refused.
        """
        (self._mount_point / folder / name).rmdir()

    def write_tasks(self, group: str, tids: Iterable[int]) -> None:
        """Write task ids to the file `tasks` of a resctrl group, one by one.

        Older Linux kernels accept no list.

        Raises:
            OSError: the kernel refused a task that exists.
        """
        descriptor = os.open(self._mount_point / group / "tasks", os.O_WRONLY | os.O_CLOEXEC)
        try:
            for tid in tids:
                with contextlib.suppress(ProcessLookupError):
                    os.write(descriptor, str(tid).encode())
        finally:
            os.close(descriptor)

    def _entries_if_any(self, folder: str) -> list[str]:
        try:
            return self.entries(folder)
        except DeviceError:
            return []

    def _count(self, path: str) -> int | None:
        try:
            return parse_count(self.text(path))
        except DeviceError:
            return None


def is_control_group(group: str) -> bool:
    """Return whether a resctrl group is a control group, not a monitoring group."""
    return "/" not in group


def control_of(group: str) -> str:
    """Return the resctrl control group to which a monitoring group belongs."""
    return group.rpartition(f"{_MON_GROUPS}/")[0].rstrip("/")


def _joined(above: str, name: str) -> str:
    return f"{above}/{name}" if above else name
