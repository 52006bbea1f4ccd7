"""A client of senergyctld for the CLI and the agent: signs requests with munge, maps answers to errors.

Synchronous and light to import; a daemon calls it from a thread.
"""

from __future__ import annotations

import hashlib
import http.client
import json
from collections.abc import Mapping
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
from slurm_energy.quantities import shown
from slurm_energy.slurm import munge

_ERRORS: Final[dict[int, type[EnergyError]]] = {
    400: UsageError,
    401: ForbiddenError,
    403: ForbiddenError,
    404: NotFoundError,
    413: UsageError,
    503: UnavailableError,
}


class ControllerClient:
    """Requests to one senergyctld; safe to share between threads, a connection per request.

    Args:
        url: `http://HOST:PORT` as in `cluster.controller_url`.
        munge_socket: munged's socket, None for the library's default.
        timeout_s: longest wait for connecting and for each read.

    Raises:
        UsageError: the URL is not of that form.
    """

    def __init__(self, url: str, munge_socket: Path | None = None, timeout_s: float = 10.0) -> None:
        self._host, self._port = _address(url)
        self._url = url
        self._munge_socket = munge_socket
        self._timeout_s = timeout_s

    def get(self, path: str, params: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Ask for `path`, e.g. `/v1/records` with `{"job": "12_3", "steps": "1"}`.

        Raises:
            UnavailableError: controller or munged cannot be reached, or the controller cannot serve now.
            ForbiddenError, NotFoundError, UsageError: the controller's own words.
        """
        query = f"?{urlencode(params)}" if params else ""
        return self._request("GET", quote(path, safe="/+,:") + query, b"")

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Send `body` as JSON; the same errors as `get`.

        After an UnavailableError the controller may or may not have taken it: records are sent again.
        """
        return self._request("POST", quote(path), json.dumps(body, separators=(",", ":")).encode())

    def _request(self, method: str, target: str, body: bytes) -> dict[str, Any]:
        payload = f"{method} {target} {hashlib.sha256(body).hexdigest()}"
        headers = {"Authorization": f"MUNGE {munge.encode(payload.encode(), self._munge_socket)}"}
        if body:
            headers["Content-Type"] = "application/json"
        connection = http.client.HTTPConnection(self._host, self._port, timeout=self._timeout_s)
        try:
            connection.request(method, target, body or None, headers)
            response = connection.getresponse()
            content = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise self._unreachable(error) from None
        finally:
            connection.close()
        return self._answer(response.status, content)

    def _answer(self, status: int, content: bytes) -> dict[str, Any]:
        try:
            answer = json.loads(content)
        except ValueError:
            answer = None
        if status == 200 and isinstance(answer, dict):
            return answer
        if isinstance(answer, dict) and isinstance(answer.get("error"), str):
            raise _ERRORS.get(status, EnergyError)(answer["error"])
        error = _ERRORS.get(status, UnavailableError)
        raise error(
            f"controller {self._url}", f"HTTP status {status} without an explanation", "is it senergyctld?"
        )

    def _unreachable(self, error: Exception) -> UnavailableError:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        return UnavailableError(
            f"controller {self._url}", shown(reason or type(error).__name__, 200), "is senergyctld running?"
        )


def _address(url: str) -> tuple[str, int]:
    try:
        return parse_url(url)
    except ValueError:
        raise UsageError(
            f"cluster.controller_url: '{shown(url)}' is not a controller's address",
            todo="write http://HOST:PORT",
        ) from None
