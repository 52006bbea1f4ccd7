"""Data structure of an emulated file tree: files, devices and links by absolute path.

Entries behave as in sysfs and devtmpfs. The other modules of this package define the content of individual
files and the effect of writes. `slurm_energy_lab.emulator.fuse` serves the files.
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
    """Raise OSError, so that the current system call fails with the error number `code`."""
    raise OSError(code, os.strerror(code))


class TreeEntry:
    """Base class of all entries of an emulated file tree.

    `mode` includes the file type.
    """

    __slots__ = ("gid", "mode", "size", "uid")

    def __init__(self, mode: int, size: int = 0) -> None:
        self.mode = mode
        self.size = size
        self.uid = 0
        self.gid = 0


class File(TreeEntry):
    """A sysfs attribute.

    The content is generated when reading starts. Each write is passed to one call of `store`.
    """

    __slots__ = ("content", "store")

    def __init__(
        self, content: Content, mode: int = 0o444, store: Store | None = None, size: int = PAGE_BYTES
    ) -> None:
        """Create an attribute.

        Args:
            content: the content, or a function that returns the content and may raise OSError.
            mode: permission bits.
            store: function that is called with the bytes of one write and may raise OSError; None if the
                file is not writable.
            size: size in bytes that stat shows (sysfs: one page; procfs: 0).
        """
        super().__init__(stat.S_IFREG | mode, size)
        self.content = content
        self.store = store

    def render(self) -> bytes:
        """Return the current content."""
        return self.content if isinstance(self.content, bytes) else self.content()


class CharacterDevice(TreeEntry):
    """A regular file that acts as a character device.

    Reads and writes have an offset, and no content is cached.
    """

    __slots__ = ()

    def __init__(self, mode: int) -> None:
        super().__init__(stat.S_IFREG | mode, PAGE_BYTES)

    def client_opened(self) -> None:
        """React to the opening of the emulated device by a client. The base class does nothing."""

    def client_closed(self) -> None:
        """Process the closing of the device by a client."""

    def read_at(self, size: int, offset: int) -> bytes:
        """Return at most `size` bytes from the file offset `offset`.

        Raises:
            OSError: the read fails. The client's system call fails with the error number of the exception.
        """
        refuse(errno.EINVAL)

    def write_at(self, data: bytes, offset: int, uid: int) -> int:
        """Process a write to an emulated character device and return the number of bytes written.

        Args:
            data: the written bytes.
            offset: file offset.
            uid: uid of the writing process.

        Raises:
            OSError: the write fails. The client's system call fails with the error number of the exception.
        """
        refuse(errno.EINVAL)


class Link(TreeEntry):
    """A symbolic link."""

    __slots__ = ("target",)

    def __init__(self, target: str) -> None:
        super().__init__(stat.S_IFLNK | 0o777, len(target))
        self.target = target


class Directory(TreeEntry):
    """A directory of an emulated file tree, with its entries by name."""

    __slots__ = ("children",)

    def __init__(self) -> None:
        super().__init__(stat.S_IFDIR | 0o755)
        self.children: dict[str, TreeEntry] = {}


class GroupDirectory(Directory):
    """A directory in which clients create and remove subdirectories.

    Attributes:
        create: function that is called with the name of a new subdirectory. It raises OSError to refuse.
        discard: function that is called with the name of a subdirectory to remove. It raises OSError to
            refuse.
    """

    __slots__ = ("create", "discard")

    def __init__(self, create: Callable[[str], None], discard: Callable[[str], None]) -> None:
        super().__init__()
        self.create = create
        self.discard = discard


class Tree:
    """An emulated file tree: entries by absolute path.

    Missing parent directories are created automatically.
    """

    def __init__(self) -> None:
        self._entries: dict[str, TreeEntry] = {"/": Directory()}
        self.faults: dict[str, int] = {}
        """Error numbers by path, to emulate broken hardware. A path that ends in `/` covers all below it."""
        self.texts: dict[str, bytes] = {}
        """Contents by path that replace those of files, for drivers that report a failure as text."""

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, path: str) -> TreeEntry | None:
        """Return the entry at an absolute path; None if the tree has no such entry."""
        return self._entries.get(path)

    def entries(self) -> list[tuple[str, TreeEntry]]:
        """Return the entries of the emulated file tree with their paths, in the order of their addition."""
        return list(self._entries.items())

    def fault(self, path: str) -> int:
        """Return the injected error number with which access to a path fails; 0 if no fault is injected."""
        if not self.faults:
            return 0
        below = (
            code for folder, code in self.faults.items() if folder[-1] == "/" and path.startswith(folder)
        )
        return self.faults.get(path) or next(below, 0)

    def add(self, path: str, entry: TreeEntry) -> None:
        """Add an entry at an absolute path.

        An existing entry at this path is replaced.
        """
        parent, _, name = path.rpartition("/")
        self.directory(parent or "/").children[name] = entry
        self._entries[path] = entry

    def directory(self, path: str) -> Directory:
        """Return the directory at an absolute path.

        The directory and its parents are created if missing.
        """
        existing = self._entries.get(path)
        if isinstance(existing, Directory):
            return existing
        created = Directory()
        self.add(path, created)
        return created

    def text(self, path: str, text: str, mode: int = 0o444) -> None:
        """Add a file whose constant content is `text` and a newline."""
        self.add(path, File(text.encode() + b"\n", mode))

    def link(self, path: str, target: str) -> None:
        """Add a symbolic link at `path` that points to `target`."""
        self.add(path, Link(target))

    def remove(self, path: str) -> None:
        """Remove an entry and all entries below this entry.

        A missing entry is not an error.
        """
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
