"""Search for the directories of a job's cgroups, for readings other than CPU time.

The module `cpu_time` describes the paths that Slurm creates. With cgroup v1, a job has one directory per
controller. Slurm creates only the directories of controllers that its plugins use.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from slurm_energy.devices.cpu.cpu_time import CGROUP_MOUNT, JobProcesses, entries, job_part, slurm_scopes
from slurm_energy.devices.sysfs import read_optional

CONTROLLERS: Final = ("cpuacct", "cpu", "memory", "blkio")
"""Controllers of version 1 whose files are read."""


@dataclass(frozen=True, slots=True)
class JobGroups:
    """Directories of one job's cgroups.

    Attributes:
        unified: directory in the cgroup v2 hierarchy; None if the job has no directory there.
        by_controller: directories in the cgroup v1 hierarchies, by name of the controller.
    """

    unified: str | None = None
    by_controller: Mapping[str, str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return self.unified is not None or bool(self.by_controller)


def find_job_groups(root: Path, node: str, job: JobProcesses) -> JobGroups:
    """Return the directories of a job's cgroups.

    The directories are found through the job's processes, or else at the paths that Slurm uses.

    Args:
        root: directory that contains /sys and /proc.
        node: Slurm's name of this node.
        job: the job, with its known processes.
    """
    for pid in job.pids:
        if groups := _groups_of_process(root, pid, job.directory_names):
            return groups
    return _groups_of_slurm(root, node, job.directory_names)


def _groups_of_process(root: Path, pid: int, names: frozenset[str]) -> JobGroups:
    unified: str | None = None
    by_controller: dict[str, str] = {}
    base = os.path.join(root, CGROUP_MOUNT)
    for line in (read_optional(f"{root}/proc/{pid}/cgroup") or "").splitlines():
        controllers, _, cgroup_path = line.partition(":")[2].partition(":")
        directory = job_part(cgroup_path, names)
        if directory is None:
            continue
        if not controllers:
            paths = (os.path.join(base, mount, directory) for mount in ("", "unified"))
            unified = next((path for path in paths if os.path.exists(f"{path}/cpu.stat")), None)
        for controller in set(controllers.split(",")).intersection(CONTROLLERS):
            for mount in (controllers, controller):
                path = os.path.join(base, mount, directory)
                if controller not in by_controller and os.path.isdir(path):
                    by_controller[controller] = path
    return JobGroups(unified, by_controller)


def _groups_of_slurm(root: Path, node: str, names: frozenset[str]) -> JobGroups:
    base = os.path.join(root, CGROUP_MOUNT)
    scopes = [scope for mount in (base, f"{base}/unified") for scope in slurm_scopes(mount, node)]
    unified = next(_folders(f"{scope}/{name}" for name in names for scope in scopes), None)
    by_controller: dict[str, str] = {}
    for controller in CONTROLLERS:
        mounts = [controller, "cpu,cpuacct"] if controller.startswith("cpu") else [controller]
        tops = [f"{base}/{mount}/{top}" for mount in mounts for top in (f"slurm_{node}", "slurm")]
        users = [user for top in tops for user in entries(top, prefix="uid_")]
        path = next(_folders(f"{user}/{name}" for name in names for user in users), None)
        if path is not None:
            by_controller[controller] = path
    return JobGroups(unified, by_controller)


def _folders(paths: Iterable[str]) -> Iterator[str]:
    return (path for path in paths if os.path.isdir(path))
