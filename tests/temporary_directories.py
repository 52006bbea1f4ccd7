"""Temporary directories in memory for the tests in unit/ and lab/.

These tests create hundreds of thousands of files. With directories on a disk, the tests would take an eighth
more processor time, and would also wait for the disk. Tests of nodes and clusters still need directories in
/tmp, because emulated nodes have their own /dev.
"""

from __future__ import annotations

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


class MemoryPathFactory:
    """Factory of temporary directories in memory, with the same methods as `pytest.TempPathFactory`.

    All directories are inside one new directory, which is removed after the tests.
    """

    def __init__(self) -> None:
        self._base = Path(tempfile.mkdtemp(prefix="pytest-", dir=MEMORY))
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
def tmp_path_factory(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[MemoryPathFactory | pytest.TempPathFactory]:
    """Factory of temporary directories in memory, which are faster than directories on disk.

    If the file system in memory is too small, pytest's usual factory with directories on disk is used
    instead.
    """
    if not _usable():
        yield tmp_path_factory
        return
    factory = MemoryPathFactory()
    yield factory
    if not request.session.testsfailed:
        shutil.rmtree(factory.getbasetemp(), ignore_errors=True)


@pytest.fixture
def tmp_path(
    request: pytest.FixtureRequest, tmp_path_factory: MemoryPathFactory | pytest.TempPathFactory
) -> Iterator[Path]:
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
