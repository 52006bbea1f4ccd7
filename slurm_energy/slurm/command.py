"""Run one of Slurm's client commands: with a time limit, a plain locale, and one-line errors."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable, Sequence
from typing import Final

from slurm_energy.errors import UnavailableError

Runner = Callable[[Sequence[str]], str]
BYTE_PER_CHARACTER: Final = "latin-1"
"""Encoding in which every byte of the output is one character."""
# SLURM_CLUSTERS would send questions and changes to other clusters.
_USERS_OWN = ("SQUEUE_", "SACCT_", "SINFO_", "SCONTROL_", "SLURM_CLUSTERS")
TIMEOUT_S = 30.0  # squeue itself gives up on an absent slurmctld after about 9 s


class Command(list[str]):
    """A command line with what does not fit on it.

    Args:
        argv: program and arguments, which every user of the host can see.
        encoding: encoding of the output.
        environment: further environment variables, which other users cannot see.
    """

    def __init__(self, argv: Sequence[str], encoding: str = "utf-8", **environment: str) -> None:
        super().__init__(argv)
        self.encoding, self.environment = encoding, environment


def command_environment() -> dict[str, str]:
    """Return the environment in which commands print what a program can read.

    Times are Unix seconds, so that neither time zone nor clock change can be misread, lists of array tasks
    are whole, and no format or filter of a user's is in it.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_USERS_OWN)}
    return kept | {"SLURM_TIME_FORMAT": "%s", "SLURM_BITSTR_LEN": "0", "LC_ALL": "C.UTF-8"}


class CommandRunner:
    """Runs commands one at a time and can be stopped from another thread, as a daemon must at its end."""

    def __init__(self, timeout_s: float = TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._stopped = False

    def __call__(self, argv: Sequence[str]) -> str:
        """Return the standard output of a Slurm command.

        Its environment is `command_environment()` and that of a `Command`. Bytes that are not UTF-8 become
        replacement characters.

        Raises:
            UnavailableError: not installed, failed, too slow or stopped; the reason is the command's last
                line.
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
        """End the running command, if any, and refuse further ones."""
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
    """Run one command; see `CommandRunner`."""
    return CommandRunner()(argv)
