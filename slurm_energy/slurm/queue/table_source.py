"""Reader of the queue from the files of slurmctld's plugin.

The files are a snapshot, and a journal of later changes.

Every byte of the files is treated as hostile, because users choose the names and flags in them.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from slurm_energy.errors import UnavailableError
from slurm_energy.slurm.queue.columns import RUNNING, QueueColumns
from slurm_energy.slurm.queue.table_entries import columns_of
from slurm_energy.slurm.queue.table_layout import (
    ENTRY,
    HEADER,
    JOURNAL,
    MAGIC,
    RECORD,
    SNAPSHOT,
    VERSION,
    checksum,
)

MAX_FILE_BYTES: Final = 1 << 30
_LONGEST_JOURNAL_BYTES: Final = 1 << 26
_TRIES: Final = 5
Entries = NDArray[np.void]


def journal_path(path: Path) -> Path:
    """Return the path of a snapshot's journal: `queue.table.new` beside `queue.table`."""
    return path.with_name(f"{path.name}.new")


@dataclass(frozen=True, slots=True)
class _Read:
    """Contents of the part of the plugin's journal file that has been parsed so far.

    Attributes:
        data: bytes of the parsed part, from the start of the journal.
        entries: the entries in the parsed part.
        strings: the strings of `entries`, joined into one sequence of bytes.
    """

    data: bytes = b""
    entries: Entries = field(default_factory=lambda: np.zeros(0, ENTRY))
    strings: bytes = b""


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """Contents of a snapshot of the queue, with or without the later changes in its journal.

    Attributes:
        generation: number that identifies the snapshot; the journal of the snapshot has the same number.
        taken_unix_s: Unix time of the snapshot.
        entries, heap: entries of the jobs, and the bytes of all their strings.
    """

    generation: int
    taken_unix_s: float
    entries: Entries
    heap: bytes


