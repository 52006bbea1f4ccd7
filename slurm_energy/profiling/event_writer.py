"""Writer of the event file of this process.

The file contains the phases of the program, such as the forward pass, of the last hours before now. A
thread writes the events in the background every two seconds, so that a slow file system does not
delay the program. The file has a fixed maximum size; the newest events replace the oldest ones. If
writing fails, one warning is logged and the file is closed.
"""

from __future__ import annotations

import collections
import logging
import os
import stat
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from slurm_energy.diagnosis.event_format import (
    DEFAULT_CAPACITY,
    FILE_SUFFIX,
    GPU_THREAD,
    HEADER_BYTES,
    INTERVAL,
    MAX_CAPACITY,
    MAX_NAMES,
    RECORD_BYTES,
    EventFileHeader,
    encode_header,
    encode_records,
    slot_ranges,
)
from slurm_energy.profiling.process_identity import ProcessIdentity
from slurm_energy.profiling.step_statistics import GPU, OTHER_PHASE, TimedPhase

log = logging.getLogger("slurm_energy")

EVENTS_DIRECTORY_KEY: Final = "SENERGY_EVENTS_DIR"
EVENTS_SIZE_KEY: Final = "SENERGY_EVENTS_MIB"
_PERIOD_S: Final = 2.0
_CLOSE_TIMEOUT_S: Final = 2.0
_MAX_WAITING: Final = 1 << 18
"""Maximum number of events in memory. Further events are lost, and their number is stored in the header."""
_MAX_FILES: Final = 100
_Event = tuple[int, int, float, int, int, int]


def event_capacity(environment: Mapping[str, str] = os.environ) -> int:
    """Return the maximum number of events in a file, from the environment variable SENERGY_EVENTS_MIB."""
    text = environment.get(EVENTS_SIZE_KEY, "")
    if not text:
        return DEFAULT_CAPACITY
    largest = MAX_CAPACITY * RECORD_BYTES >> 20
    if not (text.isascii() and text.isdecimal() and 0 < int(text[:6]) <= largest):
        log.warning("slurm_energy: %s=%.20s is not 1 to %d; using 32", EVENTS_SIZE_KEY, text, largest)
        return DEFAULT_CAPACITY
    return (int(text) << 20) // RECORD_BYTES


