"""Progress reports of a program to the node's agent.

The agent compares the speed of a job at several settings of the hardware. For this comparison, the agent
needs the number of completed units of work (steps, samples, iterations). Only the program knows this number
exactly. Reports cost the program well under a microsecond per call on average, never raise an error and never
wait for the agent.
"""

from __future__ import annotations

import atexit
import json
import logging
import math
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, TypeVar

log = logging.getLogger("slurm_energy")

_MIN_INTERVAL_S, _MAX_INTERVAL_S = 0.5, 60.0
_RETRY_AFTER_S: Final = 30.0
_CONNECT_TIMEOUT_S: Final = 0.02
_LOCK_TIMEOUT_S: Final = 0.02
_MAX_IDLE_S: Final = 30.0
"""Idle time after which a connection is replaced. The agent closes a connection after a minute."""
_MAX_UNANSWERED: Final = 8
_MAX_RESPONSE_BYTES: Final = 16 * 1024
_RECEIVE_BYTES: Final = 4096
_DOCUMENT_INTERVAL_S: Final = 10.0
_ENVELOPE_BYTES: Final = 512
"""Bytes reserved for the other fields of a message with a document."""
_FIRST_DOCUMENT_BYTES: Final = 3 * 1024
_MAX_DOCUMENT_BYTES: Final = 1 << 20
_Item = TypeVar("_Item")


def progress(n: float = 1, total: float | None = None) -> None:
    """Report that this process has completed `n` more units of work since the previous call.

    Call this function after each step of the main loop. The units of several calls are added up and sent at
    most twice a second. Outside a Slurm job, or if the node has no agent, the function does nothing.

    Args:
        n: number of completed units of work. A unit must always be the same amount of work, for example one
            step, sample or iteration.
        total: total number of units that this process will complete, if known.
    """
    _reporter.add(n, total)


def track(iterable: Iterable[_Item], total: float | None = None) -> Iterator[_Item]:
    """Yield the items of an iterable, and report one unit of work after the work on each item.

    Example: `for batch in slurm_energy.track(loader): ...`

    Args:
        iterable: the items, for example batches of a data loader.
        total: total number of units that this process will complete. By default it is the length of the
            iterable, if the iterable has a length. A program that iterates several times, for example once
            per epoch, should state the sum.
    """
    if total is None:
        try:
            total = len(iterable)  # type: ignore[arg-type]
        except (TypeError, NotImplementedError):
            total = None
    for item in iterable:
        yield item
        progress(1, total)


def report_steps(optimizer: Any, total: float | None = None) -> Any:
    """Report one unit of work after each step of a PyTorch optimizer.

    Args:
        optimizer: a `torch.optim.Optimizer`.
        total: total number of steps, if known.

    Returns:
        The handle of the hook; its method `remove` ends the reports.
    """

    def after_step(*_: Any) -> None:
        progress(1, total)

    return optimizer.register_step_post_hook(after_step)


def report_document(source: Callable[[int], str | None]) -> None:
    """Send a JSON document about the steps of this process together with the progress.

    A document is sent at most every 10 seconds.

    Args:
        source: function that returns the document. Its argument is the maximum size in bytes. A result of
            None means that there is nothing to send.
    """
    _reporter.document_source = source


def flush_progress() -> None:
    """Send the data that have not been sent yet. Do nothing without a connection to the agent."""
    _reporter.flush()


