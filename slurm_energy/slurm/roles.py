"""Reader of Slurm's roles with rights over jobs of other users: operators, administrators, coordinators."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from slurm_energy.errors import UnavailableError
from slurm_energy.quantities import shown
from slurm_energy.slurm.command import Runner, run_command
from slurm_energy.slurm.command_output import FixedWidth

_ADMIN_LEVELS: Final = frozenset(("Operator", "Administrator"))
_LEVELS: Final = _ADMIN_LEVELS | {"None", "Not Set", ""}
_USERS: Final = FixedWidth({"User": 256, "AdminLevel": 24})
_LIST_BYTES: Final = 2048
_COORDINATORS: Final = FixedWidth({"Account": 256, "Coordinators": _LIST_BYTES})


@dataclass(frozen=True, slots=True)
class Roles:
    """The roles in Slurm's database.

    Attributes:
        administrators: login names of users with AdminLevel Operator or Administrator.
        accounts: by login name, the Slurm accounts that the user coordinates.
    """

    administrators: frozenset[str] = frozenset()
    accounts: Mapping[str, frozenset[str]] = field(default_factory=dict)


def read_roles(run: Runner = run_command) -> Roles:
    """Read all roles from slurmdbd with two commands. slurmctld receives no request.

    Raises:
        UnavailableError: slurmdbd does not answer, or the output cannot be parsed.
    """
    users = _USERS.command(["sacctmgr", "-n", "show", "user", f"format={_USERS.format}"])
    accounts = _COORDINATORS.command(
        ["sacctmgr", "-n", "show", "account", "withcoord", f"format={_COORDINATORS.format}"]
    )
    return Roles(frozenset(_administrators(run(users))), _coordinated(run(accounts)))


def _administrators(output: str) -> Iterator[str]:
    for user, level in _USERS.rows(output, "sacctmgr"):
        if level not in _LEVELS:
            raise UnavailableError("sacctmgr", f"'{shown(level)}' is not an AdminLevel")
        if level in _ADMIN_LEVELS:
            yield user


def _coordinated(output: str) -> dict[str, frozenset[str]]:
    coordinated: dict[str, set[str]] = {}
    for account, users in _COORDINATORS.rows(output, "sacctmgr"):
        for user in _names(users):
            coordinated.setdefault(user, set()).add(account)
    return {user: frozenset(accounts) for user, accounts in coordinated.items()}


def _names(text: str) -> Iterable[str]:
    """Return the user names in a comma-separated list of coordinators from sacctmgr.

    A list that Slurm has cut off loses its last name, which is incomplete.

    A name that contains a comma would be split into several names. This does no harm, because only a user
    who may add coordinators could add such a name.
    """
    names = text.split(",")
    if len(text.encode()) >= _LIST_BYTES and text.endswith("+"):  # cut off: the last name is incomplete
        names.pop()
    return [name for name in names if name]
