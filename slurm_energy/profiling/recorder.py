"""One line of JSON per section, in a file per process. Files only; what a section is, is told elsewhere."""

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
_MOST_WAITING = 256
_FLUSH_AFTER_S = 1.0


@dataclass(frozen=True, slots=True)
class _Over:
    """A section that is over, whose joules were not looked at yet; source and thread that measured it."""

    section: Section
    source: str
    thread: str


def _line(over: _Over, place: ProcessIdentity) -> dict[str, Any]:
    """Return a section as JSON-ready data; null: not known. Waits for its joules."""
    section = over.section
    return {
        "section": section.name,
        "path": list(section.path),
        "start": section.start_unix,
        "seconds": section.seconds,
        "energy_joules": dict(section.energy_joules),
        "total_joules": section.total_joules,
        "mean_watts": section.mean_watts,
        "source": over.source,
        "age_s": section.age_s,
        "failed": section.failed,
        "job_id": place.job_id,
        "step": place.step,
        "node": place.node,
        "rank": place.rank,
        "pid": place.pid,
        "thread": over.thread,
    }


class SectionRecorder:
    """Keeps a process's lines and writes them a little later, so that sections do not wait for a disk.

    Args:
        place: the process.
        directory: where its file goes, made if absent; None keeps lines in memory only.
        eager: write every line at once, for forked processes, which mostly end without running atexit.
    """

    def __init__(self, place: ProcessIdentity, directory: Path | None, *, eager: bool = False) -> None:
        self._eager = eager
        self.place = place
        # Not where the program may go to later.
        self._path = None if directory is None else directory.absolute() / place.file_name
        self._over: collections.deque[_Over] = collections.deque()
        self._kept: collections.deque[dict[str, Any]] = collections.deque(maxlen=MAX_LINES)
        self._lock = threading.Lock()
        self._flushed_s = time.monotonic()
        atexit.register(self.flush)

    def add(self, section: Section, source: str) -> None:
        """Keep a section that is over. Its joules may still be on their way and are not waited for."""
        self._over.append(_Over(section, source, threading.current_thread().name))
        if self._eager:
            self.flush()
        elif time.monotonic() - self._flushed_s > _FLUSH_AFTER_S or len(self._over) > _MOST_WAITING:
            self._flush(leave=1)

    def lines(self) -> list[dict[str, Any]]:
        """Return the last `MAX_LINES` lines."""
        self.flush()
        return list(self._kept)

    def flush(self) -> None:
        """Append what waits to the file; a file that cannot be written is given up, with one warning."""
        self._flush(leave=0)

    def _flush(self, leave: int) -> None:
        """Write all but the last `leave` sections."""
        with self._lock:
            self._flushed_s = time.monotonic()
            count = max(0, len(self._over) - leave)
            found = [_line(self._over.popleft(), self.place) for _ in range(count)]
            self._kept.extend(found)
            if found and self._path is not None:
                self._write(self._path, "".join(json.dumps(entry) + "\n" for entry in found))

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
        """Forget everything, in a forked child: the lines are the parent's."""
        self._lock = threading.Lock()
        self._path = None
        self._over.clear()
        with contextlib.suppress(Exception):
            atexit.unregister(self.flush)
