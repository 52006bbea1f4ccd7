"""Files that a daemon may believe: nobody but root and its own user could have written them.

One check for configuration, secrets, certificates and state, and the writing of files that others believe. It
knows neither what is in the files nor what follows from a refusal beyond the error.
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
_MOST_LINKS = 40
_WRITE_BY_OTHERS = 0o022
_ANY_BY_OTHERS = 0o077


def read_trusted(path: Path, *, secret: bool = False) -> bytes:
    """Return the contents of a file that only root or this process's user could have written.

    The file is opened once, checked and read through that descriptor, so that it cannot be exchanged in
    between. It must be a plain file; its folders up to the root must be safe as well, see `check_folder`.

    Args:
        path: the file.
        secret: also refuse what group or others may read.

    Raises:
        ConfigError: not trustworthy, or longer than `MAX_FILE_BYTES`.
        OSError: it cannot be read.
    """
    descriptor = _open(path)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ConfigError(str(path), "is not a plain file")
        _check(path, status, _ANY_BY_OTHERS if secret else _WRITE_BY_OTHERS, "0600" if secret else "go-w")
        check_folder(path.parent)
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            data = file.read(MAX_FILE_BYTES + 1)
    finally:
        os.close(descriptor)
    if len(data) > MAX_FILE_BYTES:
        raise ConfigError(str(path), f"is longer than {MAX_FILE_BYTES} bytes")
    return data


def replace_public(path: Path, data: bytes) -> None:
    """Put a file that all may read in the place of another at once: readers see the old or the new one.

    Its folder is made if it is missing (only the last part of the path), for others to enter whatever the
    umask. Nothing is forced to disk.

    Args:
        path: the file.
        data: its contents.

    Raises:
        ConfigError: somebody else could exchange the file, see `check_folder`.
        OSError: the folder cannot be made or written; the old file is still there.
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
    """Refuse a folder in which somebody else could exchange files, by itself or by one above it.

    Each folder on the way from the root must belong to root or this process's user and must not be
    writable for group or others, unless its sticky bit keeps them from other people's files (/tmp). Symbolic
    links on the way are followed, and must belong to the same users.

    Args:
        path: the folder.
        also: further uids that it may belong to, such as that of another daemon for which this is asked.

    Raises:
        ConfigError: it is not safe, with what is expected and what is there.
        OSError: a part of the path cannot be looked at.
    """
    rest = list(path.absolute().parts[1:])[::-1]
    at, links = Path("/"), 0
    _check_directory(at, also)
    while rest:
        found = at / rest.pop()
        if found.name == "..":
            at = at.parent
            continue
        if not found.is_symlink():
            at = found
            _check_directory(at, also)
            continue
        links += 1
        if links > _MOST_LINKS:
            raise ConfigError(str(path), os.strerror(errno.ELOOP))
        _check(found, found.lstat(), 0, "", also)
        target = found.readlink()
        at = Path("/") if target.is_absolute() else at
        rest += [part for part in reversed(target.parts) if part != "/"]


def _open(path: Path) -> int:
    try:
        # Not blocking: whoever planted a FIFO must not be able to stop a daemon.
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
    path: Path, status: os.stat_result, forbidden: int, wanted: str, also: Collection[int] = ()
) -> None:
    """Compare owner and mode with what is expected.

    Raises:
        ConfigError: naming expected and actual.
    """
    uids = sorted({0, os.geteuid(), *also})
    foreign, mode = status.st_uid not in uids, stat.S_IMODE(status.st_mode)
    if not foreign and not mode & forbidden:
        return
    verb = "read" if forbidden == _ANY_BY_OTHERS else "write"
    owners = " or ".join(f"uid {uid}" for uid in uids)
    no_one = f", nobody else may {verb} it" if forbidden else ""
    fixes = ["chown root"] * foreign + [f"chmod {wanted}"] * bool(mode & forbidden)
    todo = " and ".join(fixes) + f" {path}"
    if foreign and stat.S_ISDIR(status.st_mode):
        todo += _exception(status.st_uid)
    raise ConfigError(
        str(path), f"owner uid {status.st_uid}, mode {mode:04o}: expected owner {owners}{no_one}", todo
    )


def _exception(owner: int) -> str:
    """Return when the directory of a service must not become root's: the service could not write there."""
    user = os.geteuid()
    if user == 0:
        return f"; but if a service of user {_name(owner)} writes there, run this command as {_name(owner)}"
    return f"; but if {_name(user)} writes there, chown {_name(user)}"


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
