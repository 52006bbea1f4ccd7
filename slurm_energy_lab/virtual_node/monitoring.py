"""Monitoring groups (resctrl) in the emulator's file tree, accessed without a mounted file system."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from slurm_energy.devices.cpu.resctrl import MonitoringFiles
from slurm_energy.devices.driver import DeviceError
from slurm_energy_lab.tree.entries import Directory, File, GroupDirectory, Tree
from slurm_energy_lab.tree.resctrl import ROOT as RESCTRL_ROOT


class ModelMonitoring(MonitoringFiles):
    """Access to the monitoring groups in the emulator's file tree, without a mounted file system."""

    def __init__(self, root: Path, quantities: Iterable[str], tree: Tree) -> None:
        super().__init__(root, quantities)
        self._tree = tree

    def entries(self, folder: str) -> list[str]:
        """Return the names of the directories in a directory."""
        entry = self._tree.get(f"{RESCTRL_ROOT}/{folder}".rstrip("/"))
        if not isinstance(entry, Directory):
            raise DeviceError(folder, "missing")
        return sorted(name for name, child in entry.children.items() if isinstance(child, Directory))

    def text(self, path: str) -> str:
        """Return the content of an emulated resctrl file. `path` is relative to the root of resctrl."""
        path = f"{RESCTRL_ROOT}/{path}"
        entry = self._tree.get(path)
        if not isinstance(entry, File):
            raise DeviceError(path, "missing")
        return (self._tree.texts.get(path) or entry.render()).decode()

    def make(self, folder: str, name: str) -> None:
        """Create a directory."""
        above = self._tree.get(f"{RESCTRL_ROOT}/{folder}".rstrip("/"))
        assert isinstance(above, GroupDirectory)
        above.create(name)

    def discard(self, folder: str, name: str) -> None:
        """Remove the directory of a monitoring group."""
        above = self._tree.get(f"{RESCTRL_ROOT}/{folder}".rstrip("/"))
        assert isinstance(above, GroupDirectory)
        above.discard(name)

    def write_tasks(self, group: str, tids: Iterable[int]) -> None:
        """Move tasks to a monitoring group."""
        entry = self._tree.get(f"{RESCTRL_ROOT}/{group}/tasks")
        assert isinstance(entry, File)
        assert entry.store is not None
        for tid in tids:
            entry.store(str(tid).encode())
