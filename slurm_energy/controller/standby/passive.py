"""The passive role of senergyctld, while another controller is active.

A passive controller watches the lease of the active controller, which is the right to be active for a
limited time. It keeps the policy file up to date and refuses all requests.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import Sequence
from typing import Final, NoReturn

from aiohttp import web
from sqlalchemy import Connection, inspect
from sqlalchemy.exc import SQLAlchemyError

from slurm_energy import __version__, service_manager
from slurm_energy.accounting import controller_lease
from slurm_energy.accounting.controller_lease import LeaseState, WriterPresentError
from slurm_energy.accounting.engine import Database, error_reason
from slurm_energy.accounting.schema import lease_tables, migrations
from slurm_energy.accounting.writer_lock import writer_lock
from slurm_energy.config.database_password import configured_database
from slurm_energy.controller.http import http_listener
from slurm_energy.controller.http.authorization import PrivilegedUsers, Rights
from slurm_energy.controller.http.connection_admission import ConnectionAdmission
from slurm_energy.controller.http.dispatcher import (
    RequestDispatcher,
    ResponseContent,
    Route,
    explain_errors,
    one_request_per_connection,
)
from slurm_energy.controller.http.identity import Caller
from slurm_energy.controller.http.request_limiter import RequestLimiter
from slurm_energy.controller.standby.controller_host import ControllerHost
from slurm_energy.controller.standby.lease_metrics import lease_families
from slurm_energy.controller.standby.passive_error import PassiveControllerError, passive_reason
from slurm_energy.controller.standby.slurmctld_follower import may_take
from slurm_energy.errors import AlreadyRunningError, EnergyError, UnavailableError
from slurm_energy.log_once import RepeatedFailureLog
from slurm_energy.openmetrics.exposition import MetricFamily, version_family
from slurm_energy.openmetrics.listener import MetricsListener

WATCH_INTERVAL_S: Final = 1.5
_STATEMENT_LIMIT_S: Final = 4.0
_BLOCKED_S: Final = 10.0
_SUBJECT: Final = "passive controller"
log = logging.getLogger("senergyctld")


class PassiveController:
    """The passive role of this process.

    Args:
        host: state that both roles of this controller share: configuration, name, policy file, observer of
            slurmctld.
        manager: the service manager to notify.
        retry_s: minimum duration of the passive role, used after a failed attempt to become active.
    """

    def __init__(
        self, host: ControllerHost, manager: service_manager.ServiceManager, retry_s: float = 0.0
    ) -> None:
        self._host, self._manager = host, manager
        self._began_s, self._retry_s = time.monotonic(), retry_s
        self._failures = RepeatedFailureLog(log)
        self._database = Database(
            configured_database(host.config.controller), statement_limit_s=_STATEMENT_LIMIT_S
        )
        self._state = LeaseState()
        self._active: str | None = None
        self._problem: str | None = "the database has not been asked yet"
        self._blocked_since_s = 0.0
        self._admission = ConnectionAdmission()

    async def run(self) -> LeaseState | None:
        """Wait until this controller should become active, and return the free lease.

        None means that a signal ended the wait.
        """
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        loop.add_signal_handler(signal.SIGHUP, self._reload)
        runner = web.AppRunner(self._application(), access_log=None, lingering_time=http_listener.LINGERING_S)
        await runner.setup()
        settings = self._host.config.metrics
        metrics = MetricsListener(settings.controller_listen, settings, self._collect)
        listener: asyncio.Server | None = None
        try:
            listener = await http_listener.listen(
                self._host.config.controller.listen, runner, self._admission
            )
            await metrics.open()
            if not self._host.config.controller.policy_file.exists():
                self._host.write_policies(
                    ()
                )  # the lines about budgets follow as soon as the database answers
            addresses = http_listener.listening_addresses(listener)
            log.info("senergyctld %s listens on %s and is passive", __version__, addresses)
            self._manager.ready(f"Passive, listening on {addresses}")
            return await self._watch_until(stop)
        finally:
            if listener is not None:
                listener.close()
            await metrics.close()
            await runner.cleanup()
            self._database.close()

    async def _watch_until(self, stop: asyncio.Event) -> LeaseState | None:
        helpers = [
            asyncio.create_task(self._manager.keep_alive()),
            asyncio.create_task(self._admission.loop()),
        ]
        try:
            while not stop.is_set():
                if await self._watch() and time.monotonic() >= self._began_s + self._retry_s:
                    return self._state
                try:
                    await asyncio.wait_for(stop.wait(), WATCH_INTERVAL_S)
                except TimeoutError:
                    continue
            return None
        finally:
            for helper in helpers:
                helper.cancel()
            await asyncio.gather(*helpers, return_exceptions=True)

    async def _watch(self) -> bool:
        """Announce this passive controller in the database, and read the lease.

        The lease belongs to the active controller. Return whether this controller must take the lease now,
        which means to become active.
        """
        takes = False
        try:
            self._state, problem = await asyncio.to_thread(self._announce)
            if problem is None and may_take(self._state, self._host.name, self._host.beside):
                takes, problem = await self._end_former_writer()
        except (SQLAlchemyError, EnergyError, OSError) as error:
            problem = error_reason(error)
        if problem is not None:
            self._problem, self._active = problem, None
            self._failures.report(_SUBJECT, f"it cannot take over: {problem}")
            return False
        self._problem = None
        self._failures.clear(_SUBJECT, "it can take over again")
        if self._state.active != self._active:
            self._active = self._state.active
            log.info("%s", passive_reason(self._active))
        self._write_policies(self._state.policy_lines)
        return takes

    def _write_policies(self, lines: Sequence[str]) -> None:
        """Keep the policy file on the host of this passive controller up to date.

        The reason is that slurmctld may become active on this host and read the file.
        """
        try:
            self._host.write_policies(lines)
            self._failures.clear("policy file")
        except EnergyError as error:
            self._failures.report("policy file", str(error))

    def _announce(self) -> tuple[LeaseState, str | None]:
        """Announce this passive controller in the database, and return the state of the lease.

        The lease is held by the active controller. The second value is the reason why this controller cannot
        take the lease, or None if it can.
        """
        self._host.observe_slurmctld()
        with self._database.connect() as connection:
            problem = None
            if not inspect(connection).has_table(lease_tables.controllers.name):
                self._prepare_schema()
            else:
                problem = _schema_problem(connection, self._database.name)
            presence = self._host.presence(ready=problem is None)
            state = controller_lease.announce(connection, presence)
            return state, problem

    async def _end_former_writer(self) -> tuple[bool, str | None]:
        """End the database session of the controller that had the lease.

        Return whether the lock of that session is free.

        If the lock is not free, also return the reason.
        """

        def end() -> None:
            with self._database.connect() as connection:
                controller_lease.end_former_writer(connection, self._state)

        try:
            await asyncio.to_thread(end)
        except WriterPresentError as error:
            # It may be another controller, which has the lock and is about to take the lease.
            self._blocked_since_s = self._blocked_since_s or time.monotonic()
            lasts = time.monotonic() - self._blocked_since_s > _BLOCKED_S
            return False, error_reason(error) if lasts else None
        self._blocked_since_s = 0.0
        return True, None

    def _prepare_schema(self) -> None:
        database = Database(self._database.location)  # its session, and with it the lock, ends below
        try:
            with writer_lock(database):
                migrations.prepare(database.location)
        except AlreadyRunningError:
            why = "it has no schema or an older one, and another controller is using it"
            raise UnavailableError(f"database {database.name}", why) from None
        finally:
            database.close()

    def _permit(self) -> NoReturn:
        if self._active is None and self._problem is not None:
            raise PassiveControllerError(f"no active controller is known: {self._problem}")
        raise PassiveControllerError(passive_reason(self._active), self._active)

    def _application(self) -> web.Application:
        access = PrivilegedUsers(frozenset(), frozenset())
        dispatcher = RequestDispatcher(
            lambda: (self._host.config, access), Rights, self._failures, self._admission, self._permit
        )
        route = Route(_unreached, RequestLimiter(1, 0, 1, 1, 0))
        application = web.Application(middlewares=[explain_errors(dispatcher.errors)])
        application.on_response_prepare.append(one_request_per_connection)
        application.router.add_route("*", "/{path:.*}", dispatcher.handler(route))
        return application

    def _reload(self) -> None:
        with self._manager.reload():
            self._host.reload()

    async def _collect(self) -> list[MetricFamily]:
        return [version_family(__version__), *lease_families(self._state, is_active=False)]


def _schema_problem(connection: Connection, name: str) -> str | None:
    """Return the reason why this release of senergyctld cannot use a database; None if it can.

    A database of an older release counts as usable, because it can be migrated.
    """
    try:
        migrations.schema_version(connection, name)
    except UnavailableError as error:
        return error.why
    return None


async def _unreached(_: web.Request, __: Caller, ___: bytes) -> ResponseContent:
    raise AssertionError("a passive controller processes no request")
