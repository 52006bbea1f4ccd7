"""Files and directories of users, opened on behalf of another user or root.

The owner can replace files and directories at any time. Each part of a path is therefore opened relative to
the directory that contains it. Symbolic links are followed only if they belong to root or to the user of this
process. No FIFO or device is opened.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO, Final

from slurm_energy.errors import UsageError

_MAX_LINKS: Final = 40
_PATH_ONLY: Final = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading.

    Raises:
        OSError: the file cannot be opened.
        UsageError: the file is not a regular file, the path contains a symbolic link of another user, or the
            file may be a hard link to a file of another user.
    """
    descriptor, parent_owner = _walk(path)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise UsageError(str(path), "it is not a regular file")
        # The owner of a directory may give a name in it to a file of another user.
        if status.st_nlink > 1 and status.st_uid != parent_owner:
            raise UsageError(
                str(path), f"it has {status.st_nlink} names and does not belong to the owner of its directory"
            )
        return open(f"/proc/self/fd/{descriptor}", "rb")  # noqa: PTH123
    finally:
        os.close(descriptor)


def list_directory(path: Path) -> list[str] | None:
    """Return the names in a directory; None if the path is not a directory.

    Raises:
        OSError: the directory cannot be read.
        UsageError: the path contains a symbolic link of another user.
    """
    descriptor, _ = _walk(path)
    try:
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            return None
        return os.listdir(f"/proc/self/fd/{descriptor}")  # noqa: PTH208
    finally:
        os.close(descriptor)


def _walk(path: Path) -> tuple[int, int]:
    """Resolve a path step by step. Follow only symbolic links of root and of this user.

    Returns:
        An O_PATH descriptor of the file, and the uid of the owner of the directory that contains the file.
        The file cannot be read or written with this descriptor.
    """
    rest = list(path.absolute().parts[1:])[::-1]
    at, parent_owner, links = os.open("/", _PATH_ONLY), 0, 0
    try:
        while rest:
            name = rest.pop()
            owner = os.fstat(at).st_uid
            part = os.open(name, _PATH_ONLY, dir_fd=at)
            try:
                status = os.fstat(part)
                target = os.readlink("", dir_fd=part) if stat.S_ISLNK(status.st_mode) else None
            except BaseException:
                os.close(part)
                raise
            if target is None:
                os.close(at)
                at, parent_owner = part, owner
                continue
            os.close(part)
            links += 1
            if status.st_uid not in (0, os.geteuid()):
                raise UsageError(
                    str(path), f"'{name}' is a symbolic link of another user", "name the file itself"
                )
            if links > _MAX_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
            if target.startswith("/"):
                os.close(at)
                at = os.open("/", _PATH_ONLY)
            rest += [name for name in reversed(Path(target).parts) if name != "/"]
    except BaseException:
        os.close(at)
        raise
    return at, parent_owner
