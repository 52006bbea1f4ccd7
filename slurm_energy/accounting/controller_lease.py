"""The lease of the active controller.

Of several senergyctld processes, only the holder of the lease may write to the database.

Each change of the holder increases the fencing token. The clock of the database server decides when a lease
has expired. The holder's writing session also holds the writer lock (`writer_lock`), and the token changes
only in a session that holds this lock. A former holder therefore has no session that could still write.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, or_, select

from slurm_energy.accounting.backends import backend_of
from slurm_energy.accounting.engine import transaction
from slurm_energy.accounting.schema.lease_tables import controller_lease, controllers
from slurm_energy.accounting.upserts import insert_missing, insert_or_replace
from slurm_energy.errors import UnavailableError

EXPIRY_S: Final = 12.0
"""Time after the last renewal at which another controller may take the lease."""
_PRESENT_S: Final = 10.0
"""Time after its last announcement during which a controller counts as running."""
_FORGOTTEN_S: Final = 30 * 86400.0
_ROW: Final = 1
_lease: Final = controller_lease.c


class LostLeaseError(UnavailableError):
    """Error: another controller has taken the lease, so this controller must not write."""


class WriterPresentError(UnavailableError):
    """Error: another program writes to the database without holding the controllers' lease.

    An example of such a program is `senergy db`.
    """


@dataclass(frozen=True, slots=True)
class Presence:
    """Announcement of a controller: its state and its view of slurmctld.

    Attributes:
        name: the controller's name, which is its URL.
        release: the controller's release of slurm-energy.
        started: Unix time at which the controller started.
        ready: whether the controller can take the lease.
        beside_slurmctld: whether the active slurmctld runs on the controller's host; None means unknown.
    """

    name: str
    release: str
    started: float
    ready: bool = True
    beside_slurmctld: bool | None = None


@dataclass(frozen=True, slots=True)
class ControllerState:
    """A controller as last announced in the database.

    Attributes:
        presence: the controller's last announcement.
        seen_age_s: seconds since the last announcement.
    """

    presence: Presence
    seen_age_s: float

    @property
    def is_present(self) -> bool:
        """Whether the controller runs."""
        return self.seen_age_s < _PRESENT_S


@dataclass(frozen=True, slots=True)
class LeaseState:
    """The lease and the controllers at one moment.

    Attributes:
        token: fencing token; 0 means that the lease was never taken.
        holder: name of the controller that holds the lease; None means that the lease is free.
        instance: identity of the process that holds the lease; None means that the lease is free.
        session: number of the database session that the holder of the lease uses to write.
        held_s: seconds since the lease was taken or released.
        renewed_age_s: seconds since the last renewal of the lease.
        successor: name of the controller that shall take the lease next, as set by the last holder of the
            lease; None means any controller.
        policy_lines: lines that the holder of the lease has added to the policy file.
        controllers: the controllers, by name.
    """

    token: int = 0
    holder: str | None = None
    instance: str | None = None
    session: int | None = None
    held_s: float = math.inf
    renewed_age_s: float = math.inf
    successor: str | None = None
    policy_lines: tuple[str, ...] = ()
    controllers: Sequence[ControllerState] = ()

    @property
    def free_s(self) -> float | None:
        """Seconds since the lease became free or expired; None while a controller holds it."""
        if self.instance is None:
            return self.held_s
        return self.renewed_age_s - EXPIRY_S if self.renewed_age_s > EXPIRY_S else None

    @property
    def active(self) -> str | None:
        """Name of the active controller; None if there is none.

        The active controller is the one that holds the lease, a lock in the database that expires.
        """
        return self.holder if self.free_s is None else None


def announce(connection: Connection, presence: Presence) -> LeaseState:
    """Store that a controller is running, and return the state of the lease and of all controllers.

    The controller that holds the lease is the active one.
    """
    now_s = backend_of(connection).clock_s(connection)
    row = {
        "name": presence.name,
        "release": presence.release,
        "started": presence.started,
        "seen": now_s,
        "ready": presence.ready,
        "beside_slurmctld": presence.beside_slurmctld,
    }
    insert_or_replace(connection, controllers, [row])
    return read_state(connection)


def read_state(connection: Connection) -> LeaseState:
    """Return the state of the lease, and of all controllers that share the database.

    The controller that holds the lease is active; only this controller may write to the database.
    """
    now_s = backend_of(connection).clock_s(connection)
    rows = connection.execute(select(controllers).order_by(controllers.c.name)).mappings()
    states = [
        ControllerState(
            Presence(
                row["name"], row["release"], row["started"], bool(row["ready"]), row["beside_slurmctld"]
            ),
            now_s - row["seen"],
        )
        for row in rows
    ]
    lease = connection.execute(select(controller_lease)).mappings().one_or_none()
    if lease is None:
        return LeaseState(controllers=states)
    return LeaseState(
        token=lease["token"],
        holder=lease["holder"],
        instance=lease["instance"],
        session=lease["session"],
        held_s=now_s - lease["since"],
        renewed_age_s=now_s - lease["renewed"],
        successor=lease["successor"],
        policy_lines=tuple(lease["policy_lines"].splitlines()),
        controllers=states,
    )


def end_former_writer(connection: Connection, state: LeaseState) -> None:
    """End the database session of a controller whose write lease has expired, if it still writes.

    The lease is the exclusive right of one controller to write to the database.

    Raises:
        WriterPresentError: a program that never held the lease writes to the database.
    """
    backend = backend_of(connection)
    writer = backend.writer_session(connection)
    if writer is None:
        return
    if writer != state.session or state.instance is None:
        raise WriterPresentError("database", "another program writes to it", "is senergy db running?")
    backend.end_session(connection, writer)


def take(connection: Connection, name: str, instance: str, expected_token: int) -> int:
    """Take the lease, which makes a controller the active one, and return its new token.

    The connection must hold the writer lock.

    Args:
        connection: connection of the future writer.
        name: name of the controller.
        instance: identity of the controller's process.
        expected_token: token of the lease when it was last read as free.

    Raises:
        LostLeaseError: another controller was faster, or the holder has renewed its lease.
    """
    backend = backend_of(connection)
    with transaction(connection):
        now_s = backend.clock_s(connection)
        first: dict[str, Any] = {"id": _ROW, "token": 0, "since": now_s, "renewed": 0.0, "policy_lines": ""}
        insert_missing(connection, controller_lease, [first])
        is_free = or_(_lease.instance.is_(None), _lease.renewed < now_s - EXPIRY_S)
        values = {
            "token": expected_token + 1,
            "holder": name,
            "instance": instance,
            "session": backend.session(connection),
            "since": now_s,
            "renewed": now_s,
            "successor": None,
        }
        update = controller_lease.update().where(_lease.token == expected_token, is_free).values(values)
        if connection.execute(update).rowcount != 1:
            raise LostLeaseError("lease", "another controller has taken it")
        connection.execute(controllers.delete().where(controllers.c.seen < now_s - _FORGOTTEN_S))
    return expected_token + 1


def renew(connection: Connection, instance: str, token: int, policy_lines: Sequence[str]) -> bool:
    """Renew the lease of the active controller.

    The call also stores the lines that this controller has added to the policy file. If another
    controller takes over, it can write these lines.

    Args:
        connection: connection to the database.
        instance: name of this controller.
        token: number of the lease.
        policy_lines: lines that this controller has added to the policy file.

    Returns:
        False if another controller has taken the lease.
    """
    now_s = backend_of(connection).clock_s(connection)
    values = {"renewed": now_s, "policy_lines": "\n".join(policy_lines)}
    held = (_lease.token == token, _lease.instance == instance)
    return connection.execute(controller_lease.update().where(*held).values(values)).rowcount == 1


def release(connection: Connection, instance: str, token: int, successor: str | None) -> None:
    """Release the lease of the active controller, so that another controller can become active.

    Nothing happens if another controller has already taken the lease.

    Args:
        connection: connection to the database.
        instance: identity of the holder's process.
        token: the holder's fencing token.
        successor: name of the controller that shall take the lease; None means any controller.
    """
    now_s = backend_of(connection).clock_s(connection)
    values = {"holder": None, "instance": None, "session": None, "since": now_s, "successor": successor}
    held = (_lease.token == token, _lease.instance == instance)
    connection.execute(controller_lease.update().where(*held).values(values))


def require(connection: Connection, instance: str, token: int) -> None:
    """Raise an error unless this controller still holds the lease.

    The lease is the right to write to the database.

    Args:
        connection: connection to the database.
        instance: identity of the controller's process.
        token: number that the process got with the lease.

    Raises:
        LostLeaseError: another controller has taken the lease.
    """
    row = connection.execute(select(_lease.instance, _lease.token)).one_or_none()
    if row is None or tuple(row) != (instance, token):
        raise LostLeaseError("lease", "another controller has taken it")


def note_session(connection: Connection, instance: str, token: int) -> None:
    """Store the database session of the active controller in the controller's lease.

    The holder of the lease is the only controller that may write to the database. It calls this function
    after it has opened a new connection.

    Raises:
        LostLeaseError: another controller has taken the lease.
    """
    require(connection, instance, token)
    held = (_lease.token == token, _lease.instance == instance)
    session = backend_of(connection).session(connection)
    connection.execute(controller_lease.update().where(*held).values(session=session))
