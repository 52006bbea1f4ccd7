"""Tests of the binary format of event files.

The reader returns every complete record, even if other parts of the file are damaged.
"""

import io
import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_energy.diagnosis import event_format
from slurm_energy.diagnosis.event_format import (
    COUNTER,
    HEADER_BYTES,
    INTERVAL,
    MARK,
    MAX_NAME_BYTES,
    MAX_NAMES,
    RECORD_BYTES,
    EventFileHeader,
    EventFormatError,
    decode_header,
    encode_header,
    encode_records,
    read_events,
    read_header,
    slot_ranges,
)

_HEADERS = st.builds(
    EventFileHeader,
    node=st.text("abcz019-.", max_size=255),
    pid=st.integers(0, 2**32 - 1),
    unix_offset_ns=st.integers(-(2**63), 2**63 - 1),
    job_id=st.none() | st.integers(0, 2**63 - 1),
    step=st.text("0123456789", max_size=31),
    rank=st.none() | st.integers(0, 2**31 - 1),
    gpu=st.text("gpu[]019", max_size=63),
    names=st.lists(st.text("abcdefgh_ .", max_size=MAX_NAME_BYTES), max_size=MAX_NAMES).map(tuple),
    capacity=st.integers(1, event_format.MAX_CAPACITY),
    written=st.integers(0, 2**64 - 1),
    lost=st.integers(0, 2**64 - 1),
)
_EVENTS = st.tuples(
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**64 - 1),
    st.just(0.0) | st.floats(allow_nan=False, allow_infinity=False),
    st.integers(0, 65535),
    st.integers(0, 65535),
    st.sampled_from([INTERVAL, MARK, COUNTER]),
)


def write(
    events: list[tuple[int, int, float, int, int, int]], capacity: int, told: int | None = None
) -> io.BytesIO:
    """Return an event file in memory.

    The events are written one after another. `told` is the number of written events that the header states;
    None means the true number.
    """
    header = EventFileHeader("n1", 7, 0, capacity=capacity, written=len(events) if told is None else told)
    stream = io.BytesIO(encode_header(header))
    for number, event in enumerate(events):
        stream.seek(HEADER_BYTES + number % capacity * RECORD_BYTES)
        stream.write(encode_records([event], number, capacity))
    return stream


@given(_HEADERS)
def test_header_survives(header: EventFileHeader) -> None:
    data = encode_header(header)
    assert len(data) == HEADER_BYTES
    assert decode_header(data) == header


@given(st.lists(_EVENTS, max_size=40), st.integers(1, 50))
def test_the_last_events_are_read_in_order(
    events: list[tuple[int, int, float, int, int, int]], capacity: int
) -> None:
    stream = write(events, capacity)
    header = read_header(stream)
    found = [event[:5] + event[6:] for event in read_events(stream, header)]
    assert header.written == len(events)
    assert found == events[-capacity:]


@given(st.lists(_EVENTS, min_size=1, max_size=40), st.integers(1, 50), st.integers(0, 40))
def test_events_after_the_last_header_are_read(
    events: list[tuple[int, int, float, int, int, int]], capacity: int, late: int
) -> None:
    """Records that a process wrote after its last update of the file header are read.

    A killed process can leave records that the header does not count yet, at most one full pass
    over the file's slots.
    """
    late = min(late, len(events), capacity)
    stream = write(events, capacity, told=len(events) - late)
    found = [event[:5] + event[6:] for event in read_events(stream, read_header(stream))]
    assert found == events[-capacity:]


@given(st.integers(0, RECORD_BYTES * 3))
def test_a_file_cut_anywhere_is_read_up_to_the_last_whole_record(cut: int) -> None:
    events = [(number, 1, 0.5, 0, 0, INTERVAL) for number in range(3)]
    content = write(events, 8).getvalue()
    stream = io.BytesIO(content[: HEADER_BYTES + cut])
    header = read_header(stream)
    assert [event.start_ns for event in read_events(stream, header)] == list(range(cut // RECORD_BYTES))
    assert header.written == cut // RECORD_BYTES


def test_records_lost_in_a_crash_of_the_node_are_left_out() -> None:
    stream = write([(number, 1, 0.5, 0, 0, INTERVAL) for number in range(5)], 8)
    stream.seek(HEADER_BYTES + 2 * RECORD_BYTES)
    stream.write(bytes(RECORD_BYTES))
    assert [event.start_ns for event in read_events(stream, read_header(stream))] == [0, 1, 3, 4]


@given(st.binary(max_size=200), st.integers(0, HEADER_BYTES))
def test_damaged_headers_are_refused_or_read(damage: bytes, offset: int) -> None:
    content = bytearray(write([(1, 1, 0.5, 0, 0, INTERVAL)], 8).getvalue())
    content[offset : offset + len(damage)] = damage
    stream = io.BytesIO(bytes(content))
    try:
        header = read_header(stream)
        events = list(read_events(stream, header))
    except EventFormatError:
        return
    assert len(events) <= header.capacity
    assert all(name.isprintable() for name in header.names)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "0 of 8192 bytes"),
        (b"{" * HEADER_BYTES, "does not begin"),
        (event_format.MAGIC + struct.pack("<H", 9) + bytes(HEADER_BYTES), "version 9"),
        (encode_header(EventFileHeader("n", 1, 0, capacity=0)), "capacity of 0"),
        (encode_header(EventFileHeader("n", 1, 0, capacity=2**27)), "out of range"),
    ],
)
def test_other_files_are_refused_with_a_reason(content: bytes, why: str) -> None:
    with pytest.raises(EventFormatError, match=why):
        read_header(io.BytesIO(content))


def test_impossible_records_are_left_out() -> None:
    stream = write([(1, 1, math.inf, 0, 0, INTERVAL), (2, 1, 0.0, 0, 0, 9), (3, 1, math.nan, 0, 0, MARK)], 8)
    assert [event.start_ns for event in read_events(stream, read_header(stream))] == [3]


def test_long_names_are_cut_between_characters() -> None:
    header = decode_header(encode_header(EventFileHeader("n", 1, 0, names=("ü" * 40, "a\nb"))))
    assert header.names == ("ü" * 31, "a?b")
    assert header.name_of(0) == "ü" * 31
    assert header.name_of(7) == "phase 7"


@given(st.integers(0, 10**6), st.integers(0, 200), st.integers(1, 300))
def test_slot_ranges_cover_all_records(first: int, count: int, capacity: int) -> None:
    slots = [slot + i for slot, length in slot_ranges(first, count, capacity) for i in range(length)]
    assert slots == [number % capacity for number in range(first, first + count)]
