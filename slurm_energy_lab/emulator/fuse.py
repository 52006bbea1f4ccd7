"""Serving a `Tree` through FUSE with the manners of sysfs and devtmpfs.

Content is made when reading starts at offset 0; one write is one store; nobody can create, rename or
remove anything. Which file says what is decided in `slurm_energy_lab.tree`.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from typing import Any

import mfusepy

from slurm_energy_lab.tree.entries import (
    PAGE_BYTES,
    CharacterDevice,
    Directory,
    File,
    Link,
    Tree,
    TreeEntry,
    refuse,
)

ATTRIBUTE_CACHE_S = 2.0
"""How long the kernel may answer stat by itself. Opening always asks, so a vanished file is noticed."""


class _Handle:
    """One open file; `content` is what its last read from offset 0 has made."""

    __slots__ = ("content", "entry")

    def __init__(self, entry: TreeEntry) -> None:
        self.entry = entry
        self.content: bytes | None = None


class TreeOperations(mfusepy.Operations):  # type: ignore[misc]
    """FUSE operations over a tree; called from one thread."""

    use_ns = True

    def __init__(self, tree: Tree, mounted: Callable[[], None]) -> None:
        """Prepare to serve.

        Args:
            tree: what to serve; may change while it is served.
            mounted: called once the kernel talks to us.
        """
        self._tree = tree
        self._report = mounted
        self.mounted = False
        self._handles: dict[int, _Handle] = {}
        self._next_handle = 1

    def init_with_config(self, conn_info: Any, config_3: Any) -> None:
        """Choose cache times, then report that the tree is there."""
        if config_3 is not None:
            config_3.attr_timeout = ATTRIBUTE_CACHE_S
            config_3.entry_timeout = ATTRIBUTE_CACHE_S
            config_3.negative_timeout = 0.0
        self.mounted = True
        self._report()

    def getattr(self, path: str, fh: int | None = None) -> dict[str, int]:
        """Return mode, owner and size."""
        entry = self._entry(path)
        found = {"st_mode": entry.mode, "st_size": entry.size, "st_nlink": 1}
        if entry.uid or entry.gid:
            found |= {"st_uid": entry.uid, "st_gid": entry.gid}
        return found

    def readdir(self, path: str, fh: int) -> Iterator[tuple[str, int, int]]:
        """Return names and types."""
        entry = self._entry(path)
        if not isinstance(entry, Directory):
            refuse(errno.ENOTDIR)
        yield (".", stat.S_IFDIR, 0)
        yield ("..", stat.S_IFDIR, 0)
        for name, child in list(entry.children.items()):
            yield (name, child.mode, 0)

    def readlink(self, path: str) -> str:
        """Return a link's target."""
        entry = self._entry(path)
        if not isinstance(entry, Link):
            refuse(errno.EINVAL)
        return entry.target

    def open(self, path: str, flags: int) -> int:
        """Open; a file without any write bit, or that stores nothing, refuses writers, root included."""
        entry = self._entry(path)
        self._raise_fault(path)
        access = flags & os.O_ACCMODE
        if access != os.O_RDONLY and not entry.mode & 0o222:
            refuse(errno.EACCES)
        if access != os.O_WRONLY and not entry.mode & 0o444:
            refuse(errno.EACCES)
        handle = self._next_handle
        self._next_handle += 1
        self._handles[handle] = _Handle(entry)
        if isinstance(entry, CharacterDevice):
            entry.client_opened()
        return handle

    def release(self, path: str, fh: int) -> int:
        """Close."""
        handle = self._handles.pop(fh, None)
        if handle and isinstance(handle.entry, CharacterDevice):
            handle.entry.client_closed()
        return 0

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        """Read: attributes from content made at offset 0, devices at their position."""
        self._raise_fault(path)
        handle = self._handles[fh]
        entry = handle.entry
        if isinstance(entry, CharacterDevice):
            return entry.read_at(size, offset)
        if not isinstance(entry, File):
            refuse(errno.EISDIR)
        if offset == 0 or handle.content is None:
            handle.content = entry.render()
        return handle.content[offset : offset + size]

    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        """Write: one store of at most a page for attributes, a command for devices."""
        self._raise_fault(path)
        entry = self._handles[fh].entry
        if isinstance(entry, CharacterDevice):
            return entry.write_at(data, offset, mfusepy.fuse_get_context()[0])
        if not isinstance(entry, File) or entry.store is None:
            refuse(errno.EIO)
        entry.store(data[:PAGE_BYTES])
        return min(len(data), PAGE_BYTES)

    def truncate(self, path: str, length: int, fh: int | None = None) -> int:
        """Ignore, as sysfs does."""
        self._entry(path)
        return 0

    def chmod(self, path: str, mode: int) -> int:
        """Change permissions; they hold until the node restarts."""
        entry = self._entry(path)
        entry.mode = stat.S_IFMT(entry.mode) | stat.S_IMODE(mode)
        return 0

    def chown(self, path: str, uid: int, gid: int) -> int:
        """Change the owner; -1 leaves it."""
        entry = self._entry(path)
        entry.uid = entry.uid if uid == -1 else uid
        entry.gid = entry.gid if gid == -1 else gid
        return 0

    def utimens(self, path: str, times: tuple[int, int] | None = None) -> int:
        """Ignore; emulated files have no times."""
        return 0

    def create(self, path: str, mode: int, fi: Any = None) -> int:
        """Refuse: nobody makes files in sysfs."""
        refuse(errno.EACCES)

    def mknod(self, path: str, mode: int, dev: int) -> int:
        """Refuse."""
        refuse(errno.EACCES)

    def mkdir(self, path: str, mode: int) -> int:
        """Refuse."""
        refuse(errno.EPERM)

    def unlink(self, path: str) -> int:
        """Refuse."""
        refuse(errno.EPERM)

    def rmdir(self, path: str) -> int:
        """Refuse."""
        refuse(errno.EPERM)

    def rename(self, old: str, new: str) -> int:
        """Refuse."""
        refuse(errno.EPERM)

    def symlink(self, target: str, source: str) -> int:
        """Refuse."""
        refuse(errno.EPERM)

    def link(self, target: str, source: str) -> int:
        """Refuse."""
        refuse(errno.EPERM)

    def _entry(self, path: str) -> TreeEntry:
        entry = self._tree.get(path)
        if entry is None:
            refuse(errno.ENOENT)
        return entry

    def _raise_fault(self, path: str) -> None:
        if code := self._tree.fault(path):
            refuse(code)


def serve(operations: TreeOperations, mountpoint: str, name: str) -> None:
    """Mount and answer until the process gets SIGTERM, SIGINT or SIGHUP, or somebody unmounts.

    Must run in the main thread, which then belongs to libfuse.

    Raises:
        OSError: the mount failed.
    """
    try:
        mfusepy.FUSE(
            operations,
            mountpoint,
            foreground=True,
            nothreads=True,
            allow_other=True,
            default_permissions=True,
            direct_io=True,
            fsname=name,
            subtype="senergy-lab",
        )
    except RuntimeError as error:  # libfuse's way of reporting a signal, too
        if operations.mounted:
            return
        raise OSError(errno.EIO, f"FUSE: mount failed with {error}", mountpoint) from None
