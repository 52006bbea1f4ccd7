"""A campaign as a Slurm job array: submits it, waits, cancels it if it is told to end.

The results are files that the tasks leave; what is in them is not known here.
"""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from slurm_energy.errors import UnavailableError, UsageError
from slurm_energy.quantities import shown

_POLL_S: Final = 1.0
_FIRST_LOOK_S: Final = 2.0
_RAREST_LOOK_S: Final = 30.0
_COMMAND_TIMEOUT_S: Final = 15.0
_ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
MOST_TASKS = 32
"""Array tasks where nobody says how many."""
JOB_NAME = "senergy-simulate"
"""Name of the arrays, unless the options of sbatch give another."""


@dataclass(frozen=True, slots=True)
class JobArray:
    """A submitted job array.

    Attributes:
        job_id: as sbatch said it.
        cluster: of another cluster than this one, if sbatch was told to go there.
    """

    job_id: str
    cluster: str = ""

    def command(self, name: str, *options: str) -> list[str]:
        """Return the words of a Slurm command about this array."""
        return [name, *(["-M", self.cluster] if self.cluster else []), *options]

    @property
    def scancel(self) -> list[str]:
        """The command that ends it."""
        return self.command("scancel", self.job_id)


def split(part: str) -> tuple[int, int]:
    """Read `I/N`: part I, from 0, of N.

    Raises:
        UsageError: of another form.
    """
    first, _, second = part.partition("/")
    if not (first.isdecimal() and second.isdecimal() and int(first) < int(second)):
        raise UsageError(f"--part {shown(part)}", "is not I/N with I below N", "e.g. 0/4")
    return int(first), int(second)


def sbatch_command(command: Sequence[str], parts: int, folder: Path, options: str) -> list[str]:
    """Return the sbatch command of an array whose task I runs `command --part I/parts`.

    Args:
        command: words of the command of all tasks.
        parts: number of tasks.
        folder: where the tasks' output goes.
        options: more options of sbatch, as a user writes them.

    Raises:
        UsageError: options with an open quote.
    """
    try:
        more = shlex.split(options)
    except ValueError as error:
        raise UsageError("--slurm", f"{shown(options)}: {error}") from None
    script = f"exec {shlex.join(command)} --part $SLURM_ARRAY_TASK_ID/{parts}"
    array = [f"--array=0-{parts - 1}", f"--output={folder}/slurm-%A_%a.out", f"--job-name={JOB_NAME}"]
    return ["sbatch", "--parsable", *array, *more, f"--wrap={script}"]


def run(
    command: Sequence[str],
    complete: Callable[[], bool],
    submitted: Callable[[JobArray], None] = lambda array: None,
) -> None:
    """Submit an array and wait for its end, as long as it takes, or until all results are there.

    A signal that ends this process (interrupt, termination, hang-up) cancels the array first.

    Args:
        command: of `sbatch_command`.
        complete: called every second; returns whether all results are there.
        submitted: told of the array as soon as there is one.

    Raises:
        UnavailableError: sbatch is not installed or refuses, or a signal came.
    """
    with _signals() as came:
        array = _submit(command, came)
        try:
            submitted(array)
            _wait(array, complete, came)
        except BaseException:
            _cancel(array)
            raise
        if came:
            raise _interrupted(array, cancelled=_cancel(array))


@contextmanager
def _signals() -> Iterator[list[int]]:
    """Gather signals that would end this process in a list; those that it ignores (nohup) stay ignored."""
    came: list[int] = []
    before = {number: signal.getsignal(number) for number in _ENDING}
    heard = [number for number in _ENDING if before[number] is not signal.SIG_IGN]
    for number in heard:
        signal.signal(number, lambda number, _: came.append(number))
    try:
        yield came
    finally:
        for number in heard:
            signal.signal(number, before[number])


def _submit(command: Sequence[str], came: list[int]) -> JobArray:
    """Run sbatch to its end: if it were stopped halfway, nobody would know the array that it made.

    It has a session of its own, for a terminal interrupts all processes of a session at once.
    """
    try:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
    except OSError as error:
        why = "not found" if isinstance(error, FileNotFoundError) else str(error)
        raise UnavailableError("sbatch", why, "--slurm needs Slurm's client commands") from None
    patience_s = _COMMAND_TIMEOUT_S
    while True:
        try:
            output, errors = child.communicate(timeout=_POLL_S)
            break
        except subprocess.TimeoutExpired:
            patience_s -= _POLL_S if came else 0.0
            if patience_s <= 0:
                child.kill()
                child.communicate()
                raise _interrupted(None, cancelled=False) from None
    found = re.match(r"(\d+)(?:;(\S+))?$", output, re.ASCII | re.MULTILINE)
    if not found:
        lines = errors.strip().splitlines() or [f"exit status {child.returncode}"]
        raise UnavailableError("sbatch", shown(lines[-1].removeprefix("sbatch: error: "), 200))
    return JobArray(found[1], found[2] or "")


def _wait(array: JobArray, complete: Callable[[], bool], came: list[int]) -> None:
    """Wait for a signal, all results or the end of the array; slurmctld is asked ever more rarely."""
    pause_s = _FIRST_LOOK_S
    look = time.monotonic() + pause_s
    while not came and not complete():
        if time.monotonic() >= look:
            if not _goes_on(array):
                return
            pause_s = min(2 * pause_s, _RAREST_LOOK_S)
            look = time.monotonic() + pause_s
        time.sleep(_POLL_S)


def _goes_on(array: JobArray) -> bool:
    """Return whether a task waits or runs; while slurmctld does not answer, yes."""
    done = _ask(array.command("squeue", "--noheader", f"--jobs={array.job_id}", "--format=%i"))
    if done is None:
        return True
    return bool(done.stdout.strip()) if done.returncode == 0 else "Invalid job id" not in done.stderr


def _cancel(array: JobArray) -> bool:
    """Return whether Slurm took the order to cancel an array."""
    done = _ask(array.scancel)
    return done is not None and done.returncode == 0


def _ask(command: Sequence[str]) -> subprocess.CompletedProcess[str] | None:
    """Return what a Slurm command said; None if it cannot be run or does not answer in time."""
    try:
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_COMMAND_TIMEOUT_S,
            start_new_session=True,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None


def _interrupted(array: JobArray | None, *, cancelled: bool) -> UnavailableError:
    if array is None:
        why = "interrupted; sbatch did not answer, an array may come"
        return UnavailableError("--slurm", why, f"squeue --me --name={JOB_NAME} shows it")
    if cancelled:
        why = f"interrupted; array {array.job_id} is cancelled"
        return UnavailableError("--slurm", why, "the same command runs the rest")
    why = f"interrupted; array {array.job_id} could not be cancelled"
    return UnavailableError("--slurm", why, shlex.join(array.scancel))
