"""Reader of the password for the database server from the file that contains it."""

from __future__ import annotations

from typing import Final

from slurm_energy.config.daemon_sections import ControllerConfig
from slurm_energy.config.database_location import DatabaseLocation
from slurm_energy.errors import ConfigError
from slurm_energy.trusted_files import read_trusted

_MAX_BYTES: Final = 1024


def configured_database(controller: ControllerConfig) -> DatabaseLocation:
    """Return the configured database, with the password of `database_password_file` if one is named.

    Raises:
        ConfigError: the file is missing, is readable by other users, or contains no password.
    """
    return with_password_file(controller.database, controller)


def with_password_file(location: DatabaseLocation, controller: ControllerConfig) -> DatabaseLocation:
    """Return a location on a server with the password of `database_password_file`.

    The location is returned unchanged if it is a SQLite file, or if no password file is configured.

    Raises:
        ConfigError: the file is missing, is readable by other users, or contains no password.
    """
    path = controller.database_password_file
    if path is None or location.path is not None:
        return location
    try:
        data = read_trusted(path, secret=True)
    except OSError as error:
        raise ConfigError(
            f"controller.database_password_file {path}",
            error.strerror or str(error),
            f"write the password to it: install -m 0600 /dev/stdin {path}",
        ) from None
    password = data.removesuffix(b"\n").removesuffix(b"\r")
    try:
        text = password.decode()
    except UnicodeDecodeError:
        text = ""
    if not text or len(password) > _MAX_BYTES or not text.isprintable():
        raise ConfigError(
            f"controller.database_password_file {path}",
            "is not one line with a password",
            "write the password alone to it",
        )
    return location.with_password(text)
