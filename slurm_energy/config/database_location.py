"""Location of the database of senergyctld: a SQLite file, or a database on a server. Pure functions."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from slurm_energy.config.addresses import is_loopback

_BACKENDS: Final = {
    "sqlite": "sqlite",
    "mysql": "mariadb",
    "mysql+pymysql": "mariadb",
    "mariadb": "mariadb",
    "mariadb+pymysql": "mariadb",
    "postgres": "postgresql",
    "postgresql": "postgresql",
    "postgresql+psycopg": "postgresql",
}
_VERIFIED: Final = ("verify-ca", "verify-full")
_SOCKETS: Final = {"mariadb": "unix_socket", "postgresql": "host"}
PARAMETERS: Final = {
    "sqlite": frozenset[str](),
    "mariadb": frozenset(
        ("unix_socket", "ssl_ca", "ssl_capath", "ssl_cert", "ssl_key", "ssl_cipher", "ssl_check_hostname")
    ),
    "postgresql": frozenset(
        (
            *("host", "port", "passfile", "application_name", "target_session_attrs", "channel_binding"),
            *("sslmode", "sslrootcert", "sslcert", "sslkey", "sslcrl", "sslcrldir"),
            *("ssl_min_protocol_version", "ssl_max_protocol_version", "gssencmode", "krbsrvname"),
        )
    ),
}
"""Parameters of a URL by kind of database. They are passed to the driver unchanged."""
_NAME: Final = re.compile(r"[A-Za-z0-9_$-]{1,63}")


class DatabaseLocation:
    """Location of a database. Its text and its representation never contain the password.

    This class is no dataclass. Therefore a copy of a configuration as plain data contains no password either.

    Args:
        backend: `sqlite`, `mariadb` or `postgresql`.
        path: the SQLite file; None means that the database is on a server.
        url: URL without the password.
        password: password for the server; None means that no password is sent.
    """

    __slots__ = ("backend", "password", "path", "url")

    def __init__(self, backend: str, path: Path | None, url: str, password: str | None = None) -> None:
        self.backend, self.path, self.url, self.password = backend, path, url, password

    def __str__(self) -> str:
        return str(self.path) if self.path else self.url

    def __repr__(self) -> str:
        return f"DatabaseLocation({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DatabaseLocation):
            return NotImplemented
        return (self.url, self.password) == (other.url, other.password)

    def __hash__(self) -> int:
        return hash(self.url)

    def with_password(self, password: str) -> DatabaseLocation:
        """Return a copy of the location with a password."""
        return DatabaseLocation(self.backend, self.path, self.url, password)

    @property
    def host(self) -> str | None:
        """Host of the server; None means that the location is a SQLite file, or a server on this host."""
        parts = urlsplit(self.url)
        socket = dict(parse_qsl(parts.query)).get(_SOCKETS.get(self.backend, ""), "")
        name = socket if self.backend == "postgresql" and socket else parts.hostname or ""
        if self.path or socket.startswith("/") or not name or is_loopback(name):
            return None
        return name

    @property
    def is_verified(self) -> bool:
        """Whether TLS authenticates the server."""
        query = dict(parse_qsl(urlsplit(self.url).query))
        if self.backend == "postgresql":
            return query.get("sslmode") in _VERIFIED
        return "ssl_ca" in query or "ssl_capath" in query


def parse_database(text: str) -> DatabaseLocation:
    """Parse an absolute path or a URL of a database.

    Raises:
        ValueError: the text is neither an absolute path nor a valid URL, or the URL has unknown parts. The
            text of the error contains no password.
    """
    if "://" not in text:
        if not text.startswith("/") or not text.isprintable():
            raise ValueError("must be an absolute path or a URL")
        return DatabaseLocation("sqlite", Path(text), f"sqlite:///{text}")
    if not text.isprintable() or "#" in text:
        raise ValueError("must be a URL without '#' and control characters (write %23 in a password)")
    try:
        parts = urlsplit(text)
        parts.port  # noqa: B018 - raises an error for an invalid port
    except ValueError:
        raise ValueError("must be an absolute path or a URL with a valid host and port") from None
    backend = _BACKENDS.get(parts.scheme)
    if backend is None:
        raise ValueError("must be an absolute path, or begin with sqlite://, mariadb:// or postgresql://")
    if backend == "sqlite":
        return _sqlite(parts)
    if not _NAME.fullmatch(parts.path.removeprefix("/")):
        raise ValueError("must end with the name of the database: SCHEME://USER@HOST/NAME")
    unknown = [
        key for key, _ in parse_qsl(parts.query, keep_blank_values=True) if key not in PARAMETERS[backend]
    ]
    if unknown:
        raise ValueError(f"must not have the parameter '{unknown[0]}'; allowed: {_allowed(backend)}")
    user, at, host = parts.netloc.rpartition("@")
    user, colon, password = user.partition(":")
    query = f"?{parts.query}" if parts.query else ""
    url = f"{backend}://{user}{at}{host}{parts.path}{query}"
    return DatabaseLocation(backend, None, url, unquote(password) if colon else None)


def _sqlite(parts: SplitResult) -> DatabaseLocation:
    path = unquote(parts.path)[1:]
    if parts.netloc or parts.query or not path.startswith("/"):
        raise ValueError("must be sqlite:////PATH with an absolute path and no parameters")
    return DatabaseLocation("sqlite", Path(path), f"sqlite:///{path}")


def _allowed(backend: str) -> str:
    return ", ".join(sorted(PARAMETERS[backend]))
