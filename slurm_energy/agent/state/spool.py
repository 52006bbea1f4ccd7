"""The spool: directory of energy records that the controller does not have yet.

Each record is one file, with its attachments in further files: the power trace, and the observation of
signals and steps. A record leaves the spool only when the controller confirms it, or when it is rejected and
moved to the directory `rejected`. When space runs out, rejected records are deleted first, then attachments.
No other process writes to the spool, so the list of its files is kept in memory.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from slurm_energy import atomic_file
from slurm_energy.agent.state.deferred_records import DeferredRecords
from slurm_energy.agent.state.rejected_records import RejectedRecords, file_sizes, remove_empty_files
from slurm_energy.agent.state.spooled_record import (
    ATTACHMENT_SUFFIXES,
    SpoolableRecord,
    SpooledRecord,
    attachments_of,
    observation_of,
    record_id_of,
    trace_of,
)
from slurm_energy.log_once import RepeatedFailureLog

log = logging.getLogger(__name__)

_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})
_LIMIT, _DISK, _LOST = "spool at agent.spool_limit_mb", "spool's disk", "spool's records"
_EXPIRY_PAUSE_S = 600.0
_ROOM_FOR_TRACES = 16
_RECORD = re.compile(r"\d{12}-[A-Za-z0-9_-]{1,64}\.json")
PERIOD_SHARE = 16
"""The spool of periods may use this fraction of the space of the records: a sixteenth."""
_REJECTED = "rejected"
_REJECTED_SHARE = 4
"""Rejected records may use this fraction of the spool's space: a quarter."""
_MAX_FILE_BYTES = 15_000_000
"""A longer file could not be delivered: the controller accepts 16 MiB."""


