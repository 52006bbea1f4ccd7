"""Execution of build programs such as make, whose failure becomes a one-line error.

Slurm's commands are run by the module `command` instead.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

from slurm_energy.errors import EnergyError, UnavailableError

TIMEOUT_S: Final = 600.0


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
