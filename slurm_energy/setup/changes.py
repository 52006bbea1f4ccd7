"""Changes of configuration files that the setup plans and then writes.

A journal records each change, so that the change can be undone.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from slurm_energy import atomic_file
from slurm_energy.errors import ForbiddenError, UnavailableError
from slurm_energy.safe_text import escape_controls
from slurm_energy.setup.hunk import Hunk, apply
from slurm_energy.setup.journal import SetupEntry, SetupJournal
from slurm_energy.setup.site_file import (
    ENCODING,
    SiteFile,
    read_site_file,
    sha256,
    temporary_path,
    write_site_file,
)

_NEW: Final = "/dev/null"


@dataclass(frozen=True, slots=True)
class FileChange:
    """A planned change of one file.

    Attributes:
        file: the file as it was read.
        data: new contents of the file.
        hunks: the changed lines; empty for a new file.
        reason: purpose of the change, as text for the user.
        kind: kind of the file: `own` (of slurm-energy), `slurm.conf`, `plugstack` or `script`
            (job_submit.lua).
    """

    file: SiteFile
    data: bytes
    hunks: tuple[Hunk, ...] = ()
    reason: str = ""
    kind: str = "own"

    @property
    def path(self) -> Path:
        """Path of the changed file."""
        return self.file.path

    @property
    def is_new(self) -> bool:
        """Whether the change creates the file."""
        return self.file.data is None

    def diff(self) -> list[str]:
        """Return a unified diff for the terminal. Control characters are escaped."""
        return diff(self.file.data, self.data, self.path)


def edit(file: SiteFile, hunks: tuple[Hunk, ...], reason: str, kind: str) -> FileChange:
    """Return the planned change of a file: some lines of the file are replaced.

    Args:
        file: the file.
        hunks: the lines to replace, and the new lines.
        reason: reason for the change.
        kind: kind of the change.
    """
    return FileChange(file, apply(file.text, hunks).encode(ENCODING), hunks, reason, kind)


def diff(before: bytes | None, after: bytes | None, path: Path) -> list[str]:
    """Return the unified diff of a file; None stands for an absent file."""
    texts = [(data or b"").decode(errors="replace").split("\n") for data in (before, after)]
    for text in texts:
        if text[-1] == "":
            text.pop()
    names = [_NEW if data is None else str(path) for data in (before, after)]
    lines = difflib.unified_diff(texts[0], texts[1], names[0], names[1], lineterm="")
    return [escape_controls(line.replace("\t", "    ").removesuffix("\r")) for line in lines]


def carry_out(
    change: FileChange, journal: SetupJournal, due: Sequence[str] = (), *, unconfirmed: bool = False
) -> None:
    """Change a file of the host so that the change can be undone.

    The function makes a backup of the file, records the change in the journal, and replaces the file
    atomically.

    Args:
        change: change to make.
        journal: journal in which the change is recorded.
        due: actions, such as a restart of a daemon, that Slurm needs after the change, and again after an
            undo.
        unconfirmed: whether the change is undone if slurmctld does not start at its next restart by setup.

    Raises:
        UnavailableError: the file changed since it was read, or cannot be written.
        ForbiddenError: the caller may not write the file.
    """
    if read_site_file(change.path).digest != change.file.digest:
        raise UnavailableError(str(change.path), "changed meanwhile", "run the command again")
    number = journal.next_number()
    backup = "" if change.is_new else f"{number:04d}-{change.path.name}"
    file = change.file
    entry = SetupEntry(
        number,
        "file",
        str(change.path),
        backup=backup,
        before=file.digest,
        after=sha256(change.data),
        mode=file.mode,
        uid=file.uid,
        gid=file.gid,
        hunks=change.hunks,
        facts={"kind": change.kind, "due": list(due), "unconfirmed": unconfirmed},
    )
    if file.data is not None:
        journal.save_backup(backup, file.data)
    journal.record(entry)
    write_site_file(change.path, change.data, file.mode, file.uid, file.gid)
    journal.complete(entry)


def make_directory(
    path: Path, mode: int, journal: SetupJournal, owner: tuple[int, int] | None = None, *, data: bool = False
) -> None:
    """Create a directory and record it in the journal. Create missing parent directories with mode 0755.

    Args:
        path: the directory; nothing is done if it exists.
        mode: permission bits.
        journal: journal in which the change is recorded.
        owner: uid and gid of the owner; None means the caller.
        data: whether the directory is for data, which undo does not delete.

    Raises:
        ForbiddenError, UnavailableError: the directory cannot be created.
    """
    if path.is_dir():
        return
    if not path.parent.is_dir():
        make_directory(path.parent, 0o755, journal)
    uid, gid = owner or (os.geteuid(), os.getegid())
    entry = SetupEntry(
        journal.next_number(), "directory", str(path), mode=mode, uid=uid, gid=gid, facts={"data": data}
    )
    journal.record(entry)
    try:
        path.mkdir(mode=0o700)
        _finish_directory(entry)
    except PermissionError:
        raise ForbiddenError(str(path), "cannot be created", "run it as root") from None
    except OSError as error:
        raise UnavailableError(str(path), error.strerror or str(error)) from None
    journal.complete(entry)


def _finish_directory(entry: SetupEntry) -> None:
    path = Path(entry.path)
    os.chown(path, entry.uid, entry.gid, follow_symlinks=False)
    path.chmod(entry.mode)
    atomic_file.sync_directory(path.parent)


def settle(journal: SetupJournal) -> list[str]:
    """Decide whether the changes of an interrupted setup were made, and correct the setup's journal.

    The journal lists the changes of `senergy setup`. Some of its entries are unfinished. If the change of
    such an entry was made, the entry is marked as done. Otherwise the entry is removed.

    Returns:
        One line for each decision.
    """
    decisions = []
    for entry in [one for one in journal.entries if not one.done]:
        if entry.action == "file":
            atomic_file.remove(temporary_path(Path(entry.path)))
            made = read_site_file(Path(entry.path)).digest != entry.before
        elif entry.action == "directory":
            made = Path(entry.path).is_dir()
            if made:
                _finish_directory(entry)
        else:
            made = True
        if made:
            journal.record(replace(entry, done=True))
        else:
            journal.remove(entry)
        decisions.append(f"{entry.path}: interrupted change was {'made' if made else 'not made'}")
    return decisions
