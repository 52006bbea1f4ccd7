"""Reversal of setup: every change in the journal is undone, the last change first."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from slurm_energy import atomic_file
from slurm_energy.setup.changes import diff
from slurm_energy.setup.hunk import revert
from slurm_energy.setup.journal import SetupEntry, SetupJournal
from slurm_energy.setup.site_file import ENCODING, SiteFile, read_site_file, write_site_file

_STAYS: Final = "was changed by the site and stays; delete it if you no longer need it"


@dataclass(frozen=True, slots=True)
class FileReversal:
    """Plan of how to undo a change that setup made to a file.

    Attributes:
        entry: the change in the journal.
        file: the file as it is now.
        data: contents to write; None means to delete the file.
        remark: why the file, or lines that setup added to it, are kept; empty if nothing of setup is kept.
        keep: whether the file is left unchanged.
    """

    entry: SetupEntry
    file: SiteFile
    data: bytes | None
    remark: str = ""
    keep: bool = False

    def diff(self) -> list[str]:
        """Return a unified diff that shows how undoing the setup changes this file."""
        return diff(self.file.data, self.data, self.file.path)


def plan_reversal(entry: SetupEntry, journal: SetupJournal, file: SiteFile | None = None) -> FileReversal:
    """Decide how to undo one change that `senergy setup` made to a file.

    A file that has not changed since setup is restored from its backup, or deleted if setup created it. From
    a file that has changed since, only the lines that setup added are removed. A changed file that setup
    created is kept as it is.

    Args:
        entry: the change in the journal.
        journal: journal of this host.
        file: the current file; None means to read it.

    Raises:
        EnergyError: the file or its backup cannot be read.
    """
    file = file or read_site_file(Path(entry.path))
    if file.data is None or file.digest == entry.before:
        return FileReversal(entry, file, file.data, "" if file.data else "was deleted meanwhile", True)
    if file.digest == entry.after:
        return FileReversal(entry, file, journal.read_backup(entry) if entry.before else None)
    if not entry.hunks:
        return FileReversal(entry, file, file.data, _STAYS, True)
    text, missing = revert(file.text, entry.hunks)
    remark = "some lines of setup were changed by the site: remove them by hand" if missing else ""
    is_empty = not entry.before and not text.strip()
    return FileReversal(entry, file, None if is_empty else text.encode(ENCODING), remark)


def reverse_file(reversal: FileReversal, journal: SetupJournal) -> None:
    """Undo a change of a file and remove the change from the journal."""
    entry, file = reversal.entry, reversal.file
    if not reversal.keep:
        if reversal.data is None:
            atomic_file.remove(file.path)
            atomic_file.sync_directory(file.path.parent)
        else:
            exact = file.digest == entry.after
            owner = (entry.mode, entry.uid, entry.gid) if exact else (file.mode, file.uid, file.gid)
            write_site_file(file.path, reversal.data, *owner)
    journal.remove(entry)


def restore_file(entry: SetupEntry, journal: SetupJournal) -> None:
    """Undo one change that setup made to a file, as recorded in the journal."""
    reverse_file(plan_reversal(entry, journal), journal)


def remove_directory(entry: SetupEntry, journal: SetupJournal) -> bool:
    """Remove a directory that setup created, if it is empty; return whether it no longer exists."""
    path = Path(entry.path)
    with contextlib.suppress(OSError):
        path.rmdir()
    gone = not path.exists()
    journal.remove(entry)
    return gone
