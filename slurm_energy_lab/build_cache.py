"""Cache of files that every lab needs and whose creation takes seconds.

The files are an empty database and the library that stands in for NVML (stub).

The cache is in the user's cache directory, `$XDG_CACHE_HOME/senergy-lab` or `~/.cache/senergy-lab`. The
cache may be deleted at any time.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path

_COPY_OR_MAKE = """
cached=$1 target=$2; shift 2
if [ -d "$cached" ] && [ -O "$cached" ]; then exec cp -a -T "$cached" "$target"; fi
"$@"
umask 077
mkdir -p "${cached%/*}" && copy=$(mktemp -d "$cached.XXXXXX") || exit 0
cp -a -T "$target" "$copy" && mv -T "$copy" "$cached" || rm -rf "$copy"
"""
"""If another lab stores the same directory at the same time, `mv` of one of them fails, which is no error."""


def cache_folder() -> Path:
    """Return the directory of the cache, which may not exist yet."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base.startswith("/") else Path.home() / ".cache") / "senergy-lab"


def copy_or_make(name: str, target: Path, command: Sequence[str]) -> list[str]:
    """Return a command that creates the directory `target`.

    If the cache contains the directory, the returned command copies it. Otherwise the returned command runs
    `command` and stores a copy of the new directory in the cache.

    Args:
        name: name of the directory in the cache. Commands that make different contents need different names.
        target: directory that receives the copy.
        command: command that fills `target`.
    """
    return ["sh", "-ec", _COPY_OR_MAKE, "sh", str(cache_folder() / name), str(target), *command]


def is_trusted(path: Path) -> bool:
    """Return whether a file is a regular file of this process's user that no other user can write."""
    try:
        status = path.lstat()
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o022