class QueueTableSource:
    """A reader of the job queue from two files that slurmctld's plugin writes.

    The files are a snapshot of the queue and a journal of later changes.

    Args:
        path: path of the snapshot file; the journal is in the same directory.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read_before = _Read()
        self._last: _Snapshot | None = None

    def signature(self) -> tuple[int, ...]:
        """Return numbers that change each time slurmctld's plugin writes to its queue files.

        The files are the snapshot of the queue, and the journal of later changes. The call is cheap enough to
        be made every second.
        """
        numbers: list[int] = []
        for path in (self._path, journal_path(self._path)):
            try:
                status = path.lstat()
            except OSError:
                numbers += [0, 0, 0]
            else:
                numbers += [status.st_ino, status.st_mtime_ns, status.st_size]
        return tuple(numbers)

    def read(self) -> QueueColumns:
        """Return Slurm's queue from the files of the plugin in slurmctld.

        The result consists of the jobs in the plugin's last snapshot of the queue, with the later changes and
        additions in the plugin's journal.

        Raises:
            UnavailableError: there is no snapshot, or the snapshot is damaged or not from the plugin.
        """
        for _ in range(_TRIES):
            data = _contents(self._path, MAX_FILE_BYTES)
            header, entries, heap = _snapshot(self._path, data)
            journal = _journal(journal_path(self._path))
            if journal is None or int(journal["generation"]) <= int(header["generation"]):
                break  # otherwise the snapshot was replaced between the two reads
        taken_unix_s = int(header["taken_unix_ns"]) / 1e9
        snapshot = _Snapshot(int(header["generation"]), taken_unix_s, entries, heap)
        self._last = self._with_journal(snapshot, journal)
        return columns_of(taken_unix_s, self._last.entries, self._last.heap)

    def read_last(self) -> QueueColumns | None:
        """Return the queue of the last successful `read`, updated from the journal.

        Use this method while the snapshot is deleted or damaged. slurmctld rewrites the snapshot within a
        minute and continues the journal in the meantime.

        Returns:
            The queue; None if no `read` has succeeded, or if the journal is missing, because the queue would
            then lack new jobs.
        """
        journal = _journal(journal_path(self._path))
        if self._last is None or journal is None or int(journal["generation"]) != self._last.generation:
            return None
        snapshot = self._with_journal(self._last, journal)
        return columns_of(snapshot.taken_unix_s, snapshot.entries, snapshot.heap)

    def _with_journal(self, snapshot: _Snapshot, journal: dict[str, Any] | None) -> _Snapshot:
        """Return a copy of the snapshot to which the entries of the journal have been added.

        The plugin of slurmctld writes a snapshot of the queue, and a journal of later changes. An entry of
        the journal replaces older entries of the same job.

        Args:
            snapshot: the snapshot without the entries of its journal.
            journal: result of `_journal`. The entries of the snapshot stay unchanged if the journal is None,
                or if the journal belongs to a snapshot with another generation number.
        """
        since, heap = np.zeros(0, ENTRY), snapshot.heap
        if journal is not None and int(journal["generation"]) == snapshot.generation:
            self._read_before = _records(journal["data"], self._read_before)
            since, added = self._read_before.entries.copy(), self._read_before.strings
            since["heap_offset"] += len(heap)
            heap += added
        entries = _listed(snapshot.entries, since)
        return _Snapshot(snapshot.generation, snapshot.taken_unix_s, entries, heap)


def _contents(path: Path, max_bytes: int) -> bytes:
    """Return the contents of a file that slurmctld's plugin writes.

    The file must be a regular file that only root or the owner of its directory can write.

    The plugin replaces the file by a new one and then reuses the old file: it overwrites it from the header
    on. This function may still be reading the old file. If the header changes during the read, the contents
    are a mixture of old and new. The file is then read again.

    Raises:
        UnavailableError: the file cannot be read, is too long, is not trusted, or changed during each read.
    """
    for _ in range(_TRIES):
        data, header = _bytes_and_header(path, max_bytes)
        if data.startswith(header):
            return data
    raise UnavailableError(str(path), "changed during each read")


def _bytes_and_header(path: Path, max_bytes: int) -> tuple[bytes, bytes]:
    """Return the contents of a file, and the file's header as it was after the contents were read.

    Raises:
        UnavailableError: the file cannot be read, is too long, or is not trusted.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
    try:
        descriptor = os.open(path, flags)
        with os.fdopen(descriptor, "rb") as file:
            status, folder = os.fstat(file.fileno()), path.parent.stat()
            if not stat.S_ISREG(status.st_mode):
                raise UnavailableError(str(path), "is not a regular file")
            if (status.st_mode | folder.st_mode) & 0o022 or status.st_uid not in (0, folder.st_uid):
                why = "users other than slurmctld's could have written it"
                raise UnavailableError(str(path), why, f"chmod go-w {path.parent}")
            data = file.read(max_bytes + 1)
            header = os.pread(file.fileno(), HEADER.itemsize, 0)
    except OSError as error:
        todo = "is site_factor/energy loaded in slurmctld?" if isinstance(error, FileNotFoundError) else ""
        raise UnavailableError(str(path), error.strerror or str(error), todo) from None
    if len(data) > max_bytes:
        raise UnavailableError(str(path), f"is longer than {max_bytes} bytes")
    return data, header


def _header(data: bytes, kind: int) -> Any | None:
    if len(data) < HEADER.itemsize:
        return None
    header = np.frombuffer(data, HEADER, 1)[0]
    sizes = (int(header["header_bytes"]), int(header["entry_bytes"]))
    fits = header["magic"] == MAGIC and header["version"] == VERSION and header["kind"] == kind
    return header if fits and sizes == (HEADER.itemsize, ENTRY.itemsize) else None


