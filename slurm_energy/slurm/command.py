"""Execution of Slurm's client commands with a time limit, a fixed locale and one-line errors."""

from __future__ import annotations

import os
import selectors
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from typing import IO, Final, cast

from slurm_energy.errors import UnavailableError

Runner = Callable[[Sequence[str]], str]
BYTE_PER_CHARACTER: Final = "latin-1"
"""Encoding that decodes every byte of a command's output to one character."""
# Variables that would change output formats or filters; SLURM_CLUSTERS would address other clusters.
_USER_VARIABLES = ("SQUEUE_", "SACCT_", "SINFO_", "SCONTROL_", "SLURM_CLUSTERS")
TIMEOUT_S = 30.0  # squeue itself gives up on an absent slurmctld after about 9 s
MAX_OUTPUT_BYTES: Final = 1 << 30
"""Maximum size of a command's output. `sacct -o ALL` prints about 2 kB per row."""
_MAX_ERROR_BYTES: Final = 1 << 16
_READ_BYTES: Final = 1 << 16


class CommandGate:
    """A check that runs before every Slurm command of this process and can forbid the command.

    Attributes:
        permit: function that is called before each command; raises an EnergyError while no command may run.
    """

    def __init__(self) -> None:
        self.open()

    def open(self) -> None:
        """Permit all further Slurm commands of this process."""
        self.permit: Callable[[], None] = lambda: None


COMMAND_GATE: Final = CommandGate()


class CommandFailedError(UnavailableError):
    """A command ended with an exit status other than 0.

    Attributes:
        messages: lines that the command printed to standard error, without the command's name.
        output: beginning of the command's standard output.
    """

    def __init__(self, name: str, messages: Sequence[str], status: int, output: str = "") -> None:
        super().__init__(name, messages[-1] if messages else f"exit status {status}")
        self.messages, self.output = tuple(messages), output


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
    """Return environment variables that make Slurm's commands print output for programs.

    Commands then print times as Unix seconds, independent of time zones and clock changes, and complete lists
    of array tasks. Variables that set formats or filters are removed from the user's environment.
    """
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(_USER_VARIABLES)}
    return inherited | {"SLURM_TIME_FORMAT": "%s", "SLURM_BITSTR_LEN": "0", "LC_ALL": "C.UTF-8"}


class CommandRunner:
    """Runner of one command at a time. Another thread can stop the runner at the shutdown of a daemon.

    Args:
        timeout_s: maximum duration of a command in seconds.
        max_output_bytes: maximum size of the standard output of a command.
    """

    def __init__(self, timeout_s: float = TIMEOUT_S, max_output_bytes: int = MAX_OUTPUT_BYTES) -> None:
        self._timeout_s, self._max_output_bytes = timeout_s, max_output_bytes
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._stopped = False

    def __call__(self, argv: Sequence[str]) -> str:
        """Run a Slurm command and return its standard output.

        The environment is `command_environment()`, extended by the variables of a `Command`. Bytes that are
        invalid in the encoding become replacement characters.

        Args:
            argv: program and arguments, or a `Command`.

        Raises:
            CommandFailedError: the command failed. The reason is the last line that it printed to standard
                error.
            UnavailableError: the command is not installed, timed out, printed too much, or was stopped.
        """
        name = argv[0]
        encoding = argv.encoding if isinstance(argv, Command) else "utf-8"
        child = self._start(argv)
        try:
            output, errors = self._read(child, name)
        finally:
            self._end(child)
        if child.returncode != 0:
            lines = errors.decode("utf-8", "replace").strip().splitlines()
            messages = [line.removeprefix(f"{name}: ") for line in lines]
            begin = output[:_MAX_ERROR_BYTES].decode(encoding, "replace")
            raise CommandFailedError(name, messages, child.returncode, begin)
        return output.decode(encoding, "replace")

    def _read(self, child: subprocess.Popen[bytes], name: str) -> tuple[bytes, bytes]:
        """Return the standard output and the first part of the standard error of a command that has ended.

        Raises:
            UnavailableError: the time limit or the limit of the output was exceeded.
        """
        assert child.stdout is not None and child.stderr is not None
        limits = {child.stdout: self._max_output_bytes, child.stderr: _MAX_ERROR_BYTES}
        texts: dict[IO[bytes], bytearray] = {stream: bytearray() for stream in limits}
        until_s = time.monotonic() + self._timeout_s
        late = UnavailableError(name, f"no answer within {self._timeout_s:g} s")
        with selectors.DefaultSelector() as selector:
            for stream in texts:
                selector.register(stream, selectors.EVENT_READ)
            while selector.get_map():
                ready = selector.select(max(0.0, until_s - time.monotonic()))
                if not ready and time.monotonic() >= until_s:
                    raise late
                for key, _ in ready:
                    stream = cast("IO[bytes]", key.fileobj)
                    part = os.read(key.fd, _READ_BYTES)
                    if not part:
                        selector.unregister(stream)
                    elif len(texts[stream]) < limits[stream]:
                        texts[stream] += part
                    elif stream is child.stdout:
                        limit = f"more than {self._max_output_bytes >> 20} MiB of output"
                        raise UnavailableError(name, limit, "select fewer rows")
        try:
            child.wait(max(0.0, until_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise late from None
        return bytes(texts[child.stdout]), bytes(texts[child.stderr])

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
        COMMAND_GATE.permit()
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
            except OSError as error:
                # A folder of PATH that this user may not search gives another error.
                if shutil.which(argv[0], os.F_OK, environment.get("PATH", os.defpath)) is None:
                    raise UnavailableError(argv[0], "not found", "install Slurm's client commands") from None
                raise UnavailableError(argv[0], error.strerror or str(error)) from None
            return self._child

    def _end(self, child: subprocess.Popen[bytes]) -> None:
        with self._lock:
            self._child = None
        if child.poll() is None:
            child.kill()
            child.wait()
        for stream in (child.stdout, child.stderr):
            if stream is not None:
                stream.close()


def run_command(argv: Sequence[str]) -> str:
    """Run one command with a new `CommandRunner` and return its standard output."""
    return CommandRunner()(argv)
