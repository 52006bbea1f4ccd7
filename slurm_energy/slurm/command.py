"""Execution of Slurm's client commands with a time limit, a fixed locale and one-line errors."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable, Sequence
from typing import Final

from slurm_energy.errors import UnavailableError

Runner = Callable[[Sequence[str]], str]
BYTE_PER_CHARACTER: Final = "latin-1"
"""Encoding that decodes every byte of a command's output to one character."""
# Variables that would change output formats or filters; SLURM_CLUSTERS would address other clusters.
_USER_VARIABLES = ("SQUEUE_", "SACCT_", "SINFO_", "SCONTROL_", "SLURM_CLUSTERS")
TIMEOUT_S = 30.0  # squeue itself gives up on an absent slurmctld after about 9 s


class Command(list[str]):
    """A command line with the encoding of the command's output and further environment variables.

    Args:
        argv: program and arguments. Every user of the host can see them.
        encoding: encoding of the output.
        environment: further environment variables. Other users cannot see them.
    """

    def __init__(self, argv: Sequence[str], encoding: str = "utf-8", **environment: str) -> None:
        super().__init__(argv)
        self.encoding, self.environment = encoding, environment


def command_environment() -> dict[str, str]:
    """Return the environment variables with which Slurm's commands print output for programs.

    Commands then print times as Unix seconds, independent of time zones and clock changes, and complete lists
    of array tasks. Variables that set formats or filters are removed from the user's environment.
    """
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(_USER_VARIABLES)}
    return inherited | {"SLURM_TIME_FORMAT": "%s", "SLURM_BITSTR_LEN": "0", "LC_ALL": "C.UTF-8"}


class CommandRunner:
    """Runner of one command at a time, which another thread can stop at the shutdown of a daemon.

    Args:
        timeout_s: maximum duration of a command in seconds.
    """

    def __init__(self, timeout_s: float = TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._stopped = False

    def __call__(self, argv: Sequence[str]) -> str:
        """Run a Slurm command and return its standard output.

        The environment is `command_environment()`, extended by that of a `Command`. Bytes that are invalid in
        the encoding become replacement characters.

        Args:
            argv: program and arguments, or a `Command`.

        Raises:
            UnavailableError: the command is not installed, failed, timed out or was stopped. If it failed,
                the reason is the last line that it printed to standard error.
        """
        name = argv[0]
        encoding = argv.encoding if isinstance(argv, Command) else "utf-8"
        child = self._start(argv)
        try:
            output, errors = child.communicate(timeout=self._timeout_s)
        except subprocess.TimeoutExpired:
            raise UnavailableError(name, f"no answer within {self._timeout_s:g} s") from None
        finally:
            self._end(child)
        if child.returncode != 0:
            lines = errors.decode("utf-8", "replace").strip().splitlines()
            why = lines[-1].removeprefix(f"{name}: ") if lines else f"exit status {child.returncode}"
            raise UnavailableError(name, why)
        return output.decode(encoding, "replace")

    def stop(self) -> None:
        """Kill the running command, if any, and refuse further commands."""
        with self._lock:
            self._stopped = True
            if self._child is not None:
                self._child.kill()

    def _start(self, argv: Sequence[str]) -> subprocess.Popen[bytes]:
        environment = command_environment()
        if isinstance(argv, Command):
            environment |= argv.environment
        with self._lock:
            if self._stopped:
                raise UnavailableError(argv[0], "shutting down")
            try:
                self._child = subprocess.Popen(
                    argv,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    env=environment,
                )
            except FileNotFoundError:
                raise UnavailableError(argv[0], "not found", "install Slurm's client commands") from None
            except OSError as error:
                raise UnavailableError(argv[0], error.strerror or str(error)) from None
            return self._child

    def _end(self, child: subprocess.Popen[bytes]) -> None:
        with self._lock:
            self._child = None
        if child.poll() is None:
            child.kill()
            child.communicate()


def run_command(argv: Sequence[str]) -> str:
    """Run one command with a new `CommandRunner` and return its standard output."""
    return CommandRunner()(argv)
