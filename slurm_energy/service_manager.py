"""Interface of the daemons to systemd: readiness, status, watchdog (sd_notify) and the log format.

Protocols: sd_notify(3), sd_watchdog_enabled(3), sd-daemon(3), systemd.exec(5) on JOURNAL_STREAM. Without
systemd the notifications do nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Final, TextIO

from slurm_energy.config.value_checks import LOG_LEVELS
from slurm_energy.errors import EnergyError

__all__ = [
    "LOG_LEVELS",
    "LogLevels",
    "ServiceManager",
    "ignore_level_signals",
    "report_failure",
    "set_log_level",
    "start_log",
]

_SEND_TIMEOUT_S: Final = 1.0
_PACKAGE: Final = "slurm_energy."
_ABSTRACT_PREFIX: Final = "@"
_WORDS: Final = {
    logging.DEBUG: "debug",
    logging.INFO: "info",
    logging.WARNING: "warning",
    logging.ERROR: "error",
    logging.CRITICAL: "error",
}
_PRIORITIES: Final = {"debug": 7, "info": 6, "warning": 4, "error": 3}
"""syslog(3) priorities, which the journal parses from a prefix of each line."""

log = logging.getLogger(__name__)


class ServiceManager:
    """Sender of notifications to the service manager (systemd) that started this process.

    Args:
        address: datagram socket of the service manager, `@NAME` for an abstract socket; empty if there is no
            service manager.
        watchdog_s: seconds without a keep-alive after which the service manager kills the daemon; None if the
            service manager does not watch the daemon.
    """

    def __init__(self, address: str = "", watchdog_s: float | None = None) -> None:
        self._address = address
        self._watchdog_s = watchdog_s
        self._failed = False
        self._ready = False

    @classmethod
    def from_environment(cls, environment: MutableMapping[str, str] | None = None) -> ServiceManager:
        """Create a sender of messages to the service manager (systemd).

        The required environment variables are removed, so that no child process uses them.

        Args:
            environment: environment to read and change; None means the environment of this process.
        """
        variables = os.environ if environment is None else environment
        address = variables.pop("NOTIFY_SOCKET", "")
        period, process = variables.pop("WATCHDOG_USEC", ""), variables.pop("WATCHDOG_PID", "")
        meant = process in ("", str(os.getpid()))
        watchdog_s = int(period) / 1e6 if meant and period.isdecimal() and int(period) > 0 else None
        if not address.startswith(("/", _ABSTRACT_PREFIX)):
            address = ""
        return cls(address, watchdog_s if address else None)

    def ready(self, status: str) -> None:
        """Report that the daemon is ready, so that the units ordered after it may start.

        Args:
            status: status line for `systemctl status`.
        """
        self._ready = True
        self._send("READY=1", _status(status))

    def status(self, status: str) -> None:
        """Set the text that `systemctl status` shows for the daemon."""
        self._send(_status(status))

    @contextlib.contextmanager
    def reload(self) -> Iterator[None]:
        """Context manager that reports the beginning and the end of a configuration reload.

        Nothing is reported if the daemon has not reported readiness before.
        """
        if self._ready:
            self._send("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")
        try:
            yield
        finally:
            if self._ready:
                self._send("READY=1")

    def stopping(self) -> None:
        """Report that the daemon is shutting down."""
        self._send("STOPPING=1", _status("Stopping"))

    async def keep_alive(self) -> None:
        """Send keep-alives to the service manager until cancelled.

        The keep-alives are sent from the event loop. If the event loop hangs, no keep-alives are sent, and
        the service manager kills the daemon.
        """
        while True:
            if self._watchdog_s is not None:
                self._send("WATCHDOG=1")
            await asyncio.sleep((self._watchdog_s or 3600.0) / 2)

    def _send(self, *assignments: str) -> None:
        if not self._address:
            return
        target = self._address
        if target.startswith(_ABSTRACT_PREFIX):
            target = "\0" + target[1:]
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as connection:
                connection.settimeout(_SEND_TIMEOUT_S)
                connection.sendto("\n".join(assignments).encode(), target)
        except OSError as error:
            if not self._failed:
                log.warning("NOTIFY_SOCKET %s: %s", self._address, error.strerror or error)
            self._failed = True
        else:
            self._failed = False


def _status(text: str) -> str:
    return "STATUS=" + " ".join(text.split())


def start_log(program: str, level: str) -> None:
    """Start logging to stderr. If stderr is the journal, use the format of the journal.

    Args:
        program: name of the program. On a terminal, each line has this name.
        level: minimum level, one of `LOG_LEVELS`.
    """
    handler = logging.StreamHandler(sys.stderr)
    formatter = JournalFormatter() if _is_journal(sys.stderr) else TerminalFormatter(program)
    handler.setFormatter(formatter)
    logging.basicConfig(handlers=[handler], force=True)
    set_log_level(level)


def set_log_level(level: str, components: Mapping[str, str] | None = None) -> None:
    """Set the minimum level of the log.

    Args:
        level: one of `LOG_LEVELS`.
        components: levels of packages and modules of `slurm_energy`, such as `agent.state`. The level of a
            package also applies to the modules below it. None means that all components have the same level.
            Levels of components that an earlier call set are reset.
    """
    logging.getLogger().setLevel(level.upper())
    for name in [name for name in logging.root.manager.loggerDict if name.startswith(_PACKAGE)]:
        logging.getLogger(name).setLevel(logging.NOTSET)
    for name, own_level in (components or {}).items():
        logging.getLogger(_PACKAGE + name).setLevel(own_level.upper())
    # Debug records of these libraries would hide those of the daemon.
    for library in ("asyncio", "aiohttp"):
        logging.getLogger(library).setLevel(max(logging.INFO, logging.getLogger().level))


class LogLevels:
    """Log levels of a running daemon: the configured levels, or debug after a signal.

    Args:
        override: value of --log-level, which takes precedence over the configured level; None means not
            given.
    """

    def __init__(self, override: str | None) -> None:
        self._override = override
        self._configured: tuple[str, Mapping[str, str]] = ("info", {})

    def configure(self, level: str, components: Mapping[str, str]) -> None:
        """Set the log levels of the configuration.

        If a signal has switched logging to the level debug, this call switches it off again.
        """
        self._configured = self._override or level, components
        set_log_level(*self._configured)

    def handle_signals(self, loop: asyncio.AbstractEventLoop) -> None:
        """Switch to level debug at the signal SIGUSR1, and back to the configured levels at SIGUSR2."""
        loop.add_signal_handler(signal.SIGUSR1, self._debug)
        loop.add_signal_handler(signal.SIGUSR2, self._restore)

    def _debug(self) -> None:
        set_log_level("debug")
        log.warning("log level: debug, until SIGUSR2 or a reload")

    def _restore(self) -> None:
        level, components = self._configured
        set_log_level("info")
        log.info("log level: %s", ", ".join([level, *(f"{n} {one}" for n, one in components.items())]))
        set_log_level(level, components)


def ignore_level_signals() -> None:
    """Ignore SIGUSR1 and SIGUSR2. These signals would otherwise end a daemon that is still starting."""
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)


def report_failure(program: str, error: EnergyError) -> int:
    """Print the error that ends a daemon to stderr, with one line per fault.

    Returns:
        Exit code of the error.
    """
    prefix = f"<{_PRIORITIES['error']}>" if _is_journal(sys.stderr) else f"{program}: error: "
    for line in error.lines:
        print(f"{prefix}{line}", file=sys.stderr)
    return error.exit_code


class JournalFormatter(logging.Formatter):
    """Log format for the journal: each line starts with its syslog priority.

    The journal adds time and program.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the text of a log record, with the priority before each line."""
        prefix = f"<{_PRIORITIES[_word(record)]}>"
        return "\n".join(prefix + line for line in super().format(record).split("\n"))


class TerminalFormatter(logging.Formatter):
    """Log format for a terminal: the text of each record starts with time, program and level."""

    def __init__(self, program: str) -> None:
        super().__init__(f"%(asctime)s {program}: %(level)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """Return the text of a log record."""
        record.level = _word(record)
        return super().format(record)


def _word(record: logging.LogRecord) -> str:
    return _WORDS[max((level for level in _WORDS if level <= record.levelno), default=logging.DEBUG)]


def _is_journal(stream: TextIO) -> bool:
    """Return whether a stream is connected to the systemd journal.

    systemd sets the environment variable JOURNAL_STREAM to the device and the inode of the journal's
    socket. The stream is compared with these numbers.
    """
    try:
        status = os.fstat(stream.fileno())
    except (OSError, ValueError):
        return False
    return os.environ.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}"
