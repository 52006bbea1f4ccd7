"""Files that survive a crash, because each file is either written completely or not changed at all.

No path is trusted to be the expected file. A link that another user put at a path is not followed, and a FIFO
or device is not waited for. Paths of files that are often created and removed are strings, not pathlib
objects, because pathlib stores each part of a path in Python's table of interned strings. This table never
shrinks.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

Name = str | Path


def write(
    path: Name, data: bytes | Sequence[bytes | memoryview], *, sync: bool = True, mode: int = 0o600
) -> None:
    """Replace the contents of a file atomically.

    Args:
        path: file to replace; its directory must exist.
        data: new contents, in one or several pieces.
        sync: whether to force the file and its directory to disk, so that the new contents survive a power
            failure.
        mode: permission bits of the new file.

    Raises:
        OSError: the file cannot be written; the old contents remain.
    """
    folder, name = os.path.split(path)
    temporary = os.path.join(folder, f".{name}.new")
    try:
        descriptor = _create(temporary, mode)
    except FileExistsError:  # left by a crash or planted by a user: not written to
        os.unlink(temporary)
        descriptor = _create(temporary, mode)
    try:
        for part in [data] if isinstance(data, bytes) else data:
            _write_all(descriptor, part)
        if sync:
            os.fsync(descriptor)
    except OSError:
        remove(temporary)
        raise
    finally:
        os.close(descriptor)
    os.replace(temporary, path)
    if sync:
        sync_directory(folder or ".")


def read(path: Name, max_bytes: int) -> bytes:
    """Return the contents of a file that this process's user wrote.

    Args:
        path: path of the file.
        max_bytes: maximum length. A longer file is refused without being read.

    Raises:
        OSError: the file is absent, too long, not a regular file, belongs to another user, or has several
            hard links.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    try:
        status = os.fstat(descriptor)
        if problem := _problem(status, max_bytes):
            raise OSError(errno.EPERM, problem, str(path))
        return _read_all(descriptor, status.st_size)
    finally:
        os.close(descriptor)


def remove(path: Name) -> None:
    """Remove a file. If the file is absent, do nothing.

    Raises:
        OSError: the file cannot be removed.
    """
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


@contextlib.contextmanager
def tolerating_read_only() -> Iterator[None]:
    """Context manager that ignores the error of a change that failed because the file system is read-only."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.EROFS:
            raise


def flush(paths: Iterable[Name]) -> None:
    """Force files that were written with `sync=False`, and their directories, to disk. Skip absent files.

    Raises:
        OSError: a file or directory cannot be opened or forced to disk.
    """
    listed = list(paths)
    for path in listed:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    for folder in {os.path.dirname(path) or "." for path in listed}:
        sync_directory(folder)


def sync_directory(folder: Name) -> None:
    """Force a directory to disk, so that files created, renamed and removed in it survive a power failure."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _create(path: Name, mode: int) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)


def _write_all(descriptor: int, data: bytes | memoryview) -> None:
    view = memoryview(data).cast("B")
    while view:
        view = view[os.write(descriptor, view) :]


def _read_all(descriptor: int, size: int) -> bytes:
    """Read `size` bytes from a file. If the file shrinks during the call, the result is shorter."""
    parts = []
    while size > 0 and (part := os.read(descriptor, size)):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _problem(status: os.stat_result, max_bytes: int) -> str:
    """Return why the function `read` must refuse a file; an empty text if the file is acceptable.

    Args:
        status: result of fstat for the file.
        max_bytes: maximum length of the file.
    """
    if not stat.S_ISREG(status.st_mode):
        return "not a regular file"
    if status.st_uid != os.geteuid():
        return f"belongs to uid {status.st_uid}, expected {os.geteuid()}"
    if status.st_nlink > 1:
        return f"has {status.st_nlink} names, expected one"
    if status.st_size > max_bytes:
        return f"has {status.st_size} bytes, expected at most {max_bytes}"
    return ""