def _snapshot(path: Path, data: bytes) -> tuple[Any, Entries, bytes]:
    """Return header, entries and heap (bytes of all strings) of a snapshot.

    Raises:
        UnavailableError: the file is not from the plugin, has another version, or is incomplete.
    """
    header = _header(data, SNAPSHOT)
    if header is None:
        raise UnavailableError(
            str(path), "is not a queue table of this version", "rebuild the plugin and restart slurmctld"
        )
    count, start = int(header["count"]), int(header["heap_offset"])
    entries_end, heap_end = HEADER.itemsize + count * ENTRY.itemsize, start + int(header["heap_bytes"])
    if not (entries_end <= start <= heap_end <= len(data)):
        raise UnavailableError(str(path), "is torn")
    if _sum(data[:entries_end], HEADER.fields["checksum"][1]) != int(header["checksum"]):  # type: ignore[index]
        raise UnavailableError(str(path), "is torn: its checksum is wrong")
    entries = np.frombuffer(data, ENTRY, count, HEADER.itemsize)
    heap = data[start:heap_end]
    if not _sound(entries, len(heap)):
        raise UnavailableError(str(path), "is torn: a string lies outside the heap")
    return header, entries, heap


def _sound(entries: Entries, heap_bytes: int) -> bool:
    """Return whether the strings of a queue table file lie inside the file's string area (heap).

    slurmctld's plugin writes the file. Each entry refers to its strings by offset and length. All strings
    together must also fit into the heap.
    """
    lengths = entries["lengths"].sum(axis=1, dtype=np.uint64)
    offsets = entries["heap_offset"]
    inside = (offsets <= heap_bytes) & (lengths <= heap_bytes - np.minimum(offsets, heap_bytes))
    return bool(np.all(inside)) and int(lengths.sum()) <= heap_bytes


def _sum(data: bytes, offset: int) -> int:
    """Return the checksum of the 64-bit words in `data`, without the stored checksum itself.

    The stored checksum is the word at byte `offset`. It is treated as 0.
    """
    words = np.frombuffer(data, "<u8").copy()
    words[offset // 8] = 0
    return checksum(words)


def _journal(path: Path) -> dict[str, Any] | None:
    """Return the generation number and the bytes of the journal of queue changes.

    The plugin of slurmctld writes the journal. The result is None if there is no usable journal.
    """
    try:
        data = _contents(path, _LONGEST_JOURNAL_BYTES)
    except UnavailableError:
        return None
    header = _header(data, JOURNAL)
    return None if header is None else {"generation": header["generation"], "data": data}


def _records(data: bytes, before: _Read) -> _Read:
    """Parse the journal up to the first incomplete record.

    Args:
        data: contents of the journal.
        before: result of the previous call. If `data` begins with the bytes that were parsed in the previous
            call, only the rest of `data` is parsed.
    """
    if not data.startswith(before.data):
        before = _Read()
    at, strings_bytes = max(HEADER.itemsize, len(before.data)), len(before.strings)
    parsed, strings = [before.entries], [before.strings]
    overhead = RECORD.itemsize + ENTRY.itemsize
    while at + overhead <= len(data):
        size = int.from_bytes(data[at : at + 4], "little")
        if size < overhead or size % 8 or at + size > len(data):
            break
        record = data[at : at + size]
        if _sum(record, RECORD.fields["checksum"][1]) != int.from_bytes(record[8:16], "little"):  # type: ignore[index]
            break
        entry = np.frombuffer(record, ENTRY, 1, RECORD.itemsize).copy()
        if not _sound(entry, size - overhead):
            break
        entry["heap_offset"] += strings_bytes
        strings_bytes += size - overhead
        parsed.append(entry)
        strings.append(record[overhead:])
        at += size
    return _Read(data[:at], np.concatenate(parsed), b"".join(strings))


def _listed(entries: Entries, since: Entries) -> Entries:
    """Return the most recent entry of each pending or running job, ordered by job id.

    Args:
        entries: entries of the snapshot.
        since: entries of the journal, oldest first.
    """
    everything = np.concatenate([entries, since])[::-1]
    _, first = np.unique(everything["job_id"], return_index=True)
    chosen = everything[first]
    return chosen[chosen["state"] <= RUNNING]
