"""Start of senergyctld, alone or as one of several controllers, and checks before the start."""

from __future__ import annotations

import asyncio
import logging

from slurm_energy import service_manager
from slurm_energy.accounting.backups import integrity
from slurm_energy.accounting.schema import migrations
from slurm_energy.config import Config
from slurm_energy.config.database_password import configured_database
from slurm_energy.controller.active_controller import ActiveController
from slurm_energy.controller.http import http_listener
from slurm_energy.controller.queue.priority_loop import OFF, make_pipeline
from slurm_energy.controller.records.store import Store
from slurm_energy.controller.standby.controller_host import ControllerHost
from slurm_energy.controller.standby.failover import Resignation, alternate
from slurm_energy.controller.standby.lease import ControllerLease


def check(config: Config) -> None:
    """Check everything that senergyctld (`serve`) needs to start. Change nothing.

    Raises:
        ConfigError, UnavailableError: an error that would prevent `serve` from starting.
        DamagedDatabaseError: damage that `serve` would detect only later.
    """
    if config.priority.mode != OFF:
        make_pipeline(config, None, None)
    location = configured_database(config.controller)
    if location.path is None or location.path.exists():
        integrity.verify(location)
    migrations.check(location)


def serve(
    config: Config,
    argument: str | None,
    manager: service_manager.ServiceManager | None = None,
    log_level: str | None = None,
) -> None:
    """Run senergyctld until SIGTERM or SIGINT.

    Args:
        config: the configuration at the start.
        argument: path of the configuration file named on the command line, from which a reload reads; None
            means the default path.
        manager: the service manager to notify; None means that no service manager is notified.
        log_level: log level named on the command line; None means that the level in the configuration
            applies.

    Raises:
        ConfigError, UnavailableError, AlreadyRunningError: the daemon cannot start.
    """
    logging.getLogger("aiohttp.server").addFilter(http_listener.is_not_about_bad_requests)
    http_listener.raise_open_file_limit()
    options = (argument, manager or service_manager.ServiceManager(), log_level)
    if len(config.cluster.controller_url) > 1:
        _serve_in_turn(config, *options)
        return
    check(config)
    store = Store(configured_database(config.controller))
    try:
        asyncio.run(ActiveController(config, store, *options).run())
    finally:
        store.close()


def _serve_in_turn(
    config: Config, argument: str | None, manager: service_manager.ServiceManager, log_level: str | None
) -> None:
    """Run as one of several controllers. Only one of these controllers is active at a time."""
    if config.priority.mode != OFF:
        make_pipeline(config, None, None)

    def run_active(
        config: Config, store: Store, lease: ControllerLease, host: ControllerHost
    ) -> Resignation | None:
        daemon = ActiveController(config, store, argument, manager, log_level, lease, host)
        return asyncio.run(daemon.run())

    alternate(ControllerHost(config, argument, log_level), manager, run_active)
