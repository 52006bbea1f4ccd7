"""Control groups (cgroup version 1 or 2) that limit and count CPU time on this machine.

The module handles files and paths; `cpu_throttle` sets the quotas.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol

_UNLIMITED = "-1"
_ATTEMPTS = 1000


class CpuCgroups(Protocol):
    """Interface that creates and limits control groups (cgroups) for processes of jobs.

    Only real programs need control groups, not emulated load. Each job has one control group.

    Attributes:
        kind: version of the control groups, `v1` or `v2`.
    """

    kind: str

    def create(self, name: str) -> list[Path]:
        """Create a control group. Return its `cgroup.procs` files, to which process ids must be written."""

    def limit(self, name: str, quota_us: int, period_us: int) -> None:
        """Limit a control group to `quota_us` microseconds of CPU time in every `period_us` microseconds."""

    def cpu_seconds(self, name: str) -> float:
        """Return the CPU seconds that the processes of a control group have used since its creation."""

    def remove(self, name: str) -> bool:
        """Remove a control group if no process is in the group.

        Return whether the group no longer exists.
        """

    def close(self) -> None:
        """Move remaining processes to the root group and remove all groups that this object created."""


class CpuCgroupsV1:
    """Control groups of the cgroup version 1 controllers `cpu` and `cpuacct`, which may share one mount.

    The constructor removes groups that an earlier emulator left behind.
    """

    kind = "v1"

    def __init__(self, cpu: Path, cpuacct: Path, base: str) -> None:
        self._cpu, self._cpuacct = cpu / base, cpuacct / base
        self._homes = list(dict.fromkeys((cpu, cpuacct)))
        self._bases = list(dict.fromkeys((self._cpu, self._cpuacct)))
        self.close()
        for path in self._bases:
            _make(path)

    def create(self, name: str) -> list[Path]:
        """Create a control group under each CPU controller of cgroup version 1.

        Return the file `cgroup.procs` of each new group.
        """
        for base in self._bases:
            (base / name).mkdir(exist_ok=True)
        return [base / name / "cgroup.procs" for base in self._bases]

    def limit(self, name: str, quota_us: int, period_us: int) -> None:
        """Set the period and the quota of a group in microseconds.

        The old quota is removed first, because Linux would reject some combinations of old and new values.
        """
        group = self._cpu / name
        _write(group / "cpu.cfs_quota_us", _UNLIMITED)
        _write(group / "cpu.cfs_period_us", str(period_us))
        _write(group / "cpu.cfs_quota_us", str(quota_us))

    def cpu_seconds(self, name: str) -> float:
        """Return the CPU seconds in the control group's cpuacct.usage."""
        return int((self._cpuacct / name / "cpuacct.usage").read_text()) / 1e9

    def remove(self, name: str) -> bool:
        """Remove a control group under each controller if no process is in the group.

        Return whether the group no longer exists.
        """
        gone = [_rmdir(base / name) for base in self._bases]
        return all(gone)

    def close(self) -> None:
        """Move processes to the root group of each controller, and remove all groups and the base group."""
        for home, base in zip(self._homes, self._bases, strict=True):
            _clear(base, home / "cgroup.procs", home)


class CpuCgroupsV2:
    """Control groups (cgroup version 2) that limit the CPU time of programs on an emulated node.

    The constructor removes groups that an earlier emulator left behind.
    """

    kind = "v2"

    def __init__(self, root: Path, base: str) -> None:
        self._root, self._base = root, root / base
        self.close()
        _make(self._base)
        for path in [*reversed(self._base.relative_to(root).parents), Path(base)]:
            _write(root / path / "cgroup.subtree_control", "+cpu")

    def create(self, name: str) -> list[Path]:
        """Create a CPU control group and return the paths of its `cgroup.procs` file, as a list."""
        (self._base / name).mkdir(exist_ok=True)
        return [self._base / name / "cgroup.procs"]

    def limit(self, name: str, quota_us: int, period_us: int) -> None:
        """Write the quota and the period of a group to cpu.max, in microseconds."""
        _write(self._base / name / "cpu.max", f"{quota_us} {period_us}")

    def cpu_seconds(self, name: str) -> float:
        """Return the CPU seconds in the control group's cpu.stat."""
        for line in (self._base / name / "cpu.stat").read_text().splitlines():
            key, _, value = line.partition(" ")
            if key == "usage_usec":
                return int(value) / 1e6
        return 0.0

    def remove(self, name: str) -> bool:
        """Remove an emulated control group if no process is in the group.

        The processes in such a control group are real programs. Return whether the group no longer exists.
        """
        return _rmdir(self._base / name)

    def close(self) -> None:
        """Move processes to the root of the hierarchy, and remove all groups and the base group."""
        _clear(self._base, self._root / "cgroup.procs", self._root)


def find_groups(base: str, mountinfo: Path = Path("/proc/self/mountinfo")) -> tuple[CpuCgroups | None, str]:
    """Find a usable cgroup CPU controller, and create the base group of a node below the controller's root.

    Args:
        base: path of the base group below the root of the cgroup controller, for example `senergy-lab/n1`.
        mountinfo: the kernel's list of mounts.

    Returns:
        The control groups and an empty text. If CPU time cannot be throttled: None and the reason.
    """
    v1, unified = _mounts(mountinfo)
    try:
        if "cpu" in v1 and "cpuacct" in v1:
            return CpuCgroupsV1(v1["cpu"], v1["cpuacct"], base), ""
        if unified and "cpu" in (unified / "cgroup.controllers").read_text().split():
            return CpuCgroupsV2(unified, base), ""
    except OSError as error:
        return None, f"control group {base}: {error.strerror}"
    return None, "no cpu controller is mounted"


def _mounts(mountinfo: Path) -> tuple[dict[str, Path], Path | None]:
    """Return where the cgroup file systems are mounted.

    The first value maps each controller of cgroup version 1 to its mount point. The second value is the
    mount point of version 2, or None if version 2 is not mounted.
    """
    v1: dict[str, Path] = {}
    unified = None
    for line in mountinfo.read_text().splitlines():
        left, _, right = line.partition(" - ")
        point, (kind, _, options) = Path(left.split()[4]), right.split(" ", 2)
        if kind == "cgroup2":
            unified = unified or point
        elif kind == "cgroup":
            for name in set(options.split(",")) & {"cpu", "cpuacct"}:
                v1.setdefault(name, point)
    return v1, unified


def _write(path: Path, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def _make(path: Path) -> None:
    """Create a control group and its parents.

    The creation is retried, because emulators of other nodes may remove empty parents at the same time.
    """
    for _ in range(_ATTEMPTS):
        try:
            path.mkdir(parents=True)
            return
        except FileNotFoundError:
            continue
        except FileExistsError:  # also for a parent that was removed again
            if path.is_dir():
                raise
    path.mkdir(parents=True)


def _rmdir(path: Path) -> bool:
    try:
        path.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _clear(base: Path, refuge: Path, top: Path) -> None:
    """Remove the control group `base` with its subgroups.

    Then remove the empty parents of `base` up to `top`.

    Processes in the removed groups are moved by writing their process ids to the file `refuge`.
    """
    for group in [path for path in base.iterdir() if path.is_dir()] if base.is_dir() else []:
        for pid in (group / "cgroup.procs").read_text().split():
            try:
                _write(refuge, pid)
            except OSError:
                continue
        _rmdir(group)
    while base != top and _rmdir(base):
        base = base.parent
