"""Who asks, and what they may see: munge credentials and the configuration's lists of users."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from slurm_energy.accounting.request_proof import signed_body_sha256
from slurm_energy.config import ControllerConfig
from slurm_energy.errors import ForbiddenError
from slurm_energy.slurm import munge
from slurm_energy.users import uid_of

SCHEME = "MUNGE "


@dataclass(frozen=True, slots=True)
class Caller:
    """Whoever made a request.

    Attributes:
        uid: vouched for by munged.
        body_sha256: what the credential says of the body, hex digits.
        credential: the munge credential itself, to which the response is bound.
        origin: address of the host where it was made, see `munge.Credential`; None: not known.
    """

    uid: int
    body_sha256: str
    credential: str
    origin: str | None = None

    def check_body(self, body: bytes) -> None:
        """Refuse a body that is not the one the credential was made for.

        Raises:
            ForbiddenError: somebody changed it on the way.
        """
        if not hmac.compare_digest(hashlib.sha256(body).hexdigest(), self.body_sha256):
            raise ForbiddenError("credential", "made for another body")


@dataclass(frozen=True, slots=True)
class Access:
    """Users with rights beyond their own jobs, as uids."""

    agents: frozenset[int]
    operators: frozenset[int]

    @classmethod
    def from_config(cls, config: ControllerConfig) -> tuple[Access, list[str]]:
        """Look the configured users up; also return the names that this host does not know."""
        unknown: list[str] = []
        agents, operators = (
            frozenset(_uids(names, unknown)) for names in (config.agent_users, config.operators)
        )
        return cls(agents, operators), sorted(set(unknown))


def identify(header: str, method: str, target: str, munge_socket: Path | None) -> Caller:
    """Open the credential of a request.

    Args:
        header: value of `Authorization`, may be empty.
        method: HTTP method.
        target: path and query as in the request line.
        munge_socket: munged's socket, None for the library's default.

    Raises:
        ForbiddenError: no credential, or one that munged refuses or that was made for another request.
        UnavailableError: munged does not answer.
    """
    if not header.startswith(SCHEME):
        raise ForbiddenError("no munge credential", todo="send Authorization: MUNGE <credential>")
    credential = header.removeprefix(SCHEME)
    opened = munge.open_credential(credential, munge_socket)
    body_sha256 = signed_body_sha256(opened.payload, method, target)
    if body_sha256 is None:
        raise ForbiddenError("credential", "made for another request")
    return Caller(opened.uid, body_sha256, credential, opened.origin)


def _uids(names: Iterable[str], unknown: list[str]) -> Iterable[int]:
    for name in names:
        uid = uid_of(name)
        if uid is None:
            unknown.append(name)
        else:
            yield uid