class ProgressReporter:
    """Sender of the progress of this process. A forked child starts with a new sender."""

    def __init__(self) -> None:
        self.document_source: Callable[[int], str | None] | None = None
        self._max_document_bytes = 0
        self._next_document_s = 0.0
        self._unsent = b""
        self._lock = threading.Lock()
        self._units = 0.0
        self._sent_units = 0.0
        self._total: float | None = None
        self._last_unit_s = 0.0
        self._next_s = 0.0
        self._interval_s = _MIN_INTERVAL_S
        self._connection: socket.socket | None = None
        self._used_s = 0.0
        self._unanswered = 0
        self._received = b""
        self._identity: tuple[str, int, str] | None = None
        self._warned = False

    def add(self, n: float, total: float | None = None) -> None:
        """Count completed units of work of this program.

        The sum is sent to the agent if enough time has passed since the last message.
        """
        try:
            units = float(n)
            if not (math.isfinite(units) and units >= 0):
                raise ValueError(f"{n!r:.40} is not a number of units")
            if not self._lock.acquire(timeout=_LOCK_TIMEOUT_S):
                self._units += units  # a signal handler interrupted this thread while it held the lock
                return
            try:
                self._units += units
                now = time.monotonic()
                if now < self._next_s or (units == 0 and not self._document_is_due(now)):
                    return
                if units:
                    self._total = None if total is None else float(total)
                self._send(now)
            finally:
                self._lock.release()
        except Exception as error:
            self._fail(error)

    def flush(self) -> None:
        """Report completed units of work to the agent that have not been reported yet.

        Do nothing without a connection to the agent.
        """
        try:
            with self._lock:
                if self._connection is not None:
                    self._next_document_s = 0.0
                    if self._units > self._sent_units or self._document_is_due(0.0):
                        self._send(time.monotonic())  # also when the interval has not passed
        except Exception as error:
            self._fail(error)

    def reset_after_fork(self) -> None:
        """Reset the sender in a forked child. The parent keeps the connection."""
        connection, source = self._connection, self.document_source
        self.__dict__.update(ProgressReporter().__dict__)
        self.document_source = source
        if connection is not None:
            connection.close()

    def _fail(self, error: Exception) -> None:
        """Log the first error and pause the reports. The program continues."""
        self._close()
        self._next_s = time.monotonic() + _RETRY_AFTER_S
        if not self._warned:
            self._warned = True
            log.info("slurm_energy: progress is not reported: %s", error)

    def _send(self, now: float) -> None:
        if self._identity is None:
            identity = _identity()
            if identity is None:
                self._next_s = math.inf  # outside a Slurm job
                return
            self._identity = identity
        path, job_id, process = self._identity
        self._receive()
        self._next_s = now + self._interval_s
        if self._unanswered >= _MAX_UNANSWERED:
            return  # the agent is busy; the next message contains these units too
        if self._connection is not None and now - self._used_s > _MAX_IDLE_S:
            self._close()
        if self._connection is None:
            self._connection = _connect(path)
        # Formatted by hand: all values are finite numbers, or text without special characters.
        text = f'{{"op": "progress", "job_id": {job_id}, "process": "{process}"'
        if self._units:
            text += f', "units": {self._units!r}, "time_s": {time.clock_gettime(time.CLOCK_BOOTTIME)!r}'
        if self._total is not None and 0 <= self._total < 1e15:
            text += f', "total": {self._total!r}'
        try:
            if not self._send_rest(self._connection):
                return  # the agent is busy; the next message contains these units too
            document = self._document(now)
            if document is None and not self._units:
                return
            self._unsent = (text if document is None else f'{text}, "steps": {document}').encode() + b"}\n"
            self._send_rest(self._connection)
        except (BrokenPipeError, ConnectionError):
            self._close()  # the agent closes idle connections; the next call opens another one
            self._next_s = 0.0
            return
        self._used_s, self._sent_units = now, self._units
        self._unanswered += 1

    def _send_rest(self, connection: socket.socket) -> bool:
        """Send as much of the last message as the connection accepts now; return whether all was sent."""
        try:
            while self._unsent:
                self._unsent = self._unsent[connection.send(self._unsent) :]
        except (BlockingIOError, InterruptedError):
            return False
        return True

    def _document_is_due(self, now: float) -> bool:
        return self.document_source is not None and now >= self._next_document_s

    def _document(self, now: float) -> str | None:
        """Return the JSON document about the program's steps that is sent with the next message.

        The result is None if no document is due, or if the agent does not accept documents.
        """
        limit = self._max_document_bytes
        if not self._units and not limit:
            limit = _FIRST_DOCUMENT_BYTES  # the agent states its limit only in a response
        if self.document_source is None or limit <= _ENVELOPE_BYTES or not self._document_is_due(now):
            return None
        self._next_document_s = now + _DOCUMENT_INTERVAL_S
        return self.document_source(limit - _ENVELOPE_BYTES)

    def _receive(self) -> None:
        """Read the responses of the agent that have arrived, without waiting.

        If a response states an interval for reports, it is used from now on.
        """
        while self._connection is not None:
            try:
                data = self._connection.recv(_RECEIVE_BYTES)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                data = b""
            if not data or len(self._received) > _MAX_RESPONSE_BYTES:
                self._close()
                return
            *lines, self._received = (self._received + data).split(b"\n")
            for line in lines:
                self._unanswered = max(0, self._unanswered - 1)
                self._read_response(line)
            if len(data) < _RECEIVE_BYTES:
                return

    def _read_response(self, line: bytes) -> None:
        response = json.loads(line)
        if not response.get("ok"):
            raise ValueError(str(response.get("error", "refused")))
        self._interval_s = min(_MAX_INTERVAL_S, max(_MIN_INTERVAL_S, float(response["interval_s"])))
        # Agents that take no documents do not name a limit.
        self._max_document_bytes = min(_MAX_DOCUMENT_BYTES, int(response.get("steps_bytes") or 0))

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        self._unanswered, self._received, self._unsent = 0, b"", b""
        if connection is not None:
            connection.close()


def _identity() -> tuple[str, int, str] | None:
    """Return the agent's socket, the job id and a unique key of this process; None outside a Slurm job."""
    from slurm_energy.profiling.process_identity import current_process

    process = current_process()
    if process.job_id is None:
        return None
    # Processes of several containers may have the same process id.
    parts = (process.step, process.rank, process.pid, os.urandom(4).hex())
    key = ".".join(str(part) for part in parts if part is not None)
    return (
        socket_path(),
        process.job_id,
        "".join(c for c in key if c.isascii() and (c.isalnum() or c == ".")),
    )


def socket_path() -> str:
    """Return the path of the socket of this node's agent."""
    from slurm_energy import config
    from slurm_energy.errors import EnergyError

    try:
        return str(config.load().for_this_node().agent.socket)
    except EnergyError:
        return str(config.AgentConfig().socket)


def _connect(path: str) -> socket.socket:
    """Return a non-blocking connection to the agent.

    Raises:
        OSError: no agent listens at the path, or the queue of the agent is full.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(_CONNECT_TIMEOUT_S)
        connection.connect(path)
        connection.setblocking(False)
    except BaseException:
        connection.close()
        raise
    return connection


_reporter = ProgressReporter()
os.register_at_fork(after_in_child=_reporter.reset_after_fork)
atexit.register(_reporter.flush)
