"""Payload of the munge credential of a request, which consists of SHA-256 digests.

The digests are those of the request, so the payload has a constant length. The client uses this module to
build the payload. senergyctld uses it to verify the payload.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from typing import Final

_FORMAT: Final = "senergy-request 1"
_PAYLOAD: Final = re.compile(rf"{_FORMAT} ([0-9a-f]{{64}}) ([0-9a-f]{{64}})")


def request_payload(method: str, target: str, body: bytes) -> bytes:
    """Return the payload that a client signs for a request.

    Args:
        method: HTTP method.
        target: path and query as in the request line.
        body: body of the request; may be empty.
    """
    return f"{_FORMAT} {_request_sha256(method, target)} {hashlib.sha256(body).hexdigest()}".encode()


def signed_body_sha256(payload: bytes, method: str, target: str) -> str | None:
    """Return the SHA-256 of a request's body according to a credential's payload, in hexadecimal.

    Args:
        payload: payload of the munge credential.
        method: HTTP method of the request.
        target: path and query as in the request line.

    Returns:
        The digest; None if the payload was made for another method or target, or is not the payload of a
        request.
    """
    match = _PAYLOAD.fullmatch(payload.decode("ascii", "replace"))
    if match is None or not hmac.compare_digest(match[1], _request_sha256(method, target)):
        return None
    return match[2]


def _request_sha256(method: str, target: str) -> str:
    return hashlib.sha256(f"{method} {target}".encode()).hexdigest()
