"""Binary format of event files: each contains the timed phases of one process.

A file consists of a header of `HEADER_BYTES` and of at most `capacity` records of `RECORD_BYTES`. All
integers are little-endian. When the file is full, the next record replaces the oldest one: record number n is
stored in slot n modulo `capacity`. Each record contains its lap: the number of times, counted from 1, that
the writer has started at the first slot. A reader uses the laps to find the last complete record of a process
that was killed. Empty slots contain zeros.

Times are nanoseconds of CLOCK_MONOTONIC of the node. Times plus `unix_offset_ns` of the header are Unix
times. Records are approximately ordered by the end of their events: the phases of a step precede the step. A
wait for data is written at the end of its step. Events that the GPU has timed arrive a few steps late.
Readers validate the whole content, because the content comes from processes of users.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import BinaryIO, Final, NamedTuple

FILE_SUFFIX: Final = ".events"
MAGIC: Final = b"SNRGYEVT"
VERSION: Final = 1

INTERVAL: Final = 1
"""Kind of a record: an event with a duration."""
MARK: Final = 2
"""Kind of a record: an instant, for example an outlier; the duration is 0."""
COUNTER: Final = 3
"""Kind of a record: a value from this instant on; the duration is 0."""

GPU_THREAD: Final = 0xFFFF
"""Thread number of events that the GPU has timed. Thread 0 is the first thread that recorded an event."""

HEADER_BYTES: Final = 8192
MAX_NAMES: Final = 120
MAX_NAME_BYTES: Final = 63
DEFAULT_CAPACITY: Final = 1 << 20
"""Default of the maximum number of records in a file: 32 MiB."""
MAX_CAPACITY: Final = 1 << 26

RECORD: Final = struct.Struct("<QQdHHHH")
"""Start in ns, duration in ns, value (NaN: none), index of the name, thread, lap, kind."""
RECORD_BYTES: Final = RECORD.size

_FIXED: Final = struct.Struct("<8sHHIIQQqqiIH")
_TEXT_OFFSET, _NODE_BYTES, _GPU_BYTES, _STEP_BYTES = 64, 255, 63, 31
_NAMES_OFFSET: Final = 512
_NAME_SLOT_BYTES: Final = MAX_NAME_BYTES + 1
_READ_RECORDS: Final = 16384
_KINDS: Final = (INTERVAL, MARK, COUNTER)
_INFINITIES: Final = (math.inf, -math.inf)
_NO_NUMBER: Final = -1


class EventFormatError(ValueError):
    """Error: the data is not an event file, or has a format version that this release cannot read."""


@dataclass(frozen=True, slots=True)
class EventFileHeader:
    """Header of an event file.

    Attributes:
        node: Slurm's name of the node, or the host name.
        pid: process id.
        unix_offset_ns: Unix time minus CLOCK_MONOTONIC.
        job_id: Slurm's job id; None outside Slurm.
        step: Slurm's step; empty if unknown.
        rank: rank of the process; None if unknown.
        gpu: name of the process's GPU, for example `gpu[0]`; empty if the process has none, or if the GPU is
            unknown.
        names: names of the phases, in the order of their indexes. The writer adds names while the program
            runs.
        capacity: maximum number of records in the file.
        written: number of records written so far; a lower bound if the writer was killed.
        lost: number of events that the writer dropped because writing was too slow.
    """

    node: str
    pid: int
    unix_offset_ns: int
    job_id: int | None = None
    step: str = ""
    rank: int | None = None
    gpu: str = ""
    names: tuple[str, ...] = ()
    capacity: int = DEFAULT_CAPACITY
    written: int = 0
    lost: int = 0

    def name_of(self, index: int) -> str:
        """Return the name of the phase to which a record refers by an index.

        The result is `phase N` if the index N has no name.
        """
        return self.names[index] if 0 <= index < len(self.names) else f"phase {index}"


RawEvent = tuple[int, int, float, int, int, int, int]
"""Fields of an `Event` as a plain tuple. Readers of millions of events create tuples faster than objects."""


class Event(NamedTuple):
    """One record of an event file, with the fields of `RECORD`.

    Attributes:
        start_ns: start in ns of CLOCK_MONOTONIC.
        duration_ns: duration in ns; 0 for marks and counters.
        value: value of a counter, or number of samples of a training step; NaN means that the event has no
            value.
        phase: index of the phase's name in the header's `names`.
        thread: number of the thread; `GPU_THREAD` for events timed by the GPU.
        lap: number of passes of the writer through the file, counted from 1. When the file is full, the
            writer starts again at the first slot.
        kind: `INTERVAL`, `MARK` or `COUNTER`.
    """

    start_ns: int
    duration_ns: int
    value: float
    phase: int
    thread: int
    lap: int
    kind: int


def encode_header(header: EventFileHeader) -> bytes:
    """Return the `HEADER_BYTES` bytes of a header. Texts and names that are too long are cut."""
    data = bytearray(HEADER_BYTES)
    names = header.names[:MAX_NAMES]
    _FIXED.pack_into(
        data,
        0,
        MAGIC,
        VERSION,
        RECORD_BYTES,
        HEADER_BYTES,
        header.capacity,
        header.written,
        header.lost,
        header.unix_offset_ns,
        _NO_NUMBER if header.job_id is None else header.job_id,
        _NO_NUMBER if header.rank is None else header.rank,
        header.pid,
        len(names),
    )
    offset = _TEXT_OFFSET
    for text, size in ((header.node, _NODE_BYTES), (header.gpu, _GPU_BYTES), (header.step, _STEP_BYTES)):
        _put_text(data, offset, text, size)
        offset += size + 1
    for index, name in enumerate(names):
        _put_text(data, _NAMES_OFFSET + index * _NAME_SLOT_BYTES, name, MAX_NAME_BYTES)
    return bytes(data)


def decode_header(data: bytes) -> EventFileHeader:
    """Return the header at the start of the content of an event file.

    Args:
        data: at least the first `HEADER_BYTES` bytes of the file.

    Raises:
        EventFormatError: the data is too short, is not an event file, or has an unknown version.
    """
    if len(data) < HEADER_BYTES:
        raise EventFormatError(f"the header has {len(data)} of {HEADER_BYTES} bytes")
    fixed = _FIXED.unpack_from(data)
    (
        magic,
        version,
        record_bytes,
        header_bytes,
        capacity,
        written,
        lost,
        offset_ns,
        job_id,
        rank,
        pid,
        count,
    ) = fixed
    if magic != MAGIC:
        raise EventFormatError("the data does not begin like an event file")
    if (version, record_bytes, header_bytes) != (VERSION, RECORD_BYTES, HEADER_BYTES):
        raise EventFormatError(f"version {version} of the format is unknown; this release reads {VERSION}")
    if not 0 < capacity <= MAX_CAPACITY:
        raise EventFormatError(f"a capacity of {capacity} records is out of range")
    node_at, gpu_at = _TEXT_OFFSET, _TEXT_OFFSET + _NODE_BYTES + 1
    return EventFileHeader(
        node=_text(data, node_at, _NODE_BYTES),
        pid=pid,
        unix_offset_ns=offset_ns,
        job_id=None if job_id < 0 else job_id,
        step=_text(data, gpu_at + _GPU_BYTES + 1, _STEP_BYTES),
        rank=None if rank < 0 else rank,
        gpu=_text(data, gpu_at, _GPU_BYTES),
        names=tuple(
            _text(data, _NAMES_OFFSET + index * _NAME_SLOT_BYTES, MAX_NAME_BYTES)
            for index in range(min(count, MAX_NAMES))
        ),
        capacity=capacity,
        written=written,
        lost=lost,
    )


def lap_of(number: int, capacity: int) -> int:
    """Return the lap in which a record was written to the ring buffer.

    The lap counts how often the writer had begun at the first slot. It counts from 1 to 65535 and then
    starts at 1 again.

    Args:
        number: number of the record.
        capacity: number of slots.
    """
    return number // capacity % 0xFFFF + 1


def encode_records(
    events: Sequence[tuple[int, int, float, int, int, int]], first: int, capacity: int
) -> bytes:
    """Encode events as consecutive binary records of an event file.

    Args:
        events: for each event: start in ns, duration in ns, value, index of the phase name, number of the
            thread, and number of the kind of event.
        first: number of the first record.
        capacity: maximum number of records in the file.
    """
    data = bytearray(len(events) * RECORD_BYTES)
    pack = RECORD.pack_into
    for index, (start_ns, duration_ns, value, phase, thread, kind) in enumerate(events):
        lap = lap_of(first + index, capacity)
        pack(data, index * RECORD_BYTES, start_ns, duration_ns, value, phase, thread, lap, kind)
    return bytes(data)


def slot_ranges(first: int, count: int, capacity: int) -> list[tuple[int, int]]:
    """Return where `count` records of an event file are stored, starting with record `first`.

    The file is a ring buffer of `capacity` slots. The result is a list of ranges (first slot, number of
    slots).
    """
    ranges = []
    while count > 0:
        slot = first % capacity
        length = min(count, capacity - slot)
        ranges.append((slot, length))
        first, count = first + length, count - length
    return ranges


def read_header(stream: BinaryIO) -> EventFileHeader:
    """Return the header of an event file, with `written` set to the number of complete records in the file.

    Raises:
        EventFormatError: see `decode_header`.
        OSError: the file cannot be read.
    """
    stream.seek(0)
    header = decode_header(stream.read(HEADER_BYTES))
    written = _last_record(stream, header)
    return replace(header, written=written)


def read_events(
    stream: BinaryIO, header: EventFileHeader, max_records: int = MAX_CAPACITY
) -> Iterator[Event]:
    """Yield the records of an event file as `read_blocks` reads them, oldest first.

    Args:
        stream: the event file, opened for reading.
        header: header that `read_header` returned for this file.
        max_records: maximum number of records; the newest ones are read.

    Raises:
        OSError: the file cannot be read.
    """
    for block in read_blocks(stream, header, max_records):
        yield from map(Event._make, block)


def read_blocks(
    stream: BinaryIO, header: EventFileHeader, max_records: int = MAX_CAPACITY
) -> Iterator[list[RawEvent]]:
    """Yield lists of limited length with the records of an event file, oldest first.

    Three kinds of records are left out: records that are stored in the wrong place of the file, records of
    an unknown kind, and records with an impossible value. The file may grow while it is read.

    Args:
        stream: the event file, opened for reading.
        header: header that `read_header` returned for this file.
        max_records: maximum number of records; the newest ones are read.

    Raises:
        OSError: the file cannot be read.
    """
    capacity = header.capacity
    number = max(0, header.written - min(capacity, max_records))
    while number < header.written:
        slot = number % capacity
        count = min(_READ_RECORDS, header.written - number, capacity - slot)
        lap = lap_of(number, capacity)
        stream.seek(HEADER_BYTES + slot * RECORD_BYTES)
        data = stream.read(count * RECORD_BYTES)
        whole = len(data) // RECORD_BYTES
        yield [
            fields
            for fields in RECORD.iter_unpack(data[: whole * RECORD_BYTES])
            if fields[5] == lap and fields[6] in _KINDS and fields[2] not in _INFINITIES
        ]
        if whole < count:
            return
        number += count


def _last_record(stream: BinaryIO, header: EventFileHeader) -> int:
    """Return how many complete records were written to an event file.

    The header states this number, but the number is too small if the process that wrote the file was killed.
    The function therefore looks for complete records beyond the stated number.
    """
    size = stream.seek(0, 2)
    slots = min(header.capacity, max(0, size - HEADER_BYTES) // RECORD_BYTES)
    written = header.written if slots == header.capacity else min(header.written, slots)
    limit = written + header.capacity
    while written < limit:
        slot = written % header.capacity
        stream.seek(HEADER_BYTES + slot * RECORD_BYTES)
        data = stream.read(min(_READ_RECORDS, header.capacity - slot) * RECORD_BYTES)
        lap, start = lap_of(written, header.capacity), written
        for fields in RECORD.iter_unpack(data[: len(data) // RECORD_BYTES * RECORD_BYTES]):
            if fields[5] != lap or not fields[6]:
                return written
            written += 1
        if written == start:
            break
    return written


def _put_text(data: bytearray, offset: int, text: str, size: int) -> None:
    """Write a text as one length byte and UTF-8. A text that is too long is cut between characters."""
    content = text.encode(errors="replace")
    if len(content) > size:
        content = content[:size].decode(errors="ignore").encode()
    data[offset] = len(content)
    data[offset + 1 : offset + 1 + len(content)] = content


def _text(data: bytes, offset: int, size: int) -> str:
    """Return a text without unprintable characters.

    The text is not trusted, because processes of users write the file.
    """
    length = min(data[offset], size)
    text = data[offset + 1 : offset + 1 + length].decode(errors="replace")
    return "".join(character if character.isprintable() else "?" for character in text)
