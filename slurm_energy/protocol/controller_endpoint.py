"""HTTP requests to one senergyctld.

Each request is signed with munge and limited in time and size. Each response is verified.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import math
import random
import socket
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from slurm_energy.config.addresses import parse_url
from slurm_energy.errors import (
    EnergyError,
    ForbiddenError,
    NotFoundError,
    UnavailableError,
    UsageError,
)
from slurm_energy.protocol.release_header import RELEASE_HEADER, advice_for_older
from slurm_energy.protocol.request_proof import request_payload
from slurm_energy.protocol.response_proof import ProofError, ResponseVerifier
from slurm_energy.quantities import shown
from slurm_energy.slurm import munge
from slurm_energy.user_lookup import uids_of

_READ_BYTES: Final = 256 << 10
_MIN_CONNECT_S: Final = 0.05
_RETRY_PAUSES_S: Final = (0.1, 0.3, 0.9)
PASSIVE_ROLE: Final = "passive"
"""Value of the key `role` in the responses of a senergyctld that is not the active one."""
_ERRORS: Final[dict[int, type[EnergyError]]] = {
    400: UsageError,
    403: ForbiddenError,
    404: NotFoundError,
    413: UsageError,
    503: UnavailableError,
}


class _BrokenOffError(UnavailableError):
    """The connection was closed before the end of the response, or the request was cancelled."""


class NotListeningError(UnavailableError):
    """The connection was refused because no senergyctld listens at the URL."""


class ActiveControllerError(UnavailableError):
    """The active senergyctld has answered that it cannot process the request at present."""


class RefusedCredentialError(ForbiddenError):
    """The munged of the controller's host refused the credential of a request."""


@dataclass(frozen=True, slots=True)
class EndpointLimits:
    """Limits of a request to one senergyctld.

    Attributes:
        connect_s: maximum duration of connecting in seconds.
        read_s: maximum duration of each read in seconds.
        total_s: maximum duration of the request in seconds; None for no limit.
        max_response_bytes: maximum size of a response.
    """

    connect_s: float
    read_s: float
    total_s: float | None
    max_response_bytes: int


