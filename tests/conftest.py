"""Settings for all tests.

They decide which users may run which tests, and how many examples hypothesis tries. Every run tries the same
examples. There is no time limit per example, because a loaded machine would exceed it. `make check` tries a
quarter of the examples (`--hypothesis-profile=check`). `make soak` searches for new ones (`search`).
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import itertools
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest

# Tests run side by side: more threads of a numeric library than cores would only wait for each other.
for _library in ("OPENBLAS", "OMP", "MKL"):
    os.environ.setdefault(f"{_library}_NUM_THREADS", "1")

NOBODY = 65534
LONGEST_TEMPORARY = 24
COMPILES_KERNELS = "test_column_engine.py"
WAITING_FOLDERS = ("cluster", "node")
MIXED_SHARE = 0.75
"""Share of the computing files that are mixed with the waiting files. The others come after them."""

# Sockets' paths have 107 bytes, of which pytest and the tests take more than half.
if len(os.fsencode(os.path.realpath(tempfile.gettempdir()))) > LONGEST_TEMPORARY:
    os.environ["TMPDIR"], tempfile.tempdir = "/tmp", None

with contextlib.suppress(ImportError):  # some tests run where only Slurm and pytest are
    from hypothesis import HealthCheck, settings

    untimed = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
    settings.register_profile("search", max_examples=300, **untimed)
    settings.register_profile("same", max_examples=50, derandomize=True, **untimed)
    settings.register_profile("check", settings.get_profile("same"), max_examples=10)
    settings.load_profile("same")


def _checked_only(file) -> None:
    """Replacement for fsync and fdatasync in tests: check the file descriptor, but write nothing.

    A wrong descriptor raises an error, as in the original functions.
    """
    os.fstat(file if isinstance(file, int) else file.fileno())


def pytest_configure(config: pytest.Config) -> None:
    """Make the tests faster in `make check`. `make test` runs without these omissions.

    Three kinds of work are omitted:

    - Numba compiles nothing: the simulator's loops run as Python code.
    - Hypothesis does not search the sources for constants to try.
    - Files of this process are not forced to disk. For users who cannot write /dev/shm, forcing
      files to disk took a third of the waiting time of tests that create files.
    """
    if config.getoption("--hypothesis-profile", None) == "check":
        os.environ.setdefault("NUMBA_DISABLE_JIT", "1")
        os.fsync = os.fdatasync = _checked_only
        with contextlib.suppress(ImportError, AttributeError):  # a private name: without it, only slower
            from hypothesis.internal.conjecture import providers

            none = providers._local_constants
            providers._get_local_constants = lambda: none


@pytest.fixture(autouse=True)
def _level_of_the_log():
    """Restore the log levels after each test.

    A daemon that a test starts in its own process changes these levels.
    """
    loggers = [logging.getLogger(name) for name in (None, "aiohttp", "asyncio")]
    levels = [logger.level for logger in loggers]
    yield
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)


@functools.cache
def _readable_for_others() -> bool:
    if os.geteuid() != 0:
        return False
    command = [sys.executable, "-c", "import slurm_energy"]
    try:
        done = subprocess.run(command, user=NOBODY, cwd="/", capture_output=True, timeout=60, check=False)
    except PermissionError:  # not even its interpreter
        return False
    return done.returncode == 0


def _import_share_of_tests(session: pytest.Session) -> None:
    """Let each of n parallel test workers first import every n-th test module.

    Pytest compiles a test module at its first import and caches the code. In a fresh clone, each worker
    would compile all modules. With this function, a worker compiles only its part of the modules, and
    finds the other modules in the cache.
    """
    worker, workers = (
        os.environ.get("PYTEST_XDIST_WORKER", "gw0"),
        os.environ.get("PYTEST_XDIST_WORKER_COUNT"),
    )
    if workers is None:
        return
    folders = [Path(argument) for argument in session.config.args if Path(argument).is_dir()]
    modules = sorted(path for folder in folders for path in folder.glob("test_*.py"))
    for path in modules[int(worker.removeprefix("gw")) :: int(workers)]:
        if str(path.parent.absolute()) in sys.path:
            with contextlib.suppress(Exception, pytest.skip.Exception):  # the collection reports it
                importlib.import_module(path.stem)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Collect tests without the garbage collector, and freeze the collected tree of tests.

    The collector visits the growing tree of tests repeatedly, which took half of the processor
    time of the collection. Garbage collections during the tests do not visit a frozen tree either.
    """
    gc.disable()
    try:
        _import_share_of_tests(session)
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order the test files so that parallel workers keep the processors busy.

    The file that compiles the simulator comes first, because other workers then find it compiled. Tests in
    `WAITING_FOLDERS` wait for daemons most of their time, and the other tests compute. The files of both
    sorts are mixed evenly, so that workers compute while other workers wait. The last files only compute,
    because a long file at the end would leave the other workers without work.
    """
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    waiting = [path for path in files if path.parent.name in WAITING_FOLDERS]
    places = {path: place / len(waiting) for place, path in enumerate(waiting)}
    computing = [path for path in files if path not in places]
    places |= {path: place / (MIXED_SHARE * len(computing)) for place, path in enumerate(computing)}
    order = sorted(files, key=lambda path: (path.name != COMPILES_KERNELS, places[path]))
    items[:] = [item for path in order for item in files[path]]


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("other_user") and not _readable_for_others():
        pytest.skip("other users cannot read this checkout: try a clone outside of a home directory")


class _DatabaseServers:
    """The MariaDB and PostgreSQL servers of this session, started at first use."""

    def __init__(self) -> None:
        self._servers = {}
        self._prepared = {}
        self._databases = itertools.count()

    def get(self, name):
        """Return a running database server of the named kind.

        Skip the test if this kind of server is not installed or cannot run here.
        """
        database_servers = pytest.importorskip("slurm_energy_lab.database_servers")
        if name not in self._servers:
            try:
                self._servers[name] = database_servers.SERVERS[name]()
            except (database_servers.UnavailableError, OSError) as error:
                self._servers[name] = str(error)
        if isinstance(self._servers[name], str):
            pytest.skip(f"no {name} server: {self._servers[name]}")
        return self._servers[name]

    @contextlib.contextmanager
    def database(self, name):
        """Context manager that returns the URL of an empty database and drops it at the end."""
        server, database = self.get(name), f"senergy_{next(self._databases)}"
        url = server.create_database(database)
        try:
            yield url
        finally:
            server.drop_database(database)

    def empty_store(self, name):
        """Return the URL of a database with all tables but without rows.

        Tests of a session use the same database one after the other. Its rows are deleted for each test.
        """
        from slurm_energy.accounting import engine
        from slurm_energy.accounting.schema import migrations, tables

        if name not in self._prepared:
            self._prepared[name] = self.get(name).create_database("senergy_prepared")
            migrations.prepare(self._prepared[name])
            return self._prepared[name]
        with engine.connect(self._prepared[name]) as connection, engine.transaction(connection):
            for table in reversed(tables.metadata.sorted_tables):
                if table is not tables.schema_version:
                    connection.execute(table.delete())
        return self._prepared[name]

    def close(self):
        for server in self._servers.values():
            if not isinstance(server, str):
                server.close()


@pytest.fixture(scope="session")
def database_servers():
    servers = _DatabaseServers()
    yield servers
    servers.close()


# Servers take seconds to start, which `make check` does not have.
STORES = ("sqlite", *(pytest.param(name, marks=pytest.mark.slow) for name in ("mariadb", "postgresql")))


@pytest.fixture(params=STORES)
def empty_database(request, tmp_path, database_servers):
    """Location of a database without tables: the path of a new SQLite file, or the URL of a new database."""
    if request.param == "sqlite":
        yield str(tmp_path / "senergy.db")
    else:
        with database_servers.database(request.param) as url:
            yield url


@pytest.fixture(scope="session")
def prepared_sqlite(tmp_path_factory):
    """SQLite file with an empty database, which other fixtures copy.

    A copy takes much less time than the creation of the tables.
    """
    from slurm_energy.accounting.schema import migrations

    path = tmp_path_factory.mktemp("prepared") / "senergy.db"
    migrations.prepare(path)
    return path


@pytest.fixture(params=STORES)
def store_location(request, tmp_path, database_servers, prepared_sqlite):
    """Return the location of an empty database: the path of a SQLite file, or the URL of a server.

    A test with this fixture runs once for each kind of database.
    """
    if request.param != "sqlite":
        return database_servers.empty_store(request.param)
    path = tmp_path / "senergy.db"
    if not path.exists():  # another fixture may have filled it
        shutil.copy(prepared_sqlite, path)
    return str(path)
