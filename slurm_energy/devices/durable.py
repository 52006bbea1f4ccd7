"""Files that survive a crash: written whole or not at all. No knowledge of their contents."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path


def write(path: Path, data: bytes, *, sync: bool = True, mode: int = 0o600) -> None:
    """Replace a file's contents atomically.

    Args:
        path: file to replace; its directory must exist.
        data: the new contents.
        sync: also force file and directory to disk, so that they survive a power failure.
        mode: permission bits of the new file.

    Raises:
        OSError: not written; the old contents are still there.
    """
    temporary = path.with_name(f".{path.name}.new")
    descriptor = os.open(
        temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, mode
    )
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
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


def flush(paths: Iterable[Path]) -> None:
    """Force files that were written without `sync` to disk; what is gone by now is passed over.

    Raises:
        OSError: the disk failed.
    """
    wanted = list(paths)
    for path in wanted:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
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
