"""HTTP client of senergyctld for the CLI and the agent.

The client signs requests with munge and verifies responses. The client is synchronous and quick to import. A
daemon calls the client in a thread.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode

from slurm_energy.errors import EnergyError, UnavailableError, UsageError
from slurm_energy.protocol.controller_endpoint import (
    ActiveControllerError,
    ControllerEndpoint,
    EndpointLimits,
    NotListeningError,
    RefusedCredentialError,
)
from slurm_energy.quantities import shown
from slurm_energy.safe_text import is_storable

DEFAULT_CONTROLLER_USERS: Final = ("root", "slurm")
MAX_RESPONSE_BYTES: Final = 4 << 30
# The controller reads 16 KiB of request line and headers; the credential needs less than 1 KiB.
_MAX_TARGET_BYTES: Final = 8 << 10
_CONNECT_S: Final = 1.5
"""Maximum duration of connecting to one of several controllers, so that a dead host delays little."""

_preferred: dict[tuple[str, ...], int] = {}
"""Index of the controller to ask first, by the URLs of a cluster: the one that last answered as active."""


class ControllerClient:
    """Client of the senergyctld of a cluster.

    Threads may share a client, because each request uses a new connection.

    If there are several URLs, a request is sent to one controller after another until the active controller
    answers. Later requests of the process begin with that controller. A request may therefore reach two
    controllers. A record that is sent twice is stored only once.

    Args:
        url: one or several URLs of the form `http://HOST:PORT`, as in the configuration key
            `cluster.controller_url`.
        munge_socket: socket of munged; None for the default of the munge library.
        timeout_s: maximum duration, in seconds, of connecting and of each read.
        controller_users: users as which senergyctld may run; responses of other users are rejected.
        total_timeout_s: maximum duration of a request in seconds; None for no limit.
        max_response_bytes: maximum size of a response.

    Raises:
        UsageError: a URL has another form.
    """

    def __init__(
        self,
        url: str | Sequence[str],
        munge_socket: Path | None = None,
        timeout_s: float = 10.0,
        controller_users: Iterable[str] = DEFAULT_CONTROLLER_USERS,
        *,
        total_timeout_s: float | None = None,
        max_response_bytes: int = MAX_RESPONSE_BYTES,
    ) -> None:
        self._urls = (url,) if isinstance(url, str) else tuple(url)
        connect_s = timeout_s if len(self._urls) == 1 else min(timeout_s, _CONNECT_S)
        limits = EndpointLimits(connect_s, timeout_s, total_timeout_s, max_response_bytes)
        users = tuple(controller_users)
        self._endpoints = [ControllerEndpoint(one, munge_socket, users, limits) for one in self._urls]
        self._total_timeout_s = total_timeout_s

    def cancel(self) -> None:
        """Abort the requests of other threads with an UnavailableError, and refuse further requests."""
        for endpoint in self._endpoints:
            endpoint.cancel()

    def get(self, path: str, params: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Send a GET request and return the JSON object of the response.

        Parameters that are too long for a request line are sent in the body of `POST path/search`.

        Args:
            path: for example `/v1/records`.
            params: query parameters, for example `{"job": "12_3", "steps": "1"}`.

        Raises:
            UnavailableError: no active controller or munged is reachable, the controller is overloaded, or
                the response does not prove that senergyctld made it (ProofError).
            ForbiddenError, NotFoundError, UsageError: errors from the controller, with its message.
        """
        for name, value in (params or {}).items():
            if not is_storable(value):
                raise UsageError(f"{name}: '{shown(value)}' is not text in UTF-8")
        query = f"?{urlencode(params)}" if params else ""
        if len(path) + len(query) > _MAX_TARGET_BYTES:
            return self.post(f"{path}/search", dict(params or {}))
        return self._request("GET", quote(path, safe="/+,:") + query, b"")

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Send a POST request with a JSON body and return the JSON object of the response.

        The method raises the same errors as `get`. After an UnavailableError it is unknown whether
        senergyctld has processed the body. For this reason an agent sends its records again.

        Args:
            path: for example `/v1/records`.
            body: value that JSON can hold.
        """
        return self._request("POST", quote(path), json.dumps(body, separators=(",", ":")).encode())

    def _request(self, method: str, target: str, body: bytes) -> dict[str, Any]:
        total_s = math.inf if self._total_timeout_s is None else self._total_timeout_s
        until_s = time.monotonic() + total_s
        if len(self._endpoints) == 1:
            return self._endpoints[0].request(method, target, body, until_s)
        return self._request_in_turn(method, target, body, until_s)

    def _request_in_turn(self, method: str, target: str, body: bytes, until_s: float) -> dict[str, Any]:
        """Send a request to the active controller.

        The controllers are tried one after another until the active one answers.
        """
        count, errors = len(self._endpoints), list[EnergyError]()
        first = _preferred.get(self._urls, 0)
        for index in ((first + offset) % count for offset in range(count)):
            # If the time ends at a controller that does not answer, the next request begins at another one.
            _preferred[self._urls] = (index + 1) % count
            endpoint = self._endpoints[index]
            try:
                answer = endpoint.request(method, target, body, until_s)
            except EnergyError as error:
                if not _may_succeed_elsewhere(error):
                    _preferred[self._urls] = index
                    raise
                errors.append(error)
                if endpoint.is_cancelled or time.monotonic() >= until_s:
                    break
            else:
                _preferred[self._urls] = index
                return answer
        raise _no_active_controller(errors)


def _may_succeed_elsewhere(error: EnergyError) -> bool:
    """Return whether a failed request may succeed at another controller."""
    absent = isinstance(error, UnavailableError) and not isinstance(error, ActiveControllerError)
    return absent or isinstance(error, RefusedCredentialError)


def _no_active_controller(errors: Sequence[EnergyError]) -> EnergyError:
    """Return the error that a client raises if no active controller has answered a request."""
    if all(isinstance(error, RefusedCredentialError) for error in errors):
        return errors[0]
    reasons = "; ".join(f"{error.what.removeprefix('controller ')}: {error.why}" for error in errors)
    kind = (
        NotListeningError if all(isinstance(one, NotListeningError) for one in errors) else UnavailableError
    )
    return kind("no active controller", reasons, "is senergyctld running?")
