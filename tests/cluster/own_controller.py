"""Runs senergyctld and munged (authentication daemon) as separate processes for tests.

The module contains the fixtures for both.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from small_cluster import reserve_ports

from slurm_energy.errors import EnergyError, UnavailableError
from slurm_energy.protocol.controller_client import ControllerClient
from slurm_energy.records import ComponentEnergy, EnergyRecord
from slurm_energy_lab.cluster import processes

TIMEOUT_S = 120.0
NOBODY = 65534
RUNS_AS = str(os.getuid())


@contextlib.contextmanager
def running_munged(directory: Path, **more: str):
    """Run a munged (daemon of munge) with a key of its own, and yield the path of its socket.

    Further arguments become options of munged.
    """
    directory.mkdir(mode=0o755)
    key, munge_socket = directory / "key", directory / "socket"
    key.write_bytes(os.urandom(128))
    key.chmod(0o600)
    # --force: a directory below /tmp is not one that munged would trust.
    options = {"key-file": key, "socket": munge_socket, "pid-file": directory / "pid"}
    options |= {"log-file": directory / "log", "seed-file": directory / "seed"} | more
    daemon = subprocess.Popen(
        ["munged", "--foreground", "--force", *(f"--{name}={value}" for name, value in options.items())],
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_for(lambda: daemon.poll() is None and processes.accepts(munge_socket))
        yield munge_socket
    finally:
        daemon.terminate()
        daemon.wait(TIMEOUT_S)


def wait_for(condition):
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.02)


@pytest.fixture(scope="module")
def place():
    """Return a directory that other users can enter. Its path is short, as Unix sockets require."""
    directory = Path(tempfile.mkdtemp(prefix="senergy-"))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory)


@pytest.fixture(scope="module")
def munged(place):
    with running_munged(place / "munge") as munge_socket:
        yield munge_socket


@contextlib.contextmanager
def reserved_port():
    """Yield a reserved TCP port.

    No other program can get the port during the block, except a daemon that sets SO_REUSEADDR.
    """
    (probe,) = reserve_ports(1)
    with probe:
        yield probe.getsockname()[1]


class Controller:
    """senergyctld with its own directory, port and configuration."""

    def __init__(self, directory: Path, munge_socket: Path, port: int) -> None:
        self.directory, self.munge_socket, self.port = directory, munge_socket, port
        self.url = f"http://127.0.0.1:{self.port}"
        self.file = directory / "energy.toml"
        self.policies = directory / "policies"
        self.log = directory / "log"
        self.process = None
        self.configure()

    def configure(
        self,
        extra: str = "",
        database: Path | None = None,
        port: int | None = None,
    ) -> None:
        database = database or self.directory / "senergy.db"
        url = f"http://127.0.0.1:{port or self.port}"
        self.file.write_text(
            f'[cluster]\nmunge_socket = "{self.munge_socket}"\ncontroller_url = "{url}"\n'
            f'controller_users = ["{RUNS_AS}"]\n[controller]\n'
            f'listen = "127.0.0.1:{port or self.port}"\ndatabase = "{database}"\n'
            f'policy_file = "{self.policies}"\nagent_users = ["{os.getuid()}"]\n'
            f'operators = ["{os.getuid()}"]\n{extra}'
        )

    def argv(self, *arguments):
        return [sys.executable, "-m", "slurm_energy.controller.main", "--config", str(self.file), *arguments]

    def start(self):
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self.argv(), stdout=log, stderr=log)
        wait_for(self.answers)

    def answers(self):
        assert self.process.poll() is None, self.log.read_text()
        with contextlib.suppress(UnavailableError):
            return bool(self.client().get("/v1/status"))
        return False

    def fails(self, *arguments):
        """Run senergyctld until it ends by itself; return exit code and its one line of output."""
        done = subprocess.run(
            self.argv(*arguments), capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
        lines = [
            line for line in done.stderr.splitlines() if " INFO " not in line and " WARNING " not in line
        ]
        assert len(lines) == 1, done.stderr
        return done.returncode, lines[0]

    def stop(self, number=signal.SIGTERM):
        if self.process and self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(TIMEOUT_S) if self.process else None

    def client(self, munge_socket=None):
        users = [RUNS_AS]
        return ControllerClient(self.url, munge_socket or self.munge_socket, TIMEOUT_S, users)


@pytest.fixture
def controller(tmp_path, munged):
    with reserved_port() as port:
        made = Controller(tmp_path, munged, port)
        yield made
        made.stop(signal.SIGKILL)


def entry(job_id, uid=0, **more):
    components = (ComponentEnergy("cpu", 5.0, "powercap:intel-rapl"),)
    record = EnergyRecord("c1", "n1", job_id, uid, "edp", 100.0, 200.0, components, **more)
    return {"record": record.to_json(), "trace": None}


def as_nobody(controller, target):
    """Send a request as user nobody and return the result as text.

    The result is the list of job ids for a request for records, `ok` for any other response, or
    the error.
    """
    path, _, query = target.partition("?")
    params = dict(pair.split("=") for pair in query.split("&")) if query else None
    read, write = os.pipe()
    child = os.fork()
    if child == 0:  # the interpreter may lie where nobody cannot read it: fork, do not start
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            answer = controller.client().get(path, params)
            said = json.dumps([r["job_id"] for r in answer["records"]]) if "records" in path else "ok"
        except EnergyError as error:
            said = f"{type(error).__name__}: {error}"
        except BaseException as error:
            said = f"failed: {error!r}"
        os.write(write, said.encode())
        os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    with os.fdopen(read) as answer:
        return answer.read()
