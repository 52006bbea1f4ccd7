"""Runs the programs of a build to their ends; failures become one line. Slurm's own commands: `command`."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

from slurm_energy.errors import EnergyError, UnavailableError

TIMEOUT_S: Final = 600.0


def run_tool(
    argv: list[str], directory: Path, what: str, failure: type[EnergyError] = UnavailableError
) -> None:
    """Run a program silently.

    Args:
        argv: the program and its arguments.
        directory: where it runs.
        what: what it makes, for the error.
        failure: the error to raise if it fails.

    Raises:
        UnavailableError: it cannot be run, or takes longer than `TIMEOUT_S`.
        EnergyError: of the class `failure`: it failed; the reason is its first error or its last line.
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
