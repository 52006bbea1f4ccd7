"""Checkpoints of the agent's running jobs and of the energy ledger.

The ledger contains the energy that was charged to the jobs of the node. The module also writes energy
records to the spool, from which they are sent to the controller.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from slurm_energy import atomic_file
from slurm_energy.agent.jobs.sessions import CLOSING, OPEN, Session
from slurm_energy.agent.metering.node_meter import NodeEnergyMeter
from slurm_energy.agent.state.spool import Spool
from slurm_energy.agent.state.state_directory import StateDirectory
from slurm_energy.log_once import RepeatedFailureLog
from slurm_energy.records import EnergyRecord

log = logging.getLogger(__name__)

_MAX_UNSYNCED_CHECKPOINTS = 6
"""Number of periodic checkpoints (one each 10 s) per sync to disk. A power failure loses a minute."""
_MAX_HELD_BYTES = 32_000_000
"""Maximum bytes of spooled files kept in memory for a rewrite while the disk fails."""


@dataclass(frozen=True, slots=True)
class UnsyncedFiles:
    """Files to sync to disk, and the jobs to remove once the sync has succeeded.

    Attributes:
        files: contents by path. None stands for contents that a later checkpoint will write again.
        recorded: ended jobs whose records are among `files` or are already synced.
    """

    files: dict[str, bytes | None]
    recorded: tuple[Session, ...]


class CheckpointWriter:
    """Writer of checkpoints and energy records.

    A repeated failure is logged once. The caller retries a failed write.

    Every checkpoint contains the energy ledger of the whole node, although a session file belongs to one job.
    The latest checkpoint therefore has the energy of all jobs up to one instant.

    Args:
        state: the state directory.
        spools: records and periods that the controller does not have yet.
        meter: the node's energy meter, whose state is written.
        running: returns the sessions of the running jobs.
        on_written: function that is called after each write whose file should be synced to disk or whose
            record should be delivered; None if no function is to be called.
    """

    def __init__(
        self,
        state: StateDirectory,
        spools: tuple[Spool, Spool],
        meter: NodeEnergyMeter,
        running: Callable[[], Iterable[Session]],
        on_written: Callable[[], None] | None = None,
    ) -> None:
        self._on_written = on_written
        self._state = state
        self._spool, self._period_spool = spools
        self._meter = meter
        self._running = running
        self._unsynced: dict[str, bytes | None] = {}
        self._flushing: dict[str, bytes | None] = {}
        self._recorded: list[Session] = []
        self._deferred: dict[str, Session] = {}
        self._saved: dict[str, Session] = {}
        """The session in each job's files. A job that begins again under the same name reuses them."""
        self._unsynced_checkpoints = 0
        self._failures = RepeatedFailureLog(log)

    def save(self, session: Session) -> None:
        """Write the agent's state of a job (session) to disk, with all energy charged on the node so far."""
        for old in [old for old in self._recorded if old.owner == session.owner and old is not session]:
            self._forget(old)  # both have the same file names
        if self._write(partial(self._save_session, session)):
            self._deferred.pop(session.owner, None)

    def save_later(self, session: Session) -> None:
        """Schedule the writing of a job's session (saved state of the job).

        The next call of `unsynced` writes the session, unless the job ends before this call. Use this method
        only if a crash before that call would lose no data, for example because the record of a step is
        already stored.
        """
        self._deferred[session.owner] = session
        self.notify_written()

    def save_accounts(self) -> bool:
        """Write the energy that was charged on the node so far (energy ledger) to disk.

        Return whether the write succeeded.
        """
        return self._write(self._save_accounts)

    def save_all(self) -> None:
        """Write the state of the agent to disk: traces, observations, energy accounts and closed periods."""
        self.save_traces()
        self.save_accounts()
        self.spool_periods()

    def save_periodically(self) -> None:
        """Write the energy that was charged so far, and the traces and observations that have grown.

        Only every sixth call also requests a sync to disk.

        Without a sync the files survive a crash of the agent, but not of the machine. A sync in every call
        would cost more than sampling.
        """
        self.save_traces(grown=True)
        self._write(self._save_accounts, report=False)
        self.spool_periods()
        self._unsynced_checkpoints += 1
        if self._unsynced_checkpoints >= _MAX_UNSYNCED_CHECKPOINTS:
            self.notify_written()

    def save_traces(self, *, grown: bool = False) -> None:
        """Write the power traces, recorded signals and reported steps of the running jobs.

        Args:
            grown: whether to write only data that grew much since their last write, see
                `TraceBuilder.has_grown` and `SignalRecording.has_grown`.
        """
        for session in self._running():
            if session.trace is not None and (session.trace.has_grown or not grown):
                self._write(partial(self._state.save_trace, session), report=False)
            self._write(partial(self._state.save_observation, session, grown=grown), report=False)

    def spool_record(
        self,
        record: EnergyRecord,
        trace: dict[str, Any] | None = None,
        observation: dict[str, Any] | None = None,
    ) -> bool:
        """Store an energy record in the spool. Return whether the record was stored.

        Args:
            record: the record.
            trace: the power trace in the format of docs/reference/protocol.md; None if the job has no
                trace.
            observation: signals and steps in the format of docs/reference/protocol.md; None if nothing
                was observed.
        """
        try:
            self._unsynced.update(self._spool.add(record, trace, observation))
        except OSError as error:
            self._failures.report("spool", f"records not stored, will be retried: {error}", logging.ERROR)
            return False
        self._failures.clear("spool", "records can be stored again")
        self.notify_written()
        return True

    def spool_periods(self) -> None:
        """Move the closed periods (usually hours) of the node from memory to their spool on disk.

        A checkpoint contains a closed period before the spool does. After a crash in between, the period is
        stored again with the same id.
        """
        closed = self._meter.periods.closed
        if not closed or not self.save_accounts():
            return
        for period in list(closed):
            try:
                self._unsynced.update(self._period_spool.add(period, None))
            except OSError as error:
                self._failures.report("period spool", f"not stored, will be retried: {error}", logging.ERROR)
                return
            closed.remove(period)
        self._failures.clear("period spool", "periods can be stored again")
        self.notify_written()

    def remove_when_synced(self, sessions: Iterable[Session]) -> None:
        """Schedule the removal of the stored states (session files) of jobs with records in the spool.

        The spool is the directory of records that wait for delivery. The files are removed once these records
        are synced to disk.
        """
        for session in sessions:
            self._recorded.append(session)
            if self._owns_files(session):
                self._deferred.pop(session.owner, None)
                for checkpoint in self._state.checkpoint_paths(session):
                    self._unsynced.pop(checkpoint, None)  # the record replaces these files
            if path := self._spool.path_of(session.record_id):
                self._unsynced.setdefault(path, None)
            self.notify_written()

    def unsynced(self) -> UnsyncedFiles:
        """Write the sessions passed to `save_later`. Return all files that may not be synced to disk yet.

        Call `synced` or `not_synced` after the attempt to sync these files.
        """
        for session in list(self._deferred.values()):
            if self._write(partial(self._save_session, session), report=False):
                del self._deferred[session.owner]
        self._flushing |= self._unsynced
        self._unsynced = {}
        self._unsynced_checkpoints = 0
        return UnsyncedFiles(dict(self._flushing), tuple(self._recorded))

    def flush(self) -> None:
        """Write all checkpoint files that are not on disk yet to the disk now; ignore errors."""
        flush = self.unsynced()
        with contextlib.suppress(OSError):
            atomic_file.flush(flush.files)
            self.synced(flush)

    def synced(self, flush: UnsyncedFiles) -> None:
        """Process the end of a flush to disk.

        A job whose record is on disk now needs no session file (saved state of a running job) any more. These
        session files are removed.

        Args:
            flush: the files that are on disk now, and the jobs whose records are among them.
        """
        for path in flush.files:
            self._flushing.pop(path, None)
        for session in flush.recorded:
            if session in self._recorded:
                self._forget(session)

    def not_synced(self, flush: UnsyncedFiles) -> None:
        """Write files again after a failed sync, because the sync may have lost their contents.

        All files stay in the list for the next sync.

        Args:
            flush: the files of the failed sync.
        """
        held = 0
        for path, data in flush.files.items():
            held += len(data or b"")
            if data is not None:
                self._flushing[path] = data if held <= _MAX_HELD_BYTES else None
                for spool in (self._spool, self._period_spool):
                    self._write(partial(spool.rewrite, path, data), report=False)

    def notify_written(self) -> None:
        """Call the function `on_written`, if there is one."""
        if self._on_written is not None:
            self._on_written()

    def _forget(self, session: Session) -> None:
        self._recorded.remove(session)
        if self._owns_files(session):
            self._saved.pop(session.owner, None)
            self._write(partial(self._state.forget, session), report=False)
        elif self._saved[session.owner].phase != CLOSING:
            _, ended = self._state.checkpoint_paths(session)  # it would replace the running job's file
            self._write(partial(atomic_file.remove, ended), report=False)

    def _owns_files(self, session: Session) -> bool:
        return self._saved.get(session.owner, session) is session

    def _save_session(self, session: Session) -> None:
        self._unsynced[self._state.save(session, self._checkpoint())] = None
        self._saved[session.owner] = session

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
