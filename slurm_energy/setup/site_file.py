"""Files of the site that setup reads and replaces.

Owner, mode, links and line breaks of the files are preserved.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from slurm_energy import atomic_file
from slurm_energy.errors import ConfigError, EnergyError, ForbiddenError, UnavailableError
from slurm_energy.trusted_files import resolve_link

MAX_BYTES: Final = 16 * 1024 * 1024
ENCODING: Final = "latin-1"
"""Encoding that maps every byte to one character, so that a text is unchanged when it is written back."""

_ACCESS_LIST: Final = "system.posix_acl_access"


@dataclass(frozen=True, slots=True)
class SiteFile:
    """A file of the site as it was when setup read it.

    Attributes:
        path: path of the file after resolving symbolic links.
        data: contents of the file; None means that the file does not exist.
        mode: permission bits.
        uid: owner.
        gid: group.
    """

    path: Path
    data: bytes | None
    mode: int = 0o644
    uid: int = 0
    gid: int = 0

    @property
    def text(self) -> str:
        """The contents as text, one character per byte; empty if the file does not exist."""
        return (self.data or b"").decode(ENCODING)

    @property
    def digest(self) -> str:
        """SHA-256 of the contents; empty if the file does not exist."""
        return "" if self.data is None else sha256(self.data)


def sha256(data: bytes) -> str:
    """Return the SHA-256 of data in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def read_site_file(path: Path) -> SiteFile:
    """Read a file of the site. A link is followed only in directories that other users cannot write.

    Raises:
        ConfigError: the file is not a regular file, is too long, or is a link in an unsafe directory.
        ForbiddenError: the caller may not read the file.
        UnavailableError: the file cannot be read.
    """
    try:
        real = _resolved(path)
        descriptor = os.open(real, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return SiteFile(path, None, 0o644, os.geteuid(), os.getegid())
    except PermissionError:
        raise ForbiddenError(str(path), "cannot be read", "run it as root") from None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise ConfigError(str(path), "is a symbolic link that changed meanwhile") from None
        raise UnavailableError(str(path), error.strerror or str(error)) from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ConfigError(str(path), "is not a regular file")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            data = file.read(MAX_BYTES + 1)
    finally:
        os.close(descriptor)
    if len(data) > MAX_BYTES:
        raise ConfigError(str(path), f"is longer than {MAX_BYTES} bytes")
    return SiteFile(real, data, stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid)


def write_site_file(path: Path, data: bytes, mode: int, uid: int, gid: int) -> None:
    """Replace a file atomically and force it to disk.

    Args:
        path: the file itself, not a link.
        data: new contents.
        mode: permission bits.
        uid: owner.
        gid: group.

    Raises:
        ForbiddenError: the caller may not write the file.
        UnavailableError: the file cannot be written; the old file remains.
    """
    temporary = temporary_path(path)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        atomic_file.remove(temporary)  # left by an interrupted run
        descriptor = os.open(temporary, flags, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                if (uid, gid) != (os.geteuid(), os.getegid()):
                    os.fchown(descriptor, uid, gid)
                os.fchmod(descriptor, mode)
                _copy_access_list(path, descriptor)
                os.fsync(descriptor)
            temporary.replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
        atomic_file.sync_directory(path.parent)
    except PermissionError:
        raise ForbiddenError(str(path), "cannot be written", "run it as root") from None
    except OSError as error:
        raise UnavailableError(str(path), error.strerror or str(error)) from None


def _copy_access_list(path: Path, descriptor: int) -> None:
    """Copy the access control list of a file, if it has one, to an open file."""
    try:
        access_list = os.getxattr(path, _ACCESS_LIST)
    except OSError as error:
        if error.errno in (errno.ENODATA, errno.ENOENT, errno.ENOTSUP):
            return
        raise
    os.setxattr(descriptor, _ACCESS_LIST, access_list)


def temporary_path(path: Path) -> Path:
    """Return the path of the temporary file that later replaces a file."""
    return path.with_name(f".{path.name}.senergy-setup")


def _resolved(path: Path) -> Path:
    """Return the path of a file with all symbolic links resolved.

    Raises:
        ConfigError: the path is a link that other users could exchange.
        OSError: the path cannot be examined.
    """
    try:
        return resolve_link(path)
    except EnergyError as error:
        raise ConfigError(str(path), f"is a symbolic link that others could exchange: {error}") from None
