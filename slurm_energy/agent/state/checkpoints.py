"""Checkpoints of running jobs and of the energy accounts, and records written to the spool."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from slurm_energy import atomic_file
from slurm_energy.agent.jobs.sessions import OPEN, Session
from slurm_energy.agent.metering.node_meter import NodeEnergyMeter
from slurm_energy.agent.state.spool import Spool
from slurm_energy.agent.state.state_directory import StateDirectory
from slurm_energy.log_once import RepeatedFailureLog
from slurm_energy.records import EnergyRecord

log = logging.getLogger(__name__)

_MAX_UNSYNCED_CHECKPOINTS = 6
"""Periodic checkpoints, one every 10 s, until one is synced to disk: a power failure loses a minute."""
_MAX_HELD_BYTES = 32_000_000
"""Maximum bytes of spooled files kept in memory for a rewrite while the disk fails."""


@dataclass(frozen=True, slots=True)
class UnsyncedFiles:
    """Files to sync to disk, and the jobs to forget once that has succeeded.

    Attributes:
        files: paths, with the contents of files that no later checkpoint would write again.
        recorded: jobs whose records are among the files, or were synced before.
    """

    files: dict[str, bytes | None]
    recorded: tuple[Session, ...]


class CheckpointWriter:
    """A writer of checkpoints and records; a failure is logged once, and the caller retries.

    Every checkpoint contains the energy accounts of the whole node. The latest checkpoint, in whichever job's
    file, therefore has the energy of all jobs up to one instant.

    Args:
        state: the state directory.
        spool: records for the controller.
        meter: the node's energy meter, whose state is written.
        running: returns the running jobs.
        on_written: called after each write that should be synced to disk or delivered; None: nothing.
    """

    def __init__(
        self,
        state: StateDirectory,
        spool: Spool,
        meter: NodeEnergyMeter,
        running: Callable[[], Iterable[Session]],
        on_written: Callable[[], None] | None = None,
    ) -> None:
        self._on_written = on_written
        self._state = state
        self._spool = spool
        self._meter = meter
        self._running = running
        self._unsynced: dict[str, bytes | None] = {}
        self._flushing: dict[str, bytes | None] = {}
        self._recorded: list[Session] = []
        self._unsynced_checkpoints = 0
        self._failures = RepeatedFailureLog(log)

    def save(self, session: Session) -> None:
        """Write a job's session and the energy accounts."""
        for old in [old for old in self._recorded if old.owner == session.owner and old is not session]:
            self._forget(old)  # both have the same file names
        self._write(lambda: self._unsynced.update({self._state.save(session, self._checkpoint()): None}))

    def save_accounts(self) -> bool:
        """Write the energy accounts; False if that failed."""
        return self._write(self._save_accounts)

    def save_periodically(self) -> None:
        """Write the energy accounts and grown traces; sync to disk only every few calls.

        The files survive a crash of the agent at once. A sync for every call would cost more than sampling.
        """
        self.save_traces(grown=True)
        self._write(self._save_accounts, report=False)
        self._unsynced_checkpoints += 1
        if self._unsynced_checkpoints >= _MAX_UNSYNCED_CHECKPOINTS:
            self.notify_written()

    def save_traces(self, *, grown: bool = False) -> None:
        """Write the traces of running jobs; with `grown` only traces that have grown enough."""
        for session in self._running():
            if session.trace is not None and (session.trace.has_grown or not grown):
                self._write(partial(self._state.save_trace, session), report=False)

    def spool_record(self, record: EnergyRecord, trace: dict[str, Any] | None = None) -> bool:
        """Store a record for delivery; False if that failed."""
        try:
            self._unsynced.update(self._spool.add(record, trace))
        except OSError as error:
            self._failures.report("spool", f"records not stored, will be retried: {error}", logging.ERROR)
            return False
        self._failures.clear("spool", "records can be stored again")
        self.notify_written()
        return True

    def remove_when_synced(self, sessions: Iterable[Session]) -> None:
        """Remove the files of jobs whose records are in the spool, once these records are on disk."""
        for session in sessions:
            self._recorded.append(session)
            if path := self._spool.path_of(session.record_id):
                self._unsynced.setdefault(path, None)
            self.notify_written()

    def unsynced(self) -> UnsyncedFiles:
        """Return all files not known to be on disk; call `synced` or `not_synced` afterwards."""
        self._flushing |= self._unsynced
        self._unsynced = {}
        self._unsynced_checkpoints = 0
        return UnsyncedFiles(dict(self._flushing), tuple(self._recorded))

    def flush(self) -> None:
        """Sync everything to disk now, as far as possible."""
        flush = self.unsynced()
        with contextlib.suppress(OSError):
            atomic_file.flush(flush.files)
            self.synced(flush)

    def synced(self, flush: UnsyncedFiles) -> None:
        """Remove the files of jobs whose records are on disk."""
        for path in flush.files:
            self._flushing.pop(path, None)
        for session in flush.recorded:
            if session in self._recorded:
                self._forget(session)

    def not_synced(self, flush: UnsyncedFiles) -> None:
        """Rewrite records that may be lost, and keep all files for the next attempt."""
        held = 0
        for path, data in flush.files.items():
            held += len(data or b"")
            if data is not None:
                self._flushing[path] = data if held <= _MAX_HELD_BYTES else None
                self._write(partial(self._spool.rewrite, path, data), report=False)

    def notify_written(self) -> None:
        """Call `on_written`."""
        if self._on_written is not None:
            self._on_written()

    def _forget(self, session: Session) -> None:
        self._recorded.remove(session)
        self._write(partial(self._state.forget, session), report=False)

    def _save_accounts(self) -> None:
        self._unsynced[self._state.save_accounts(self._checkpoint())] = None

    def _checkpoint(self) -> dict[str, Any]:
        return self._meter.checkpoint(s for s in self._running() if s.phase == OPEN)

    def _write(self, write: Callable[[], object], *, report: bool = True) -> bool:
        try:
            write()
        except OSError as error:
            self._failures.report("checkpoint", f"not written: {error}", logging.ERROR)
            return False
        self._failures.clear("checkpoint", "written again")
        if report:
            self.notify_written()
        return True
