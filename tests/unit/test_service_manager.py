"""Test the connection of the daemons to systemd: sd_notify, journal priorities and log levels.

Some tests check the protocol. Others start both daemons as processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_energy import service_manager
from slurm_energy.cli.main import main as cli
from slurm_energy.validation import check_file

pytestmark = pytest.mark.slow

PATIENCE_S = 60.0
MODULES = {"senergyd": "slurm_energy.agent.main", "senergyctld": "slurm_energy.controller.main"}


class Manager:
    """A substitute for systemd: a socket that receives the notifications of a daemon.

    The address of the socket is a path or an abstract address.
    """

    def __init__(self, folder: Path, abstract: bool) -> None:
        self.address = f"@senergy-test-{os.getpid()}-{folder.name}" if abstract else str(folder / "notify")
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind("\0" + self.address[1:] if abstract else self.address)
        self.socket.settimeout(PATIENCE_S)
        self.received: list[list[str]] = []

    def wait_for(self, assignment: str) -> list[str]:
        """Wait for a notification of the daemon that contains the given line, and return it.

        The line has the form `NAME=VALUE`.
        """
        while True:
            self.received.append(self.socket.recv(4096).decode().split("\n"))
            if assignment in self.received[-1]:
                return self.received[-1]


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="senergy-") as name:  # short enough for the path of a socket
        yield Path(name)


@pytest.fixture(params=[False, True], ids=["path", "abstract"])
def manager(folder: Path, request: pytest.FixtureRequest) -> Iterator[Manager]:
    receiver = Manager(folder, request.param)
    with contextlib.closing(receiver.socket):
        yield receiver


def test_notifications_reach_the_manager(manager: Manager) -> None:
    notifier = service_manager.ServiceManager(manager.address)
    with notifier.reload():  # no reload is reported before readiness
        pass
    notifier.ready("Serving\nMAINPID=1")
    assert manager.wait_for("READY=1") == ["READY=1", "STATUS=Serving MAINPID=1"]
    assert len(manager.received) == 1
    with notifier.reload():
        begin = manager.wait_for("RELOADING=1")
        assert begin[1].startswith("MONOTONIC_USEC=") and begin[1].partition("=")[2].isdecimal()
    assert manager.wait_for("READY=1") == ["READY=1"]
    notifier.stopping()
    assert manager.wait_for("STOPPING=1")


def test_the_variables_are_taken_from_the_environment() -> None:
    environment = {
        "NOTIFY_SOCKET": "/nowhere",
        "WATCHDOG_USEC": "1000",
        "WATCHDOG_PID": str(os.getpid()),
        "A": "b",
    }
    service_manager.ServiceManager.from_environment(environment)
    assert environment == {"A": "b"}


@pytest.mark.parametrize(
    ("variables", "watchdog_s"),
    [
        ({"WATCHDOG_USEC": "2000000"}, 2.0),
        ({"WATCHDOG_USEC": "2000000", "WATCHDOG_PID": str(os.getpid())}, 2.0),
        ({"WATCHDOG_USEC": "2000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({}, None),
    ],
)
def test_the_watchdog_is_for_the_process_that_is_named(
    variables: dict[str, str], watchdog_s: float | None
) -> None:
    made = service_manager.ServiceManager.from_environment({"NOTIFY_SOCKET": "/nowhere", **variables})
    assert made._watchdog_s == watchdog_s


@pytest.mark.parametrize(
    "address", ["", "relative", "vsock:2:1234", "/nowhere/at/all", "@nobody-listens-here"]
)
def test_no_manager_is_no_error(address: str, caplog: pytest.LogCaptureFixture) -> None:
    notifier = service_manager.ServiceManager.from_environment({"NOTIFY_SOCKET": address})
    notifier.ready("x")
    notifier.stopping()
    assert len(caplog.records) == (1 if address.startswith(("/", "@")) else 0)


def test_keep_alives_come_from_the_event_loop(manager: Manager) -> None:
    async def serve() -> None:
        task = asyncio.create_task(service_manager.ServiceManager(manager.address, 0.02).keep_alive())
        for _ in range(2):
            assert await asyncio.to_thread(manager.wait_for, "WATCHDOG=1") == ["WATCHDOG=1"]
        task.cancel()

    asyncio.run(serve())


@pytest.mark.parametrize(
    ("level", "priority"), [("debug", 7), ("info", 6), ("warning", 4), ("error", 3), ("critical", 3)]
)
def test_each_line_in_the_journal_has_its_priority(level: str, priority: int) -> None:
    record = logging.LogRecord("x", getattr(logging, level.upper()), "", 0, "one\ntwo", (), None)
    assert service_manager.JournalFormatter().format(record) == f"<{priority}>one\n<{priority}>two"


class Started:
    """A daemon that a test starts in the way in which systemd starts it."""

    def __init__(
        self, program: str, folder: Path, manager: Manager, *options: str, journal: bool = False
    ) -> None:
        self.config = folder / "energy.toml"
        self.socket = folder / "run" / "agent.sock"
        self.config.write_text(
            f'[cluster]\ncontroller_url = "http://127.0.0.1:9"\n'
            f'[agent]\nsocket = "{self.socket}"\nstate_dir = "{folder}/state"\n'
            f'[controller]\nlisten = "127.0.0.1:0"\ndatabase = "{folder}/db"\n'
            f'policy_file = "{folder}/policies"\n'
        )
        environment = {**os.environ, "NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": "400000"}
        with (folder / "log").open("wb") as log:
            status = os.fstat(log.fileno())
            if journal:
                environment["JOURNAL_STREAM"] = f"{status.st_dev}:{status.st_ino}"
            self.process = subprocess.Popen(
                [sys.executable, "-m", MODULES[program], "--config", str(self.config), *options],
                env=environment,
                stderr=log,
            )
        self.log = folder / "log"

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE_S)


@contextlib.contextmanager
def started(
    program: str, folder: Path, manager: Manager, *options: str, journal: bool = False
) -> Iterator[Started]:
    daemon = Started(program, folder, manager, *options, journal=journal)
    try:
        yield daemon
    finally:
        daemon.process.kill()
        daemon.process.wait()


@pytest.mark.parametrize("program", MODULES)
def test_a_daemon_reports_its_life(program: str, folder: Path, manager: Manager) -> None:
    with started(program, folder, manager) as daemon:
        ready = manager.wait_for("READY=1")
        assert ready[1].startswith("STATUS=")
        if program == "senergyd":
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(str(daemon.socket))
            assert any("STATUS=Restoring" in n[0] for n in manager.received)
        else:
            host, _, port = ready[1].rpartition(" ")[2].rpartition(":")
            socket.create_connection((host, int(port)), PATIENCE_S).close()
            assert (folder / "policies").exists()
        manager.wait_for("WATCHDOG=1")
        daemon.process.send_signal(signal.SIGHUP)
        manager.wait_for("READY=1")
        assert any(n[0] == "RELOADING=1" for n in manager.received)
        assert daemon.stop() == 0
        manager.wait_for("STOPPING=1")


@pytest.mark.parametrize("program", MODULES)
@pytest.mark.parametrize("journal", [False, True], ids=["terminal", "journal"])
def test_the_log_has_priorities_in_the_journal_only(program: str, journal: bool, folder: Path) -> None:
    manager = Manager(folder, abstract=False)
    with contextlib.closing(manager.socket), started(program, folder, manager, journal=journal) as daemon:
        manager.wait_for("READY=1")
        daemon.config.write_text("[cluster]\nnonsense = 1\n")
        daemon.process.send_signal(signal.SIGHUP)
        manager.wait_for("RELOADING=1")
        manager.wait_for("READY=1")
        assert daemon.stop() == 0
        lines = daemon.log.read_text().splitlines()
    if journal:
        assert all(line[:3] in ("<3>", "<4>", "<6>") for line in lines), lines
        assert any(line.startswith("<3>") and "nonsense" in line for line in lines)
    else:
        assert any(f"{program}: error:" in line and "nonsense" in line for line in lines)
        assert any(f"{program}: info:" in line for line in lines)


@pytest.mark.parametrize("program", MODULES)
def test_an_error_at_the_start_has_a_priority_too(program: str, folder: Path) -> None:
    (folder / "bad.toml").write_text("[cluster]\nnonsense = 1\n")
    command = [sys.executable, "-m", MODULES[program], "--config", str(folder / "bad.toml")]
    with (folder / "log").open("wb") as log:
        status = os.fstat(log.fileno())
        environment = {**os.environ, "JOURNAL_STREAM": f"{status.st_dev}:{status.st_ino}"}
        done = subprocess.run(command, env=environment, stderr=log, timeout=PATIENCE_S, check=False)
    assert done.returncode == 3
    lines = (folder / "log").read_text().splitlines()
    assert all(line.startswith(("<3>", "<4>")) for line in lines), lines
    assert any(line.startswith("<3>") and "nonsense" in line for line in lines)


@pytest.mark.slow
@pytest.mark.parametrize("program", MODULES)
@pytest.mark.parametrize(
    ("options", "key"), [(("--log-level", "error"), ""), ((), "error"), (("--log-level", "error"), "info")]
)
def test_the_log_level_keeps_lower_lines_out(
    program: str, options: tuple[str, ...], key: str, folder: Path
) -> None:
    manager = Manager(folder, abstract=False)
    with contextlib.closing(manager.socket):
        section = {"senergyd": "agent", "senergyctld": "controller"}[program]
        with started(program, folder, manager, *options) as daemon:
            manager.wait_for("READY=1")
            if key:
                text = daemon.config.read_text()
                daemon.config.write_text(
                    text.replace(f"[{section}]\n", f'[{section}]\nlog_level = "{key}"\n')
                )
                daemon.process.send_signal(signal.SIGHUP)
                manager.wait_for("RELOADING=1")
                manager.wait_for("READY=1")
                daemon.log.write_bytes(b"")
            assert daemon.stop() == 0
            text = daemon.log.read_text()
        assert "info:" not in text


def test_debug_shows_each_message_of_a_hook(folder: Path) -> None:
    manager = Manager(folder, abstract=False)
    with (
        contextlib.closing(manager.socket),
        started("senergyd", folder, manager, "--log-level", "debug") as daemon,
    ):
        manager.wait_for("READY=1")
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(daemon.socket))
            client.sendall(b'{"op":"status"}\n')
            assert client.recv(10)
        assert daemon.stop() == 0
        assert f'senergyd: debug: uid {os.geteuid()}: b\'{{"op":"status"}}' in daemon.log.read_text()


def lines_of_a_request(daemon: Started) -> str:
    """Send a request that is logged at level debug, and return what the daemon has logged for it."""
    before = len(daemon.log.read_text())
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(daemon.socket))
        client.sendall(b'{"op":"status"}\n')
        assert client.recv(10)
    return daemon.log.read_text()[before:]


def wait_for_log(daemon: Started, text: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while text not in daemon.log.read_text():
        assert time.monotonic() < deadline, daemon.log.read_text()
        time.sleep(0.01)


def test_signals_change_the_level_of_a_running_agent(folder: Path) -> None:
    manager = Manager(folder, abstract=False)
    with contextlib.closing(manager.socket), started("senergyd", folder, manager) as daemon:
        manager.wait_for("READY=1")
        assert "debug:" not in lines_of_a_request(daemon)
        daemon.process.send_signal(signal.SIGUSR1)
        wait_for_log(daemon, "log level: debug")
        assert "debug: uid" in lines_of_a_request(daemon)
        daemon.process.send_signal(signal.SIGUSR2)
        wait_for_log(daemon, "log level: info")
        assert "debug:" not in lines_of_a_request(daemon)
        text = daemon.config.read_text()
        levels = 'log_level = "error"\nlog_levels = { "agent.sockets" = "debug" }\n'
        daemon.config.write_text(text.replace("[agent]\n", f"[agent]\n{levels}"))
        daemon.process.send_signal(signal.SIGHUP)
        manager.wait_for("RELOADING=1")
        manager.wait_for("READY=1")
        assert "debug: uid" in lines_of_a_request(daemon)
        daemon.log.write_bytes(b"")
        assert daemon.stop() == 0
        assert "info:" not in daemon.log.read_text()  # of other parts


def test_signals_change_the_level_of_a_running_controller(folder: Path) -> None:
    manager = Manager(folder, abstract=False)
    with contextlib.closing(manager.socket), started("senergyctld", folder, manager) as daemon:
        manager.wait_for("READY=1")
        daemon.process.send_signal(signal.SIGUSR1)
        wait_for_log(daemon, "warning: log level: debug, until SIGUSR2 or a reload")
        daemon.process.send_signal(signal.SIGUSR2)
        wait_for_log(daemon, "info: log level: info")
        assert daemon.stop() == 0


def test_an_unknown_part_of_the_program_is_found(tmp_path: Path) -> None:
    path = tmp_path / "energy.toml"
    path.write_text('[agent]\nlog_levels = { "agent.state.spool" = "debug", "agent.nosuch" = "info" }\n')
    texts = [finding.text for finding in check_file(path).warnings if "log_levels" in finding.key]
    assert len(texts) == 1 and "'agent.nosuch' is neither a package nor a module" in texts[0]
    path.write_text('[agent]\nlog_levels = { "devices" = "loud" }\n')
    assert "must be one of debug, info, warning, error" in check_file(path).errors[0].text


@pytest.mark.parametrize("program", MODULES)
def test_the_unit_waits_for_readiness_and_has_a_watchdog(program: str, tmp_path: Path) -> None:
    unit = tmp_path / f"{program}.service"
    assert cli(["template", "render", unit.name, "-o", str(unit)]) == 0
    lines = unit.read_text().splitlines()
    assert "Type=notify" in lines and "NotifyAccess=main" in lines
    assert any(line.startswith("WatchdogSec=") for line in lines)
    if (
        program == "senergyd"
    ):  # the unit restores settings before jobs start, and slurmd waits for a limited time
        assert "Before=slurmd.service" in lines
        assert any(line.startswith("TimeoutStartSec=") for line in lines)


def test_a_wrong_level_is_refused(folder: Path) -> None:
    command = [sys.executable, "-m", MODULES["senergyd"], "--log-level", "loud"]
    assert subprocess.run(command, capture_output=True, timeout=PATIENCE_S, check=False).returncode == 2
