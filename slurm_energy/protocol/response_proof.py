"""Proof that senergyctld made a response to a given request, with a given status and body.

The proof is a munge credential. Its payload contains the status and digests of the request's credential and
of the response body. The proof is the last key of the JSON object, so that a streamed response can be signed
after its last record. senergyctld uses this module to create proofs, and clients use it to verify them.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from slurm_energy.errors import ForbiddenError, UnavailableError
from slurm_energy.slurm import munge

_FORMAT: Final = "senergy-response 1"
_KEY: Final = b',"proof":"'
_TAIL: Final = re.compile(rb'([A-Za-z0-9+/=:]{1,4000})"\}\n?')
_MAX_TAIL_BYTES: Final = 4096


class ProofError(UnavailableError):
    """A response has no valid proof that senergyctld made it.

    The contents of the response must not be used.
    """


class ResponseSeal:
    """Object that computes the proof of authenticity of one HTTP response.

    The body of the response may be added in several parts.

    Args:
        request_credential: munge credential in the header of the request.
        status: HTTP status of the response.
    """

    def __init__(self, request_credential: str, status: int) -> None:
        self._request_credential = request_credential
        self._status = status
        self._digest = hashlib.sha256()

    def update(self, part: bytes) -> None:
        """Add the next part of the body to the proof that the controller made the response.

        The body is a JSON object with at least one key. Pass the body without the closing brace. The method
        `tail` returns this brace.
        """
        self._digest.update(part)

    def tail(self, munge_socket: Path | None) -> bytes:
        """Return the end of the response's body: the proof of authenticity and the closing brace.

        The proof is the value of the key `proof`. Call this method after the last `update`.

        Args:
            munge_socket: socket of munged; None for the default of the munge library.

        Raises:
            UnavailableError: munged does not answer.
        """
        payload = _statement(self._request_credential, self._status, self._digest.hexdigest())
        return _KEY + munge.encode(payload, munge_socket).encode() + b'"}\n'


@dataclass(frozen=True, slots=True)
class ResponseVerifier:
    """Verifier of the proofs that authenticate the responses of senergyctld.

    Attributes:
        uids: uids as which senergyctld may run.
        munge_socket: socket of munged; None for the default of the munge library.
    """

    uids: Collection[int]
    munge_socket: Path | None

    def check(self, content: bytes, request_credential: str, status: int) -> None:
        """Check that senergyctld made this response to this request.

        Args:
            content: body of the response, with the proof.
            request_credential: munge credential in the header of the request.
            status: HTTP status of the response.

        Raises:
            ProofError: the proof is missing, from another user, or for another request, status or body.
            UnavailableError: munged does not answer.
        """
        at = content.rfind(_KEY, max(0, len(content) - _MAX_TAIL_BYTES))
        match = _TAIL.fullmatch(content, at + len(_KEY)) if at >= 0 else None
        if match is None:
            raise ProofError("response", "it has no proof that senergyctld made it", _OTHER_PROGRAM)
        try:
            payload, uid, _ = munge.decode(match[1].decode(), self.munge_socket)
        except ForbiddenError as error:
            raise ProofError("response", f"its proof is invalid: {error.why}", _OTHER_PROGRAM) from None
        if uid not in self.uids:
            why = f"uid {uid} made it, who is not in cluster.controller_users"
            raise ProofError("response", why, "does senergyctld run as that user? Else it is an impostor")
        body_sha256 = hashlib.sha256(memoryview(content)[:at]).hexdigest()
        if not hmac.compare_digest(payload, _statement(request_credential, status, body_sha256)):
            raise ProofError("response", "its proof was made for another request or body", _OTHER_PROGRAM)


_OTHER_PROGRAM: Final = "is another program listening there?"


def _statement(request_credential: str, status: int, body_sha256: str) -> bytes:
    request_sha256 = hashlib.sha256(request_credential.encode()).hexdigest()
    return f"{_FORMAT} {request_sha256} {status} {body_sha256}".encode()
