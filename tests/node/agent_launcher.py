"""Launcher that starts senergyd repeatedly inside a node: agent_launcher.py LOG ARGUMENTS...

For each line on standard input, the launcher forks a senergyd that has all modules loaded. The words of the
line are further arguments of senergyd. When senergyd ends, the launcher writes an empty line to standard
output. Delays between the end of a job and the delivery of its record are shortened. A fake controller
accepts any credential and sends no proof.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import sys

import pynvml  # noqa: F401  so that every child has it

from slurm_energy.agent import daemon, main
from slurm_energy.protocol import controller_endpoint


def run(log: str, arguments: list[str]) -> int:
    os.setsid()
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.dup2(descriptor, 2)
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    os.dup2(0, 1)
    os.close(descriptor)
    return main.main(arguments)


def _wait(child: int) -> None:
    """Wait for the end of a child process; kill it if the test ends first."""
    descriptor = os.pidfd_open(child)
    ready, _, _ = select.select([descriptor, sys.stdin.fileno()], [], [])
    if descriptor not in ready:
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(descriptor)


def launch() -> None:
    log, *arguments = sys.argv[1:]
    controller_endpoint.munge.encode = lambda *_arguments: "MUNGE:x:"
    controller_endpoint.ResponseVerifier.check = lambda *_arguments: None
    daemon._FLUSH_DELAY_S = 0.01
    daemon._HOUSEKEEPING_S = 0.2
    gc.freeze()
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                code = run(log, [*arguments, *line.split()])
            finally:
                os._exit(code)
        _wait(child)
        sys.stdout.write("\n")
        sys.stdout.flush()


launch()
