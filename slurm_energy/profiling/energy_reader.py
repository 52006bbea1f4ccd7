"""Readers of energy for the profiler of program sections.

The module contains their base class, and the reader that queries the agent of the node.
"""

from __future__ import annotations

import collections
import json
import logging
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from slurm_energy.errors import EnergyError, UnavailableError

log = logging.getLogger("slurm_energy")

_TIMEOUT_S = 1.0
_RETRY_AFTER_S = 5.0
_MAX_IDLE_S = 30.0
"""Idle time after which a connection is replaced. The agent closes a connection after a minute."""
_MAX_PENDING = 64
"""Maximum number of requests without a response.

With more requests, the agent could block while it responds.
"""
_MAX_RESPONSE_BYTES = 1 << 20
_SAME_CLOCK_S = 60.0
"""Maximum difference of two times of the same clock. A container can have a clock of its own."""
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class EnergyReading:
    """Energy that was used from an arbitrary but fixed start up to one instant.

    Attributes:
        joules: joules by component; None for a component whose energy is unknown.
        age_s: seconds between the requested instant and the sample that the agent used.
    """

    joules: Mapping[str, float | None]
    age_s: float = 0.0


@dataclass(slots=True)
class _PendingRequest:
    """A request to the agent for the energy at the time when the request was created.

    Attributes:
        requested_s: time at which the request was created, in seconds of CLOCK_BOOTTIME.
        done: whether the response has arrived, or no response will arrive any more.
        reading: the reading in the response; None if no response has arrived.
    """

    requested_s: float = field(default_factory=lambda: time.clock_gettime(time.CLOCK_BOOTTIME))
    done: bool = False
    reading: EnergyReading | None = None


class EnergyReader(ABC):
    """Base class of the profiler's energy readers.

    A reading is the energy since an arbitrary start. Only the difference between two readings is meaningful.

    Attributes:
        name: name of the energy source, written as `source` into the recorded sections. `agent` is the
            energy of the job on this node, `devices` is the energy of the whole node, and `none` means no
            energy.
    """

    name: str

    @abstractmethod
    def read(self) -> EnergyReading | None:
        """Return the energy from the reader's arbitrary start up to now; None if the energy is unknown."""

    def start_reading(self) -> Callable[[], EnergyReading | None]:
        """Start a reading of the energy at this instant.

        Returns:
            A function that waits for the reading and returns the reading. The function returns None if the
            energy is unknown.
        """
        reading = self.read()
        return lambda: reading

    def close(self) -> None:
        """Close the reader's sockets and files."""
        return


class NullEnergyReader(EnergyReader):
    """Energy reader for processes that cannot measure energy; each reading is unknown."""

    name = "none"

    def read(self) -> EnergyReading | None:
        """Return None, because the energy is unknown."""
        return None


