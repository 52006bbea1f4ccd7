"""HTTP client of senergyctld for the CLI and the agent.

It signs requests with munge and verifies responses. The client is synchronous and quick to import. A daemon
calls it in a thread.
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
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode

from slurm_energy.config.addresses import parse_url
from slurm_energy.errors import (
    EnergyError,
    ForbiddenError,
    NotFoundError,
    UnavailableError,
    UsageError,
)
from slurm_energy.protocol.request_proof import request_payload
from slurm_energy.protocol.response_proof import ProofError, ResponseVerifier
from slurm_energy.quantities import shown
from slurm_energy.slurm import munge
from slurm_energy.user_lookup import uids_of

DEFAULT_CONTROLLER_USERS: Final = ("root", "slurm")
MAX_RESPONSE_BYTES: Final = 4 << 30
# The controller reads 16 KiB of request line and headers; the credential needs less than 1 KiB.
_MAX_TARGET_BYTES: Final = 8 << 10
_READ_BYTES: Final = 256 << 10
_RETRY_PAUSES_S: Final = (0.1, 0.3, 0.9)
_ERRORS: Final[dict[int, type[EnergyError]]] = {
    400: UsageError,
    403: ForbiddenError,
    404: NotFoundError,
    413: UsageError,
    503: UnavailableError,
}


class _BrokenOffError(UnavailableError):
    """The connection was closed before the end of the response, or the request was cancelled."""


class ControllerClient:
    """Client of one senergyctld. Threads may share it; each request uses a new connection.

    Args:
        url: `http://HOST:PORT` as in `cluster.controller_url`.
        munge_socket: socket of munged; None: the default of the munge library.
        timeout_s: maximum duration, in seconds, of connecting and of each read.
        controller_users: users as which senergyctld may run; responses of other users are rejected.
        total_timeout_s: maximum duration of a request in seconds; None: unlimited.
        max_response_bytes: maximum size of a response.

    Raises:
        UsageError: the URL has another form.
    """

    def __init__(
        self,
        url: str,
        munge_socket: Path | None = None,
        timeout_s: float = 10.0,
        controller_users: Iterable[str] = DEFAULT_CONTROLLER_USERS,
        *,
        total_timeout_s: float | None = None,
        max_response_bytes: int = MAX_RESPONSE_BYTES,
    ) -> None:
        self._host, self._port = _address(url)
        self._url = url
        self._munge_socket = munge_socket
        self._timeout_s = timeout_s
        self._total_timeout_s = total_timeout_s
        self._max_response_bytes = max_response_bytes
        self._controller_users = tuple(controller_users)
        self._cancelled = False
        self._connected: set[socket.socket] = set()

    def cancel(self) -> None:
        """Abort the requests of other threads with an UnavailableError, and refuse further requests."""
        self._cancelled = True
        for connected in list(self._connected):
            _shut_down(connected)

    def get(self, path: str, params: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Send a GET request and return the JSON object of the response.

        Parameters that are too long for a request line are sent in the body of `POST path/search`.

        Args:
            path: for example `/v1/records`.
            params: query parameters, for example `{"job": "12_3", "steps": "1"}`.

        Raises:
            UnavailableError: controller or munged is not reachable, the controller is overloaded, or the
                response does not prove that senergyctld made it (ProofError).
            ForbiddenError, NotFoundError, UsageError: errors from the controller, with its message.
        """
        query = f"?{urlencode(params)}" if params else ""
        if len(path) + len(query) > _MAX_TARGET_BYTES:
            return self.post(f"{path}/search", dict(params or {}))
        return self._request("GET", quote(path, safe="/+,:") + query, b"")

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Send a POST request with a JSON body and return the JSON object of the response.

        It raises the same errors as `get`. After an UnavailableError it is unknown whether senergyctld has
        processed the body. An agent therefore sends its records again.

        Args:
            path: for example `/v1/records`.
            body: value that JSON can hold.
        """
        return self._request("POST", quote(path), json.dumps(body, separators=(",", ":")).encode())

    def _request(self, method: str, target: str, body: bytes) -> dict[str, Any]:
        """Send a request, and retry it if senergyctld closes the connection before its response is complete.

        senergyctld closes connections if it has too many.

        Args:
            method: HTTP method.
            target: path and query, percent-encoded.
            body: body of the request; empty: none.
        """
        total_s = math.inf if self._total_timeout_s is None else self._total_timeout_s
        until_s = time.monotonic() + total_s
        for pause_s in _RETRY_PAUSES_S:
            try:
                return self._request_once(method, target, body, until_s)
            except _BrokenOffError:
                if self._cancelled:
                    raise
                time.sleep(pause_s * (0.5 + random.random()))
        return self._request_once(method, target, body, until_s)

    def _request_once(self, method: str, target: str, body: bytes, until_s: float) -> dict[str, Any]:
        credential = munge.encode(request_payload(method, target, body), self._munge_socket)
        headers = {"Authorization": f"MUNGE {credential}", "Connection": "close"}
        if body:
            headers["Content-Type"] = "application/json"
        connection = http.client.HTTPConnection(self._host, self._port, timeout=self._timeout_s)
        try:
            connection.connect()
            with self._bounded(connection.sock, until_s):
                connection.request(method, target, body or None, headers)
                response = connection.getresponse()
                content = self._read(response)
        except (OSError, http.client.HTTPException) as error:
            raise self._unreachable(error) from None
        finally:
            connection.close()
        return self._answer(response.status, content, credential)

    @contextlib.contextmanager
    def _bounded(self, connected: socket.socket, until_s: float) -> Iterator[None]:
        """Context manager that aborts the request on a connection at `until_s` (clock `time.monotonic`).

        `until_s` also applies if each single read stays within the time limit for reads. `cancel` can abort
        the connection until the end of the `with` block.

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
                raise _BrokenOffError(f"controller {self._url}", "request cancelled")
            yield
        except (OSError, http.client.HTTPException):
            if time.monotonic() < until_s:
                raise
        finally:
            self._connected.discard(connected)
            if timer is not None:
                timer.cancel()
        if time.monotonic() >= until_s:
            why = f"no whole response within {self._total_timeout_s:g} s"
            raise UnavailableError(f"controller {self._url}", why, "is it senergyctld?")

    def _read(self, response: http.client.HTTPResponse) -> bytes:
        content = bytearray()
        while part := response.read(_READ_BYTES):
            content += part
            if len(content) > self._max_response_bytes:
                why = f"the response is larger than {self._max_response_bytes} bytes"
                raise UnavailableError(f"controller {self._url}", why, "is it senergyctld?")
        return bytes(content)

    def _answer(self, status: int, content: bytes, credential: str) -> dict[str, Any]:
        try:
            answer = json.loads(content)
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict):
            answer = {}
        if "proof" not in answer and status != 200:
            raise self._unproven(status, answer)
        verifier = ResponseVerifier(uids_of(self._controller_users), self._munge_socket)
        try:
            verifier.check(content, credential, status)
        except ProofError as error:
            raise ProofError(f"controller {self._url}", error.why, error.todo) from None
        del answer["proof"]
        if status == 200:
            return answer
        raise _ERRORS.get(status, EnergyError)(str(answer.get("error")))

    def _unproven(self, status: int, answer: Mapping[str, Any]) -> EnergyError:
        """Return the error for a response without proof, which any program may have sent.

        The caller may retry after any of these errors: none states that the request can never succeed.

        Args:
            status: HTTP status.
            answer: JSON object of the response; empty: it is not a JSON object.
        """
        message = answer.get("error")
        why = (
            shown(message, 300)
            if isinstance(message, str)
            else f"HTTP status {status} without an explanation"
        )
        if status == 401:
            return ForbiddenError(f"controller {self._url}", why)
        todo = "" if isinstance(message, str) else "is it senergyctld?"
        return UnavailableError(f"controller {self._url}", why, todo)

    def _unreachable(self, error: Exception) -> UnavailableError:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        broken_off = isinstance(error, (ConnectionResetError, BrokenPipeError))  # RemoteDisconnected too
        return (_BrokenOffError if broken_off else UnavailableError)(
            f"controller {self._url}", shown(reason or type(error).__name__, 200), "is senergyctld running?"
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
