"""A campaign as a Slurm job array: submits it and waits; the results are files that the tasks leave."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from slurm_energy.errors import UnavailableError, UsageError
from slurm_energy.quantities import shown

_POLL_S = 1.0
MOST_TASKS = 32
"""Array tasks where nobody says how many."""


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
    array = [f"--array=0-{parts - 1}", f"--output={folder}/slurm-%A_%a.out", "--job-name=senergy-simulate"]
    return ["sbatch", "--wait", "--parsable", *array, *more, f"--wrap={script}"]


def run(command: Sequence[str], complete: Callable[[], bool]) -> None:
    """Submit an array and wait for its end, as long as it takes, or until all results are there.

    Args:
        command: of `sbatch_command`.
        complete: called every second; returns whether all results are there. sbatch itself looks ever more
            rarely.

    Raises:
        UnavailableError: sbatch is not installed or refuses.
    """
    try:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
    except OSError as error:
        why = "not found" if isinstance(error, FileNotFoundError) else str(error)
        raise UnavailableError("sbatch", why, "--slurm needs Slurm's client commands") from None
    while True:
        try:
            output, errors = child.communicate(timeout=_POLL_S)
            break
        except subprocess.TimeoutExpired:
            if complete():
                child.kill()
                child.communicate()
                return
        except KeyboardInterrupt:
            child.kill()
            raise
    if not output.strip():
        lines = errors.strip().splitlines() or [f"exit status {child.returncode}"]
        raise UnavailableError("sbatch", shown(lines[-1].removeprefix("sbatch: error: "), 200))
