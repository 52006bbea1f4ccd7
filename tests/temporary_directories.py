"""Fast temporary directories for the tests in unit/ and lab/, in memory if possible.

These tests create hundreds of thousands of files. With directories on a disk, the tests would take an eighth
more processor time, and would also wait for the disk. Tests of nodes and clusters still need directories in
/tmp, because emulated nodes have their own /dev.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import itertools
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

MEMORY = Path("/dev/shm")
ENOUGH_BYTES = 1 << 30
FS_IOC_GETFLAGS, FS_IOC_SETFLAGS, FS_TOPDIR_FL = 0x80086601, 0x40086602, 0x00020000
"""From linux/fs.h, for 64-bit systems."""
LONGEST_NAME = 30


def _usable() -> bool:
    """Whether the tests can use the file system in memory for temporary directories.

    This user must be able to write and run programs in it, and it must have enough space.
    """
    try:
        system = os.statvfs(MEMORY)
    except OSError:
        return False
    free = system.f_bavail * system.f_frsize
    return not system.f_flag & os.ST_NOEXEC and free >= ENOUGH_BYTES and os.access(MEMORY, os.W_OK | os.X_OK)


def _spread_subdirectories(directory: Path) -> None:
    """Let ext4 place the subdirectories of a directory far from each other, as `chattr +T` does.

    Without a journal, ext4 does not use the inode of a deleted file again for a minute. It searches the
    inodes near the parent directory for another one. In a single place, this search took a fifth of the
    processor time of the tests. Other file systems refuse the flag.
    """
    with contextlib.suppress(OSError):
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            flags = array.array("l", [0])
            fcntl.ioctl(descriptor, FS_IOC_GETFLAGS, flags)
            flags[0] |= FS_TOPDIR_FL
            fcntl.ioctl(descriptor, FS_IOC_SETFLAGS, flags)
        finally:
            os.close(descriptor)


class FastPathFactory:
    """Factory of temporary directories, with the same methods as `pytest.TempPathFactory`.

    All directories are inside one new directory, which is removed after the tests. It is in memory if this
    user may use the file system in memory, and otherwise on disk.
    """

    def __init__(self) -> None:
        self._base = Path(tempfile.mkdtemp(prefix="pytest-", dir=MEMORY if _usable() else None))
        _spread_subdirectories(self._base)
        self._numbers = itertools.count()

    def getbasetemp(self) -> Path:
        """Return the base directory, which contains all temporary directories of the tests."""
        return self._base

    def mktemp(self, basename: str, numbered: bool = True) -> Path:
        """Create a directory. If `numbered` is true, a number makes the name unique."""
        path = self._base / (f"{basename}{next(self._numbers)}" if numbered else basename)
        path.mkdir(mode=0o700)
        return path


@pytest.fixture(scope="session")
def tmp_path_factory(request: pytest.FixtureRequest) -> Iterator[FastPathFactory]:
    """Factory of temporary directories in memory, which are faster than directories on disk."""
    factory = FastPathFactory()
    yield factory
    if not request.session.testsfailed:
        shutil.rmtree(factory.getbasetemp(), ignore_errors=True)


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path_factory: FastPathFactory) -> Iterator[Path]:
    """Return a new directory, which is removed after the test unless it fails."""
    name = "".join(letter if letter.isalnum() else "_" for letter in request.node.name)
    path = tmp_path_factory.mktemp(name[:LONGEST_NAME], numbered=True)
    failed_before = request.session.testsfailed
    yield path
    if request.session.testsfailed == failed_before:
        shutil.rmtree(path, ignore_errors=True)


def open_to_others(path: Path) -> None:
    """Let other users read a temporary directory and its parent directories.

    The parent directories are changed up to, but not including, the first one with the sticky bit.
    """
    for folder in (path, *path.parents):
        mode = folder.stat().st_mode
        if mode & stat.S_ISVTX:
            break
        folder.chmod(stat.S_IMODE(mode) | 0o055)
