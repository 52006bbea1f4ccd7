"""Authorization: determination of the records and jobs that a user may see.

The rights follow from configured operators and from roles in Slurm.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from slurm_energy.accounting.records.record_selection import Visibility
from slurm_energy.config import ControllerConfig
from slurm_energy.config.value_checks import GROUP_MARK
from slurm_energy.errors import EnergyError
from slurm_energy.log_once import RepeatedFailureLog
from slurm_energy.slurm.roles import Roles
from slurm_energy.user_lookup import gid_of, gids_of, name_of, uid_of

INTERVAL_S: Final = 600.0
MAX_AGE_S: Final = 3600.0
_RETRY_S: Final = 60.0
_USER_AGE_S: Final = 60.0
_MAX_USERS: Final = 10_000
_SUBJECT: Final = "roles of coordinators and administrators in Slurm"


@dataclass(frozen=True, slots=True)
class Rights:
    """Rights of one user to see data.

    Attributes:
        uid: uid of the user.
        name: login name of the user; None means that this host does not know the uid.
        everything: whether the user may see records and jobs of all users.
        accounts: Slurm accounts that the user coordinates. The user may also see records and jobs of these
            accounts.
    """

    uid: int
    name: str | None = None
    everything: bool = False
    accounts: frozenset[str] = frozenset()

    @property
    def scope(self) -> str:
        """The records and jobs that the user may see: `all`, those of coordinated `accounts`, or `own`."""
        return "all" if self.everything else "accounts" if self.accounts else "own"

    @property
    def visibility(self) -> Visibility | None:
        """Restriction of database queries to the records that the user may see; None if there is none."""
        return None if self.everything else Visibility(self.uid, self.accounts)

    def described(self) -> dict[str, object]:
        """Return the response fields that state whose records and jobs a response covers."""
        accounts = {"accounts": sorted(self.accounts)} if self.scope == "accounts" else {}
        return {"scope": self.scope, **accounts}


@dataclass(frozen=True, slots=True)
class PrivilegedUsers:
    """Users with rights beyond their own jobs.

    Attributes:
        agents: uids under which agents (senergyd) run, which deliver records.
        operators: uids of users who may see the data of all users.
        operator_groups: gids of the Linux groups whose members are operators.
    """

    agents: frozenset[int]
    operators: frozenset[int]
    operator_groups: frozenset[int] = frozenset()

    def is_privileged(self, uid: int) -> bool:
        """Return whether a user is an agent or an operator, and so may see and do more.

        The call may query a directory service.
        """
        listed = uid in self.agents or uid in self.operators
        return listed or not self.operator_groups.isdisjoint(gids_of(uid) if self.operator_groups else ())

    @classmethod
    def from_config(cls, config: ControllerConfig) -> tuple[PrivilegedUsers, list[str]]:
        """Look up the users and groups that the configuration names.

        Returns:
            The privileged users, and the configured names that are unknown on this host.
        """
        unknown: list[str] = []
        groups = [name for name in config.operators if name.startswith(GROUP_MARK)]
        users = [name for name in config.operators if name not in groups]
        agents, operators = (frozenset(_uids(names, unknown)) for names in (config.agent_users, users))
        gids = {name: gid_of(name.removeprefix(GROUP_MARK)) for name in groups}
        unknown += [name for name, gid in gids.items() if gid is None]
        operator_groups = frozenset(gid for gid in gids.values() if gid is not None)
        return cls(agents, operators, operator_groups), sorted(set(unknown))


class RoleCache:
    """Cache of the user roles in Slurm's database, read periodically. An unknown role grants no rights.

    Args:
        read: reads the roles from Slurm's database; None means that these roles grant no rights.
        failures: log of failures; a repeated failure is logged once.
        clock: returns monotonic seconds.
    """

    def __init__(
        self,
        read: Callable[[], Roles] | None,
        failures: RepeatedFailureLog,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.read = read
        self._failures = failures
        self._clock = clock
        self._roles = Roles()
        self._read_at_s = -float("inf")
        self._due = asyncio.Event()

    @property
    def current(self) -> Roles:
        """The roles of users in Slurm's database, at the last successful read.

        There are no roles if the last successful read is too old, because roles may have been revoked since.
        """
        valid = self.read is not None and self._clock() - self._read_at_s <= MAX_AGE_S
        return self._roles if valid else Roles()

    def refresh(self) -> None:
        """Make `loop` read the roles immediately, without waiting for the next regular read."""
        self._due.set()

    async def loop(self) -> None:
        """Read the roles periodically until cancelled."""
        while True:
            pause_s = INTERVAL_S if await self.update() else _RETRY_S
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._due.wait()
            self._due.clear()

    async def update(self) -> bool:
        """Read the roles once. Return whether the read succeeded."""
        if self.read is None:
            return True
        began_s = self._clock()
        try:
            self._roles = await asyncio.to_thread(self.read)
        except EnergyError as error:
            self._failures.report(_SUBJECT, str(error))
            return False
        self._read_at_s = began_s
        self._failures.clear(_SUBJECT)
        return True


class RightsResolver:
    """Resolver that determines what a user may see and do.

    The directory service is queried at most once per minute and user.

    Args:
        access: returns the configured privileged users and groups.
        roles: returns the roles in Slurm's database.
        clock: returns monotonic seconds.
    """

    def __init__(
        self,
        access: Callable[[], PrivilegedUsers],
        roles: Callable[[], Roles],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._access = access
        self._roles = roles
        self._clock = clock
        self._users: dict[int, tuple[float, str | None, frozenset[int]]] = {}

    def rights_of(self, uid: int) -> Rights:
        """Return the rights of a user. The call may wait for the directory service."""
        access, roles = self._access(), self._roles()
        name, gids = self._lookup(uid)
        everything = uid in access.operators or not access.operator_groups.isdisjoint(gids)
        if name is None:
            return Rights(uid, None, everything)
        everything = everything or name in roles.administrators
        accounts = frozenset() if everything else roles.accounts.get(name, frozenset())
        return Rights(uid, name, everything, accounts)

    def _lookup(self, uid: int) -> tuple[str | None, frozenset[int]]:
        now_s = self._clock()
        cached = self._users.get(uid)
        if cached is None or now_s - cached[0] > _USER_AGE_S:
            if len(self._users) >= _MAX_USERS:
                self._users.clear()
            cached = self._users[uid] = now_s, name_of(uid), gids_of(uid)
        return cached[1:]


def _uids(names: Iterable[str], unknown: list[str]) -> Iterable[int]:
    for name in names:
        uid = uid_of(name)
        if uid is None:
            unknown.append(name)
        else:
            yield uid
