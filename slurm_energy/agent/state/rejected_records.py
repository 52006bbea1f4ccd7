"""Rejected records, stored in limited space with attachments and reasons, and sent again on request.

A record, its attachments (power trace and observation) and the reason are files whose names differ only in
the suffix. An attachment is always moved before its record. After a crash between these moves, `recover`
moves the attachments to the directory that contains the record.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slurm_energy import atomic_file
from slurm_energy.agent.state.spooled_record import (
    ATTACHMENT_SUFFIXES,
    RECORD_SUFFIX,
    attachments_of,
    record_of,
    trace_of,
)
from slurm_energy.log_once import RepeatedFailureLog

log = logging.getLogger(__name__)

MAX_RECORDS = 10_000
_REASON_SUFFIX = ".reason"
_MAX_REASON = 500
_MAX_REASON_BYTES = 16_384
_SUBJECT = "rejected records"


@dataclass(frozen=True, slots=True)
class RejectedRecord:
    """One rejected record.

    Attributes:
        name: file name of the record.
        bytes: size of record and attachments in bytes.
        has_trace: whether the power trace of the record is still stored.
        reason: why the record was rejected.
        refused_by: release number of the controller that rejected the record, as `RecordDelivery` formats the
            number; None if the agent itself rejected the file.
    """

    name: str
    bytes: int
    has_trace: bool
    reason: str
    refused_by: str | None


class RejectedRecords:
    """The directory `rejected` of a spool, which is created when the first record is rejected.

    Args:
        folder: the directory.
        limit_bytes: maximum size of all files in bytes. If the files exceed this size, the oldest attachments
            are deleted, then the oldest records.

    Attributes:
        limit_bytes: maximum size of all files in bytes; may be changed at any time.
        dropped: number of records deleted for lack of space since the agent started.
    """

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        self.folder = folder
        self.limit_bytes = limit_bytes
        self.dropped = 0
        if folder.is_symlink():  # planted: nothing may be written to its target
            folder.unlink()
        self._sizes = file_sizes(folder) if folder.is_dir() else {}
        self._total = sum(self._sizes.values())
        self._failures = RepeatedFailureLog(log)

    @property
    def bytes(self) -> int:
        """Size of the files of all rejected records in bytes."""
        return self._total

    def count(self) -> int:
        """Return the number of records on this node that the controller has rejected for good."""
        return sum(1 for name in self._sizes if name.endswith(RECORD_SUFFIX))

    def has(self, record_id: str) -> bool:
        """Return whether a record is among the rejected records."""
        return any(name.endswith(f"-{record_id}{RECORD_SUFFIX}") for name in self._sizes)

    def names(self) -> list[str]:
        """Return the file names of the rejected records, oldest first."""
        return sorted(name for name in self._sizes if name.endswith(RECORD_SUFFIX))

    def put(self, source: Path, name: str, reason: str, refused_by: str | None) -> None:
        """Move a record and its attachments from the spool directory to the rejected records.

        Args:
            source: the spool directory.
            name: file name of the record.
            reason: why the record was rejected.
            refused_by: release of the controller that rejected the record; None if the agent rejected the
                file.

        Raises:
            OSError: the record was not moved and is still in the spool.
        """
        if not self.names():
            with contextlib.suppress(FileExistsError):
                self.folder.mkdir(mode=0o700)
            log.error(
                "record %s was rejected and is kept in %s: %s; see `senergy spool`", name, self.folder, reason
            )
        self._failures.report(_SUBJECT, "kept for `senergy spool resend`", logging.WARNING)
        for attachment in attachments_of(name):
            self._receive(source, attachment)
        note = json.dumps({"reason": reason[:_MAX_REASON], "refused_by": refused_by}).encode()
        with contextlib.suppress(OSError):  # on a full disk the record is kept without its reason
            atomic_file.write(self._path(_reason_of(name)), note, sync=False)
            self._note_size(_reason_of(name), len(note))
        self._receive(source, name)
        self._bound(self.limit_bytes)

    def give_back(self, target: Path, name: str) -> dict[str, int]:
        """Move a record and its attachments to the spool directory.

        Args:
            target: the spool directory.
            name: file name of the record.

        Returns:
            Sizes in bytes of the moved files by name.

        Raises:
            OSError: the record was not moved.
        """
        moved = {}
        for own in (*attachments_of(name), name):
            if own in self._sizes:
                os.replace(self._path(own), os.path.join(target, own))
                moved[own] = self._forget(own)
        self._remove(_reason_of(name))
        if not self.names():
            self._failures.clear(_SUBJECT, "none is left")
        return moved

    def recover(self, spool: Path) -> None:
        """Complete the moves of rejected records that a crash has interrupted.

        Attachments are moved to the directory that contains their record. Files without a record are
        deleted.

        Args:
            spool: the spool directory.
        """
        if not self.folder.is_dir():
            return
        for name in os.listdir(spool):
            if name.endswith(ATTACHMENT_SUFFIXES) and record_of(name) in self._sizes:
                self._receive(spool, name)
        for name in list(self._sizes):
            record = record_of(name)
            if record in self._sizes:
                continue
            if name.endswith(ATTACHMENT_SUFFIXES) and os.path.lexists(os.path.join(spool, record)):
                os.replace(self._path(name), os.path.join(spool, name))
                self._forget(name)
            else:
                self._remove(name)

    def listing(self) -> Iterator[RejectedRecord]:
        """Yield every rejected record, oldest first."""
        for name in self.names():
            note = self._note(name)
            attachments = sum(self._sizes.get(attachment, 0) for attachment in attachments_of(name))
            yield RejectedRecord(
                name=name,
                bytes=self._sizes[name] + attachments,
                has_trace=trace_of(name) in self._sizes,
                reason=str(note.get("reason", "not known")),
                refused_by=note.get("refused_by"),
            )

    def _note(self, name: str) -> dict[str, Any]:
        try:
            note = json.loads(atomic_file.read(self._path(_reason_of(name)), _MAX_REASON_BYTES))
        except (OSError, ValueError):
            return {}
        return note if isinstance(note, dict) else {}

    def _receive(self, source: Path, name: str) -> None:
        """Move the file `name` from the directory `source` to the rejected records.

        An absent file is skipped.
        """
        with contextlib.suppress(FileNotFoundError):
            path = os.path.join(source, name)
            size = os.lstat(path).st_size
            os.replace(path, self._path(name))
            self._note_size(name, size)

    def free(self, size: int) -> int:
        """Delete the oldest attachments, then the oldest records, to free `size` bytes.

        Return the freed bytes.
        """
        before = self._total
        self._bound(before - size)
        return before - self._total

    def _bound(self, limit_bytes: int) -> None:
        """Delete the oldest attachments, then the oldest records, until all files fit into `limit_bytes`."""
        excess = self._total - limit_bytes
        for name in sorted(name for name in self._sizes if name.endswith(ATTACHMENT_SUFFIXES)):
            if excess <= 0:
                break
            excess -= self._remove(name)
        names = self.names()
        while names and (excess > 0 or len(names) > MAX_RECORDS):
            name = names.pop(0)
            excess -= sum(self._remove(own) for own in (*attachments_of(name), name, _reason_of(name)))
            self.dropped += 1
            self._failures.report(f"{_SUBJECT}: space", "the oldest are dropped", logging.ERROR)

    def _note_size(self, name: str, size: int) -> None:
        self._total += size - self._sizes.get(name, 0)
        self._sizes[name] = size

    def _remove(self, name: str) -> int:
        atomic_file.remove(self._path(name))
        return self._forget(name)

    def _forget(self, name: str) -> int:
        size = self._sizes.pop(name, 0)
        self._total -= size
        return size

    def _path(self, name: str) -> str:
        return os.path.join(self.folder, name)


def file_sizes(folder: Path) -> dict[str, int]:
    """Return the sizes in bytes of the entries of a directory, by name.

    Subdirectories are left out. Symbolic links are not followed.
    """
    with os.scandir(folder) as entries:
        status = {entry.name: entry.stat(follow_symlinks=False) for entry in entries}
    return {name: entry.st_size for name, entry in status.items() if not stat.S_ISDIR(entry.st_mode)}


def remove_empty_files(folder: Path) -> None:
    """Remove the regular files without contents from a directory.

    After a power failure, a file that was not forced to disk may have its name but no contents.
    """
    with os.scandir(folder) as entries:
        files = [entry for entry in entries if entry.is_file(follow_symlinks=False)]
    for entry in files:
        if entry.stat(follow_symlinks=False).st_size == 0:
            atomic_file.remove(entry.path)
            log.warning("%s was empty, as after a power failure, and is removed", entry.path)


def _reason_of(name: str) -> str:
    return name.removesuffix(RECORD_SUFFIX) + _REASON_SUFFIX
