"""Slurm job array that runs a campaign of simulations: submission, wait for the end, and cancellation.

The array is cancelled if this process is interrupted. The array's tasks write their results to files, which
this module does not read.
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
_FIRST_QUERY_S: Final = 2.0
_MAX_QUERY_INTERVAL_S: Final = 30.0
_COMMAND_TIMEOUT_S: Final = 15.0
_ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
DEFAULT_TASKS = 32
"""Number of array tasks if the user gives none."""
JOB_NAME = "senergy-simulate"
"""Name of the job arrays, unless the options of sbatch give another."""


@dataclass(frozen=True, slots=True)
class JobArray:
    """A submitted job array.

    Attributes:
        job_id: job id as printed by sbatch.
        cluster: name of the cluster if sbatch submitted to another cluster; empty otherwise.
    """

    job_id: str
    cluster: str = ""

    def command(self, name: str, *options: str) -> list[str]:
        """Return the arguments of a Slurm command that addresses the cluster of this array.

        Args:
            name: name of the command, e.g. `squeue`.
            *options: further arguments.
        """
        return [name, *(["-M", self.cluster] if self.cluster else []), *options]

    @property
    def scancel(self) -> list[str]:
        """Return the command that cancels the array."""
        return self.command("scancel", self.job_id)


def split(part: str) -> tuple[int, int]:
    """Parse `I/N`, which means part I (from 0) of N, and return (I, N).

    Raises:
        UsageError: the text is malformed.
    """
    first, _, second = part.partition("/")
    if not (first.isdecimal() and second.isdecimal() and int(first) < int(second)):
        raise UsageError(f"--part {shown(part)}", "is not I/N with I below N", "e.g. 0/4")
    return int(first), int(second)


def sbatch_command(command: Sequence[str], parts: int, folder: Path, options: str) -> list[str]:
    """Return the sbatch command for an array of `parts` tasks; task I runs `command --part I/parts`.

    Args:
        command: arguments of the command that every task runs.
        parts: number of tasks; each task simulates one part of the campaign.
        folder: folder for the output of the tasks.
        options: further options of sbatch, quoted as in a shell.

    Raises:
        UsageError: a quote in the options is not closed.
    """
    try:
        extra_options = shlex.split(options)
    except ValueError as error:
        raise UsageError("--slurm", f"{shown(options)}: {error}") from None
    script = f"exec {shlex.join(command)} --part $SLURM_ARRAY_TASK_ID/{parts}"
    array = [f"--array=0-{parts - 1}", f"--output={folder}/slurm-%A_%a.out", f"--job-name={JOB_NAME}"]
    return ["sbatch", "--parsable", *array, *extra_options, f"--wrap={script}"]


def run(
    command: Sequence[str],
    complete: Callable[[], bool],
    submitted: Callable[[JobArray], None] = lambda array: None,
) -> None:
    """Submit a job array, and wait without a time limit until the array ends or all results exist.

    Before a signal (interrupt, termination, hang-up) ends this process, the array is cancelled.

    Args:
        command: result of `sbatch_command`.
        complete: function that returns whether all results exist; called every second.
        submitted: function called with the array directly after its submission.

    Raises:
        UnavailableError: sbatch is not installed or refuses the job, or a signal arrived.
    """
    with _signals() as received:
        array = _submit(command, received)
        try:
            submitted(array)
            _wait(array, complete, received)
        except BaseException:
            _cancel(array)
            raise
        if received:
            raise _interrupted(array, cancelled=_cancel(array))


@contextmanager
def _signals() -> Iterator[list[int]]:
    """Catch signals that would end this process.

    The context yields the list in which the signals are collected.

    Signals that the process ignores (nohup) stay ignored.
    """
    received: list[int] = []
    original = {number: signal.getsignal(number) for number in _ENDING}
    handled = [number for number in _ENDING if original[number] is not signal.SIG_IGN]
    for number in handled:
        signal.signal(number, lambda number, _: received.append(number))
    try:
        yield received
    finally:
        for number in handled:
            signal.signal(number, original[number])


def _submit(command: Sequence[str], received: list[int]) -> JobArray:
    """Run sbatch and return the submitted array.

    sbatch is never interrupted, because the id of the array would be unknown otherwise. sbatch runs in a
    separate session, because a terminal interrupts all processes of its own session at once.
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
    remaining_s = _COMMAND_TIMEOUT_S
    while True:
        try:
            output, errors = child.communicate(timeout=_POLL_S)
            break
        except subprocess.TimeoutExpired:
            remaining_s -= _POLL_S if received else 0.0
            if remaining_s <= 0:
                child.kill()
                child.communicate()
                raise _interrupted(None, cancelled=False) from None
    match = re.match(r"(\d+)(?:;(\S+))?$", output, re.ASCII | re.MULTILINE)
    if not match:
        lines = errors.strip().splitlines() or [f"exit status {child.returncode}"]
        raise UnavailableError("sbatch", shown(lines[-1].removeprefix("sbatch: error: "), 200))
    return JobArray(match[1], match[2] or "")


def _wait(array: JobArray, complete: Callable[[], bool], received: list[int]) -> None:
    """Wait for the results of a Slurm job array.

    The wait ends when a signal arrives, when all results exist, or when the array has ended. slurmctld is
    queried about the array at growing intervals.
    """
    interval_s = _FIRST_QUERY_S
    next_query = time.monotonic() + interval_s
    while not received and not complete():
        if time.monotonic() >= next_query:
            if not _is_active(array):
                return
            interval_s = min(2 * interval_s, _MAX_QUERY_INTERVAL_S)
            next_query = time.monotonic() + interval_s
        time.sleep(_POLL_S)


def _is_active(array: JobArray) -> bool:
    """Return whether a task of the array is pending or running. Return True if slurmctld does not respond."""
    result = _run_slurm_command(
        array.command("squeue", "--noheader", f"--jobs={array.job_id}", "--format=%i")
    )
    if result is None:
        return True
    return bool(result.stdout.strip()) if result.returncode == 0 else "Invalid job id" not in result.stderr


def _cancel(array: JobArray) -> bool:
    """Cancel a job array and return whether Slurm accepted the request."""
    result = _run_slurm_command(array.scancel)
    return result is not None and result.returncode == 0


def _run_slurm_command(command: Sequence[str]) -> subprocess.CompletedProcess[str] | None:
    """Run a Slurm command. Return None if the command cannot be run or does not end in time."""
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
        why = "interrupted; sbatch did not respond and may still submit the array"
        return UnavailableError("--slurm", why, f"squeue --me --name={JOB_NAME} shows it")
    if cancelled:
        why = f"interrupted; array {array.job_id} is cancelled"
        return UnavailableError("--slurm", why, "the same command runs the rest")
    why = f"interrupted; array {array.job_id} could not be cancelled"
    return UnavailableError("--slurm", why, shlex.join(array.scancel))
