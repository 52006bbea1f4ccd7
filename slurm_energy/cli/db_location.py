"""The database that a `senergy db` command opens."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager

from slurm_energy.accounting.engine import Database
from slurm_energy.cli import connection
from slurm_energy.config.database_location import DatabaseLocation, parse_database
from slurm_energy.config.database_password import configured_database, with_password_file
from slurm_energy.errors import UnavailableError, UsageError


@contextmanager
def opened(args: argparse.Namespace, *, read_only: bool = False, new: bool = False) -> Iterator[Database]:
    """Context manager that returns the database of --database, or else of the configuration.

    Args:
        args: parsed options.
        read_only: reject every change.
        new: the SQLite file may be missing.

    Raises:
        ConfigError: the configuration is invalid.
        UsageError: --database is neither a path nor a URL of a database.
        UnavailableError: there is no such SQLite file.
    """
    database = Database(_location(args), read_only=read_only)
    try:
        if not new and database.path is not None and not database.path.exists():
            raise UnavailableError(
                f"database {database.name}", "no such file", "name another with --database"
            )
        yield database
    finally:
        database.close()


def _location(args: argparse.Namespace) -> DatabaseLocation:
    controller = connection.configuration(args).controller
    if args.database is None:
        return configured_database(controller)
    try:
        location = parse_database(args.database)
    except ValueError as error:
        raise UsageError("--database", str(error)) from None  # the value may contain a password
    # A password on the command line is visible to every user of the host.
    return location if location.password else with_password_file(location, controller)
