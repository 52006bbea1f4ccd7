"""Identity and rights of a caller, from munge credentials and the lists of users in the configuration."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from slurm_energy.accounting.records.record_selection import Visibility
from slurm_energy.config import ControllerConfig
from slurm_energy.config.value_checks import GROUP_MARK
from slurm_energy.errors import ForbiddenError
from slurm_energy.protocol.request_proof import signed_body_sha256
from slurm_energy.slurm import munge
from slurm_energy.user_lookup import gid_of, gids_of, uid_of

SCHEME = "MUNGE "


@dataclass(frozen=True, slots=True)
class Rights:
    """Rights of one user to see data.

    Attributes:
        uid: the user.
        name: login name, None if this host does not know it.
        everything: whether the user may see records and jobs of all users.
        accounts: Slurm accounts that the user coordinates. Records and jobs of their users are visible too.
    """

    uid: int
    name: str | None = None
    everything: bool = False
    accounts: frozenset[str] = frozenset()

    @property
    def scope(self) -> str:
        """Name of the visible set of records and jobs in the HTTP interface: `all`, `accounts` or `own`."""
        return "all" if self.everything else "accounts" if self.accounts else "own"

    @property
    def visibility(self) -> Visibility | None:
        """The restriction to apply to selections of records and jobs; None: no restriction."""
        return None if self.everything else Visibility(self.uid, self.accounts)

    def described(self) -> dict[str, object]:
        """Return the response fields that tell a caller whose records and jobs a response covers."""
        accounts = {"accounts": sorted(self.accounts)} if self.scope == "accounts" else {}
        return {"scope": self.scope, **accounts}


@dataclass(frozen=True, slots=True)
class Caller:
    """The user who made a request.

    Attributes:
        uid: uid, certified by munged.
        body_sha256: digest of the body according to the credential, hex digits.
        credential: the munge credential itself, to which the response is bound.
        origin: address of the host where the credential was made, see `munge.Credential`; None: unknown.
        rights: data that the user may see; only the user's own data until the rights are looked up.
    """

    uid: int
    body_sha256: str
    credential: str
    origin: str | None
    rights: Rights

    def check_body(self, body: bytes) -> None:
        """Refuse a request body whose digest differs from the one in the credential.

        Raises:
            ForbiddenError: the body was changed in transit.
        """
        if not hmac.compare_digest(hashlib.sha256(body).hexdigest(), self.body_sha256):
            raise ForbiddenError("credential", "made for another body")


@dataclass(frozen=True, slots=True)
class PrivilegedUsers:
    """Users with rights beyond their own jobs.

    Attributes:
        agents: uids of the agents, which deliver records.
        operators: uids that may see everything.
        operator_groups: gids whose members are operators.
    """

    agents: frozenset[int]
    operators: frozenset[int]
    operator_groups: frozenset[int] = frozenset()

    def is_privileged(self, uid: int) -> bool:
        """Return whether a user is an agent or an operator; may query a directory service."""
        listed = uid in self.agents or uid in self.operators
        return listed or not self.operator_groups.isdisjoint(gids_of(uid) if self.operator_groups else ())

    @classmethod
    def from_config(cls, config: ControllerConfig) -> tuple[PrivilegedUsers, list[str]]:
        """Look up the configured users and groups.

        Returns:
            The privileged users, and the configured names that this host does not know.
        """
        unknown: list[str] = []
        groups = [name for name in config.operators if name.startswith(GROUP_MARK)]
        users = [name for name in config.operators if name not in groups]
        agents, operators = (frozenset(_uids(names, unknown)) for names in (config.agent_users, users))
        gids = {name: gid_of(name.removeprefix(GROUP_MARK)) for name in groups}
        unknown += [name for name, gid in gids.items() if gid is None]
        operator_groups = frozenset(gid for gid in gids.values() if gid is not None)
        return cls(agents, operators, operator_groups), sorted(set(unknown))


def identify(header: str, method: str, target: str, munge_socket: Path | None) -> Caller:
    """Decode the credential of a request and return its caller.

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
    return Caller(opened.uid, body_sha256, credential, opened.origin, Rights(opened.uid))


def _uids(names: Iterable[str], unknown: list[str]) -> Iterable[int]:
    for name in names:
        uid = uid_of(name)
        if uid is None:
            unknown.append(name)
        else:
            yield uid
