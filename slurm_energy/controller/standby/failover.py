"""Change of senergyctld between the passive and the active role, in a cluster with several controllers."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable
from typing import Final

from sqlalchemy.exc import SQLAlchemyError

from slurm_energy import service_manager
from slurm_energy.accounting.backups import integrity
from slurm_energy.accounting.controller_lease import LeaseState
from slurm_energy.accounting.engine import Location, error_reason
from slurm_energy.config import Config
from slurm_energy.config.database_password import configured_database
from slurm_energy.controller.records.store import Store
from slurm_energy.controller.standby.controller_host import ControllerHost
from slurm_energy.controller.standby.lease import ControllerLease
from slurm_energy.controller.standby.passive import PassiveController
from slurm_energy.errors import AlreadyRunningError, UnavailableError
from slurm_energy.slurm.command import COMMAND_GATE

_RETRY_S: Final = 3.0
_WATCH_INTERVAL_S: Final = 1.0
log = logging.getLogger("senergyctld")

RunActive = Callable[[Config, Store, ControllerLease, ControllerHost], "Resignation | None"]
"""Serves as the active controller. It returns why it resigned; None: a signal ends the daemon."""


class Resignation:
    """The reason why this controller is not active any more, although the daemon continues to run.

    Args:
        config: the configuration when the active role ended.
        successor: controller that should take the lease; None means that another controller has already
            taken the lease.
    """

    def __init__(self, config: Config, successor: str | None = None) -> None:
        self.config, self.successor = config, successor


async def wait_until_resigned(lease: ControllerLease, host: ControllerHost) -> str | None:
    """Wait until this process must stop being the active controller.

    Returns:
        Name of the controller that should become active; None if another controller has already taken the
        lease and is active.
    """
    # Not between two observations: they wait for a thread and for Slurm's files, which may take longer than
    # the lease lasts.
    noting = asyncio.create_task(_note_loop(lease))
    try:
        return await _successor(lease, host)
    finally:
        noting.cancel()


async def _note_loop(lease: ControllerLease) -> None:
    while True:
        lease.note_loop()
        await asyncio.sleep(_WATCH_INTERVAL_S)


async def _successor(lease: ControllerLease, host: ControllerHost) -> str | None:
    while True:
        await asyncio.to_thread(host.observe_slurmctld)
        if lease.is_lost:
            return None
        successor = host.successor(lease.state) if lease.is_valid else None
        if successor is not None:
            log.info("handing over to %s, which is beside slurmctld", successor)
            return successor
        await asyncio.sleep(_WATCH_INTERVAL_S)


def alternate(host: ControllerHost, manager: service_manager.ServiceManager, run_active: RunActive) -> None:
    """Run as passive and as active controller in turn, until a signal ends the daemon.

    The process is passive until the lease is free. The process is then active until it loses the lease.

    Args:
        host: state of this controller in both the passive and the active time.
        manager: the service manager to notify.
        run_active: serves as the active controller.

    Raises:
        EnergyError: the process can serve neither as passive nor as active controller.
    """
    retry_s = 0.0
    while True:
        free = asyncio.run(PassiveController(host, manager, retry_s).run())
        if free is None:
            log.info("stopped")
            return
        # Between the roles nothing handles the signal, and its default would end the daemon.
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        resignation = _serve(host, free, manager, run_active)
        if resignation is None:
            return
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        host.config = resignation.config
        host.forget_written_policies()
        retry_s = _RETRY_S


def _serve(
    host: ControllerHost, free: LeaseState, manager: service_manager.ServiceManager, run_active: RunActive
) -> Resignation | None:
    """Become the active controller and run senergyctld until it is not active any more.

    Several hosts may run senergyctld. Only the host with the lease (a lock with an expiry) is active.

    Return why the controller is not active any more. None means that a signal ended the daemon.
    """
    location = configured_database(host.config.controller)
    lease = ControllerLease(location, host.presence, free.token)
    lease.policy_lines = free.policy_lines
    resignation: Resignation | None = Resignation(host.config)
    try:
        store = asyncio.run(_open_store(location, lease, manager))
    except (UnavailableError, AlreadyRunningError, SQLAlchemyError) as error:
        log.warning("did not become active: %s", error_reason(error))
        lease.release()
        return resignation
    lease.start()
    COMMAND_GATE.permit = lease.require
    try:
        log.info("active, with token %d of the lease", lease.token)
        integrity.verify(location)
        resignation = run_active(host.config, store, lease, host)
    finally:
        store.close()
        lease.release(resignation.successor if resignation else None)
        COMMAND_GATE.open()
    return resignation


async def _open_store(
    location: Location, lease: ControllerLease, manager: service_manager.ServiceManager
) -> Store:
    """Open the database in a thread, and send keep-alives to the service manager until it is open.

    The first controller of a new release migrates the schema. In a large database, this takes minutes.
    """
    keeping_alive = asyncio.create_task(manager.keep_alive())
    try:
        return await asyncio.to_thread(Store, location, lease)
    finally:
        keeping_alive.cancel()
