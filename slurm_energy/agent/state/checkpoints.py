"""What the agent writes down: checkpoints of its jobs and of the node's books, records into the spool."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from slurm_energy import atomic_file
from slurm_energy.agent.jobs.sessions import OPEN, Session
from slurm_energy.agent.metering.node_meter import Measuring
from slurm_energy.agent.state.spool import Spool
from slurm_energy.agent.state.state_directory import StateDir
from slurm_energy.log_once import Complaints
from slurm_energy.records import EnergyRecord

_MOST_UNFORCED = 6
"""Regular checkpoints, one in 10 s, of which the last is forced to disk: a power failure takes a minute."""
_MAX_HELD_BYTES = 32_000_000
"""Contents of spooled files kept for writing them again, while the disk fails."""


@dataclass(frozen=True, slots=True)
class Flush:
    """Files to force to disk, and the jobs to forget once that has succeeded.

    Attributes:
        files: paths, with the contents of those that nobody else would write again.
        recorded: jobs whose records are among the files, or were before.
    """

    files: dict[str, bytes | None]
    recorded: tuple[Session, ...]


class Keeper:
    """Writes; what fails is said once and tried again by whoever calls again.

    Every checkpoint holds the books of the whole node, so that the latest of them, whichever job's file it is
    in, tells all jobs' energy up to one instant.

    Args:
        state: the agent's directory.
        spool: records for the controller.
        measuring: what is kept.
        running: returns the jobs that run.

    Attributes:
        on_change: called after something was written that should be forced to disk, or delivered.
    """

    def __init__(
        self,
        state: StateDir,
        spool: Spool,
        measuring: Measuring,
        running: Callable[[], Iterable[Session]],
        on_change: Callable[[], None],
    ) -> None:
        self.on_change = on_change
        self._state = state
        self._spool = spool
        self._measuring = measuring
        self._running = running
        self._unsynced: dict[str, bytes | None] = {}
        self._flushing: dict[str, bytes | None] = {}
        self._recorded: list[Session] = []
        self._unforced = 0
        self._complaints = Complaints()

    def save(self, session: Session) -> None:
        """Write what changed for one job, and the node's books."""
        for old in [old for old in self._recorded if old.owner == session.owner and old is not session]:
            self._forget(old)  # its files have the same names
        self._write(lambda: self._unsynced.update({self._state.save(session, self._checkpoint()): None}))

    def save_books(self) -> bool:
        """Write the node's books; False if that failed."""
        return self._write(self._save_books)

    def save_regularly(self) -> None:
        """Write the node's books, and traces that have grown; force that to disk only now and then.

        It survives our death at once. To force it to disk each time would cost more than sampling does.
        """
        self.save_traces(grown=True)
        self._write(self._save_books, tell=False)
        self._unforced += 1
        if self._unforced >= _MOST_UNFORCED:
            self.on_change()

    def save_traces(self, *, grown: bool = False) -> None:
        """Write the traces of the jobs that run; with `grown` those that are worth writing again."""
        for session in self._running():
            if session.trace is not None and (session.trace.has_grown or not grown):
                self._write(partial(self._state.save_trace, session), tell=False)

    def spool(self, record: EnergyRecord, trace: dict[str, Any] | None = None) -> bool:
        """Store a record for delivery; False if that failed."""
        try:
            self._unsynced.update(self._spool.add(record, trace))
        except OSError as error:
            self._complaints.tell("spool", f"records not stored, will be tried again: {error}", logging.ERROR)
            return False
        self._complaints.settle("spool", "records can be stored again")
        self.on_change()
        return True

    def forget_when_synced(self, sessions: Iterable[Session]) -> None:
        """Remove what was written of jobs whose records are in the spool, once these are on disk."""
        for session in sessions:
            self._recorded.append(session)
            if path := self._spool.path_of(session.record_id):
                self._unsynced.setdefault(path, None)
            self.on_change()

    def unsynced(self) -> Flush:
        """Return everything that is not known to be on disk; `synced` or `not_synced` should follow."""
        self._flushing |= self._unsynced
        self._unsynced = {}
        self._unforced = 0
        return Flush(dict(self._flushing), tuple(self._recorded))

    def flush(self) -> None:
        """Force everything to disk now, as far as that is possible."""
        flush = self.unsynced()
        with contextlib.suppress(OSError):
            atomic_file.flush(flush.files)
            self.synced(flush)

    def synced(self, flush: Flush) -> None:
        """Forget the jobs whose records are on disk."""
        for path in flush.files:
            self._flushing.pop(path, None)
        for session in flush.recorded:
            if session in self._recorded:
                self._forget(session)

    def not_synced(self, flush: Flush) -> None:
        """Write records again that may be lost, and keep everything for the next attempt."""
        held = 0
        for path, data in flush.files.items():
            held += len(data or b"")
            if data is not None:
                self._flushing[path] = data if held <= _MAX_HELD_BYTES else None
                self._write(partial(self._spool.write_again, path, data), tell=False)

    def _forget(self, session: Session) -> None:
        self._recorded.remove(session)
        self._write(partial(self._state.forget, session), tell=False)

    def _save_books(self) -> None:
        self._unsynced[self._state.save_books(self._checkpoint())] = None

    def _checkpoint(self) -> dict[str, Any]:
        return self._measuring.checkpoint(s for s in self._running() if s.phase == OPEN)

    def _write(self, write: Callable[[], object], *, tell: bool = True) -> bool:
        try:
            write()
        except OSError as error:
            self._complaints.tell("checkpoint", f"not written: {error}", logging.ERROR)
            return False
        self._complaints.settle("checkpoint", "written again")
        if tell:
            self.on_change()
        return True
