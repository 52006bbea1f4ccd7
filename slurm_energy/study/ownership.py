"""Check that no other user may have changed the study that a step continues.

A study names the configuration that `senergy study deploy` changes and the program that the command runs. A
step must therefore not continue a study that another user has prepared.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from slurm_energy.errors import ForbiddenError
from slurm_energy.trusted_files import check_folder

_ROOT: Final = 0
_WRITE_BY_GROUP: Final = 0o020
_WRITE_BY_OTHERS: Final = 0o002


def require_own_study(path: Path) -> None:
    """Check the owner and the mode of all files and directories of a study.

    Each file must belong to root or to the user of this process. No file may be a symbolic link, and others
    must have no write permission. If the process runs as root, the group must have no write permission
    either, and the directories above the study are checked too.

    Args:
        path: directory of the study.

    Raises:
        ForbiddenError: another user may have changed a file.
        ConfigError: the process runs as root, and another user can replace the directory.
    """
    is_root = os.geteuid() == _ROOT
    forbidden = _WRITE_BY_OTHERS | (_WRITE_BY_GROUP if is_root else 0)
    for entry in _entries(path):
        try:
            status = entry.lstat()
        except FileNotFoundError:
            continue  # a temporary file of a step that ends
        if status.st_uid not in (_ROOT, os.geteuid()):
            todo = f"read the study first, then: chown -R {os.geteuid()} {path}"
            raise ForbiddenError(f"{entry}", f"belongs to another user (uid {status.st_uid})", todo)
        if stat.S_ISLNK(status.st_mode):
            raise ForbiddenError(f"{entry}", "is a symbolic link", "replace it by a copy")
        if status.st_mode & forbidden:
            raise ForbiddenError(f"{entry}", "can be written by other users", f"chmod -R go-w {path}")
    if is_root:
        check_folder(path)


def _entries(path: Path) -> Iterator[Path]:
    yield path.resolve()
    for folder, folders, files in os.walk(path):
        yield from (Path(folder) / name for name in (*folders, *files))
