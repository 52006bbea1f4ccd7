"""Trusted files: files that only root and the user of this process could have written.

Configuration, secrets, certificates and state are read with these checks. Files for other daemons are written
so that they pass the same checks. The module does not interpret the contents of files.
"""

from __future__ import annotations

import errno
import os
import pwd
import stat
import tempfile
from collections.abc import Collection
from pathlib import Path

from slurm_energy.errors import ConfigError

MAX_FILE_BYTES = 16 * 1024 * 1024
_MAX_LINKS = 40
_WRITE_BY_OTHERS = 0o022
_ANY_BY_OTHERS = 0o077


def read_trusted(path: Path, *, secret: bool = False, also: Collection[int] = ()) -> bytes:
    """Return the contents of a file that only root or the user of this process could have written.

    The file must be a regular file in a safe directory, see `check_folder`. The file is opened only once. The
    checks and the reading use the same file descriptor, so that the file cannot be exchanged between them.

    Args:
        path: path of the file.
        secret: whether to refuse a file that its group or other users can read.
        also: further uids that may own the file and its directories, see `check_folder`.

    Raises:
        ConfigError: the file is not trusted, or longer than `MAX_FILE_BYTES`.
        OSError: the file cannot be read.
    """
    descriptor = _open(path)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ConfigError(str(path), "is not a regular file")
        mode = (_ANY_BY_OTHERS, "0600") if secret else (_WRITE_BY_OTHERS, "go-w")
        _check(path, status, *mode, also)
        check_folder(path.parent, also)
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            data = file.read(MAX_FILE_BYTES + 1)
    finally:
        os.close(descriptor)
    if len(data) > MAX_FILE_BYTES:
        raise ConfigError(str(path), f"is longer than {MAX_FILE_BYTES} bytes")
    return data


def replace_public(path: Path, data: bytes) -> None:
    """Replace a file that everyone may read, atomically.

    Readers see either the old or the new contents. A missing directory is created with mode 0755,
    independent of the umask; the directories above it must exist. The data is not forced to disk.

    Args:
        path: path of the file.
        data: new contents of the file.

    Raises:
        ConfigError: other users could exchange the file, see `check_folder`.
        OSError: the directory cannot be created or written; the old file is unchanged.
    """
    if not path.parent.is_dir():
        path.parent.mkdir()
        path.parent.chmod(0o755)
    check_folder(path.parent)
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            os.fchmod(file.fileno(), 0o644)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def check_folder(path: Path, also: Collection[int] = ()) -> None:
    """Raise an error if other users could exchange files in a directory or in a directory above it.

    Each directory on the path from the root must belong to root or to the user of this process. Group and
    others must not have write permission, unless the sticky bit protects files of other users (/tmp).
    Symbolic links on the path are followed and must belong to the same users.

    Args:
        path: path of the directory.
        also: further uids that may own a directory, for example the uid of a daemon if root runs the check
            for the daemon.

    Raises:
        ConfigError: the directory is not safe. The error names the expected and the actual owner and mode.
        OSError: a part of the path cannot be examined.
    """
    rest = list(path.absolute().parts[1:])[::-1]
    at, links = Path("/"), 0
    _check_directory(at, also)
    while rest:
        part = at / rest.pop()
        if part.name == "..":
            at = at.parent
            continue
        if not part.is_symlink():
            at = part
            _check_directory(at, also)
            continue
        links += 1
        if links > _MAX_LINKS:
            raise ConfigError(str(path), os.strerror(errno.ELOOP))
        _check(part, part.lstat(), 0, "", also)
        target = part.readlink()
        at = Path("/") if target.is_absolute() else at
        rest += [name for name in reversed(target.parts) if name != "/"]


def resolve_link(path: Path) -> Path:
    """Return the file that a symbolic link names, or the path itself if it is no link.

    Raises:
        ConfigError: other users could exchange the link or its target.
        OSError, RuntimeError: the path cannot be examined, or its links form a loop.
    """
    if not path.is_symlink():
        return path
    check_folder(path.parent)
    file = path.resolve()
    check_folder(file.parent)
    return file


def _open(path: Path) -> int:
    try:
        # O_NONBLOCK: a planted FIFO must not block a daemon.
        return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise ConfigError(str(path), "is a symbolic link", "name the file itself") from None
        raise


def _check_directory(path: Path, also: Collection[int]) -> None:
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
    sticky = status.st_mode & stat.S_ISVTX
    _check(path, status, 0 if sticky else _WRITE_BY_OTHERS, "go-w", also)


def _check(
    path: Path, status: os.stat_result, forbidden: int, mode_change: str, also: Collection[int] = ()
) -> None:
    """Raise an error unless a file has a permitted owner and mode.

    Args:
        path: path of the file.
        status: result of lstat or fstat for the file.
        forbidden: permission bits that must not be set.
        mode_change: argument of chmod that removes these bits, for the remedy.
        also: permitted owners besides root and the user of this process.

    Raises:
        ConfigError: owner or mode is not permitted. The error names the expected and the actual owner or
            mode.
    """
    uids = sorted({0, os.geteuid(), *also})
    foreign, mode = status.st_uid not in uids, stat.S_IMODE(status.st_mode)
    if not foreign and not mode & forbidden:
        return
    verb = "read" if forbidden == _ANY_BY_OTHERS else "write"
    owners = " or ".join(f"uid {uid}" for uid in uids)
    permission = f", no {verb} permission for others" if forbidden else ""
    fixes = ["chown root"] * foreign + [f"chmod {mode_change}"] * bool(mode & forbidden)
    todo = " and ".join(fixes) + f" {path}"
    if foreign and stat.S_ISDIR(status.st_mode):
        todo += _exception(status.st_uid)
    raise ConfigError(
        str(path), f"owner uid {status.st_uid}, mode {mode:04o}: expected owner {owners}{permission}", todo
    )


def _exception(owner: int) -> str:
    """Return a remark for an error message about the owner of a directory.

    The message proposes the remedy `chown root`. The remark states when this remedy is wrong: root must not
    become the owner of a directory to which a service writes as another user.

    Args:
        owner: uid of the directory's owner.
    """
    user = os.geteuid()
    if user == 0:
        return f"; but if a service of user {_name(owner)} writes there, run this command as {_name(owner)}"
    return f"; but if {_name(user)} writes there, chown {_name(user)}"


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
