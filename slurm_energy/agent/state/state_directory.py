"""The agent's state directory, from which a restarted agent continues its jobs.

The directory contains the lock, the settings journal, the energy ledger and the spool. For each
session (state of a job) it contains a file, and files with the power trace and the observation.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import logging
import os
import stat
from collections.abc import Container
from pathlib import Path
from typing import Any

from slurm_energy import atomic_file
from slurm_energy.agent.jobs.sessions import CLOSING, Session
from slurm_energy.agent.metering.trace import TraceBuilder
from slurm_energy.agent.signals.recording import SignalRecording
from slurm_energy.agent.signals.step_reports import StepReports
from slurm_energy.agent.state.checkpoint_encoding import encode
from slurm_energy.control.journal import SettingsJournal
from slurm_energy.errors import AlreadyRunningError, ConfigError, ForbiddenError, UnavailableError
from slurm_energy.known_fields import check_version
from slurm_energy.trusted_files import check_folder

log = logging.getLogger(__name__)

_VERSION = 1
_ACCOUNTS = "accounts.json"
_RUNS, _ENDED, _TRACE, _DAMAGED = ".json", ".ended", ".trace", ".damaged"
_SIGNALS, _STEPS = ".signals", ".steps"
_MAX_DAMAGED = 50
_MAX_FILE_BYTES = 256_000_000
_UNREADABLE = (OSError, ValueError, LookupError, TypeError, AttributeError, OverflowError)
"""Errors of a file that cannot be read, or that has a value of a wrong type."""


class StateDirectory:
    """The agent's state directory, locked for one process from construction to `close`.

    Args:
        folder: the directory; created if absent.

    Raises:
        UnavailableError: the directory cannot be created or used.
        ForbiddenError: other users could write to the directory.
        AlreadyRunningError: another senergyd has locked the directory.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            _refuse_foreign(folder)
            if stat.S_IMODE(folder.stat().st_mode) != 0o700:
                folder.chmod(0o700)
            self._sessions = folder / "sessions"
            self._sessions.mkdir(mode=0o700, exist_ok=True)
            self._lock = lock_file(folder / "lock")
            self.journal = SettingsJournal.load(folder / "journal.json")
        except OSError as error:
            raise UnavailableError(
                f"agent.state_dir {folder}",
                error.strerror or str(error),
                f"make it for uid {os.geteuid()}: install -d -m 700 {folder}",
            ) from None
        if self.journal.load_error:
            log.error("%s", self.journal.load_error)

    @property
    def spool_folder(self) -> Path:
        """Directory of undelivered energy records."""
        return self.folder / "spool"

    @property
    def period_folder(self) -> Path:
        """Directory of undelivered periods of the node's energy."""
        return self.folder / "periods"

    def save(self, session: Session, checkpoint: dict[str, Any]) -> str:
        """Write the agent's state of a job (session), together with all energy charged so far.

        The session of an ended job is written to another file than the session of a running job. On some file
        systems, a file that replaces another file is synced to disk at once. The epilog would wait for this
        sync.

        Returns:
            Path of the written file. The file is complete but not synced to disk: it survives a crash
            of the agent, but not of the machine.

        Raises:
            OSError: the file was not written; the previous file is unchanged.
        """
        cpu_ticks = {name: step.cpu_ticks for name, step in session.steps.items()}
        data = {"version": _VERSION, "checkpoint": checkpoint, "session": session.dump()}
        data["step_cpu_ticks"] = cpu_ticks
        path = self._path(session, _ENDED if session.phase == CLOSING else _RUNS)
        atomic_file.write(path, encode(data), sync=False)
        return path

    def save_accounts(self, checkpoint: dict[str, Any]) -> str:
        """Write a checkpoint of the node's energy accounts (energy ledger) to a separate file.

        Other checkpoints are in files that belong to a job.

        Returns:
            Path of the written file, which is complete but not synced to disk.

        Raises:
            OSError: the file was not written; the previous file is unchanged.
        """
        path = os.path.join(self.folder, _ACCOUNTS)
        atomic_file.write(path, encode({"version": _VERSION, "checkpoint": checkpoint}), sync=False)
        return path

    def load_accounts(self) -> dict[str, Any] | None:
        """Return the checkpoint that `save_accounts` wrote; None if it is absent or unreadable.

        Raises:
            NewerStateError: a newer release wrote the checkpoint.
        """
        path = os.path.join(self.folder, _ACCOUNTS)
        try:
            data = json.loads(atomic_file.read(path, _MAX_FILE_BYTES))
            check_version(path, data["version"], _VERSION)
            checkpoint: dict[str, Any] = data["checkpoint"]
        except FileNotFoundError:
            return None
        except _UNREADABLE as error:
            log.error("%s: cannot be read: %s", path, error)
            return None
        return checkpoint

    def save_trace(self, session: Session) -> None:
        """Write the power trace of a session, if there is one.

        Raises:
            OSError: the trace was not written.
        """
        if session.trace is not None:
            atomic_file.write(self._path(session, _TRACE), session.trace.parts(), sync=False)
            session.trace.written()

    def save_observation(self, session: Session, *, grown: bool = False) -> None:
        """Write the recorded signals and the reported steps of a job, if there are any.

        Args:
            session: state of the job (session) on this node.
            grown: whether to write only signals that grew much since the last write, and only steps that were
                reported since then.

        Raises:
            OSError: a file was not written.
        """
        recording, reports = session.recording, session.step_reports
        if recording is not None and (recording.has_grown or not grown):
            atomic_file.write(self._path(session, _SIGNALS), recording.parts(), sync=False)
            recording.mark_saved()
        if len(reports) and not reports.is_saved:
            atomic_file.write(self._path(session, _STEPS), reports.parts(), sync=False)
            reports.is_saved = True

    def checkpoint_paths(self, session: Session) -> tuple[str, str]:
        """Return the paths of the files that `save` writes while the job runs and after its end."""
        return self._path(session, _RUNS), self._path(session, _ENDED)

    def forget(self, session: Session) -> None:
        """Remove all files of a session whose record is in the spool."""
        for suffix in (_RUNS, _ENDED, _TRACE, _SIGNALS, _STEPS):
            atomic_file.remove(self._path(session, suffix))

    def load(self) -> list[tuple[Session, dict[str, Any]]]:
        """Return the sessions of the last run, each with its checkpoint.

        Damaged files are renamed and kept.

        Raises:
            NewerStateError: a newer release wrote one of the files.
        """
        sessions: dict[str, tuple[Session, dict[str, Any]]] = {}
        for suffix in (_RUNS, _ENDED):  # the file of an ended job replaces the file of its begin
            for path in sorted(self._sessions.glob(f"*{suffix}")):
                try:
                    session, checkpoint = _read(path)
                except _UNREADABLE as error:
                    aside = path.with_name(path.name + _DAMAGED)
                    log.error("%s: cannot be read (%s); kept as %s", path, error, aside.name)
                    with atomic_file.tolerating_read_only():
                        path.replace(aside)
                        self._bound_damaged()
                    continue
                self._load_trace(session)
                self._load_observation(session)
                sessions[session.owner] = session, checkpoint
        self._sweep(sessions)
        return list(sessions.values())

    def close(self) -> None:
        """Unlock the state directory, so that another process can use it."""
        os.close(self._lock)

    def _bound_damaged(self) -> None:
        """Delete the oldest damaged files so that at most 50 remain."""
        damaged = sorted(self._sessions.glob(f"*{_DAMAGED}"), key=lambda path: path.lstat().st_mtime)
        for path in damaged[:-_MAX_DAMAGED]:
            path.unlink(missing_ok=True)

    def _sweep(self, owners: Container[str]) -> None:
        """Delete files that a crash left behind: unfinished files, and files of sessions that have ended.

        Args:
            owners: names of the sessions that still exist.
        """
        unfinished = [*self.folder.glob(".*.new"), *self._sessions.glob(".*.new")]
        own = (path for suffix in (_TRACE, _SIGNALS, _STEPS) for path in self._sessions.glob(f"*{suffix}"))
        orphans = [path for path in own if path.stem not in owners]
        with atomic_file.tolerating_read_only():
            for path in (*unfinished, *orphans):
                path.unlink(missing_ok=True)

    def _load_trace(self, session: Session) -> None:
        try:
            session.trace = TraceBuilder.load(atomic_file.read(self._path(session, _TRACE), _MAX_FILE_BYTES))
        except _UNREADABLE:
            session.trace = None

    def _load_observation(self, session: Session) -> None:
        """Load the recorded signals and the reported steps of a job's session from the state directory.

        A file that cannot be read is skipped. The session then continues without the data of this file.
        """
        with contextlib.suppress(*_UNREADABLE):
            data = atomic_file.read(self._path(session, _SIGNALS), _MAX_FILE_BYTES)
            session.recording = SignalRecording.load(data)
        with contextlib.suppress(*_UNREADABLE):
            data = atomic_file.read(self._path(session, _STEPS), _MAX_FILE_BYTES)
            session.step_reports = StepReports.load(data)

    def _path(self, session: Session, suffix: str) -> str:
        return os.path.join(self._sessions, session.owner + suffix)


