"""Copy of the emulator's files in a folder, which the agent's drivers read and write."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from slurm_energy.devices.driver import DeviceError, Knob
from slurm_energy_lab.tree.entries import Directory, File, Link, Tree

_DYNAMIC = ("/energy_uj", "/stat", "/cpu.stat")
_GLOBAL = ("/boost", "/no_turbo")
"""Ends of the paths of settings that change those of every CPU."""
_LOWER_CACHE = re.compile(r"/cache/index[012](/|$)")


class NodeFileCopy:
    """Folder with a copy of a node's files. They are taken from an emulated tree.

    Args:
        root: path of the folder, which is created.
        tree: the emulated tree.
    """

    def __init__(self, root: Path, tree: Tree) -> None:
        self._root, self._tree = root, tree
        self._settings: dict[str, bytes] = {}
        self._dynamic: dict[str, tuple[File, BinaryIO]] = {}
        self._entry_count = 0
        self._copy()

    @property
    def settings(self) -> dict[str, bytes]:
        """Return the contents of all files that take settings, by path."""
        return dict(self._settings)

    def refresh(self) -> None:
        """Update the files of the emulated node whose contents change with time.

        Files of new control groups (cgroups) are added.
        """
        if len(self._tree) != self._entry_count:
            self._entry_count = len(self._tree)
            for path, entry in self._tree.entries():
                if path.endswith(_DYNAMIC) and path not in self._dynamic and isinstance(entry, File):
                    self._host_path(path).parent.mkdir(parents=True, exist_ok=True)
                    self._dynamic[path] = entry, self._host_path(path).open("wb", buffering=0)
        for entry, file in self._dynamic.values():
            content = _rendered(entry)
            os.pwrite(file.fileno(), content, 0)
            if os.fstat(file.fileno()).st_size > len(content):
                file.truncate(len(content))

    def write_through(self, knob: Knob) -> None:
        """Make each write of a knob take effect in the emulated node at once.

        A knob is the file through which a setting is written. The emulated file system of a lab would do the
        same.
        """
        write = knob.write
        root = self._root.resolve()
        paths = ["/" + str(file.resolve().relative_to(root)) for file in knob.files()]

        def write_and_pass(value: str) -> None:
            write(value)
            for path in paths:
                self._pass_setting(path)

        setattr(knob, "write", write_and_pass)  # noqa: B010, the method of this instance only

    def close(self) -> None:
        """Close the copied files whose contents change with time."""
        for _, file in self._dynamic.values():
            file.close()

    def _copy(self) -> None:
        for path, entry in self._tree.entries():
            if _LOWER_CACHE.search(path):  # most files of the tree; the agent reads only the last level
                continue
            target = self._host_path(path)
            if isinstance(entry, Directory):
                target.mkdir(parents=True, exist_ok=True)
            elif isinstance(entry, Link):
                target.parent.mkdir(parents=True, exist_ok=True)
                target.symlink_to(entry.target)
            elif isinstance(entry, File):
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content := _rendered(entry))
                if entry.store is not None:
                    self._settings[path] = content

    def _pass_setting(self, path: str) -> None:
        """Pass a setting that was written to a copied file to the emulator.

        Afterwards, copy the resulting values of all settings in the same folder from the emulator.
        """
        text = self._host_path(path).read_bytes()
        if text == self._settings[path]:
            return
        try:
            self._store(path)(text)
        except OSError as error:
            self._write_setting(path, _rendered(self._file(path)))
            raise DeviceError(path, error.strerror or str(error)) from None
        folder = path.rpartition("/")[0] + "/"
        changes_all = path.endswith(_GLOBAL)
        for other in self._settings:
            if changes_all or other.startswith(folder):
                self._write_setting(other, _rendered(self._file(other)))

    def _write_setting(self, path: str, content: bytes) -> None:
        if content != self._settings.get(path) or content != self._host_path(path).read_bytes():
            self._settings[path] = content
            self._host_path(path).write_bytes(content)

    def _host_path(self, path: str) -> Path:
        return self._root / path.lstrip("/")

    def _file(self, path: str) -> File:
        entry = self._tree.get(path)
        assert isinstance(entry, File), path
        return entry

    def _store(self, path: str) -> Callable[[bytes], None]:
        store = self._file(path).store
        assert store is not None, path
        return store


def _rendered(entry: File) -> bytes:
    try:
        return entry.render()
    except OSError:  # some attributes refuse a read in some modes; the agent then sees no value
        return b""
