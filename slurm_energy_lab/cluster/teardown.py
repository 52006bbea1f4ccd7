"""Removal of a lab in any state, with its processes, mounts, cgroups and files."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import time
from pathlib import Path

from slurm_energy.errors import EnergyError
from slurm_energy_lab.cluster import namespaces, processes
from slurm_energy_lab.cluster.layout import LabLayout

_CGROUPS = Path("/sys/fs/cgroup")
_TIMEOUT_S = 10.0
_PAUSE_S = 0.05


def teardown(layout: LabLayout, *, keep_directory: bool = False) -> None:
    """Remove a lab (cluster of emulated nodes) completely.

    A missing lab is no error.

    Args:
        layout: paths of the lab.
        keep_directory: whether to keep the lab's directory, which is then empty.

    Raises:
        EnergyError: a process does not end, or a directory cannot be removed.
    """
    processes.send_signal(processes.slurm_clients(layout.slurm_conf), signal.SIGTERM)
    if left := processes.kill_until_gone(lambda: processes.lab_processes(layout.root), _TIMEOUT_S):
        raise EnergyError("lab", f"processes {left} do not end", "see why with: ps -o pid,stat,wchan,args")
    processes.kill_until_gone(lambda: processes.slurm_clients(layout.slurm_conf), _TIMEOUT_S)
    for target in _mounts_below(layout.root):
        namespaces.detach(target)
    for group in _groups(layout.cgroup):
        _remove_group(group)
    if layout.root.is_dir():
        _empty(layout)
        if not keep_directory:
            layout.root.rmdir()


def _mounts_below(root: Path) -> list[Path]:
    """Return the mount points below `root` in the caller's mount namespace, deepest first.

    Usually nothing is mounted below `root`.
    """
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    targets = [Path(line.split()[4].encode().decode("unicode_escape")) for line in lines]
    return sorted((path for path in targets if path.is_relative_to(root)), reverse=True)


def _groups(name: str) -> list[Path]:
    """Return the directories of this lab's cgroups: in cgroup v2 and in each cgroup v1 hierarchy."""
    return [path for path in (_CGROUPS / name, *_CGROUPS.glob(f"*/{name}")) if path.is_dir()]


def _remove_group(group: Path) -> None:
    for folder, _, _ in os.walk(group, topdown=False):
        try:
            _remove_idle(Path(folder))
        except FileNotFoundError:
            continue
        except OSError as error:
            raise EnergyError(
                f"control group {folder}", error.strerror or "", "something runs in it"
            ) from None


def _remove_idle(group: Path) -> None:
    """Remove one Linux cgroup.

    If processes in the cgroup are still ending, wait for these processes.
    """
    deadline = time.monotonic() + _TIMEOUT_S
    while True:
        try:
            return group.rmdir()
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() > deadline:
                raise
        time.sleep(_PAUSE_S)


def _empty(layout: LabLayout) -> None:
    """Remove all files of a lab (a cluster of emulated nodes).

    lab.json is removed last, so that an interrupted removal can be resumed.
    """
    for entry in layout.root.iterdir():
        if entry == layout.record:
            continue
        try:
            shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
        except OSError as error:
            raise EnergyError(str(entry), error.strerror or str(error)) from None
    layout.record.unlink(missing_ok=True)
