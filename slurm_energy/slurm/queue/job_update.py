"""Changes to jobs in the queue: one `scontrol` for a whole batch, its reply to each command read.

What is to be changed is decided elsewhere.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import secrets
import select
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from slurm_energy.errors import UnavailableError, UsageError
from slurm_energy.slurm.command import TIMEOUT_S, command_environment

SITE_FACTOR_MAX: Final = 2147483645
"""Largest amount of a site factor that scontrol takes, of either sign."""
_POLL_S: Final = 0.2
_DENIED = re.compile("permission denied", re.IGNORECASE)
_MOST_REFUSED: Final = 20  # denials with nothing done before are about us, not about the jobs
_VALUE = re.compile(r"[A-Za-z0-9_.:,=/+\[\]*-]{0,4096}", re.ASCII)
_KEY = re.compile(r"[A-Za-z]{1,32}", re.ASCII)
# The job has left the queue, or not yet entered it, since the queue was read.
_GONE = re.compile(
    "Invalid job id|already finished|no longer pending|not pending nor running|is pending execution"
    "|already completing|Job is in the process of being requeued",
    re.IGNORECASE,
)
_AWAY = re.compile(
    "contact slurm controller|unexpected message|socket timed out|zero bytes|communication|authentication"
    "|connection",
    re.IGNORECASE,
)
_ARRAY_TASK = re.compile(r"\d+_\S+: ")
_NO_ERROR: Final = "No error"


@dataclass(frozen=True, slots=True)
class UpdateResult:
    """What became of a batch.

    Attributes:
        done: jobs that were changed.
        gone: jobs that had left the queue, or the state in which it can be done; no fault.
        refused: Slurm's words by job.
        left: jobs that the time did not suffice for, in the order given.
    """

    done: tuple[int, ...] = ()
    gone: tuple[int, ...] = ()
    refused: Mapping[int, str] = field(default_factory=dict)
    left: tuple[int, ...] = ()


class JobUpdater:
    """Has jobs changed by scontrol, one after the other and never more than so many in a second.

    Each change costs slurmctld one request; the next one is sent once the last one is answered, so a busy
    slurmctld is asked less.

    Args:
        updates_per_s: most changes in a second.
        batch_s: time for one batch; what is left then is for the next one.
        known: gets the site factors that slurmctld has taken, by job id; see `commands.SqueueSource`.
        command: what to run; reads commands on its standard input as scontrol does.
    """

    def __init__(
        self,
        updates_per_s: float,
        batch_s: float = 10.0,
        known: dict[int, int] | None = None,
        command: Sequence[str] = ("scontrol",),
    ) -> None:
        self._pause_s = 1.0 / updates_per_s
        self._batch_s = batch_s
        self._command = list(command)
        self._known = {} if known is None else known
        self._stopped = threading.Event()

    def set_site_factors(self, changes: Mapping[int, int]) -> UpdateResult:
        """Set site factors by job id, in the order given.

        A job that is held stays held, and nice and limits stay. The number of an array, or of the first
        component of a heterogeneous job, goes for all that belongs to it.

        Raises:
            UnavailableError: no scontrol, or it does not answer; what it took before is in `known`.
            UsageError: a number out of range.
        """
        for job_id, value in changes.items():
            if abs(value) > SITE_FACTOR_MAX:
                raise UsageError(f"site factor {value} of job {job_id}", f"above {SITE_FACTOR_MAX}")
        wanted = [(job, f"update JobId={job} SiteFactor={value}") for job, value in changes.items()]
        return self._batch(wanted, lambda job: self._known.__setitem__(job, changes[job]))

    def set_fields(self, job_id: int, fields: Mapping[str, str], uid: int, name: str = "") -> UpdateResult:
        """Change a pending job as a user, for example `{"Gres": "gpu:h100:2", "ExcNodeList": ""}`.

        slurmctld applies the rules for that user, and tells the site's job_submit plugin this uid. As
        SlurmUser the change would be an administrator's, whom most sites' rules let through and for whom
        no limit is checked (`scontrol --uid`; src/slurmctld/job_mgr.c, _update_job()).

        Args:
            job_id: the job.
            fields: new values by scontrol's names.
            uid: the job's owner.
            name: what means this record alone, see `QueueColumns.name_of`; empty: its number.

        Raises:
            UnavailableError: as in `set_site_factors`.
            UsageError: a name or value that scontrol would not read as one word, or a user without a name.
        """
        for key, value in fields.items():
            if not _KEY.fullmatch(key) or not _VALUE.fullmatch(value):
                raise UsageError(f"job {job_id}: {key!r}={value!r} cannot be given to scontrol")
        try:
            pwd.getpwuid(uid)
        except (KeyError, OverflowError):
            why = "scontrol changes jobs only as users with a name on this host"
            raise UsageError(f"job {job_id}: its owner, uid {uid}, is not known", why) from None
        words = " ".join(f"{key}={value}" for key, value in fields.items())
        names = {job_id: name or str(job_id)}
        change = [(job_id, f"update JobId={names[job_id]} {words}")]
        return self._batch(change, names=names, options=[f"--uid={uid}"])

    def requeue(self, names: Mapping[int, str]) -> UpdateResult:
        """Put running batch jobs back into the queue; one that has ended in the meantime stays ended.

        Args:
            names: by job, what means this record alone: the number of an array's last task is also that of
                the whole array. See `QueueColumns.name_of`.

        Returns:
            What became of them. If slurmctld goes away after some were done it is no error, as what was done
            has to be known: the job that was just asked for is then among the refused.

        Raises:
            UnavailableError: as in `set_site_factors`, with no job done.
        """
        # Without "Incomplete" Slurm runs a finished job once more.
        wanted = [(job, f"requeue Incomplete {name}") for job, name in names.items()]
        return self._batch(wanted, names=names, partly=True)

    def stop(self) -> None:
        """End a batch that runs in another thread, and refuse further ones."""
        self._stopped.set()

    def _batch(
        self,
        commands: Sequence[tuple[int, str]],
        took: Callable[[int], None] = lambda job: None,
        names: Mapping[int, str] = MappingProxyType({}),
        *,
        options: Sequence[str] = (),
        partly: bool = False,
    ) -> UpdateResult:
        if not commands:
            return UpdateResult()
        done: list[int] = []
        gone: list[int] = []
        refused: dict[int, str] = {}
        end = time.monotonic() + self._batch_s
        with _Session([*self._command, *options], self._stopped) as session:
            session.ask("")  # what scontrol has to say of slurm.conf is no answer to the first command
            for place, (job_id, text) in enumerate(commands):
                if place and (time.monotonic() > end or self._stopped.wait(self._pause_s)):
                    return UpdateResult(
                        tuple(done), tuple(gone), refused, tuple(job for job, _ in commands[place:])
                    )
                try:
                    why = self._answer(session, text, names.get(job_id, ""))
                except UnavailableError as error:
                    if not (partly and done):
                        raise
                    refused[job_id] = str(error)
                    rest = tuple(job for job, _ in commands[place + 1 :])
                    return UpdateResult(tuple(done), tuple(gone), refused, rest)
                if why is None:
                    done.append(job_id)
                    took(job_id)
                elif _GONE.search(why):
                    gone.append(job_id)
                else:
                    refused[job_id] = why
                    if _DENIED.search(why) and len(refused) >= _MOST_REFUSED and not done:
                        return UpdateResult(
                            (), tuple(gone), refused, tuple(job for job, _ in commands[place + 1 :])
                        )
        return UpdateResult(tuple(done), tuple(gone), refused)

    def _answer(self, session: _Session, text: str, name: str) -> str | None:
        """Return why a command failed; None: it did not.

        Raises:
            UnavailableError: slurmctld has not heard it, or nobody knows.
        """
        why = _reason(session.ask(text), name)
        if why is not None and _AWAY.search(why):
            raise UnavailableError(self._command[0], why)
        return why


def _reason(lines: Sequence[str], name: str) -> str | None:
    """Return why a command failed.

    A whole array is answered by groups of tasks, `6_1: Job has already finished` and `6_2-5: No error`; the
    latter not from 23.02 on, nor where all went well. Tasks that cannot be changed any more are no failure.
    """
    words = [line.removeprefix("scontrol: ").removeprefix("error: ") for line in lines]
    words = [word.removeprefix(f"{name}: ") for word in words]
    tasks = [word.partition(": ")[2] for word in words if _ARRAY_TASK.match(word)]
    if len(tasks) < len(words):
        return next(word for word in words if not _ARRAY_TASK.match(word))
    if any(task.startswith(_NO_ERROR) for task in tasks):
        return None
    return next((task for task in tasks if not _GONE.search(task)), None)


class _Session:
    """One scontrol that reads commands from us.

    After each command comes a word that is no command. scontrol complains of it on the same stream as of
    the command before, so that all up to this complaint is the command's reply. The word is drawn for each
    session: a site's job_submit plugin may answer with a job's name.
    """

    _COMPLAINT = "invalid keyword: "

    def __init__(self, command: Sequence[str], stopped: threading.Event) -> None:
        self._stopped = stopped
        self._count, self._secret = 0, secrets.token_hex(8)
        self._buffer = b""
        if stopped.is_set():
            raise UnavailableError(command[0], "shutting down")
        try:
            self._child = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                # readline would look at the terminal and at its user's key bindings.
                env=command_environment() | {"TERM": "dumb", "INPUTRC": "/dev/null"},
            )
        except FileNotFoundError:
            raise UnavailableError(command[0], "not found", "install Slurm's client commands") from None
        except OSError as error:
            raise UnavailableError(command[0], error.strerror or str(error)) from None
        self._name = command[0]
        # select() refuses descriptors from 1024 on, and a daemon with many connections has those.
        self._replies = select.poll()
        self._replies.register(self._child.stderr or -1, select.POLLIN)

    def __enter__(self) -> _Session:
        return self

    def __exit__(self, *_: object) -> None:
        self._child.kill()
        for stream in (self._child.stdin, self._child.stderr):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
        self._child.wait()

    def ask(self, text: str) -> list[str]:
        """Return the lines of the reply, none where all is well; without a command all said so far."""
        self._count += 1
        mark = f"senergy-{self._secret}-{self._count}"
        assert self._child.stdin is not None
        try:
            self._child.stdin.write("".join(f"{line}\n" for line in (text, mark) if line).encode("ascii"))
            self._child.stdin.flush()
        except BrokenPipeError:
            raise UnavailableError(self._name, "ended early") from None
        lines = []
        while (line := self._line(time.monotonic() + TIMEOUT_S)) != self._COMPLAINT + mark:
            lines.append(line)
        return [line for line in lines if line]

    def _line(self, deadline: float) -> str:
        """Return scontrol's next line."""
        assert self._child.stderr is not None
        while b"\n" not in self._buffer:
            if self._stopped.is_set():
                raise UnavailableError(self._name, "shutting down")
            if time.monotonic() > deadline:
                raise UnavailableError(self._name, f"no answer within {TIMEOUT_S:g} s")
            if self._replies.poll(_POLL_S * 1000):
                read = os.read(self._child.stderr.fileno(), 65536)
                if not read:
                    raise UnavailableError(self._name, "ended early")
                self._buffer += read
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line.decode("utf-8", "replace").strip()
