"""Execution of build programs such as make. A failure becomes a one-line error.

Slurm's commands are run by the module `command` instead.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Final

from slurm_energy.errors import EnergyError, ForbiddenError, UnavailableError

TIMEOUT_S: Final = 600.0
OUTPUT_TODO: Final = "run it as root, or name another directory with --output"
"""Remedy if the caller may not write to the directory of the built plugins."""


def require_writable(directory: Path, todo: str = "run it as root") -> None:
    """Check that the caller can create files in a directory. A missing directory must be creatable.

    A build takes up to minutes. With this check, a caller who may not write the result learns so before the
    build.

    Args:
        directory: directory of the files.
        todo: remedy if the caller may not write there.

    Raises:
        ForbiddenError: the caller may not write there.
        UnavailableError: not even root may write there, or the path is no directory.
    """
    present = directory
    while not present.exists() and present != present.parent:
        present = present.parent
    if not present.is_dir():
        raise UnavailableError(str(directory), f"{present} is not a directory")
    if not os.access(present, os.W_OK | os.X_OK):
        if os.geteuid() == 0:
            raise UnavailableError(str(directory), "cannot be written")
        raise ForbiddenError(str(directory), "cannot be written", todo)


def run_tool(
    argv: list[str], directory: Path, what: str, failure: type[EnergyError] = UnavailableError
) -> None:
    """Run a program and discard its output.

    Args:
        argv: program and arguments.
        directory: working directory.
        what: name of the thing to be built, for the error message.
        failure: class of the error that is raised if the program exits with a status other than 0.

    Raises:
        UnavailableError: the program cannot be executed, or takes longer than `TIMEOUT_S`.
        EnergyError: of class `failure`, if the program failed. The reason is the first error line of the
            program's output, or the last line if there is no error line.
    """
    try:
        done = subprocess.run(
            argv,
            cwd=directory,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=TIMEOUT_S,
            check=False,
            text=True,
            errors="replace",
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnavailableError(what, f"{argv[0]}: {error}") from None
    if done.returncode != 0:
        lines = (done.stderr.strip() or done.stdout.strip()).splitlines() or [
            f"exit status {done.returncode}"
        ]
        first = next((line for line in lines if "error:" in line or line.startswith("E: ")), lines[-1])
        raise failure(what, f"{argv[0]}: {first}")
