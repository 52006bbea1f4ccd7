"""Selection and opening of the database on which a `senergy db` command works."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from slurm_energy.accounting.backups import backup
from slurm_energy.accounting.engine import Database
from slurm_energy.cli import connection
from slurm_energy.config.database_location import DatabaseLocation, parse_database
from slurm_energy.config.database_password import configured_database, with_password_file
from slurm_energy.errors import ForbiddenError, UnavailableError, UsageError


@contextmanager
def opened(args: argparse.Namespace, *, read_only: bool = False, new: bool = False) -> Iterator[Database]:
    """Context manager that returns the database of --database, or else of the configuration.

    Args:
        args: parsed options.
        read_only: open the database for reading only.
        new: whether the SQLite file may be missing.

    Raises:
        ConfigError: the configuration is invalid.
        UsageError: --database is neither a path nor a URL of a database.
        UnavailableError: the SQLite file does not exist.
        ForbiddenError: the user may not open the SQLite file.
    """
    database = Database(_location(args), read_only=read_only)
    try:
        if database.path is not None:
            _require_access(database.path, new=new)
        yield database
    finally:
        database.close()


def _require_access(path: Path, *, new: bool) -> None:
    try:
        exists = path.exists()
    except OSError:  # its directory is closed to this user
        exists = True
    if not exists and not new:
        raise UnavailableError(f"database {path}", "no such file", "name another with --database")
    if exists and not os.access(path, os.R_OK | os.W_OK):
        todo = "run senergy db as root or as the user of senergyctld"
        raise ForbiddenError(f"database {path}", "permission denied", todo)


def refuse_own_file(database: Database, *files: Path | None) -> None:
    """Refuse a backup or export file that is the database or one of the files of the database.

    Raises:
        UsageError: one of the files is the database, or belongs to the database.
    """
    if database.path is None:
        return
    own = [path.resolve() for path in (database.path, *backup.side_files(database.path))]
    for file in files:
        if file is not None and file.resolve() in own:
            raise UsageError(str(file), "is the database itself", "name another file")


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