class EventWriter:
    """Writer of the event file of one process.

    Args:
        process: identity of the process.
        directory: directory of the file, created if absent.
        unix_offset_ns: Unix time minus CLOCK_MONOTONIC.
        collect: function that is called before each write in the background and passes the finished phases to
            `add`.
        capacity: maximum number of events in the file.
    """

    def __init__(
        self,
        process: ProcessIdentity,
        directory: Path,
        unix_offset_ns: int,
        collect: Callable[[], None],
        capacity: int = DEFAULT_CAPACITY,
    ) -> None:
        # An absolute path, because the program may change its working directory.
        self._path = directory.absolute() / (process.file_name.removesuffix(".jsonl") + FILE_SUFFIX)
        self._collect = collect
        self._header = EventFileHeader(
            process.node,
            process.pid,
            unix_offset_ns,
            process.job_id,
            process.step or "",
            process.rank,
            capacity=capacity,
        )
        # The program's thread and the writing thread change different attributes.
        self._written = 0
        self._lost = 0
        self._place: tuple[int | None, str] = (process.rank, "")
        self._names: dict[str, int] = {}
        self._threads: dict[int, int] = {GPU: GPU_THREAD}
        self._waiting: collections.deque[_Event] = collections.deque()
        self._descriptor: int | None = None
        self._file: tuple[int, int] | None = None
        self._failed = False
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    @property
    def path(self) -> Path:
        """Path of the event file."""
        return self._path

    def start(self) -> None:
        """Start the background thread that writes the events.

        Raises:
            RuntimeError: no thread can be started.
        """
        self._thread = threading.Thread(target=self._run, name="slurm_energy events", daemon=True)
        self._thread.start()

    def add(self, phase: TimedPhase) -> None:
        """Add an event, which the next write stores in the file."""
        if self._failed:
            return
        if len(self._waiting) >= _MAX_WAITING:
            self._lost += 1
            return
        name = self._names.get(phase.name)
        if name is None:
            name = self._name(phase.name)
        thread = self._threads.get(phase.thread)
        if thread is None:
            thread = self._threads[phase.thread] = min(len(self._threads) - 1, GPU_THREAD - 1)
        duration_ns = max(0, phase.end_ns - phase.start_ns)
        self._waiting.append((max(0, phase.start_ns), duration_ns, phase.value, name, thread, INTERVAL))

    def place(self, rank: int | None, gpu: int | None) -> None:
        """Set the rank and the GPU of the process, which may be unknown until the program has started."""
        self._place = (rank, "" if gpu is None else f"gpu[{gpu}]")

    def close(self) -> None:
        """Write the last events and close the file. Wait for at most two seconds."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(_CLOSE_TIMEOUT_S)
        elif not self._failed:
            self.write()

    def abandon(self) -> None:
        """Close the inherited file in a forked child. The parent process continues to write the file."""
        self._failed = True
        if self._descriptor is not None and self._is_own_file(self._descriptor):
            os.close(self._descriptor)
        self._descriptor = None

    def write(self) -> None:
        """Write the waiting events now. After a failure, log a warning and stop writing for good."""
        with self._lock:
            if self._failed or (not self._waiting and self._descriptor is not None):
                return
            try:
                self._write_events()
            except (OSError, ValueError) as error:
                self._failed = True
                self._waiting.clear()
                reason = getattr(error, "strerror", None) or error
                log.warning("slurm_energy: events are not written: %s: %s", self._path, reason)

    def _run(self) -> None:
        stopped = False
        while not stopped and not self._failed:
            stopped = self._stop.wait(_PERIOD_S)
            self._collect()
            self.write()

    def _name(self, name: str) -> int:
        """Return the index of a name, and add the name if it is new.

        If the table of names is full, return the index of `other`.
        """
        if len(self._names) >= MAX_NAMES - 1 and name != OTHER_PHASE:
            return self._names.get(OTHER_PHASE) or self._name(OTHER_PHASE)
        index = self._names[name] = len(self._names)
        return index

    def _write_events(self) -> None:
        if self._descriptor is None:
            self._descriptor = self._open()
            status = os.fstat(self._descriptor)
            self._file = (status.st_dev, status.st_ino)
        elif not self._is_own_file(self._descriptor):
            # A program that closes all descriptors may have got this number for another file.
            self._descriptor = None
            raise ValueError("the program closed the file")
        events = [self._waiting.popleft() for _ in range(len(self._waiting))]
        # Names first: a killed process leaves no record whose name is missing.
        self._write_header(self._descriptor)
        capacity, offset = self._header.capacity, 0
        for slot, count in slot_ranges(self._written, len(events), capacity):
            part = encode_records(events[offset : offset + count], self._written + offset, capacity)
            _write_all(self._descriptor, part, HEADER_BYTES + slot * RECORD_BYTES)
            offset += count
        self._written += len(events)
        if events:
            self._write_header(self._descriptor)

    def _write_header(self, descriptor: int) -> None:
        rank, gpu = self._place
        header = replace(
            self._header,
            rank=rank,
            gpu=gpu,
            names=tuple(self._names),
            written=self._written,
            lost=self._lost,
        )
        _write_all(descriptor, encode_header(header), 0)

    def _open(self) -> int:
        """Create the file. Use another name if a process with the same process id left a file."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        stem = self._path.name.removesuffix(FILE_SUFFIX)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        for number in range(1, _MAX_FILES):
            try:
                return os.open(self._path, flags, 0o644)
            except FileExistsError:
                self._path = self._path.with_name(f"{stem}-{number}{FILE_SUFFIX}")
        raise ValueError("too many files of this name exist")

    def _is_own_file(self, descriptor: int) -> bool:
        try:
            status = os.fstat(descriptor)
        except OSError:
            return False
        return stat.S_ISREG(status.st_mode) and (status.st_dev, status.st_ino) == self._file


def _write_all(descriptor: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        count = os.pwrite(descriptor, view, offset)
        view, offset = view[count:], offset + count
