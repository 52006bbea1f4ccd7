"""Data structure of an emulated file tree: files, devices and links by absolute path.

Entries behave as in sysfs and devtmpfs. The other modules of this package define content and effect of the
individual files; `slurm_energy_lab.emulator.fuse` serves them.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from typing import NoReturn

Content = bytes | Callable[[], bytes]
Store = Callable[[bytes], None]

PAGE_BYTES = 4096
"""Size that sysfs shows for every attribute, and the maximum size of one write."""


def refuse(code: int) -> NoReturn:
    """Raise OSError: the current system call returns this error number, as from a driver."""
    raise OSError(code, os.strerror(code))


class TreeEntry:
    """Base of all entries of the tree; `mode` includes the file type."""

    __slots__ = ("gid", "mode", "size", "uid")

    def __init__(self, mode: int, size: int = 0) -> None:
        self.mode = mode
        self.size = size
        self.uid = 0
        self.gid = 0


class File(TreeEntry):
    """A sysfs-like attribute: the whole content is generated when reading starts; one write is one store."""

    __slots__ = ("content", "store")

    def __init__(
        self, content: Content, mode: int = 0o444, store: Store | None = None, size: int = PAGE_BYTES
    ) -> None:
        """Create an attribute.

        Args:
            content: bytes, or a function that returns them and may raise OSError.
            mode: permission bits.
            store: function called with the bytes of one write; may raise OSError. None: not writable.
            size: size that stat shows (sysfs: one page; procfs: 0).
        """
        super().__init__(stat.S_IFREG | mode, size)
        self.content = content
        self.store = store

    def render(self) -> bytes:
        """Return the current content."""
        return self.content if isinstance(self.content, bytes) else self.content()


class CharacterDevice(TreeEntry):
    """A regular file that acts as a character device: reads and writes have a position, no cached content."""

    __slots__ = ()

    def __init__(self, mode: int) -> None:
        super().__init__(stat.S_IFREG | mode, PAGE_BYTES)

    def client_opened(self) -> None:
        """Called when a client opens the device."""

    def client_closed(self) -> None:
        """Called when a client closes the device."""

    def read_at(self, size: int, offset: int) -> bytes:
        """Return at most `size` bytes from `offset`; may raise OSError."""
        refuse(errno.EINVAL)

    def write_at(self, data: bytes, offset: int, uid: int) -> int:
        """Process bytes that a process of `uid` writes at `offset`; return the number of bytes written."""
        refuse(errno.EINVAL)


class Link(TreeEntry):
    """A symbolic link."""

    __slots__ = ("target",)

    def __init__(self, target: str) -> None:
        super().__init__(stat.S_IFLNK | 0o777, len(target))
        self.target = target


class Directory(TreeEntry):
    """A directory; its children are names to entries."""

    __slots__ = ("children",)

    def __init__(self) -> None:
        super().__init__(stat.S_IFDIR | 0o755)
        self.children: dict[str, TreeEntry] = {}


class Tree:
    """Entries by absolute path. Missing parent directories are created automatically."""

    def __init__(self) -> None:
        self._entries: dict[str, TreeEntry] = {"/": Directory()}
        self.faults: dict[str, int] = {}
        """Error numbers by path, to emulate broken hardware. A path that ends in `/` covers all below it."""

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, path: str) -> TreeEntry | None:
        """Return the entry of an absolute path, None if there is none."""
        return self._entries.get(path)

    def fault(self, path: str) -> int:
        """Return the error number that access to a path returns, 0 for none."""
        if not self.faults:
            return 0
        below = (
            code for folder, code in self.faults.items() if folder[-1] == "/" and path.startswith(folder)
        )
        return self.faults.get(path) or next(below, 0)

    def add(self, path: str, entry: TreeEntry) -> None:
        """Add an entry, replacing an existing one of the same path."""
        parent, _, name = path.rpartition("/")
        self.directory(parent or "/").children[name] = entry
        self._entries[path] = entry

    def directory(self, path: str) -> Directory:
        """Return the directory of a path; create it and its parents if missing."""
        existing = self._entries.get(path)
        if isinstance(existing, Directory):
            return existing
        created = Directory()
        self.add(path, created)
        return created

    def text(self, path: str, text: str, mode: int = 0o444) -> None:
        """Add a file with constant content: `text` and a newline."""
        self.add(path, File(text.encode() + b"\n", mode))

    def link(self, path: str, target: str) -> None:
        """Add a symbolic link."""
        self.add(path, Link(target))

    def remove(self, path: str) -> None:
        """Remove an entry and everything below it. A missing entry is not an error."""
        entry = self._entries.pop(path, None)
        if entry is None:
            return
        if isinstance(entry, Directory):
            for name in list(entry.children):
                self.remove(f"{path}/{name}")
        parent, _, name = path.rpartition("/")
        above = self._entries.get(parent or "/")
        if isinstance(above, Directory):
            above.children.pop(name, None)
