"""Two senergyctld processes on this machine that share a database and a munged. One of the two is active."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from slurm_energy.config import ClusterConfig
from slurm_energy.config.addresses import ControllerUrls
from slurm_energy.errors import EnergyError, UnavailableError
from slurm_energy.protocol.controller_client import ControllerClient
from slurm_energy_lab.cluster import processes

DEADLINE_S: Final = 180.0
"""Maximum wait for any state. It is generous, because the machine may be busy."""
_POLL_S: Final = 0.05
_RUNS_AS: Final = str(os.getuid())


class PairedController:
    """One of the two senergyctld of a pair.

    Args:
        directory: directory for the controller's files. It is created.
        munge_socket: path of the socket of munged.
        port: TCP port of the controller.
        urls: URLs of both controllers.
        database: URL of the database.

    Attributes:
        url: URL of this controller.
        process: the running process; None if it was never started.
        environment: further environment variables of the process.
    """

    def __init__(
        self, directory: Path, munge_socket: Path, port: int, urls: list[str], database: str
    ) -> None:
        directory.mkdir()
        self.directory, self.munge_socket = directory, munge_socket
        self.url = f"http://127.0.0.1:{port}"
        self.file, self.log, self.policies = (directory / name for name in ("energy.toml", "log", "policies"))
        self.process: subprocess.Popen[bytes] | None = None
        self.environment: dict[str, str] = {}
        self.file.write_text(
            f'[cluster]\nname = "c1"\nmunge_socket = "{munge_socket}"\ncontroller_url = {urls!r}\n'
            f'controller_users = ["{_RUNS_AS}"]\n[controller]\nlisten = "127.0.0.1:{port}"\n'
            f'database = "{database}"\npolicy_file = "{self.policies}"\nrecord_hosts = "off"\n'
            f'state_dir = "{directory}"\nagent_users = ["{_RUNS_AS}"]\noperators = ["{_RUNS_AS}"]\n'
        )

    @property
    def is_running(self) -> bool:
        """Whether the process of this controller is running."""
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        """Start the process and wait until the controller answers, whether it is active or passive."""
        self.spawn()
        self._wait_for(lambda: self.role() is not None)

    def spawn(self) -> None:
        """Start the process."""
        command = [sys.executable, "-m", "slurm_energy.controller.main", "--config", str(self.file)]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=log, env=os.environ | self.environment
            )

    def role(self) -> str | None:
        """Return `active` or `passive`, the role that the controller reports.

        The result is None if the controller does not answer.
        """
        client = ControllerClient(self.url, self.munge_socket, 2.0, [_RUNS_AS], total_timeout_s=2.0)
        try:
            client.get("/v1/status")
        except EnergyError as error:
            return "passive" if "passive: " in str(error) else None
        return "active"

    def send(self, number: int) -> None:
        """Send a signal to the process, if it runs."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)

    def end(self, number: int = signal.SIGKILL) -> None:
        """End the process with a signal and wait for its end."""
        if self.process is not None:
            self.send(signal.SIGCONT)
            self.send(number)
            self.process.wait(DEADLINE_S)

    def _wait_for(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            if not self.is_running or time.monotonic() > deadline:
                raise UnavailableError(f"senergyctld {self.url}", self.log.read_text()[-4000:])
            time.sleep(_POLL_S)


class ControllerPair:
    """Two controllers of one cluster: one is active, the other can take over.

    Args:
        directory: directory for the files of both controllers.
        munge_socket: path of the socket of munged.
        ports: TCP ports of the controllers.
        databases: URL of the database for each controller.
    """

    def __init__(
        self, directory: Path, munge_socket: Path, ports: tuple[int, int], databases: tuple[str, str]
    ) -> None:
        self.urls = [f"http://127.0.0.1:{port}" for port in ports]
        self.munge_socket = munge_socket
        self.controllers = [
            PairedController(directory / f"controller-{port}", munge_socket, port, self.urls, database)
            for port, database in zip(ports, databases, strict=True)
        ]

    @property
    def cluster(self) -> ClusterConfig:
        """Client configuration that names both controllers of the pair."""
        return ClusterConfig(
            name="c1",
            controller_url=ControllerUrls(self.urls),
            munge_socket=self.munge_socket,
            controller_users=[_RUNS_AS],
        )

    def client(self, total_timeout_s: float = 20.0) -> ControllerClient:
        """Return a client that sends its requests to the active one of the two controllers."""
        return ControllerClient(
            self.urls, self.munge_socket, 5.0, [_RUNS_AS], total_timeout_s=total_timeout_s
        )

    def start(self) -> None:
        """Start both controllers at the same time and wait until one of them is active."""
        for controller in self.controllers:
            controller.spawn()
        self.wait_active()
        self.wait_ready()

    def other(self, controller: PairedController) -> PairedController:
        """Return the controller of the pair that is not `controller`."""
        return self.controllers[1 - self.controllers.index(controller)]

    def active(self) -> PairedController | None:
        """Return the active controller; None if no controller is active."""
        return next((one for one in self.controllers if one.is_running and one.role() == "active"), None)

    def wait_active(self, expected: PairedController | None = None) -> PairedController:
        """Wait until a controller is active, and return this controller.

        If `expected` is given, wait until this controller is the active one.

        Raises:
            UnavailableError: no controller becomes active in time, or another one than expected is active.
        """
        deadline = time.monotonic() + DEADLINE_S
        while True:
            if expected is not None:
                active = expected if expected.role() == "active" else None
            else:
                active = self.active()
            if active is not None:
                return active
            if time.monotonic() > deadline:
                raise UnavailableError("no active controller", self.logs())
            time.sleep(_POLL_S)

    def wait_ready(self) -> None:
        """Wait until the active controller knows that the passive controller can take over."""
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            with contextlib.suppress(EnergyError):
                states = self.lease()["controllers"]
                if len([one for one in states if one["present"] and one["ready"]]) == len(self.controllers):
                    return
            time.sleep(_POLL_S)
        raise UnavailableError("no passive controller", self.logs())

    def lease(self) -> dict[str, Any]:
        """Return the data about the controllers' lease from the status page."""
        lease: dict[str, Any] = self.client().get("/v1/status")["lease"]
        return lease

    def logs(self) -> str:
        """Return the last 4000 characters of each of the two controllers' logs."""
        return "\n".join(f"{one.url}:\n{one.log.read_text()[-4000:]}" for one in self.controllers)

    def close(self) -> None:
        """Kill both controllers."""
        for controller in self.controllers:
            controller.end()


@contextlib.contextmanager
def running_pair(*databases: str) -> Iterator[ControllerPair]:
    """Run a munged and two controllers while this context lasts.

    Args:
        databases: URL of the database that both controllers use, or one URL for each controller. A database
            must be empty or have the schema of this release.
    """
    directory = Path(tempfile.mkdtemp(prefix="senergy-pair-"))
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, directory)
        directory.chmod(0o755)
        munge_socket = _start_munged(stack, directory / "munge")
        held = [stack.enter_context(socket.socket()) for _ in range(2)]
        for probe in held:
            probe.bind(("127.0.0.1", 0))
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        first, second = (int(probe.getsockname()[1]) for probe in held)
        pair = ControllerPair(directory, munge_socket, (first, second), (databases[0], databases[-1]))
        stack.callback(pair.close)
        pair.start()
        yield pair


def _start_munged(stack: contextlib.ExitStack, directory: Path) -> Path:
    directory.mkdir(mode=0o755)
    key, munge_socket = directory / "key", directory / "socket"
    key.write_bytes(os.urandom(128))
    key.chmod(0o600)
    files = {"key-file": key, "pid-file": directory / "pid", "log-file": directory / "log"}
    files |= {"seed-file": directory / "seed", "socket": munge_socket}
    # --force: a directory below /tmp is not one that munged would trust.
    command = ["munged", "--foreground", "--force", *(f"--{name}={path}" for name, path in files.items())]
    daemon = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    stack.callback(daemon.wait, DEADLINE_S)
    stack.callback(daemon.terminate)
    deadline = time.monotonic() + DEADLINE_S
    while not processes.accepts(munge_socket):
        if daemon.poll() is not None or time.monotonic() > deadline:
            raise UnavailableError("munged", "did not start")
        time.sleep(_POLL_S)
    return munge_socket
