"""Removal of a private database server and its directory.

The removal takes place when the process that started the server has ended.

Usage: python -m slurm_energy_lab.database_cleaner DIRECTORY. The standard input of this command must be a
pipe from the process that started the server.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

_SEGMENT_LINE: Final = 6
"""Index of the line of postmaster.pid that holds the key and the id of the shared memory segment."""
_REMOVAL_TIMEOUT_S: Final = 30.0


def clean(directory: Path) -> None:
    """Kill the server of this directory and remove the directory.

    PostgreSQL's worker processes end shortly after their killed server and may still write a file.
    """
    with contextlib.suppress(OSError, ValueError):
        pid = int((directory / "server.pid").read_text())
        if os.fsencode(directory) in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(pid, signal.SIGKILL)
    remove_shared_memory(directory / "data")
    deadline = time.monotonic() + _REMOVAL_TIMEOUT_S
    while directory.exists() and time.monotonic() < deadline:
        shutil.rmtree(directory, ignore_errors=True)
        time.sleep(0.02)


def remove_shared_memory(data: Path) -> None:
    """Remove the shared memory segment that a killed PostgreSQL server leaves behind."""
    with contextlib.suppress(OSError, IndexError):
        segment = (data / "postmaster.pid").read_text().splitlines()[_SEGMENT_LINE].split()[1]
        subprocess.run(["ipcrm", "-m", segment], capture_output=True, check=False)


if __name__ == "__main__":
    sys.stdin.buffer.read()
    clean(Path(sys.argv[1]))
