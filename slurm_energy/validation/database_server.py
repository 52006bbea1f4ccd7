"""Checks of a database server in the configuration: the password, its file, and TLS."""

from __future__ import annotations

import stat
from collections.abc import Collection, Iterator
from typing import Final

from slurm_energy.config.findings import Finding
from slurm_energy.errors import ConfigError
from slurm_energy.trusted_files import read_trusted
from slurm_energy.validation.check_context import CheckContext

_READ_BY_OTHERS: Final = stat.S_IRGRP | stat.S_IROTH
_TLS: Final = {"mariadb": "?ssl_ca=FILE", "postgresql": "?sslmode=verify-full&sslrootcert=FILE"}


def check_database_server(context: CheckContext, owners: Collection[int]) -> Iterator[Finding]:
    """Yield findings about the password for the database server and about TLS.

    The findings state where the password is stored in an unsafe way, and whether TLS authenticates the
    server.

    Args:
        context: configuration and host. The caller has checked that the configured database is on a server,
            not in a file.
        owners: uids that may own the password file, besides root and the user of this process.
    """
    location, path = context.config.controller.database, context.config.controller.database_password_file
    file = context.config.path
    if location.password is not None and path is not None:
        yield context.error(
            "controller",
            "database_password_file",
            "controller.database contains a password too",
            "remove the password from the URL",
        )
    elif location.password is not None and file is not None and file.stat().st_mode & _READ_BY_OTHERS:
        why = f"contains a password, and others than its owner can read {file}"
        yield context.warning("controller", "database", why, "use controller.database_password_file")
    if location.host is not None and not location.is_verified:
        why = f"TLS does not authenticate the server {location.host}"
        todo = f"append {_TLS[location.backend]} to the URL"
        yield context.warning("controller", "database", why, todo)
    if path is not None:
        try:
            read_trusted(path, secret=True, also=owners)
        except ConfigError as error:
            yield context.error(
                "controller", "database_password_file", f"{error.what} {error.why}", error.todo
            )
        except FileNotFoundError:
            why, todo = f"{path} does not exist", "write the password to it, with mode 0600"
            yield context.error("controller", "database_password_file", why, todo, unavailable=True)