class Spool:
    """A directory of undelivered energy records.

    Args:
        folder: the directory; created if absent.
        limit_bytes: maximum size of all files in bytes, including rejected records.

    Raises:
        OSError: the directory cannot be created or read.

    Attributes:
        deferred: records that the controller cannot accept yet.
        rejected: records that the controller will never accept.
    """

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        self.folder = folder
        folder.mkdir(mode=0o700, exist_ok=True)
        with atomic_file.tolerating_read_only():
            for leftover in (*folder.glob(".*.new"), *folder.glob(f"{_REJECTED}/.*.new")):
                leftover.unlink(missing_ok=True)
            remove_empty_files(folder)
        self.deferred = DeferredRecords()
        self.rejected = RejectedRecords(folder / _REJECTED, 0)
        with atomic_file.tolerating_read_only():
            self.rejected.recover(folder)
        self.limit_bytes = limit_bytes
        # This includes links and other planted files; their first use rejects them.
        self._sizes = file_sizes(folder)
        self._total = sum(self._sizes.values())
        self._expired_at = 0.0
        self._disk_full = False
        self._failures = RepeatedFailureLog(log)

    @property
    def limit_bytes(self) -> int:
        """Maximum size in bytes of all files of the spool (the records on the node to be delivered).

        Rejected records count, too.
        """
        return self._limit_bytes

    @limit_bytes.setter
    def limit_bytes(self, limit_bytes: int) -> None:
        """Set the maximum size of all files of the spool in bytes.

        A quarter of this size is reserved for rejected records.
        """
        self._limit_bytes = limit_bytes
        self.rejected.limit_bytes = limit_bytes // _REJECTED_SHARE

    def add(
        self,
        record: SpoolableRecord,
        trace: dict[str, Any] | None,
        observation: dict[str, Any] | None = None,
    ) -> dict[str, bytes]:
        """Store a record, and its attachments if there is space for them.

        Args:
            record: the record.
            trace: the power trace in the format of docs/reference/protocol.md; None if the job has no trace.
            observation: signals and steps in the format of docs/reference/protocol.md; None if nothing was
                observed.

        Returns:
            The contents of the written files by path. The files are complete but not yet synced to disk.

        Raises:
            OSError: the record could not be stored.
        """
        name = f"{int(record.end):012d}-{record.record_id}.json"
        data = json.dumps(record.to_json(), separators=(",", ":")).encode()
        written: dict[str, bytes] = {}
        for content, attachment in ((trace, trace_of(name)), (observation, observation_of(name))):
            if content is not None:
                written |= self._add_attachment(attachment, content)
        self._make_room(len(data))
        self._write_record(name, data)
        if self._total < self.limit_bytes // 2:
            self._failures.clear(_LIMIT, "traces are kept again")
            self._failures.clear(_LOST, "records are kept again")
        return written | {self._path(name): data}

    def rewrite(self, path: str, data: bytes) -> None:
        """Rewrite a file that `add` has written, after a failed sync to disk.

        After a failed sync the disk may have dropped the data, and the kernel reports this error only once. A
        file that was removed from the spool in the meantime is not written.

        Args:
            path: path of the file.
            data: contents of the file.

        Raises:
            OSError: the file was not written.
        """
        folder, name = os.path.split(path)
        if folder == str(self.folder) and name in self._sizes:
            self._write(name, data)

    def path_of(self, record_id: str) -> str | None:
        """Return the path of a record's file; None if the record is not in the spool or is rejected."""
        # The newest first: each ended job asks for the record that it has just added.
        names = (name for name in reversed(self._sizes) if name.endswith(f"-{record_id}.json"))
        return next(map(self._path, names), None)

    def expire(self, now: float, keep_s: float) -> None:
        """Delete power traces and observations (attachments of records) of jobs that ended long ago.

        The check runs at most once in ten minutes.

        Args:
            now: Unix seconds.
            keep_s: seconds after a job's end for which its attachments are kept.
        """
        if abs(now - self._expired_at) < _EXPIRY_PAUSE_S:
            return
        self._expired_at = now
        oldest = f"{max(0, int(now - keep_s)):012d}"
        old = [name for name in self._sizes if name.endswith(ATTACHMENT_SUFFIXES) and name < oldest]
        if old:
            log.info("spool: dropped %d traces older than agent.trace_retention_days", len(old))
            self._drop(old)

    def has(self, record_id: str) -> bool:
        """Return whether a record is in the spool or among the rejected records.

        The spool is the directory of records that the controller has not confirmed yet.
        """
        here = any(name.endswith(f"-{record_id}.json") for name in self._sizes)
        return here or self.rejected.has(record_id)

    def count(self) -> int:
        """Return the number of records in the spool, without rejected records."""
        return sum(1 for name in self._sizes if _RECORD.fullmatch(name))

    @property
    def oldest_end(self) -> float | None:
        """Unix time of the end of the oldest undelivered record; None if no record is undelivered."""
        names = (name for name in self._sizes if _RECORD.fullmatch(name))
        oldest = min(names, default=None)
        return None if oldest is None else float(oldest.partition("-")[0])

    def items(self, max_bytes: int, max_items: int, now: float | None = None) -> list[SpooledRecord]:
        """Return the oldest records, as many as the limits allow.

        The first record is returned whatever its size. The attachments of a record are its power trace and
        its observation.

        Args:
            max_bytes: maximum total size of records and attachments in bytes.
            max_items: maximum number of records.
            now: seconds of the monotonic clock. Records that are deferred at this time are left out. With
                None, deferred records are included.
        """
        items: list[SpooledRecord] = []
        total = 0
        held = frozenset[str]() if now is None else self.deferred.withheld(now)
        for name in sorted(name for name in self._sizes if name not in held and _RECORD.fullmatch(name)):
            size = sum(self._sizes.get(own, 0) for own in (name, *attachments_of(name)))
            if items and (total + size > max_bytes or len(items) >= max_items):
                break
            item = self._read(name)
            if item is not None:
                items.append(item)
                total += size
        return items

    def remove(self, name: str) -> None:
        """Remove a delivered record and its attachments, given the record's file name."""
        self.deferred.forget(name)
        self._drop([*attachments_of(name), name])

    def defer(self, name: str, reason: str, now: float) -> None:
        """Mark a record as deferred because the controller cannot accept it yet.

        Args:
            name: file name of the record.
            reason: one line that explains why the record is deferred.
            now: seconds of the monotonic clock.
        """
        if name in self._sizes:
            self.deferred.add(name, reason, now)

    def reject(self, name: str, reason: str, refused_by: str | None = None) -> None:
        """Move a record and its attachments to the rejected records.

        `resend` moves the record and its attachments back.

        Args:
            name: file name of the record.
            reason: one line that explains why the record is rejected.
            refused_by: release of the controller that rejected the record; None if the agent rejected the
                record because its file is unusable.
        """
        self.rejected.put(self.folder, name, reason, refused_by)
        for own in (*attachments_of(name), name):
            self._total -= self._sizes.pop(own, 0)
        self.deferred.forget(name)

    def resend(self, record_ids: Iterable[str] | None = None, other_than: str | None = None) -> int:
        """Move rejected records back into the spool, from which they are sent again.

        Return the number of moved records. Records that wait for a retry (deferred records) are also sent
        again at once.

        Args:
            record_ids: ids of the records to move; None for all.
            other_than: a release of the controller. Records that this release has rejected are not moved.
                None means that the release does not matter.
        """
        requested = None if record_ids is None else set(record_ids)
        moved = 0
        for record in list(self.rejected.listing()):
            by_other = other_than is None or record.refused_by not in (None, other_than)
            if by_other and (requested is None or record_id_of(record.name) in requested):
                for name, size in self.rejected.give_back(self.folder, record.name).items():
                    self._total += size - self._sizes.get(name, 0)
                    self._sizes[name] = size
                moved += 1
        self.deferred.release()
        return moved

    def state(self) -> dict[str, Any]:
        """Return the numbers of stored records as fields of a response.

        The records are counted by state: waiting, deferred, rejected and deleted.
        """
        return {
            "spooled": self.count(),
            "deferred": len(self.deferred),
            "rejected": self.rejected.count(),
            "rejected_bytes": self.rejected.bytes,
            "rejected_dropped": self.rejected.dropped,
        }

    def _read(self, name: str) -> SpooledRecord | None:
        try:
            record = json.loads(atomic_file.read(self._path(name), _MAX_FILE_BYTES))
        except FileNotFoundError:
            self._drop([name])
            return None
        except (OSError, ValueError) as error:
            self.reject(name, f"cannot be read: {error}")
            return None
        trace, observation = (self._read_attachment(own) for own in (trace_of(name), observation_of(name)))
        return SpooledRecord(name, record, trace, observation)

    def _read_attachment(self, name: str) -> dict[str, Any] | None:
        if name not in self._sizes:
            return None
        try:
            content = json.loads(atomic_file.read(self._path(name), _MAX_FILE_BYTES))
        except (OSError, ValueError):
            return None
        return content if isinstance(content, dict) else None

    def _add_attachment(self, name: str, content: dict[str, Any]) -> dict[str, bytes]:
        data = json.dumps(content, separators=(",", ":")).encode()
        if len(data) > self.limit_bytes // 4:
            log.warning("spool: %s is too large to keep", name)
            return {}
        self._make_room(len(data))
        try:
            self._write(name, data)
        except OSError as error:
            self._complain_of_disk(error)
            return {}
        self._settle_disk(len(data))
        return {self._path(name): data}

    def _write_record(self, name: str, data: bytes) -> None:
        """Store a record in the spool, and delete other data if the disk is full.

        The method deletes data in steps, until the record can be written. It deletes rejected records first,
        then the attachments (traces and observations) of the oldest records. The number of attachments
        doubles with each step.
        """
        traces: list[str] | None = None
        batch = 1
        while True:
            try:
                self._write(name, data)
                return
            except OSError as error:
                if traces is None:
                    traces = sorted(other for other in self._sizes if other.endswith(ATTACHMENT_SUFFIXES))
                if error.errno not in _NO_SPACE or not (traces or self.rejected.bytes):
                    raise
                self._complain_of_disk(error)
            if self.rejected.free(max(len(data), self.rejected.bytes // 4)):
                continue
            self._drop(traces[:batch])
            del traces[:batch]
            batch *= 2

    def _complain_of_disk(self, error: OSError) -> None:
        self._disk_full = True
        self._failures.report(_DISK, f"{error.strerror}: power traces are dropped, records are kept")

    def _settle_disk(self, size: int) -> None:
        """End the state "disk full" of the spool if there is enough space again, and log the end.

        The space suffices if more than 16 traces of `size` bytes fit.
        """
        if not self._disk_full:
            return
        free = os.statvfs(self.folder)
        if free.f_bavail * free.f_frsize > _ROOM_FOR_TRACES * size:
            self._disk_full = False
            self._failures.clear(_DISK, "there is room for traces again")

    def _write(self, name: str, data: bytes) -> None:
        atomic_file.write(self._path(name), data, sync=False)
        self._total += len(data) - self._sizes.get(name, 0)
        self._sizes[name] = len(data)

    def _make_room(self, size: int) -> None:
        """Delete files until `size` more bytes fit.

        Rejected records are deleted first. Then the oldest attachments of records (power traces and
        observations) are deleted, then the oldest records.
        """
        excess = self._total + self.rejected.bytes + size - self.limit_bytes
        if excess > 0:
            excess -= self.rejected.free(excess)
        if excess <= 0:
            return
        dropped = []
        for name in sorted(self._sizes, key=lambda name: (not name.endswith(ATTACHMENT_SUFFIXES), name)):
            if excess <= 0:
                break
            excess -= self._sizes[name]
            dropped.append(name)
        if any(not name.endswith(ATTACHMENT_SUFFIXES) for name in dropped):
            self._failures.report(_LOST, "the oldest are dropped: too many are undelivered", logging.ERROR)
        else:
            self._failures.report(_LIMIT, "the oldest traces and observations are dropped")
        self._drop(dropped)

    def _drop(self, names: Iterable[str]) -> None:
        for name in names:
            atomic_file.remove(self._path(name))
            self.deferred.discard(name)
            self._total -= self._sizes.pop(name, 0)

    def _path(self, name: str) -> str:
        return os.path.join(self.folder, name)
