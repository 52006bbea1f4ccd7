"""Journal of setup, with every change of this host.

An entry is written before its change is made.

The journal and the backups are in a directory that only root may enter. An entry is `intended` until its
change is complete, so that an interrupted run can be completed or undone.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from slurm_energy import atomic_file
from slurm_energy.errors import AlreadyRunningError, ConfigError, ForbiddenError, UnavailableError
from slurm_energy.setup.hunk import Hunk, from_document

DEFAULT_DIRECTORY: Final = Path("/var/lib/senergy-setup")
_NAME: Final = "journal.json"
_VERSION: Final = 1
_MAX_BYTES: Final = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class SetupEntry:
    """Entry in the journal of `senergy setup`: one change that setup made to this host.

    Attributes:
        number: number of the entry, ascending.
        action: `file`, `directory` or `unit`.
        path: changed file or directory; name of the unit for `unit`.
        done: whether the change is complete.
        backup: name of the copy of the original file; empty if the file did not exist.
        before: SHA-256 of the original file; empty if the file did not exist.
        after: SHA-256 of the new file.
        mode: permission bits of the original file.
        uid: owner of the original file.
        gid: group of the original file.
        hunks: the changed lines; empty for a new file.
        facts: further facts about the original state, such as `enabled` and `active` of a unit.
    """

    number: int
    action: str
    path: str
    done: bool = False
    backup: str = ""
    before: str = ""
    after: str = ""
    mode: int = 0
    uid: int = 0
    gid: int = 0
    hunks: tuple[Hunk, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)


class SetupJournal:
    """Journal of setup in a directory. The first entry creates the directory.

    Args:
        directory: directory of the journal and the backups.

    Raises:
        ConfigError: the journal is damaged or of a newer release.
        ForbiddenError: the caller may not read the journal.
    """

    def __init__(self, directory: Path = DEFAULT_DIRECTORY) -> None:
        self.directory = directory
        self.entries: list[SetupEntry] = []
        self.pending: set[str] = set()
        self._load()

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Context manager that excludes other runs of setup on this host.

        Raises:
            AlreadyRunningError: another run holds the lock.
            ForbiddenError: the caller may not write the directory.
            UnavailableError: the directory cannot be written, for example on a read-only file system.
        """
        with self._writing():
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(self.directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise AlreadyRunningError("senergy setup", f"another run holds {self.directory}/lock") from None
        try:
            self.entries, self.pending = [], set()
            self._load()
            yield
        finally:
            os.close(descriptor)

    def next_number(self) -> int:
        """Return the number of the next entry."""
        return max((entry.number for entry in self.entries), default=0) + 1

    def record(self, entry: SetupEntry) -> None:
        """Add an entry, or replace the entry with the same number, and force the journal to disk."""
        others = [one for one in self.entries if one.number != entry.number]
        self.entries = sorted([*others, entry], key=lambda one: one.number)
        self._save()

    def complete(self, entry: SetupEntry) -> None:
        """Mark an entry as done."""
        self.record(replace(entry, done=True))

    def remove(self, entry: SetupEntry) -> None:
        """Remove an entry and its backup."""
        self.entries = [one for one in self.entries if one.number != entry.number]
        self._save()
        if entry.backup:
            with self._writing():
                atomic_file.remove(self.directory / entry.backup)

    def note_pending(self, action: str, *, due: bool) -> None:
        """Record that an action, such as the restart of slurmctld, is due or is no longer due."""
        if due == (action in self.pending):
            return
        (self.pending.add if due else self.pending.discard)(action)
        self._save()

    @property
    def unconfirmed(self) -> list[SetupEntry]:
        """Changes of Slurm's files with which slurmctld has not been seen running."""
        return [entry for entry in self.entries if entry.facts.get("unconfirmed")]

    def confirm(self) -> None:
        """Record that slurmctld started with all changes, or reads them at its next start."""
        for entry in self.unconfirmed:
            self.record(replace(entry, facts=entry.facts | {"unconfirmed": False}))

    def save_backup(self, name: str, data: bytes) -> None:
        """Write a copy of an original file, and force the copy to disk. Only root can read the copy.

        Raises:
            ForbiddenError, UnavailableError: the copy cannot be written.
        """
        with self._writing():
            atomic_file.write(self.directory / name, data)

    def read_backup(self, entry: SetupEntry) -> bytes:
        """Return the original contents of a changed file.

        Raises:
            UnavailableError: the backup cannot be read.
        """
        try:
            return atomic_file.read(self.directory / entry.backup, _MAX_BYTES)
        except OSError as error:
            raise UnavailableError(f"{self.directory}/{entry.backup}", error.strerror or str(error)) from None

    def delete(self) -> None:
        """Delete the files of a journal without entries, and its directory if nothing else is in it."""
        with self._writing():
            for name in (_NAME, "lock"):
                atomic_file.remove(self.directory / name)
        with contextlib.suppress(OSError):
            self.directory.rmdir()

    def _load(self) -> None:
        path = self.directory / _NAME
        try:
            text = atomic_file.read(path, _MAX_BYTES)
        except FileNotFoundError:
            return
        except PermissionError:
            raise ForbiddenError(str(path), "cannot be read", "run it as root") from None
        except OSError as error:
            raise UnavailableError(str(path), error.strerror or str(error)) from None
        try:
            document = json.loads(text)
            if document["version"] != _VERSION:
                raise ConfigError(str(path), "was written by a newer release", "use that release")
            self.entries = [_entry(one) for one in document["entries"]]
            self.pending = set(document["pending"])
        except (ValueError, KeyError, TypeError) as error:
            todo = f"restore the files from {self.directory} by hand"
            raise ConfigError(str(path), f"is damaged: {error!r}", todo) from None

    def _save(self) -> None:
        document = {
            "version": _VERSION,
            "pending": sorted(self.pending),
            "entries": [_document(entry) for entry in self.entries],
        }
        with self._writing():
            atomic_file.write(self.directory / _NAME, json.dumps(document).encode())

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Context manager that reports a failed change of the directory as an error of one line."""
        try:
            yield
        except PermissionError:
            raise ForbiddenError(str(self.directory), "cannot be written", "run it as root") from None
        except OSError as error:
            raise UnavailableError(str(self.directory), error.strerror or str(error)) from None


def _document(entry: SetupEntry) -> dict[str, Any]:
    names = ("number", "action", "path", "done", "backup", "before", "after", "mode", "uid", "gid", "facts")
    values = {name: getattr(entry, name) for name in names}
    return values | {"hunks": [hunk.document() for hunk in entry.hunks]}


def _entry(document: dict[str, Any]) -> SetupEntry:
    entry = SetupEntry(**{**document, "hunks": tuple(from_document(one) for one in document["hunks"])})
    for name in ("action", "path", "backup", "before", "after"):
        if not isinstance(getattr(entry, name), str):
            raise TypeError(f"{name} is not a text")
    for name in ("number", "mode", "uid", "gid"):
        if not isinstance(getattr(entry, name), int):
            raise TypeError(f"{name} is not a number")
    return entry
