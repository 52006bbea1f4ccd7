"""Recorder of the sections (measured parts) of a program that have ended.

Each process has one file, and each section becomes one line of JSON in it.
"""

from __future__ import annotations

import atexit
import collections
import contextlib
import json
import logging
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slurm_energy.profiling.process_identity import ProcessIdentity
from slurm_energy.profiling.section import Section

log = logging.getLogger("slurm_energy")

MAX_LINES = 10_000
_MAX_WAITING = 256
_FLUSH_AFTER_S = 1.0


@dataclass(frozen=True, slots=True)
class _FinishedSection:
    """A finished section whose energy has not been read yet.

    Attributes:
        section: finished section of the program.
        source: name of the energy reader that measured the section.
        thread: name of the thread that ran the section.
    """

    section: Section
    source: str
    thread: str


def _line(finished: _FinishedSection, process: ProcessIdentity) -> dict[str, Any]:
    """Return the result of a finished code section, with its energy, as a dict for JSON.

    Unknown values are None. The function waits for the agent's responses, which contain the energy of the
    section.
    """
    section = finished.section
    return {
        "section": section.name,
        "path": list(section.path),
        "start": section.start_unix,
        "seconds": section.seconds,
        "energy_joules": dict(section.energy_joules),
        "total_joules": section.total_joules,
        "mean_watts": section.mean_watts,
        "source": finished.source,
        "age_s": section.age_s,
        "failed": section.failed,
        "job_id": process.job_id,
        "step": process.step,
        "node": process.node,
        "rank": process.rank,
        "pid": process.pid,
        "thread": finished.thread,
    }


class SectionRecorder:
    """Recorder of the finished sections of a process.

    The sections are written with a delay, so that the program does not wait for a disk.

    Args:
        process: identity of the process.
        directory: directory of the file, created if absent; None means to keep the sections in memory only.
        eager: write each section at once. Forked processes require this setting, because most of them exit
            without running atexit functions.
    """

    def __init__(self, process: ProcessIdentity, directory: Path | None, *, eager: bool = False) -> None:
        self._eager = eager
        self.process = process
        # An absolute path, because the program may change its working directory.
        self._path = None if directory is None else directory.absolute() / process.file_name
        self._finished: collections.deque[_FinishedSection] = collections.deque()
        self._lines: collections.deque[dict[str, Any]] = collections.deque(maxlen=MAX_LINES)
        self._lock = threading.Lock()
        self._flushed_s = time.monotonic()
        atexit.register(self.flush)

    def add(self, section: Section, source: str) -> None:
        """Add a finished section without waiting for the section's energy.

        The agent may not have sent the energy yet.

        Args:
            section: finished section of the program.
            source: name of the energy reader that measured the section.
        """
        self._finished.append(_FinishedSection(section, source, threading.current_thread().name))
        if self._eager:
            self.flush()
        elif time.monotonic() - self._flushed_s > _FLUSH_AFTER_S or len(self._finished) > _MAX_WAITING:
            self._flush(leave=1)

    def lines(self) -> list[dict[str, Any]]:
        """Return the last `MAX_LINES` measured sections of the program as dicts.

        Before that, write the sections that are not in the file yet.
        """
        self.flush()
        return list(self._lines)

    def flush(self) -> None:
        """Append the finished sections to the file.

        If writing fails, log a warning and stop writing for good.
        """
        self._flush(leave=0)

    def _flush(self, leave: int) -> None:
        """Write the finished sections to the file, but keep the last `leave` of them for a later call.

        The energy of the last sections may still be missing, because the agent has not sent it yet.
        """
        with self._lock:
            self._flushed_s = time.monotonic()
            count = max(0, len(self._finished) - leave)
            lines = [_line(self._finished.popleft(), self.process) for _ in range(count)]
            self._lines.extend(lines)
            if lines and self._path is not None:
                self._write(self._path, "".join(json.dumps(entry) + "\n" for entry in lines))

    def _write(self, path: Path, text: str) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
            descriptor = os.open(path, flags, 0o644)
            try:
                os.write(descriptor, text.encode())
            finally:
                os.close(descriptor)
        except OSError as error:
            log.warning("slurm_energy: sections are not written: %s: %s", path, error.strerror)
            self._path = None

    def abandon(self) -> None:
        """Forget all measured sections in a forked child process.

        The parent process records these sections.
        """
        self._lock = threading.Lock()
        self._path = None
        self._finished.clear()
        with contextlib.suppress(Exception):
            atexit.unregister(self.flush)
