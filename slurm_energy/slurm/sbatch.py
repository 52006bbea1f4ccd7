"""Submission of single jobs with sbatch."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from typing import Final

from slurm_energy.errors import UnavailableError, UsageError
from slurm_energy.quantities import shown

_TIMEOUT_S: Final = 60.0
_HINT: Final = 'Try "sbatch --help"'
"""Part of the last line that sbatch prints after an unknown option."""
_JOB_ID = re.compile(r"(\d{1,18})(?:;\S*)?\s*", re.ASCII)
_IGNORED_VARIABLES: Final = ("SBATCH_ARRAY_INX", "SBATCH_WAIT", "SBATCH_HOLD", "SBATCH_TEST_ONLY")
"""Environment variables because of which a submission would not be one job that starts by itself."""


class RefusedError(UsageError):
    """sbatch refused a job."""


def run_sbatch(command: Sequence[str], variables: Mapping[str, str]) -> int:
    """Submit one job and return its id.

    sbatch runs in a session of its own, because a terminal interrupts all processes of its session.

    Args:
        command: `sbatch --parsable` with options, script and arguments.
        variables: environment variables to add.

    Raises:
        RefusedError: sbatch refused the job.
        UnavailableError: sbatch is missing, timed out, or cannot reach slurmctld.
    """
    try:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={name: value for name, value in os.environ.items() if name not in _IGNORED_VARIABLES}
            | dict(variables),
            start_new_session=True,
        )
    except OSError as error:
        why = "not found" if isinstance(error, FileNotFoundError) else str(error)
        raise UnavailableError("sbatch", why, "install Slurm's client commands") from None
    try:
        output, errors = child.communicate(timeout=_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.communicate()
        raise UnavailableError("sbatch", f"no answer within {_TIMEOUT_S:g} s") from None
    match = _JOB_ID.fullmatch(output.decode("utf-8", "replace"))
    if child.returncode == 0 and match:
        return int(match[1])
    lines = errors.decode("utf-8", "replace").strip().splitlines()
    reasons = [line for line in lines if _HINT not in line] or [f"exit status {child.returncode}"]
    why = shown(reasons[-1].removeprefix("sbatch: ").removeprefix("error: "), 300)
    if any(text in why for text in ("Unable to contact", "Socket timed out", "Connection refused")):
        raise UnavailableError("sbatch", why)
    raise RefusedError("sbatch", why)
