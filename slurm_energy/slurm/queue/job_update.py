"""Changes to jobs in the queue through scontrol.

One scontrol process executes a batch of changes and replies to each change. The caller decides on the
changes.
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
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from slurm_energy.errors import UnavailableError, UsageError
from slurm_energy.slurm.command import COMMAND_GATE, TIMEOUT_S, command_environment
from slurm_energy.slurm.licenses import plain_licenses

SITE_FACTOR_MAX: Final = 2147483645
"""Maximum absolute value of a site factor that scontrol accepts."""
_POLL_S: Final = 0.2
_DENIED = re.compile("permission denied", re.IGNORECASE)
_MAX_REFUSED: Final = 20  # so many denials before any success concern this process, not the jobs
_VALUE = re.compile(r"[A-Za-z0-9_.:,=/+\[\]*-]{0,4096}", re.ASCII)
_WORD = re.compile(r"[!#-&(-\[\]-~]{0,1024}", re.ASCII)  # no blanks, quotes or backslashes
_KEY = re.compile(r"[A-Za-z]{1,32}", re.ASCII)
# The job has left the queue, or has become pending again, since the queue was read.
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
    """Result of a batch of changes, by job id.

    Attributes:
        done: jobs that were changed.
        gone: jobs that had already left the queue, or the state in which the change is possible. These jobs
            are not treated as errors.
        refused: by job, the reason why Slurm rejected the change.
        remaining: jobs that were not changed because the batch reached its maximum duration or was stopped,
            in the given order.
    """

    done: tuple[int, ...] = ()
    gone: tuple[int, ...] = ()
    refused: Mapping[int, str] = field(default_factory=dict)
    remaining: tuple[int, ...] = ()


class JobUpdater:
    """Writer of job changes through scontrol, at a limited rate. Changes are made one after another.

    Each change costs slurmctld one request. The next request is sent after the reply to the previous one. A
    busy slurmctld therefore receives fewer requests.

    Args:
        updates_per_s: maximum number of changes per second.
        batch_s: maximum duration of a batch in seconds; the remaining changes are left for the next batch.
        applied_factors: dictionary to which the site factors that slurmctld accepts are added, by job id.
            Pass the same dictionary to `squeue_source.SqueueSource`. None means that accepted site factors
            are not recorded.
        command: program that reads commands on its standard input as scontrol does.
    """

    def __init__(
        self,
        updates_per_s: float,
        batch_s: float = 10.0,
        applied_factors: dict[int, int] | None = None,
        command: Sequence[str] = ("scontrol",),
    ) -> None:
        self._pause_s = 1.0 / updates_per_s
        self._batch_s = batch_s
        self._command = list(command)
        self._applied_factors = {} if applied_factors is None else applied_factors
        self._stopped = threading.Event()

    def set_site_factors(self, changes: Mapping[int, int]) -> UpdateResult:
        """Set the site factors (priority terms) of jobs, in the given order.

        Held jobs stay held; nice values and limits do not change. The job id of an array, or of the first
        component of a heterogeneous job, addresses all tasks or components.

        Args:
            changes: new site factor by job id.

        Raises:
            UnavailableError: scontrol is missing or does not answer. `applied_factors` then has the site
                factors that were accepted before.
            UsageError: a site factor is out of range.
        """
        for job_id, value in changes.items():
            if abs(value) > SITE_FACTOR_MAX:
                raise UsageError(f"site factor {value} of job {job_id}", f"above {SITE_FACTOR_MAX}")
        commands = [(job, f"update JobId={job} SiteFactor={value}") for job, value in changes.items()]
        return self._batch(commands, lambda job: self._applied_factors.__setitem__(job, changes[job]))

    def set_fields(self, job_id: int, fields: Mapping[str, str], uid: int, name: str = "") -> UpdateResult:
        """Change a pending job on behalf of a user.

        slurmctld applies the rules and limits for that user, and the site's job_submit plugin receives the
        user's uid. If SlurmUser made the change, it would count as a change by an administrator. The rules of
        most sites accept an administrator's changes, and Slurm checks no limits for them (`scontrol --uid`;
        src/slurmctld/job_mgr.c, _update_job()).

        Args:
            job_id: Slurm's job id.
            fields: new values by the field names of scontrol, `{"Gres": "gpu:h100:2", "ExcNodeList": ""}`.
            uid: uid of the job's owner.
            name: `QueueColumns.scontrol_name` of the job; an empty value means the job id.

        Raises:
            UnavailableError: scontrol is missing or does not answer.
            UsageError: scontrol would not read a name or value as one word, or the uid has no login name.
        """
        for key, value in fields.items():
            if not _KEY.fullmatch(key) or not _VALUE.fullmatch(value):
                raise UsageError(f"job {job_id}: {key!r}={value!r} is not valid for scontrol")
        try:
            pwd.getpwuid(uid)
        except (KeyError, OverflowError):
            why = "scontrol needs the login name of the owner on this host"
            raise UsageError(f"job {job_id}: the owner, uid {uid}, is unknown", why) from None
        words = " ".join(f"{key}={value}" for key, value in fields.items())
        names = {job_id: name or str(job_id)}
        change = [(job_id, f"update JobId={names[job_id]} {words}")]
        return self._batch(change, names=names, options=[f"--uid={uid}"])

    def set_licenses(self, changes: Mapping[int, str], names: Mapping[int, str]) -> UpdateResult:
        """Replace the licenses of pending or running jobs, in the given order.

        This process makes the change as an operator, because Slurm permits users to change only the licenses
        of pending jobs. The lists contain texts of users. A list that scontrol would not read as one word is
        written in its shortest form. If scontrol would not read this form as one word either, the list is
        refused, and the other jobs are changed nevertheless.

        Args:
            changes: new list of licenses by job id; an empty list removes all licenses.
            names: names for scontrol by job id, `12_[3-9]` for tasks of an array.

        Raises:
            UnavailableError: scontrol is missing or does not answer.
        """
        texts = {
            job: text if _WORD.fullmatch(text) else plain_licenses(text) for job, text in changes.items()
        }
        invalid = {
            job: f"a list of {len(text)} characters is not valid for scontrol"
            for job, text in texts.items()
            if not _WORD.fullmatch(text)
        }
        valid = {job: text for job, text in texts.items() if job not in invalid}
        commands = [(job, f"update JobId={names[job]} Licenses={text}") for job, text in valid.items()]
        result = self._batch(commands, names=names)
        return replace(result, refused={**invalid, **result.refused})

    def set_begin(
        self, jobs: Sequence[int], names: Mapping[int, str], begin_unix_s: int | None
    ) -> UpdateResult:
        """Set the time before which pending jobs do not start.

        Args:
            jobs: job ids.
            names: scontrol's names of the jobs by job id, `12_[3-9]` for tasks of an array.
            begin_unix_s: the new begin time in Unix seconds; None means the present time.

        Raises:
            UnavailableError: scontrol is missing or does not answer.
        """
        begin = "now" if begin_unix_s is None else f"uts{begin_unix_s}"
        commands = [(job, f"update JobId={names[job]} StartTime={begin}") for job in jobs]
        return self._batch(commands, names=names)

    def requeue(self, names: Mapping[int, str]) -> UpdateResult:
        """Requeue running batch jobs. A job that has ended in the meantime stays ended.

        Args:
            names: `QueueColumns.scontrol_name` by job id. The job id alone is ambiguous, because the last
                task of an array has the job id of the whole array.

        Returns:
            The result. If slurmctld becomes unavailable after some jobs were requeued, no error is raised,
            because the caller must know these jobs. The job whose request failed is then in `refused`.

        Raises:
            UnavailableError: scontrol is missing or does not answer, and no job was requeued.
        """
        # Without "Incomplete", Slurm would run a finished job again.
        commands = [(job, f"requeue Incomplete {name}") for job, name in names.items()]
        return self._batch(commands, names=names, partly=True)

    def stop(self) -> None:
        """Stop the changes of jobs that another thread is making, and refuse further changes."""
        self._stopped.set()

    def _batch(
        self,
        commands: Sequence[tuple[int, str]],
        accepted: Callable[[int], None] = lambda job: None,
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
            session.ask("")  # discards messages about slurm.conf, which are no reply to the first command
            for position, (job_id, text) in enumerate(commands):
                if position and (time.monotonic() > end or self._stopped.wait(self._pause_s)):
                    return UpdateResult(
                        tuple(done), tuple(gone), refused, tuple(job for job, _ in commands[position:])
                    )
                try:
                    why = self._answer(session, text, names.get(job_id, ""))
                except UnavailableError as error:
                    if not (partly and done):
                        raise
                    refused[job_id] = str(error)
                    rest = tuple(job for job, _ in commands[position + 1 :])
                    return UpdateResult(tuple(done), tuple(gone), refused, rest)
                if why is None:
                    done.append(job_id)
                    accepted(job_id)
                elif _GONE.search(why):
                    gone.append(job_id)
                else:
                    refused[job_id] = why
                    if _DENIED.search(why) and len(refused) >= _MAX_REFUSED and not done:
                        return UpdateResult(
                            (), tuple(gone), refused, tuple(job for job, _ in commands[position + 1 :])
                        )
        return UpdateResult(tuple(done), tuple(gone), refused)

    def _answer(self, session: _Session, text: str, name: str) -> str | None:
        """Run a scontrol command. Return why the command failed; None means that it succeeded.

        Args:
            session: the scontrol process that executes the command.
            text: command in the syntax of scontrol.
            name: name of the job in scontrol's reply. This name is removed from the reason. An empty value
                means that nothing is removed.

        Raises:
            UnavailableError: slurmctld cannot be reached. slurmctld may have received the command
                nevertheless.
        """
        why = _reason(session.ask(text), name)
        if why is not None and _AWAY.search(why):
            raise UnavailableError(self._command[0], why)
        return why


def _reason(lines: Sequence[str], name: str) -> str | None:
    """Return the reason why a scontrol command failed; None means that the command succeeded.

    For an array, the reply has a line for each group of tasks, such as `6_1: Job has already finished` and
    `6_2-5: No error`. Lines with `No error` are missing from 23.02 on, and if all tasks succeeded. Tasks that
    can no longer be changed are not a failure.

    Args:
        lines: lines of scontrol's reply; an empty value means success.
        name: name of the job. This name is removed from the start of a line.
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
    """A scontrol process that reads commands from a pipe.

    After each command, a marker word that is not a command is sent. scontrol reports the marker as an invalid
    keyword on the stream on which it replies to commands. All lines before that report therefore belong to
    the command. The marker is random in each session, because a site's job_submit plugin may put the name of
    a job into a reply.

    Args:
        command: program to start, with its options.
        stopped: event that another thread sets to end the session.
    """

    _MARKER_REPORT = "invalid keyword: "

    def __init__(self, command: Sequence[str], stopped: threading.Event) -> None:
        self._stopped = stopped
        self._count, self._secret = 0, secrets.token_hex(8)
        self._buffer = b""
        if stopped.is_set():
            raise UnavailableError(command[0], "shutting down")
        COMMAND_GATE.permit()
        try:
            self._child = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                # Keep readline from the terminal and the user's key bindings.
                env=command_environment() | {"TERM": "dumb", "INPUTRC": "/dev/null"},
            )
        except FileNotFoundError:
            raise UnavailableError(command[0], "not found", "install Slurm's client commands") from None
        except OSError as error:
            raise UnavailableError(command[0], error.strerror or str(error)) from None
        self._name = command[0]
        # select() fails for descriptors from 1024 on, which a daemon with many connections uses.
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
        """Send a command and return the lines of scontrol's reply; an empty reply means success.

        If `text` is empty, return the lines that scontrol has printed so far.
        """
        if text:
            COMMAND_GATE.permit()  # a batch may last longer than the lease is valid
        self._count += 1
        marker = f"senergy-{self._secret}-{self._count}"
        assert self._child.stdin is not None
        try:
            self._child.stdin.write("".join(f"{line}\n" for line in (text, marker) if line).encode("ascii"))
            self._child.stdin.flush()
        except BrokenPipeError:
            raise UnavailableError(self._name, "ended early") from None
        lines = []
        while (line := self._line(time.monotonic() + TIMEOUT_S)) != self._MARKER_REPORT + marker:
            lines.append(line)
        return [line for line in lines if line]

    def _line(self, deadline: float) -> str:
        """Return the next line of scontrol's output."""
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