def _read(path: Path) -> tuple[Session, dict[str, Any]]:
    data = json.loads(atomic_file.read(path, _MAX_FILE_BYTES))
    check_version(str(path), data["version"], _VERSION)
    session = Session.load(data["session"])
    for name, step in session.steps.items():
        step.cpu_ticks = int(data.get("step_cpu_ticks", {}).get(name, 0))
    return session, data["checkpoint"]


def lock_file(path: Path) -> int:
    """Lock a file and return its descriptor.

    The lock ends when the descriptor is closed or the process ends. On a read-only file system an existing
    file is locked without a change.

    Raises:
        AlreadyRunningError: another process holds the lock.
        OSError: the file cannot be opened.
    """
    descriptor = _open_lock(path)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(descriptor, 20, 0).decode("ascii", "replace").strip() or "unknown"
        os.close(descriptor)
        raise AlreadyRunningError(
            f"{path} is held", f"senergyd runs as process {holder}", "stop that one first"
        ) from None
    with contextlib.suppress(OSError):  # the process id is only for messages; the disk may be full
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor


def _open_lock(path: Path) -> int:
    flags = os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | flags, 0o600)
    except OSError as error:
        if error.errno != errno.EROFS or not path.exists():
            raise
    return os.open(path, os.O_RDONLY | flags)


def _refuse_foreign(folder: Path) -> None:
    status = folder.lstat()
    if stat.S_ISLNK(status.st_mode):
        raise ForbiddenError(f"agent.state_dir {folder}", "is a symbolic link", "name the directory itself")
    if status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise ForbiddenError(
            f"agent.state_dir {folder}",
            f"owner uid {status.st_uid}, mode {status.st_mode & 0o7777:04o}: other users could write to it",
            "chown it to the agent's user and chmod go-w",
        )
    try:
        check_folder(folder.parent)
    except ConfigError as error:
        raise ForbiddenError(f"agent.state_dir {folder}", str(error)) from None
