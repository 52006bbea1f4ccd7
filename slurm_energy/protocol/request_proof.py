"""The payload of a request's munge credential: digests, of a length that no request changes."""

from __future__ import annotations

import hashlib
import hmac
import re
from typing import Final

_FORMAT: Final = "senergy-request 1"
_PAYLOAD: Final = re.compile(rf"{_FORMAT} ([0-9a-f]{{64}}) ([0-9a-f]{{64}})")


def request_payload(method: str, target: str, body: bytes) -> bytes:
    """Return the payload for a request.

    Args:
        method: HTTP method.
        target: path and query as in the request line.
        body: the whole body, may be empty.
    """
    return f"{_FORMAT} {_request_sha256(method, target)} {hashlib.sha256(body).hexdigest()}".encode()


def signed_body_sha256(payload: bytes, method: str, target: str) -> str | None:
    """Return the body's SHA-256 in hex that a payload states, None if it was made for another request."""
    match = _PAYLOAD.fullmatch(payload.decode("ascii", "replace"))
    if match is None or not hmac.compare_digest(match[1], _request_sha256(method, target)):
        return None
    return match[2]


def _request_sha256(method: str, target: str) -> str:
    return hashlib.sha256(f"{method} {target}".encode()).hexdigest()
