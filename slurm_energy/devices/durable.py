"""Files that survive a crash: written whole or not at all. No knowledge of their contents.

No name is trusted to be the file that it should be: links, FIFOs and devices planted there are neither
followed nor waited for.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path


def write(
    path: Path, data: bytes | Sequence[bytes | memoryview], *, sync: bool = True, mode: int = 0o600
) -> None:
    """Replace a file's contents atomically.

    Args:
        path: file to replace; its directory must exist.
        data: the new contents, whole or in pieces.
        sync: also force file and directory to disk, so that they survive a power failure.
        mode: permission bits of the new file.

    Raises:
        OSError: not written; the old contents are still there.
    """
    temporary = path.with_name(f".{path.name}.new")
    try:
        descriptor = _create(temporary, mode)
    except FileExistsError:  # left by a crash, or planted: never written into
        temporary.unlink()
        descriptor = _create(temporary, mode)
    try:
        for part in [data] if isinstance(data, bytes) else data:
            _write_all(descriptor, part)
        if sync:
            os.fsync(descriptor)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)
    temporary.replace(path)
    if sync:
        sync_folder(path.parent)


def read(path: Path, most_bytes: int) -> bytes:
    """Return the contents of a file of our own.

    Args:
        path: the file.
        most_bytes: a longer one is refused before any of it is read.

    Raises:
        OSError: absent, not a plain file of this process's user under one name, too long, or a failure.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    try:
        if problem := _problem(os.fstat(descriptor), most_bytes):
            raise OSError(errno.EPERM, problem, str(path))
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read(most_bytes)
    finally:
        os.close(descriptor)


def flush(paths: Iterable[Path]) -> None:
    """Force files that were written without `sync` to disk; what is gone by now is passed over.

    Raises:
        OSError: the disk failed.
    """
    wanted = list(paths)
    for path in wanted:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    for folder in {path.parent for path in wanted}:
        sync_folder(folder)


def sync_folder(folder: Path) -> None:
    """Force a directory's entries to disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _create(path: Path, mode: int) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)


def _write_all(descriptor: int, data: bytes | memoryview) -> None:
    view = memoryview(data).cast("B")
    while view:
        view = view[os.write(descriptor, view) :]


def _problem(status: os.stat_result, most_bytes: int) -> str:
    """Return why a file is not one of our own; empty if it is."""
    if not stat.S_ISREG(status.st_mode):
        return "not a plain file"
    if status.st_uid != os.geteuid():
        return f"belongs to uid {status.st_uid}, expected {os.geteuid()}"
    if status.st_nlink > 1:
        return f"has {status.st_nlink} names, expected one"
    if status.st_size > most_bytes:
        return f"has {status.st_size} bytes, expected at most {most_bytes}"
    return ""
