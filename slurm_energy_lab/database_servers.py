"""Private MariaDB and PostgreSQL servers for tests and benchmarks, each in a separate directory.

A server listens on a Unix socket in its directory, and on a loopback port if requested. When the
process that started the server ends, the Linux kernel kills the server (PR_SET_PDEATHSIG). A cleaner process
removes the server's directory even if the starting process is killed.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Final

import sqlalchemy
from sqlalchemy import URL

from slurm_energy.errors import UnavailableError
from slurm_energy_lab.database_cleaner import remove_remains

_START_TIMEOUT_S: Final = 60.0
_STOP_TIMEOUT_S: Final = 60.0
_POSTGRESQL_ACCESS: Final = """\
local all postgres trust
local all all scram-sha-256
host all all 127.0.0.1/32 scram-sha-256
"""
_POSTGRESQL_BINARIES: Final = Path("/usr/lib/postgresql")


class DatabaseServer(ABC):
    """A database server for tests and benchmarks that ends with the calling process.

    Start the server in the main thread: Linux kills the server when the thread that started it ends.

    Args:
        durable: whether each commit is written to the disk, as on a production server. Otherwise commits are
            fast, and survive a kill of the server, but not a power cut.
        port: TCP port on the loopback interface; None for the Unix socket only.
        directory: directory of the server. `close` keeps the data in this directory, and a later server in
            the same directory uses these data. None means a temporary directory, which `close` removes.
        settings: settings of the server that replace or extend the defaults. Changes take effect at the next
            `start`.
    """

    name: ClassVar[str]
    account: ClassVar[str]
    """System account that runs the server when the caller is root."""

    def __init__(
        self,
        *,
        durable: bool = False,
        port: int | None = None,
        directory: Path | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.durable = durable
        self.port = port
        self.settings = dict(settings or {})
        self.directory = _kept_directory(directory) if directory else Path(tempfile.mkdtemp(prefix="sedb-"))
        self.data = self.directory / "data"
        self.log = self.directory / "server.log"
        self._user = _account(self.account) if os.geteuid() == 0 else None
        self._process: subprocess.Popen[bytes] | None = None
        self._cleaner = None if directory else _start_cleaner(self.directory)
        try:
            if self._user:
                os.chown(self.directory, self._user.pw_uid, self._user.pw_gid)
            if not self.data.exists():
                self._install()
            self.start()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> DatabaseServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def running(self) -> bool:
        """Whether the server process exists."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the server and wait until it accepts connections.

        Raises:
            UnavailableError: the server ends at once, or does not accept connections in time.
        """
        with self.log.open("ab") as log:
            command = ["setpriv", "--pdeathsig", "KILL", *self._as_account(), "--", *self._command()]
            self._process = subprocess.Popen(
                command, cwd=self.directory, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        (self.directory / "server.pid").write_text(str(self._process.pid))
        deadline = time.monotonic() + _START_TIMEOUT_S
        while True:
            try:
                return self.execute("SELECT 1")
            except sqlalchemy.exc.OperationalError:
                if not self.running or time.monotonic() > deadline:
                    raise UnavailableError(f"server {self.name}", self._last_log_line()) from None
                time.sleep(0.02)

    def stop(self) -> None:
        """Shut down the server in an orderly way. The data are kept."""
        self._end(self._stop_signal)

    def kill(self) -> None:
        """Kill the server, as a crash would. The data are kept."""
        self._end(signal.SIGKILL)
        remove_remains(self.data)

    def close(self) -> None:
        """End the server.

        If the directory of the server is temporary, the server is killed and the directory is removed.
        Otherwise the server is shut down in an orderly way, and the directory is kept.
        """
        if self._cleaner is None:
            self.stop()
        else:
            self.kill()
            self._cleaner.communicate()

    def execute(self, statements: str, database: str | None = None) -> None:
        """Run SQL statements, separated by semicolons, as the administrator of the server."""
        engine = sqlalchemy.create_engine(
            self.admin_url(database), poolclass=sqlalchemy.pool.NullPool, isolation_level="AUTOCOMMIT"
        )
        with engine.connect() as connection:
            for statement in filter(str.strip, statements.split(";")):
                connection.exec_driver_sql(statement.replace("%", "%%"))

    def create_database(self, name: str) -> str:
        """Create an empty database and return its URL for the administrator."""
        self.execute(self._create_statement(name))
        return self.admin_url(name).render_as_string(hide_password=False)

    def drop_database(self, name: str) -> None:
        """Drop a database, even if connections to it are open."""
        self.execute(self._drop_statement(name))

    @abstractmethod
    def admin_url(self, database: str | None = None) -> URL:
        """Return the URL with which the administrator reaches a database over the Unix socket."""

    @property
    @abstractmethod
    def _stop_signal(self) -> signal.Signals: ...

    @abstractmethod
    def _install(self) -> None: ...

    @abstractmethod
    def _command(self) -> list[str]: ...

    @abstractmethod
    def _create_statement(self, name: str) -> str: ...

    @abstractmethod
    def _drop_statement(self, name: str) -> str: ...

    def _end(self, how: signal.Signals) -> None:
        if self._process is None:
            return
        self._process.send_signal(how)
        try:
            self._process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise UnavailableError(f"server {self.name}", f"did not stop in {_STOP_TIMEOUT_S:g} s") from None
        finally:
            self._process = None

    def _as_account(self) -> list[str]:
        user = self._user
        return [f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"] if user else []

    def _run_installer(self, *command: str) -> None:
        done = subprocess.run(
            ["setpriv", "--pdeathsig", "KILL", *self._as_account(), "--", *command],
            cwd=self.directory,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise UnavailableError(
                f"server {self.name}", (done.stderr or done.stdout).strip().splitlines()[-1]
            )

    def _last_log_line(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines()
        return lines[-1] if lines else "did not start"


class MariadbServer(DatabaseServer):
    """A MariaDB server with the default collation of Debian, which ignores case."""

    name = "mariadb"
    account = "mysql"

    def admin_url(self, database: str | None = None) -> URL:
        """Return the URL of a database for the administrator over the Unix socket."""
        query = {"unix_socket": str(self._socket)}
        return URL.create("mysql+pymysql", "root", host="localhost", database=database, query=query)

    @property
    def _socket(self) -> Path:
        return self.directory / "mariadb.sock"

    @property
    def _stop_signal(self) -> signal.Signals:
        return signal.SIGTERM

    def _options(self) -> list[str]:
        options = ["--no-defaults", f"--datadir={self.data}", f"--tmpdir={self.directory}"]
        options += ["--innodb-log-file-size=16M", "--skip-name-resolve"]
        options += ["--character-set-server=utf8mb4", "--collation-server=utf8mb4_general_ci"]
        if not self.durable:
            options += ["--innodb-flush-method=nosync", "--innodb-flush-log-at-trx-commit=2"]
            options += ["--innodb-doublewrite=0"]
        return [*options, *(f"--{name}={value}" for name, value in self.settings.items())]

    def _install(self) -> None:
        program = _program("mariadb-install-db", "mariadb-server")
        self._run_installer(
            program, *self._options(), "--auth-root-authentication-method=normal", "--skip-test-db"
        )

    def _command(self) -> list[str]:
        network = ["--bind-address=127.0.0.1", f"--port={self.port}"] if self.port else ["--skip-networking"]
        files = [f"--socket={self._socket}", f"--pid-file={self.directory}/mariadbd.pid"]
        return [_program("mariadbd", "mariadb-server"), *self._options(), *network, *files]

    def _create_statement(self, name: str) -> str:
        return f"CREATE DATABASE {name}"

    def _drop_statement(self, name: str) -> str:
        return f"DROP DATABASE {name}"


class PostgresqlServer(DatabaseServer):
    """A PostgreSQL server whose databases have an English collation, as most installations have."""

    name = "postgresql"
    account = "postgres"

    def admin_url(self, database: str | None = None) -> URL:
        """Return the URL of a database for the administrator over the Unix socket."""
        query = {"host": str(self.directory)} | ({"port": str(self.port)} if self.port else {})
        return URL.create("postgresql+psycopg", "postgres", database=database or "postgres", query=query)

    @property
    def _stop_signal(self) -> signal.Signals:
        return signal.SIGINT  # "fast": ends the sessions of clients

    def _install(self) -> None:
        options = ["--username=postgres", "--encoding=UTF8", "--locale=C", "--no-sync"]
        options += ["--auth-local=trust", "--auth-host=scram-sha-256"]
        self._run_installer(_program("initdb", "postgresql"), f"--pgdata={self.data}", *options)
        (self.data / "pg_hba.conf").write_text(_POSTGRESQL_ACCESS)

    def _command(self) -> list[str]:
        settings: dict[str, Any] = {
            "listen_addresses": "127.0.0.1" if self.port else "",
            "unix_socket_directories": self.directory,
            "dynamic_shared_memory_type": "mmap",  # in the data directory, which is removed
            "max_connections": 50,
        }
        if self.port:
            settings["port"] = self.port
        if not self.durable:
            settings |= {"fsync": "off", "full_page_writes": "off"}
        settings |= self.settings
        options = [word for key, value in settings.items() for word in ("-c", f"{key}={value}")]
        return [_program("postgres", "postgresql"), "-D", str(self.data), *options]

    def _create_statement(self, name: str) -> str:
        locale = "LOCALE_PROVIDER icu ICU_LOCALE 'en-US' LOCALE 'C'"
        return f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'UTF8' {locale}"

    def _drop_statement(self, name: str) -> str:
        return f"DROP DATABASE {name} WITH (FORCE)"


SERVERS: Final[Mapping[str, type[DatabaseServer]]] = {
    server.name: server for server in (MariadbServer, PostgresqlServer)
}


def _program(name: str, package: str) -> str:
    """Return the path of a server program.

    Raises:
        UnavailableError: the program is not installed.
    """
    path = f"{os.environ.get('PATH', '')}:/usr/local/sbin:/usr/sbin:/usr/local/bin:/usr/bin"
    versions = sorted(_POSTGRESQL_BINARIES.glob("*/bin"), key=lambda one: float(one.parent.name))
    for directory in (*reversed(versions), None):
        if program := shutil.which(name, path=str(directory) if directory else path):
            return program
    raise UnavailableError(f"program {name}", "not installed", f"apt-get install {package}")


def _account(name: str) -> pwd.struct_passwd:
    try:
        return pwd.getpwnam(name)
    except KeyError:
        return pwd.getpwnam("nobody")


def _kept_directory(directory: Path) -> Path:
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    return directory.absolute()


def _start_cleaner(directory: Path) -> subprocess.Popen[bytes]:
    """Start the process that removes a server and its directory when its standard input is closed.

    The process has its own session. Signals to the process group of the caller therefore do not reach it.
    """
    command = [sys.executable, "-m", "slurm_energy_lab.database_cleaner", str(directory)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True)
