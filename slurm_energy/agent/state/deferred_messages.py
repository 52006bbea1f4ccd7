"""Deferred messages: starts and ends of jobs that a hook stored as files.

A hook stores a message when the agent does not respond.

The agent processes these messages when it runs again. prolog_epilog/deferred_message.c writes the files.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slurm_energy import atomic_file
from slurm_energy.agent.jobs.job_manager import JobManager
from slurm_energy.agent.metering.clock import Clock
from slurm_energy.errors import EnergyError, UsageError
from slurm_energy.log_once import RepeatedFailureLog
from slurm_energy.slurm.hook_environment import job_context

log = logging.getLogger(__name__)

SUFFIX = ".deferred"
_NAME = re.compile(r"(\d{20})-\d{1,10}\.json")
_MAX_BYTES = 64 * 1024
_MARK = "boot_id"


@dataclass(frozen=True, slots=True)
class HookMessage:
    """A message about the begin or end of a job that a hook stored as a file.

    The hook stores the message if the agent did not answer in time.

    Attributes:
        path: file of the message.
        sent: time in seconds since boot at which the hook ran.
        operation: `begin` or `end`.
        env: the hook's environment.
        key: job id and restart count.
        states_restart_count: whether the hook's environment states the restart count, see `JobContext`.
    """

    path: Path
    sent: float
    operation: str
    env: Mapping[str, str]
    key: tuple[int, int]
    states_restart_count: bool


class DeferredMessages:
    """Messages of hooks that wait in a directory because the agent did not answer in time.

    The directory is beside the agent's socket. It is created if absent.

    Args:
        socket_path: path of the agent's socket.
        jobs: the job manager, which handles the messages.
        clock: the machine's clock; if None, a clock is created.

    Raises:
        OSError: the directory cannot be created, or other users could write to it.
    """

    def __init__(self, socket_path: Path, jobs: JobManager, clock: Clock | None = None) -> None:
        self.folder = socket_path.with_name(socket_path.name + SUFFIX)
        self._jobs = jobs
        self._clock = clock or Clock()
        self._failures = RepeatedFailureLog(log)
        self._make()

    def _make(self) -> None:
        self.folder.mkdir(mode=0o700, exist_ok=True)
        status = self.folder.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
            raise PermissionError(1, "other users could write to it", str(self.folder))
        self._drop_those_of_earlier_boots()

    def replay(self) -> None:
        """Process all messages, oldest first.

        An invalid message is logged and deleted.

        Each file is deleted after its message took effect. If a message is processed twice, the effect is the
        same as if it is processed once.
        """
        try:
            paths = sorted(self.folder.iterdir())
        except OSError as error:
            self._failures.report(str(self.folder), f"cannot be read: {error}")
            with contextlib.suppress(OSError):  # it may have been removed
                self._make()
            return
        messages = [message for path in paths if (message := self._read(path))]
        replayed_s = self._clock.boottime()
        for position, message in enumerate(messages):
            end = _end_of(message, messages[position + 1 :]) if message.operation == "begin" else None
            try:
                self._process(message, end, replayed_s)
            except EnergyError as error:
                log.warning("%s: %s", message.path.name, error)
            except Exception:  # a kept message would stop all later hooks as well
                log.exception("%s: failed, dropped", message.path.name)
            message.path.unlink(missing_ok=True)

    def _process(self, message: HookMessage, end: HookMessage | None, replayed_s: float) -> None:
        late_s = self._clock.boottime() - message.sent
        if message.operation == "end":
            self._jobs.end(message.env, late_s=late_s, received_s=replayed_s)
        elif end is None:
            self._jobs.begin(message.env, late_s=late_s, received_s=replayed_s)
        elif not self._jobs.has_job(message.key):
            self._jobs.record_unmeasured_job(message.env, message.sent, end.sent)

    def _read(self, path: Path) -> HookMessage | None:
        match = _NAME.fullmatch(path.name)
        if match is None:
            return None  # the boot id, or a file that a hook is writing
        try:
            data = json.loads(atomic_file.read(path, _MAX_BYTES))
            operation, env = _checked(data)
            context = job_context(env)
            sent = int(match[1]) / 1e9
            return HookMessage(path, sent, operation, env, context.key, context.states_restart_count)
        except (OSError, ValueError, EnergyError) as error:
            log.error("%s: not a hook's message, dropped: %s", path, error)
            path.unlink(missing_ok=True)
            return None

    def _drop_those_of_earlier_boots(self) -> None:
        """Delete all messages if they were written before the last boot.

        A file in the directory contains the id of the boot in which the messages were written. Wall-clock
        times are not used, because the wall clock jumps.
        """
        mark = self.folder / _MARK
        if mark.exists() and atomic_file.read(mark, _MAX_BYTES).decode() == self._clock.boot_id:
            return
        for path in self.folder.iterdir():
            path.unlink()
        atomic_file.write(mark, self._clock.boot_id.encode(), sync=False)


def _end_of(begin: HookMessage, later: Sequence[HookMessage]) -> HookMessage | None:
    """Return the message about the end of the run that `begin` starts; None if there is no such message.

    It is the next message about the job, except for repeated messages about the same begin. The end of a run
    that is requeued may state the restart count of the next run, or none.

    Args:
        begin: message about the begin of the run.
        later: messages after `begin`, oldest first.
    """
    message = next((item for item in later if _follows(item, begin)), None)
    return message if message is not None and message.operation == "end" else None


def _follows(item: HookMessage, begin: HookMessage) -> bool:
    """Return whether a message is about the end of the run that `begin` starts, or about a later run."""
    if item.key[0] != begin.key[0] or (item.operation, item.key) == ("begin", begin.key):
        return False
    return item.key >= begin.key or (item.operation == "end" and not item.states_restart_count)


def _checked(data: Any) -> tuple[str, dict[str, str]]:
    operation = data.get("op") if isinstance(data, dict) else None
    env = data.get("env") if isinstance(data, dict) else None
    if operation not in ("begin", "end") or not isinstance(env, dict):
        raise UsageError("op or env is missing")
    if not all(isinstance(value, str) for value in env.values()):
        raise UsageError("env is not an object of strings")
    return operation, env
