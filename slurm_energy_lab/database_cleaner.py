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
_KILL_TIMEOUT_S: Final = 10.0


def clean(directory: Path) -> None:
    """Kill the server of this directory with its worker processes, and remove the directory."""
    with contextlib.suppress(OSError, ValueError):
        pid = int((directory / "server.pid").read_text())
        if os.fsencode(directory) in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(pid, signal.SIGKILL)
    remove_remains(directory / "data")
    deadline = time.monotonic() + _REMOVAL_TIMEOUT_S
    while directory.exists() and time.monotonic() < deadline:
        shutil.rmtree(directory, ignore_errors=True)
        time.sleep(0.02)


def remove_remains(data: Path) -> None:
    """Kill the processes and remove the shared memory that a killed PostgreSQL server leaves behind.

    A busy backend runs on after its postmaster was killed, and a new server refuses to start until the
    backend has ended.

    Args:
        data: data directory of the server, which is the current directory of its processes.
    """
    _kill_processes_in(data)
    _remove_shared_memory(data)


def _kill_processes_in(directory: Path) -> None:
    """Kill the processes whose current directory is `directory`, and wait until they have ended.

    The function waits for at most `_KILL_TIMEOUT_S` seconds.
    """
    resolved, deadline = directory.resolve(), time.monotonic() + _KILL_TIMEOUT_S
    while members := [entry for entry in Path("/proc").glob("[0-9]*/cwd") if _leads_to(entry, resolved)]:
        if time.monotonic() > deadline:
            return
        for entry in members:
            with contextlib.suppress(OSError):
                os.kill(int(entry.parent.name), signal.SIGKILL)
        time.sleep(0.01)


def _leads_to(link: Path, directory: Path) -> bool:
    with contextlib.suppress(OSError):
        return link.readlink() == directory
    return False


def _remove_shared_memory(data: Path) -> None:
    with contextlib.suppress(OSError, IndexError):
        segment = (data / "postmaster.pid").read_text().splitlines()[_SEGMENT_LINE].split()[1]
        subprocess.run(["ipcrm", "-m", segment], capture_output=True, check=False)


if __name__ == "__main__":
    sys.stdin.buffer.read()
    clean(Path(sys.argv[1]))