class AgentEnergyReader(EnergyReader):
    """Reader that sends the `energy` message to the node's senergyd over one persistent connection.

    The agent authenticates the sender; the job id in the message grants no rights. Responses arrive in the
    order of the requests. `start_reading` therefore only sends a request. The responses are received later,
    when a result is needed.

    Args:
        path: socket of senergyd.
        job_id: Slurm job whose energy is requested.
    """

    name = "agent"

    def __init__(self, path: Path, job_id: int) -> None:
        self._path = path
        message = {"op": "energy", "job_id": job_id, "fresh": True}
        self._message = json.dumps(message).encode() + b"\n"
        self._lock = threading.Lock()
        self._connection: socket.socket | None = None
        self._buffer = b""
        self._pending: collections.deque[_PendingRequest] = collections.deque()
        self._used_s = 0.0
        self._not_before = 0.0

    def start_reading(self) -> Callable[[], EnergyReading | None]:
        """Send a request without waiting for the response.

        Returns:
            A function that waits for the response and returns the reading in the response. The function
            returns None if no response arrives.
        """
        request = _PendingRequest()
        self._guarded(lambda: self._send_without_waiting(request))
        return lambda: request.reading if request.done else self._guarded(lambda: self._collect(request))

    def read(self) -> EnergyReading | None:
        """Return the energy of the job up to now; None if the energy is unknown.

        After a failure no request is sent for five seconds.
        """
        return self._guarded(self.ask)

    def ask(self) -> EnergyReading:
        """Request the energy from the agent and return its response.

        Raises:
            UnavailableError: the agent does not respond.
            EnergyError: the agent refused the request. The message contains the agent's reason.
        """
        was_open = self._connection is not None
        try:
            return self._exchange()
        except (OSError, ValueError):
            if not was_open:
                raise self._unreachable() from None
        try:
            return self._exchange()  # the agent closes idle connections, or may have been restarted
        except (OSError, ValueError):
            raise self._unreachable() from None

    def close(self) -> None:
        """Close the connection. Requests without a response then have the result None."""
        connection, self._connection, self._buffer = self._connection, None, b""
        while self._pending:
            self._pending.popleft().done = True
        if connection is not None:
            connection.close()

    def _guarded(self, action: Callable[[], _Result]) -> _Result | None:
        if not self._lock.acquire(timeout=2 * _TIMEOUT_S):
            return None
        try:
            return action() if time.monotonic() >= self._not_before else None
        except (EnergyError, OSError, ValueError) as error:
            # After a lost connection the next request opens another one.
            if not isinstance(error, ConnectionError):
                self._not_before = time.monotonic() + _RETRY_AFTER_S
            log.debug("%s", error)
            return None
        finally:
            self._lock.release()

    def _exchange(self) -> EnergyReading:
        request = _PendingRequest()
        self._send(request)
        reading = self._collect(request)
        if reading is None:
            raise ConnectionError("no response")
        return reading

    def _send_without_waiting(self, request: _PendingRequest) -> None:
        """Send a request over the open connection, or over a new one if the agent has closed it."""
        self._receive_available()
        if len(self._pending) >= _MAX_PENDING:
            self._collect(self._pending[0])
        was_open = self._connection is not None
        try:
            self._send(request)
        except OSError:
            if not was_open:
                raise
            self._send(request)

    def _receive_available(self) -> None:
        """Receive the responses that have arrived, without waiting.

        Close the connection if the agent has closed its end.
        """
        if self._connection is None:
            return
        self._connection.settimeout(0)
        try:
            while self._pending:
                self._receive(self._connection)
            if not self._buffer and self._connection.recv(1, socket.MSG_PEEK) == b"":
                self.close()
        except BlockingIOError:
            pass
        except (OSError, ValueError):
            self.close()
        finally:
            if self._connection is not None:
                self._connection.settimeout(_TIMEOUT_S)

    def _send(self, request: _PendingRequest) -> None:
        if time.monotonic() - self._used_s > _MAX_IDLE_S and not self._pending:
            self.close()
        try:
            if self._connection is None:
                self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                self._connection.settimeout(_TIMEOUT_S)
                self._connection.connect(str(self._path))
            self._connection.sendall(self._message)
        except BaseException:
            self.close()
            raise
        self._used_s = time.monotonic()
        self._pending.append(request)

    def _collect(self, request: _PendingRequest) -> EnergyReading | None:
        """Receive responses until the response to `request` has arrived, and return its reading.

        Return None if the response will not arrive any more.
        """
        try:
            while not request.done and self._pending and self._connection is not None:
                self._receive(self._connection)
        except EnergyError:
            raise
        except BaseException:
            self.close()  # a late response must not be taken for the response to the next request
            raise
        return request.reading

    def _receive(self, connection: socket.socket) -> None:
        """Receive the next response of senergyd and store it in the oldest pending request.

        Responses arrive in the order of the requests, so the next response always belongs to this request.
        """
        response = json.loads(self._line(connection))
        request = self._pending.popleft()
        request.done = True
        request.reading = self._reading(response, request.requested_s)

    def _reading(self, response: Any, requested_s: float) -> EnergyReading:
        if not isinstance(response, dict):
            raise ValueError("not an object")
        if not response.get("ok") or not isinstance(response.get("components"), dict):
            raise EnergyError(f"agent {self._path}", str(response.get("error", "a response without energy")))
        age_s, sampled_s = float(response.get("age_s") or 0.0), response.get("sampled_s")
        if isinstance(sampled_s, (int, float)) and abs(sampled_s - requested_s) < _SAME_CLOCK_S:
            age_s = abs(sampled_s - requested_s)  # a busy agent takes its sample later
        return EnergyReading(response["components"], age_s)

    def _line(self, connection: socket.socket) -> bytes:
        while b"\n" not in self._buffer:
            data = connection.recv(65536)
            if not data or len(self._buffer) > _MAX_RESPONSE_BYTES:
                raise ConnectionError("no response")
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _unreachable(self) -> UnavailableError:
        return UnavailableError(f"agent {self._path}", "no answer", "is senergyd running on this node?")
