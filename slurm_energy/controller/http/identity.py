"""Identity of a caller, from the munge credential of the request."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from pathlib import Path

from slurm_energy.controller.http.authorization import Rights
from slurm_energy.errors import ForbiddenError
from slurm_energy.protocol.request_proof import signed_body_sha256
from slurm_energy.slurm import munge

SCHEME = "MUNGE "


@dataclass(frozen=True, slots=True)
class Caller:
    """The user who made a request.

    Attributes:
        uid: uid of the user, certified by munged.
        body_sha256: SHA-256 digest of the request body according to the credential, in hex digits.
        credential: the munge credential. The signature of the response refers to it.
        origin: address of the host where the credential was made, see `munge.Credential`; None means unknown.
        rights: data that the user may see; only the user's own data until the rights are looked up.
    """

    uid: int
    body_sha256: str
    credential: str
    origin: str | None
    rights: Rights

    def check_body(self, body: bytes) -> None:
        """Check that a request's body is the one for which the caller's credential was made.

        The credential contains a digest of the body.

        Raises:
            ForbiddenError: the body was changed in transit.
        """
        if not hmac.compare_digest(hashlib.sha256(body).hexdigest(), self.body_sha256):
            raise ForbiddenError("credential", "made for another body")


def identify(header: str, method: str, target: str, munge_socket: Path | None) -> Caller:
    """Decode the credential of a request and return its caller.

    Args:
        header: value of the header `Authorization`; may be empty.
        method: HTTP method.
        target: path and query as in the request line.
        munge_socket: munged's socket; None means the library's default.

    Raises:
        ForbiddenError: there is no credential, munged refuses it, or it was made for another request.
        UnavailableError: munged does not answer.
    """
    if not header.startswith(SCHEME):
        raise ForbiddenError("no munge credential", todo="send Authorization: MUNGE <credential>")
    credential = header.removeprefix(SCHEME)
    opened = munge.open_credential(credential, munge_socket)
    body_sha256 = signed_body_sha256(opened.payload, method, target)
    if body_sha256 is None:
        raise ForbiddenError("credential", "made for another request")
    return Caller(opened.uid, body_sha256, credential, opened.origin, Rights(opened.uid))
