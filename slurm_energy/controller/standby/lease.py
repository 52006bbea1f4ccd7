"""The lease in the database that allows this senergyctld to act as the active controller.

The lease prevents two controllers from acting at the same time. Writes are fenced: the database accepts them
only while this process holds the lease. A separate thread renews the lease as long as the event loop works.
After the lease has expired, nothing may act until the lease is renewed, because another controller may have
taken over.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable
from typing import Final

from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from slurm_energy.accounting import controller_lease
from slurm_energy.accounting.controller_lease import LeaseState, LostLeaseError, Presence
from slurm_energy.accounting.engine import Database, Location, error_reason, set_fence
from slurm_energy.controller.standby.passive_error import PassiveControllerError, passive_reason
from slurm_energy.errors import EnergyError
from slurm_energy.log_once import RepeatedFailureLog, UnexpectedErrorLog

VALIDITY_S: Final = controller_lease.EXPIRY_S - 2.0
"""Time after the begin of the last successful renewal in which the holder may act."""
_RENEWAL_S: Final = 2.0
_STATEMENT_LIMIT_S: Final = 4.0
_MAX_LOOP_PAUSE_S: Final = 20.0
"""Time without a sign of the event loop after which the lease is no longer renewed."""
_START_S: Final = 60.0
"""Time in which the event loop has to start."""
_STOP_S: Final = 10.0
log = logging.getLogger("senergyctld")


class ControllerLease:
    """The lease of the active controller. The first connection of the database's writer takes the lease.

    Args:
        location: the database.
        presence: returns this controller's announcement to the other controllers.
        expected_token: fencing token that the lease had when this process found the lease free.
        clock_s: returns seconds since boot, including suspended time.

    Attributes:
        token: fencing token of this process's lease; 0 means that this process has not taken the lease.
        policy_lines: lines that this controller adds to the policy file.
        state: state of the lease and of all controllers at the last renewal.
        on_loss: called in the renewing thread when another controller has taken the lease.
    """

    def __init__(
        self,
        location: Location,
        presence: Callable[[], Presence],
        expected_token: int,
        clock_s: Callable[[], float] = lambda: time.clock_gettime(time.CLOCK_BOOTTIME),
    ) -> None:
        self._database = Database(location, statement_limit_s=_STATEMENT_LIMIT_S)
        self._presence, self._expected_token, self._clock_s = presence, expected_token, clock_s
        self._instance = uuid.uuid4().hex
        self._valid_until_s = -1.0
        self._loop_seen_s = 0.0
        self._lost = False
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._failures = RepeatedFailureLog(log)
        self._unexpected = UnexpectedErrorLog(log)
        self.token = 0
        self.policy_lines: tuple[str, ...] = ()
        self.state = LeaseState()
        self.on_loss: Callable[[], None] = lambda: None

    def enter(self, connection: Connection) -> None:
        """Let a new database connection write only while this controller has the lease.

        The lease is a lock with an expiry: only the controller with the lease may write. The connection has
        already locked the database. The first connection takes the lease. Each later transaction of the
        connection first checks the lease.

        Raises:
            LostLeaseError: another controller has the lease.
        """
        try:
            if self.token == 0:
                sent_s = self._clock_s()
                name = self._presence().name
                self.token = controller_lease.take(connection, name, self._instance, self._expected_token)
                self._valid_until_s = sent_s + VALIDITY_S
            else:
                controller_lease.note_session(connection, self._instance, self.token)
        except LostLeaseError:
            self._note_loss()
            raise
        set_fence(connection, self.check)

    def check(self, connection: Connection) -> None:
        """Raise an error unless the database states that this process holds the lease.

        Raises:
            LostLeaseError: another controller has taken the lease.
        """
        try:
            controller_lease.require(connection, self._instance, self.token)
        except LostLeaseError:
            self._note_loss()
            raise

    @property
    def is_lost(self) -> bool:
        """Whether another controller has taken the lease."""
        return self._lost

    @property
    def is_valid(self) -> bool:
        """Whether this process still holds the lease and may therefore work as the active controller.

        After a renewal of the lease, no other controller can become active for a limited time. The value is
        true during this time.
        """
        return not self._lost and self._clock_s() < self._valid_until_s

    def require(self) -> None:
        """Raise an error unless this process may act.

        Raises:
            PassiveControllerError: another controller is active, or may become active.
        """
        if self._lost:
            raise PassiveControllerError(passive_reason(self.state.holder), self.state.holder)
        if not self.is_valid:
            raise PassiveControllerError("the database has not confirmed the lease for too long")

    def start(self) -> None:
        """Start the thread that regularly renews the lease of the active controller.

        The lease is the right to be the active controller for a limited time.
        """
        self.note_loop(_START_S)
        self._thread = threading.Thread(target=self._renew_often, name="lease", daemon=True)
        self._thread.start()

    def note_loop(self, ahead_s: float = 0.0) -> None:
        """Record that the event loop works now, so that the lease of this controller is renewed further.

        Args:
            ahead_s: seconds from now for which the event loop may be busy.
        """
        self._loop_seen_s = max(self._loop_seen_s, self._clock_s() + ahead_s)

    def release(self, successor: str | None = None) -> None:
        """Stop the renewals and release the lease, so that another controller can take it at once.

        Args:
            successor: controller that should take the lease; None means any controller.
        """
        self._closing.set()
        if self._thread is not None:
            self._thread.join(_STOP_S)
        if self.token and not self._lost:
            try:
                with self._database.connect() as connection:
                    controller_lease.release(connection, self._instance, self.token, successor)
            except (EnergyError, SQLAlchemyError) as error:
                log.warning("lease: not released, it expires: %s", error_reason(error))
        self._valid_until_s = -1.0
        self._database.close()

    def renew(self) -> None:
        """Renew the lease of this controller once, and read the state of all controllers.

        The lease is the right to write to the database for a limited time.

        Raises:
            LostLeaseError: another controller has taken the lease.
            UnavailableError, SQLAlchemyError: the database does not answer.
        """
        sent_s = self._clock_s()
        with self._database.connect() as connection:
            renewed = controller_lease.renew(connection, self._instance, self.token, self.policy_lines)
            if renewed:
                self._valid_until_s = sent_s + VALIDITY_S
            self.state = controller_lease.announce(connection, self._presence())
        if not renewed:
            self._note_loss()
            raise LostLeaseError("lease", passive_reason(self.state.holder))

    def _renew_often(self) -> None:
        while not self._lost:
            pause_s = _RENEWAL_S
            try:
                self._renew_unless_hung()
            except LostLeaseError:
                return
            except (EnergyError, SQLAlchemyError, OSError) as error:
                self._failures.report("lease", f"not renewed: {error_reason(error)}")
                pause_s = _RENEWAL_S / 2
            except Exception as error:  # without this thread, the lease is neither renewed nor lost
                self._unexpected.report(error, "lease: not renewed")
            if self._closing.wait(pause_s):
                return

    def _renew_unless_hung(self) -> None:
        if self._clock_s() > self._loop_seen_s + _MAX_LOOP_PAUSE_S:
            self._failures.report("lease", "not renewed: senergyctld has been busy for too long")
            return
        self.renew()
        self._failures.clear("lease", "renewed again")

    def _note_loss(self) -> None:
        if not self._lost:
            self._lost = True
            log.warning("lease: another controller has taken over")
            self.on_loss()