class ControllerEndpoint:
    """Address of one senergyctld, with the methods that send requests to it.

    Threads may share the object; each request uses a new connection.

    Args:
        url: `http://HOST:PORT`.
        munge_socket: socket of munged; None for the default of the munge library.
        controller_users: users as which senergyctld may run; responses of other users are rejected.
        limits: limits of a request.

    Raises:
        UsageError: the URL has another form.
    """

    def __init__(
        self, url: str, munge_socket: Path | None, controller_users: Iterable[str], limits: EndpointLimits
    ) -> None:
        self._host, self._port = _address(url)
        self.url = url
        self._munge_socket = munge_socket
        self._limits = limits
        self._controller_users = tuple(controller_users)
        self._cancelled = False
        self._connected: set[socket.socket] = set()

    def cancel(self) -> None:
        """Abort the requests of other threads with an UnavailableError, and refuse further requests."""
        self._cancelled = True
        for connected in list(self._connected):
            _shut_down(connected)

    @property
    def is_cancelled(self) -> bool:
        """Whether `cancel` has been called."""
        return self._cancelled

    def request(self, method: str, target: str, body: bytes, until_s: float) -> dict[str, Any]:
        """Send a request and return the JSON object of the response.

        The request is sent again if senergyctld closes the connection before the response is complete.
        senergyctld closes connections if it has too many.

        Args:
            method: HTTP method.
            target: path and query, percent-encoded.
            body: body of the request; may be empty.
            until_s: time at which the request is aborted, on the clock `time.monotonic`.

        Raises:
            ActiveControllerError: the active senergyctld cannot process the request now.
            UnavailableError: no active senergyctld has responded.
            ForbiddenError, NotFoundError, UsageError: errors from the controller, with its message.
        """
        for pause_s in _RETRY_PAUSES_S:
            try:
                return self._request_once(method, target, body, until_s)
            except _BrokenOffError:
                if self._cancelled or time.monotonic() >= until_s:
                    raise
                time.sleep(pause_s * (0.5 + random.random()))
        return self._request_once(method, target, body, until_s)

    def _request_once(self, method: str, target: str, body: bytes, until_s: float) -> dict[str, Any]:
        credential = munge.encode(request_payload(method, target, body), self._munge_socket)
        headers = {"Authorization": f"MUNGE {credential}", "Connection": "close"}
        if body:
            headers["Content-Type"] = "application/json"
        connect_s = min(self._limits.connect_s, max(_MIN_CONNECT_S, until_s - time.monotonic()))
        connection = http.client.HTTPConnection(self._host, self._port, timeout=connect_s)
        try:
            connection.connect()
            if connection.sock is not None:
                connection.sock.settimeout(self._limits.read_s)
            with self._bounded(connection.sock, until_s):
                connection.request(method, target, body or None, headers)
                response = connection.getresponse()
                content = self._read(response)
        except (OSError, http.client.HTTPException) as error:
            raise self._unreachable(error) from None
        finally:
            connection.close()
        return self._answer(response.status, content, credential, response.getheader(RELEASE_HEADER))

    @contextlib.contextmanager
    def _bounded(self, connected: socket.socket, until_s: float) -> Iterator[None]:
        """Context manager that aborts the request on a connection at `until_s` (clock `time.monotonic`).

        The request is aborted at `until_s` even if each single read stays within the time limit for reads.
        `cancel` can abort the request until the end of the `with` block.

        Raises:
            UnavailableError: the request was aborted or cancelled.
        """
        timer = None
        if until_s < math.inf:
            timer = threading.Timer(max(0.0, until_s - time.monotonic()), _shut_down, [connected])
            timer.daemon = True
            timer.start()
        self._connected.add(connected)
        try:
            if self._cancelled:
                raise _BrokenOffError(f"controller {self.url}", "request cancelled")
            yield
        except (OSError, http.client.HTTPException):
            if time.monotonic() < until_s:
                raise
        finally:
            self._connected.discard(connected)
            if timer is not None:
                timer.cancel()
        if time.monotonic() >= until_s:
            why = f"no whole response within {self._limits.total_s:g} s"
            raise UnavailableError(f"controller {self.url}", why, "is it senergyctld?")

    def _read(self, response: http.client.HTTPResponse) -> bytes:
        content = bytearray()
        while part := response.read(_READ_BYTES):
            content += part
            if len(content) > self._limits.max_response_bytes:
                why = f"the response is larger than {self._limits.max_response_bytes} bytes"
                raise UnavailableError(f"controller {self.url}", why, "is it senergyctld?")
        return bytes(content)

    def _answer(
        self, status: int, content: bytes, credential: str, release: str | None = None
    ) -> dict[str, Any]:
        try:
            parsed = json.loads(content)
        except (ValueError, RecursionError):
            parsed = None
        is_object = isinstance(parsed, dict)
        answer: dict[str, Any] = parsed if is_object else {}
        if "proof" not in answer and status != 200:
            raise self._unproven(status, answer, release)
        verifier = ResponseVerifier(uids_of(self._controller_users), self._munge_socket)
        try:
            verifier.check(content, credential, status)
        except ProofError as error:
            raise ProofError(f"controller {self.url}", error.why, error.todo) from None
        if not is_object:
            raise UnavailableError(
                f"controller {self.url}", "the response is not a JSON object", "is it senergyctld?"
            )
        del answer["proof"]
        if status == 200:
            return answer
        raise self._refusal(status, answer, release)

    def _refusal(self, status: int, answer: Mapping[str, Any], release: str | None) -> EnergyError:
        """Return the error for a verified response of the controller that reports a failure.

        The response has another status than 200. Its proof, a munge credential, shows that it comes from the
        controller.
        """
        message = str(answer.get("error"))
        if status == 400:
            return UsageError(message, todo=advice_for_older(release))
        if status != 503:
            return _ERRORS.get(status, EnergyError)(message)
        if answer.get("role") == PASSIVE_ROLE:
            return UnavailableError(f"controller {self.url}", shown(message, 300))
        return ActiveControllerError(message)

    def _unproven(self, status: int, answer: Mapping[str, Any], release: str | None) -> EnergyError:
        """Return the error for a response without proof, which any program may have sent.

        The caller may retry after any of these errors, because none of them says that the request can
        never succeed.

        Args:
            status: HTTP status.
            answer: JSON object of the response; empty if the response is not a JSON object.
            release: value of `RELEASE_HEADER`; None if the response lacks this header.
        """
        message = answer.get("error")
        why = (
            shown(message, 300)
            if isinstance(message, str)
            else f"HTTP status {status} without an explanation"
        )
        if status == 401:
            return RefusedCredentialError(f"controller {self.url}", why)
        is_unknown_path = status == 404 and isinstance(message, str)
        todo = "" if isinstance(message, str) else "is it senergyctld?"
        if is_unknown_path:
            todo = advice_for_older(release)
        return UnavailableError(f"controller {self.url}", why, todo)

    def _unreachable(self, error: Exception) -> UnavailableError:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        broken_off = isinstance(error, (ConnectionResetError, BrokenPipeError))  # RemoteDisconnected too
        kind = _BrokenOffError if broken_off else UnavailableError
        if isinstance(error, ConnectionRefusedError):
            kind = NotListeningError
        return kind(
            f"controller {self.url}", shown(reason or type(error).__name__, 200), "is senergyctld running?"
        )


def _shut_down(connected: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connected.shutdown(socket.SHUT_RDWR)


def _address(url: str) -> tuple[str, int]:
    try:
        return parse_url(url)
    except ValueError:
        raise UsageError(
            f"cluster.controller_url: '{shown(url)}' is not a controller's address",
            todo="write http://HOST:PORT",
        ) from None
