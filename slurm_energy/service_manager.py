"""Interface of the daemons to systemd: readiness, state, watchdog (sd_notify) and the format of the log.

Protocols: sd_notify(3), sd_watchdog_enabled(3), sd-daemon(3), systemd.exec(5) on JOURNAL_STREAM. Without
systemd, notifications do nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import sys
import time
from collections.abc import Iterator, MutableMapping
from typing import Final, TextIO

from slurm_energy.config.value_checks import LOG_LEVELS
from slurm_energy.errors import EnergyError

__all__ = ["LOG_LEVELS", "ServiceManager", "report_failure", "set_log_level", "start_log"]

_SEND_TIMEOUT_S: Final = 1.0
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
    """A sender of notifications to the service manager that started this process.

    Args:
        address: datagram socket of the manager, `@NAME` if abstract; empty: there is no manager.
        watchdog_s: seconds without a keep-alive after which the manager kills the daemon; None: no watchdog.
    """

    def __init__(self, address: str = "", watchdog_s: float | None = None) -> None:
        self._address = address
        self._watchdog_s = watchdog_s
        self._failed = False
        self._ready = False

    @classmethod
    def from_environment(cls, environment: MutableMapping[str, str] | None = None) -> ServiceManager:
        """Read the manager's variables and remove them from the environment, so that no child uses them."""
        variables = os.environ if environment is None else environment
        address = variables.pop("NOTIFY_SOCKET", "")
        period, process = variables.pop("WATCHDOG_USEC", ""), variables.pop("WATCHDOG_PID", "")
        meant = process in ("", str(os.getpid()))
        watchdog_s = int(period) / 1e6 if meant and period.isdecimal() and int(period) > 0 else None
        if not address.startswith(("/", _ABSTRACT_PREFIX)):
            address = ""
        return cls(address, watchdog_s if address else None)

    def ready(self, status: str) -> None:
        """Report that the daemon is ready; units ordered after it may start."""
        self._ready = True
        self._send("READY=1", _status(status))

    def status(self, status: str) -> None:
        """Set the status line in `systemctl status`."""
        self._send(_status(status))

    @contextlib.contextmanager
    def reload(self) -> Iterator[None]:
        """Report begin and end of a reload around the block, if the daemon is ready."""
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
        """Send keep-alives from the event loop for ever; the manager kills a daemon whose loop hangs."""
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
    """Log records of `level` and above to stderr, in the format of the journal if stderr is the journal."""
    handler = logging.StreamHandler(sys.stderr)
    formatter = JournalFormatter() if _is_journal(sys.stderr) else TerminalFormatter(program)
    handler.setFormatter(formatter)
    logging.basicConfig(handlers=[handler], force=True)
    set_log_level(level)


def set_log_level(level: str) -> None:
    """Set the log level to one of `LOG_LEVELS`."""
    logging.getLogger().setLevel(level.upper())
    # Debug records of these libraries would hide those of the daemon.
    for library in ("asyncio", "aiohttp"):
        logging.getLogger(library).setLevel(max(logging.INFO, logging.getLogger().level))


def report_failure(program: str, error: EnergyError) -> int:
    """Print the error that ends a daemon, one line per finding, and return its exit code."""
    prefix = f"<{_PRIORITIES['error']}>" if _is_journal(sys.stderr) else f"{program}: error: "
    for line in error.lines:
        print(f"{prefix}{line}", file=sys.stderr)
    return error.exit_code


class JournalFormatter(logging.Formatter):
    """A log format with the priority before each line; the journal adds time and program."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the lines of a record."""
        prefix = f"<{_PRIORITIES[_word(record)]}>"
        return "\n".join(prefix + line for line in super().format(record).split("\n"))


class TerminalFormatter(logging.Formatter):
    """A log format with time, program and level in each line."""

    def __init__(self, program: str) -> None:
        super().__init__(f"%(asctime)s {program}: %(level)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """Return the text of a record."""
        record.level = _word(record)
        return super().format(record)


def _word(record: logging.LogRecord) -> str:
    return _WORDS[max((level for level in _WORDS if level <= record.levelno), default=logging.DEBUG)]


def _is_journal(stream: TextIO) -> bool:
    """Return whether a stream is the journal: JOURNAL_STREAM names its device and inode."""
    try:
        status = os.fstat(stream.fileno())
    except (OSError, ValueError):
        return False
    return os.environ.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}"
