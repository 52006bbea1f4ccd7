"""Readers of the files from which a timeline is built: event files and profiler traces.

A manager or root may read files of another user. Therefore all files are opened by `user_files`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import BinaryIO, Final

from slurm_energy.diagnosis.event_format import (
    FILE_SUFFIX,
    MAGIC,
    EventFileHeader,
    EventFormatError,
    read_events,
    read_header,
)
from slurm_energy.diagnosis.timeline.chrome_import import ProfileHead, read_head
from slurm_energy.diagnosis.timeline.chrome_scanner import (
    ScannedEvent,
    ScannedValue,
    TraceFileError,
    decompressed,
    scan,
)
from slurm_energy.diagnosis.timeline.window import MAX_UNIX_S, NANOSECONDS
from slurm_energy.errors import EnergyError, NotFoundError, UsageError
from slurm_energy.profiling.user_files import list_directory, open_regular

PROFILE_SUFFIXES: Final = (".json", ".json.gz")
MAX_FILES: Final = 65_536
_PIECE_BYTES: Final = 1 << 18
_EXAMINED_RECORDS: Final = 256
"""Number of records examined at each end of an event file: the oldest for the start, the newest for the end.

Records are only approximately in the order of their ends: events that the GPU has timed arrive late.
"""


@dataclass(frozen=True, slots=True)
class EventInput:
    """An event file.

    Attributes:
        path: path of the file.
        header: header of the file.
        start_ns: start of the oldest record, Unix nanoseconds; None means that there are no records.
        end_ns: latest end of the newest records; None means that there are no records.
    """

    path: Path
    header: EventFileHeader
    start_ns: int | None
    end_ns: int | None


@dataclass(frozen=True, slots=True)
class ProfileInput:
    """A Chrome trace of a profiler.

    Attributes:
        path: path of the file.
        head: facts about the trace, such as its clock.
        file_bytes: size of the file.
    """

    path: Path
    head: ProfileHead
    file_bytes: int


@dataclass(frozen=True, slots=True)
class SkippedFile:
    """A file that was left out of the timeline, with the reason."""

    path: Path
    reason: str


TimelineInput = EventInput | ProfileInput | SkippedFile


def find_inputs(path: Path, *, whole: bool = False) -> Iterator[TimelineInput]:
    """Yield the input files for a timeline (event files and profiler traces) that a path names.

    A path names one file, or a directory whose files are yielded in the order of their names. In a
    directory, files that cannot be read and timelines that were written before are skipped with a reason,
    and files with other suffixes are ignored.

    Args:
        path: file or directory.
        whole: examine profiler traces up to their end, so that their duration is known.

    Raises:
        EnergyError: the path does not exist, cannot be read, or names a file that is no event file and no
            profiler trace.
    """
    with _named(path):
        names = list_directory(path)
        if names is None:
            yield _examined(path, open_regular(path), whole)
            return
    names = sorted(name for name in names if name.endswith((FILE_SUFFIX, *PROFILE_SUFFIXES)))
    if len(names) > MAX_FILES:
        raise UsageError(str(path), f"it contains {len(names)} files, at most {MAX_FILES} are read")
    for name in names:
        try:
            with _named(path / name):
                source = _examined(path / name, open_regular(path / name), whole, in_directory=True)
        except EnergyError as error:
            yield SkippedFile(
                path / name, ": ".join(text for text in (error.why, error.todo) if text) or error.what
            )
            continue
        if isinstance(source, ProfileInput) and source.head.is_timeline:
            source = SkippedFile(path / name, "senergy timeline has written it")
        yield source


def open_events(source: EventInput) -> contextlib.AbstractContextManager[BinaryIO]:
    """Open an event file again.

    Raises:
        EnergyError: the file cannot be read any more.
    """
    with _named(source.path):
        return open_regular(source.path)


@contextlib.contextmanager
def open_profile(source: ProfileInput) -> Iterator[tuple[BinaryIO, Iterator[ScannedEvent | ScannedValue]]]:
    """Open a profiler trace again, and yield the file and the contents of the trace.

    The contents are the events and other values of the trace in file order. The current position
    in the file shows how much of the file has been read.

    Raises:
        EnergyError: the file cannot be read any more.
    """
    with _named(source.path), open_regular(source.path) as file:
        yield file, _scanned(file)


def _bounds(file: BinaryIO, header: EventFileHeader) -> tuple[int | None, int | None]:
    """Return the earliest start of the oldest records and the latest end of the newest records.

    A newest record that would end after `MAX_UNIX_S` is damaged. It does not count for the latest end.
    """
    starts = [event.start_ns for event in islice(read_events(file, header), _EXAMINED_RECORDS)]
    ends = [
        end_ns
        for event in read_events(file, header, _EXAMINED_RECORDS)
        if (end_ns := event.start_ns + event.duration_ns + header.unix_offset_ns) <= MAX_UNIX_S * NANOSECONDS
    ]
    return (min(starts) + header.unix_offset_ns, max(ends)) if starts and ends else (None, None)


def _scanned(file: BinaryIO) -> Iterator[ScannedEvent | ScannedValue]:
    return scan(decompressed(iter(lambda: file.read(_PIECE_BYTES), b"")))


def _examined(path: Path, file: BinaryIO, whole: bool, *, in_directory: bool = False) -> TimelineInput:
    """Examine a file and return it as an input, according to its content.

    Raises:
        UsageError: the file is neither an event file nor a Chrome trace.
    """
    with file:
        is_event_file = file.read(len(MAGIC)) == MAGIC
        file.seek(0)
        try:
            if is_event_file:
                header = read_header(file)
                return EventInput(path, header, *_bounds(file, header))
            head = read_head(_scanned(file), to_the_end=whole, skips_timelines=in_directory)
        except EventFormatError as error:
            raise UsageError(str(path), f"unreadable event file: {error}") from None
        except TraceFileError as error:
            raise UsageError(str(path), f"neither an event file nor a Chrome trace: {error}") from None
        return ProfileInput(path, head, os.fstat(file.fileno()).st_size)


@contextlib.contextmanager
def _named(path: Path) -> Iterator[None]:
    """Convert errors of the operating system into errors that name the path."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NotFoundError(str(path), error.strerror or "it does not exist") from None
    except OSError as error:
        raise EnergyError(str(path), error.strerror or str(error)) from None
