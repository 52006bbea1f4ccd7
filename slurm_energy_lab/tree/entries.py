"""What an emulated tree is made of: files, devices and links by absolute path, as sysfs and devtmpfs behave.

Only the data structure; what a particular file says or does is decided in the other modules of this
package, how it is served in `slurm_energy_lab.emulator.fuse`.
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
"""Size that sysfs shows for every attribute, and the most that one write may carry."""


def refuse(code: int) -> NoReturn:
    """Answer the system call at hand with an error number, as a driver would."""
    raise OSError(code, os.strerror(code))


class TreeEntry:
    """Anything with a path; `mode` includes the file type."""

    __slots__ = ("gid", "mode", "size", "uid")

    def __init__(self, mode: int, size: int = 0) -> None:
        self.mode = mode
        self.size = size
        self.uid = 0
        self.gid = 0


class File(TreeEntry):
    """A sysfs-like attribute: content is made as a whole when reading starts, one write is one store."""

    __slots__ = ("content", "store")

    def __init__(
        self, content: Content, mode: int = 0o444, store: Store | None = None, size: int = PAGE_BYTES
    ) -> None:
        """Describe an attribute.

        Args:
            content: bytes, or a function that makes them and may raise OSError.
            mode: permission bits.
            store: takes the bytes of one write and may raise OSError; None: not writable.
            size: what stat shows (sysfs: one page; procfs: 0).
        """
        super().__init__(stat.S_IFREG | mode, size)
        self.content = content
        self.store = store

    def render(self) -> bytes:
        """Return the present content."""
        return self.content if isinstance(self.content, bytes) else self.content()


class CharacterDevice(TreeEntry):
    """A character device in disguise: reads and writes have a position and no cached content."""

    __slots__ = ()

    def __init__(self, mode: int) -> None:
        super().__init__(stat.S_IFREG | mode, PAGE_BYTES)

    def client_opened(self) -> None:
        """Note that one more client holds the device."""

    def client_closed(self) -> None:
        """Note that one client less holds the device."""

    def read_at(self, size: int, offset: int) -> bytes:
        """Return at most `size` bytes from `offset`; may raise OSError."""
        refuse(errno.EINVAL)

    def write_at(self, data: bytes, offset: int, uid: int) -> int:
        """Take bytes that a process of `uid` writes at `offset`; return how many were taken."""
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
    """Entries by absolute path. Parents come into being by themselves."""

    def __init__(self) -> None:
        self._entries: dict[str, TreeEntry] = {"/": Directory()}
        self.faults: dict[str, int] = {}
        """Error numbers by path, to play broken hardware; a path that ends in `/` stands for all below it."""

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, path: str) -> TreeEntry | None:
        """Return the entry of an absolute path, None if there is none."""
        return self._entries.get(path)

    def fault(self, path: str) -> int:
        """Return the error number that using a path gives, 0 for none."""
        if not self.faults:
            return 0
        below = (
            code for folder, code in self.faults.items() if folder[-1] == "/" and path.startswith(folder)
        )
        return self.faults.get(path) or next(below, 0)

    def add(self, path: str, entry: TreeEntry) -> None:
        """Put an entry in place, replacing one of the same path."""
        parent, _, name = path.rpartition("/")
        self.directory(parent or "/").children[name] = entry
        self._entries[path] = entry

    def directory(self, path: str) -> Directory:
        """Return the directory of that path, made with its parents where missing."""
        found = self._entries.get(path)
        if isinstance(found, Directory):
            return found
        made = Directory()
        self.add(path, made)
        return made

    def text(self, path: str, text: str, mode: int = 0o444) -> None:
        """Add a file that always says `text` (newline added)."""
        self.add(path, File(text.encode() + b"\n", mode))

    def link(self, path: str, target: str) -> None:
        """Add a symbolic link."""
        self.add(path, Link(target))

    def remove(self, path: str) -> None:
        """Take away an entry and everything below it; absent is fine."""
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
