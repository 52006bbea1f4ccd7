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
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slurm_energy.profiling.place import Place

if TYPE_CHECKING:
    from slurm_energy.profiling.sections import Section

log = logging.getLogger("slurm_energy")

MOST_KEPT = 10_000
_MOST_WAITING = 256
_FLUSH_AFTER_S = 1.0


def line(section: Section, source: str, place: Place) -> dict[str, Any]:
    """Return a section as JSON-ready data; null: not known."""
    return {
        "section": section.name,
        "path": list(section.path),
        "start": section.start_unix,
        "seconds": section.seconds,
        "energy_joules": dict(section.energy_joules),
        "total_joules": section.total_joules,
        "mean_watts": section.mean_watts,
        "source": source,
        "age_s": section.age_s,
        "failed": section.failed,
        "job_id": place.job_id,
        "step": place.step,
        "node": place.node,
        "rank": place.rank,
        "pid": place.pid,
        "thread": threading.current_thread().name,
    }


class Recorder:
    """Keeps a process's lines and writes them a little later, so that sections do not wait for a disk.

    Args:
        place: the process.
        directory: where its file goes, made if absent; None keeps lines in memory only.
        eager: write every line at once, for forked processes, which mostly end without running atexit.
    """

    def __init__(self, place: Place, directory: Path | None, *, eager: bool = False) -> None:
        self._eager = eager
        self.place = place
        # Not where the program may go to later.
        self._path = None if directory is None else directory.absolute() / place.file_name
        self._kept: collections.deque[dict[str, Any]] = collections.deque(maxlen=MOST_KEPT)
        self._waiting: list[str] = []
        self._lock = threading.Lock()
        self._flushed_s = time.monotonic()
        atexit.register(self.flush)

    def add(self, section: Section, source: str) -> None:
        """Keep a section that is over."""
        found = line(section, source, self.place)
        self._kept.append(found)
        if self._path is None:
            return
        with self._lock:
            self._waiting.append(json.dumps(found))
            due = (
                self._eager
                or time.monotonic() - self._flushed_s > _FLUSH_AFTER_S
                or len(self._waiting) >= _MOST_WAITING
            )
        if due:
            self.flush()

    def lines(self) -> list[dict[str, Any]]:
        """Return the last `MOST_KEPT` lines."""
        return list(self._kept)

    def flush(self) -> None:
        """Append what waits to the file; a file that cannot be written is given up, with one warning."""
        with self._lock:
            waiting, self._waiting = self._waiting, []
            self._flushed_s = time.monotonic()
            if not waiting or self._path is None:
                return
            try:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
                descriptor = os.open(self._path, flags, 0o644)
                try:
                    os.write(descriptor, ("\n".join(waiting) + "\n").encode())
                finally:
                    os.close(descriptor)
            except OSError as error:
                log.warning("slurm_energy: sections are not written: %s: %s", self._path, error.strerror)
                self._path = None

    def abandon(self) -> None:
        """Forget everything, in a forked child: the lines are the parent's."""
        self._lock = threading.Lock()
        self._waiting, self._path = [], None
        with contextlib.suppress(Exception):
            atexit.unregister(self.flush)
