"""Tests of senergyd as a separate process on a node without devices.

The tests check the socket, the permissions of different users, start and stop, the exit codes, and the
delivery of records to the controller.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from test_job_manager import env

from slurm_energy.agent import daemon
from slurm_energy.agent.jobs.job_manager import JobManager
from slurm_energy.agent.sockets.server import LINE_LIMIT, AgentServer
from slurm_energy.agent.state import delivery
from slurm_energy.agent.state.spool import Spool
from slurm_energy.config import AgentConfig, ClusterConfig, Config
from slurm_energy.errors import UnavailableError, UsageError
from slurm_energy.records import ComponentEnergy, EnergyRecord

pytestmark = pytest.mark.slow

SENERGYD = [sys.executable, "-m", "slurm_energy.agent.main"]


def eventually(condition: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.02)
    raise AssertionError(f"never: {what}")


class Agent:
    """A senergyd with its own directory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.socket = folder / "run/agent.sock"
        self.config = folder / "energy.toml"
        self.log = folder / "log"
        self.configure()
        self.process: subprocess.Popen[bytes] | None = None

    def configure(self, extra: str = "") -> None:
        self.config.write_text(
            f'[cluster]\ncontroller_url = "http://127.0.0.1:9"\n'
            f'[agent]\nsocket = "{self.socket}"\nstate_dir = "{self.folder}/state"\n{extra}'
        )

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [*SENERGYD, "--config", str(self.config), *arguments]
        return subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)

    def start(self) -> Agent:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen([*SENERGYD, "--config", str(self.config)], stderr=log)
        eventually(self.answers, "the agent answers")
        return self

    def answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.log.read_text()
        try:
            return bool(self.ask({"op": "status"})["ok"])
        except OSError:
            return False

    def ask(self, *messages: Any) -> Any:
        with self.connect() as connection:
            answers = []
            with connection.makefile("rb") as lines:
                for message in messages:
                    data = message if isinstance(message, bytes) else json.dumps(message).encode() + b"\n"
                    connection.sendall(data)
                    answers.append(json.loads(lines.readline()))
        return answers[0] if len(answers) == 1 else answers

    def connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(30)
        connection.connect(str(self.socket))
        return connection

    def spooled(self) -> list[dict[str, Any]]:
        return [json.loads(path.read_text()) for path in sorted((self.folder / "state/spool").glob("*.json"))]

    def stop(self, number: int = signal.SIGTERM) -> int:
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(timeout=60)


@contextlib.contextmanager
def started_agent() -> Iterator[Agent]:
    # Not pytest's directory: its path is long for a socket, and it keeps other users out.
    with tempfile.TemporaryDirectory(prefix="senergyd-") as folder:
        Path(folder).chmod(0o711)
        agent = Agent(Path(folder))
        try:
            yield agent.start()
        finally:
            agent.stop(signal.SIGKILL)


@pytest.fixture
def agent() -> Iterator[Agent]:
    with started_agent() as agent:
        yield agent


@pytest.fixture(scope="module")
def shared_agent() -> Iterator[Agent]:
    """Return one agent for all tests whose requests change nothing."""
    with started_agent() as agent:
        yield agent


def test_metrics_are_served_at_the_configured_address(agent: Agent) -> None:
    agent.stop()
    agent.configure('[metrics]\nagent_listen = "127.0.0.1:0"\n')
    agent.start()
    port = eventually(lambda: re.search(r"metrics at 127.0.0.1 port (\d+)", agent.log.read_text()), "metrics")
    with urllib.request.urlopen(f"http://127.0.0.1:{port[1]}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    assert "\nslurm_energy_running_jobs{" in text and "slurm_energy_build_info{" in text
    assert agent.stop() == 0
    agent.configure('[metrics]\nagent_listen = "0.0.0.0:0"\n')
    done = agent.run()
    assert done.returncode == 3 and "agent_listen: 0.0.0.0:0 is not on the loopback interface" in done.stderr


def test_a_job_over_the_socket(agent: Agent) -> None:
    job = env(tag="x")
    assert agent.ask({"op": "begin", "env": job}) == {
        "ok": True,
        "policy": "monitor",
        "applied": 0,
        "failed": 0,
    }
    step = {"op": "step", "job_id": 5, "step": "batch", "pid": 1, "cpus": "0-3", "fingerprint": "0" * 16}
    assert (
        agent.ask({**step, "event": "start"}, {**step, "event": "end"}) == [{"ok": True, "known": True}] * 2
    )
    assert agent.ask({"op": "energy", "job_id": 5})["ok"]
    status = agent.ask({"op": "status"})
    assert {"version", "node", "jobs", "devices", "spooled", "sampling_hz"} <= set(status)
    assert agent.ask({"op": "end", "env": job}) == {"ok": True, "known": True}
    assert agent.ask({"op": "end", "env": job}) == {"ok": True, "known": False}
    eventually(lambda: len(agent.spooled()) == 2, "both records are in the spool")
    records = [EnergyRecord.from_json(record) for record in agent.spooled()]
    assert sorted(record.step or "" for record in records) == ["", "batch"]
    assert records[0].tag == "x"
    assert {record.fingerprint for record in records} == {"0" * 16}
    assert agent.log.read_text().count("records stay in the spool") <= 1


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (b"nonsense\n", "not JSON"),
        (b"\xff\xfe\n", "not JSON"),
        (b"[" * 30000 + b"\n", "not JSON"),
        (b"17\n", "not a JSON object"),
        (b"{}\n", "op None is not known"),
        (b'{"op":"explode"}\n', "'explode'"),
        (b'{"op":"begin"}\n', "env is not an object of strings"),
        (b'{"op":"begin","env":{"SLURM_JOB_ID":5}}\n', "env is not an object of strings"),
        (b'{"op":"begin","env":{"SLURM_JOB_ID":"x"}}\n', "SLURM_JOB_ID 'x' is not a number"),
        (b'{"op":"step","event":"pause","job_id":5,"step":"0"}\n', "event 'pause'"),
        (b'{"op":"step","event":"start","job_id":"5","step":"0"}\n', "job_id '5'"),
        (b'{"op":"step","event":"start","job_id":5,"step":"../../x"}\n', "not a step name"),
        (b'{"op":"step","event":"start","job_id":5,"step":"0","fingerprint":"F"}\n', "fingerprint 'F'"),
        (b'{"op":"set","job_id":5,"cap_watts":-1}\n', "cap_watts -1"),
        (b'{"op":"set","job_id":5,"cap_watts":1e999}\n', "cap_watts inf"),
        (b'{"op":"set","job_id":5,"cap_watts":true}\n', "cap_watts True"),
        (b'{"op":"energy","job_id":5}\n', "job 5 does not run on this node"),
        (b'{"op":"resend","record_ids":"all"}\n', "record_ids 'all'"),
        (b'{"op":"resend","record_ids":["x"]}\n', "record x: not among the refused ones"),
    ],
)
def test_bad_messages_get_one_line(shared_agent: Agent, message: bytes, words: str) -> None:
    answer = shared_agent.ask(message)
    assert answer["ok"] is False
    assert words in answer["error"]
    assert "\n" not in answer["error"]
    assert answer["code"] in (2, 6)
    assert shared_agent.ask({"op": "status"})["ok"]


def test_a_message_without_end_is_refused_and_the_agent_lives(agent: Agent) -> None:
    with agent.connect() as connection:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.sendall(b"x" * (2 * LINE_LIMIT))
        with contextlib.suppress(ConnectionResetError):
            assert b"longer than 64 KiB" in connection.recv(4096)
    assert agent.ask({"op": "status"})["ok"]


def test_a_last_line_without_newline_counts(agent: Agent) -> None:
    with agent.connect() as connection:
        connection.sendall(b'{"op":"status"}')
        connection.shutdown(socket.SHUT_WR)
        with connection.makefile("rb") as lines:
            assert json.loads(lines.readline())["ok"]


def test_many_connections_at_once(agent: Agent) -> None:
    with contextlib.ExitStack() as stack:
        idle = [stack.enter_context(agent.connect()) for _ in range(60)]
        assert agent.ask({"op": "status"})["ok"]
        assert len(idle) == 60


AS_NOBODY = """
import json, os, socket, sys
os.setgid(65534); os.setuid(65534)
for text in sys.argv[2:]:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(sys.argv[1])
        connection.sendall(text.encode() + b"\\n")
        with connection.makefile() as lines:
            print(lines.readline(), end="")
"""


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_others_may_only_look_and_owners_only_at_their_own(agent: Agent) -> None:
    own = {**env(6), "SLURM_JOB_UID": "65534", "SLURM_JOB_CPUS_PER_NODE": "1"}
    agent.ask({"op": "begin", "env": {**env(5), "SLURM_JOB_CPUS_PER_NODE": "1"}}, {"op": "begin", "env": own})
    messages: list[dict[str, Any]] = [
        {"op": "status"},
        {"op": "begin", "env": env(7)},
        {"op": "end", "env": env(5)},
        {"op": "step", "event": "start", "job_id": 5, "step": "0"},
        {"op": "set", "job_id": 6, "cap_watts": 100},
        {"op": "spool"},
        {"op": "resend"},
        {"op": "energy", "job_id": 5},
        {"op": "energy", "job_id": 6},
    ]
    command = [sys.executable, "-c", AS_NOBODY, str(agent.socket), *map(json.dumps, messages)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert [answer.get("code", 0) for answer in answers] == [0, 5, 5, 5, 5, 5, 5, 5, 0]
    assert [job["job_id"] for job in agent.ask({"op": "status"})["jobs"]] == [5, 6]


def test_kill_9_and_start_keeps_the_job(agent: Agent) -> None:
    agent.ask({"op": "begin", "env": env()})
    agent.stop(signal.SIGKILL)
    agent.start()
    assert [job["job_id"] for job in agent.ask({"op": "status"})["jobs"]] == [5]
    assert agent.ask({"op": "end", "env": env()})["known"]
    eventually(lambda: len(agent.spooled()) == 1, "the record is in the spool")


def test_an_error_of_ours_does_not_end_the_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    config = Config(agent=AgentConfig(socket=tmp_path / "s", state_dir=tmp_path / "state", sampling_hz=50.0))
    calls = []

    def broken(self: JobManager) -> None:
        calls.append(1)
        raise ZeroDivisionError("ours")

    async def run() -> None:
        agent = daemon.AgentDaemon(config)
        running = asyncio.create_task(agent.run())
        while len(calls) < 3 and not running.done():
            await asyncio.sleep(0.01)
        agent._stop.set()
        await running

    monkeypatch.setattr(daemon, "_RESTART_DELAY_S", 0.01)
    monkeypatch.setattr(JobManager, "housekeeping", broken)
    monkeypatch.setattr(daemon, "_HOUSEKEEPING_S", 0.01)
    asyncio.run(run())
    assert caplog.text.count("ZeroDivisionError: ours") == 1
    assert "AgentDaemon._housekeeping failed and continues" in caplog.text


def test_sigterm_ends_quietly_and_removes_the_socket(agent: Agent) -> None:
    agent.ask({"op": "begin", "env": env()})
    assert agent.stop() == 0
    assert not agent.socket.exists()
    agent.start()
    assert agent.ask({"op": "end", "env": env()})["known"]


def test_sighup_takes_a_good_file_and_refuses_a_bad_one(agent: Agent) -> None:
    assert agent.process is not None
    agent.configure("sampling_hz = 0.00001\n")
    agent.process.send_signal(signal.SIGHUP)
    eventually(lambda: "configuration not reloaded" in agent.log.read_text(), "the bad file is told")
    assert "agent.sampling_hz" in agent.log.read_text()
    assert agent.ask({"op": "status"})["sampling_hz"] == 1.0
    agent.configure("sampling_hz = 20.0\n")
    agent.process.send_signal(signal.SIGHUP)
    eventually(lambda: agent.ask({"op": "status"})["sampling_hz"] == 20.0, "the good file counts")


def test_a_second_agent_is_refused(agent: Agent) -> None:
    done = agent.run()
    assert (done.returncode, done.stderr.count("\n")) == (7, 1)
    assert "another senergyd answers there" in done.stderr
    assert agent.ask({"op": "status"})["ok"]


def test_restore_does_not_work_beside_a_running_agent(agent: Agent) -> None:
    done = agent.run("--restore")
    assert (done.returncode, done.stderr.count("\n")) == (7, 1)
    assert str(agent.process.pid if agent.process else "") in done.stderr


def test_a_wrong_configuration_ends_with_one_line(tmp_path: Path) -> None:
    agent = Agent(tmp_path)
    agent.configure("sampling = 5\n")
    done = agent.run()
    assert (done.returncode, done.stderr.count("\n")) == (3, 1)
    assert "energy.toml:6: agent.sampling: unknown key: did you mean 'sampling_hz'?" in done.stderr


def test_a_configuration_that_others_could_write_is_refused(tmp_path: Path) -> None:
    agent = Agent(tmp_path)
    agent.config.chmod(0o666)
    assert agent.run("--check").returncode == 3


def test_an_unusable_state_directory_ends_with_one_line(tmp_path: Path) -> None:
    agent = Agent(tmp_path)
    (tmp_path / "state").write_text("a file")
    done = agent.run()
    assert (done.returncode, done.stderr.count("\n")) == (4, 1)
    assert "agent.state_dir" in done.stderr


def test_a_socket_path_that_cannot_be_made_ends_with_one_line(tmp_path: Path) -> None:
    agent = Agent(tmp_path)
    (tmp_path / "run").write_text("a file")
    done = agent.run()
    assert (done.returncode, done.stderr.count("\n")) == (4, 1)
    assert "agent.socket" in done.stderr


def test_check_restore_help_and_version(tmp_path: Path) -> None:
    agent = Agent(tmp_path)
    check = agent.run("--check")
    assert "configuration:" in check.stdout
    assert check.returncode in (0, 4)
    assert agent.run("--restore").stdout == "nothing to restore\n"
    assert "examples:" in agent.run("--help").stdout
    assert agent.run("--version").stdout.startswith("senergyd ")
    assert agent.run("--frob").returncode == 2


def record(job_id: int) -> EnergyRecord:
    part = ComponentEnergy("cpu", 1.0, "powercap:intel-rapl")
    return EnergyRecord("lab", "n1", job_id, 0, "monitor", 10.0, 20.0, (part,), record_id=f"id{job_id}")


class Controller:
    """Returns the responses given by the test in order; the last one repeats."""

    def __init__(self, *answers: Callable[[Any], Any]) -> None:
        self.answers = list(answers)
        self.bodies: list[Any] = []

    def post(self, path: str, body: Any) -> Any:
        assert path == "/v1/records"
        self.bodies.append(body)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return answer(body)


def accept(body: Any) -> Any:
    return {"accepted": [item["record"]["record_id"] for item in body["items"]]}


def refuse(body: Any) -> Any:
    raise UsageError("not so")


def unreachable(body: Any) -> Any:
    raise UnavailableError("controller", "Connection refused")


async def work(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)


def deliver(spool: Spool, controller: Controller, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the agent's delivery task until the controller has received all records of the node."""

    async def run() -> None:
        task = delivery.RecordDelivery(spool, ClusterConfig(), lambda: "n1", work)
        running = asyncio.create_task(task.run())
        for _ in range(1000):
            await asyncio.sleep(0.005)
            if not spool.count():
                break
        running.cancel()

    monkeypatch.setattr(delivery, "ControllerClient", lambda *_arguments, **_bounds: controller)
    monkeypatch.setattr(delivery, "_FIRST_WAIT_S", 0.01)
    asyncio.run(run())


TRACE = {"start": 10.0, "interval_s": 1.0, "columns": {}}


def test_old_traces_leave_the_spool_and_their_records_stay(tmp_path: Path) -> None:
    spool, day_s = Spool(tmp_path / "spool", 10**9), 86400.0
    for day in range(10):
        spool.add(replace(record(day), end=1.7e9 + day * day_s), TRACE)
    spool.expire(1.7e9 + 10.5 * day_s, 5 * day_s)
    spool.expire(1.7e9 + 99.0 * day_s - 99 * day_s, 5 * day_s)  # a clock set back does no harm
    found = {item.record["job_id"]: item.trace for item in spool.items(10**9, 100)}
    assert sorted(found) == list(range(10))
    assert sorted(day for day, trace in found.items() if trace) == [6, 7, 8, 9]


def test_what_is_dropped_at_the_limit_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    spool = Spool(tmp_path / "spool", 20_000)
    for job_id in range(100):
        spool.add(record(job_id), {**TRACE, "columns": {"cpu": "A" * 1000}})
    assert [entry.message for entry in caplog.records] == [
        "spool at agent.spool_limit_mb: the oldest traces and observations are dropped",
        "spool's records: the oldest are dropped: too many are undelivered",
    ]
    assert sum(path.stat().st_size for path in spool.folder.iterdir()) <= 20_000


def test_records_leave_the_spool_only_when_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = Spool(tmp_path / "spool", 10**9)
    for job_id in range(3):
        spool.add(record(job_id), TRACE)
    controller = Controller(unreachable, unreachable, accept)
    deliver(spool, controller, monkeypatch)
    assert [len(body["items"]) for body in controller.bodies] == [3, 3, 3]
    assert controller.bodies[0]["items"][0]["trace"] == TRACE
    assert (controller.bodies[0]["node"], controller.bodies[0]["spooled"]) == ("n1", 0)
    assert list(spool.folder.iterdir()) == []


def test_one_bad_record_does_not_hold_up_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = Spool(tmp_path / "spool", 10**9)
    for job_id in range(3):
        spool.add(record(job_id), None)

    def picky(body: Any) -> Any:
        bad = [i for i, item in enumerate(body["items"]) if item["record"]["job_id"] == 1]
        good = [item["record"]["record_id"] for item in body["items"] if item["record"]["job_id"] != 1]
        return {"accepted": good, "rejected": [{"index": i, "record_id": "id1", "error": "no"} for i in bad]}

    deliver(spool, Controller(picky), monkeypatch)
    names = sorted(path.name for path in (spool.folder / "rejected").iterdir())
    assert names == ["000000000020-id1.json", "000000000020-id1.reason"]


def test_a_refused_batch_is_tried_one_by_one_and_a_refused_trace_costs_no_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = Spool(tmp_path / "spool", 10**9)
    spool.add(record(1), TRACE)
    spool.add(record(2), None)

    def no_traces(body: Any) -> Any:
        return refuse(body) if any(item["trace"] for item in body["items"]) else accept(body)

    controller = Controller(no_traces)
    deliver(spool, controller, monkeypatch)
    assert [path.name for path in spool.folder.iterdir()] == ["rejected"]
    (kept,) = spool.rejected.listing()
    assert (kept.name, kept.has_trace) == ("000000000020-id1.json", True)
    delivered = [item for body in controller.bodies for item in body["items"] if item["trace"] is None]
    assert sorted(item["record"]["job_id"] for item in delivered) == [1, 2, 2]


def test_a_real_controller_s_refusal_keeps_the_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent keeps all records if the response does not come from the controller.

    The test uses a real socket, on which an HTTP server answers every request with status 500.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(500)
            self.end_headers()

        def log_message(self, *_arguments: Any) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        spool = Spool(tmp_path / "spool", 10**9)
        spool.add(record(1), None)
        client = delivery.ControllerClient(f"http://127.0.0.1:{server.server_port}", None, 5.0)
        monkeypatch.setattr(
            "slurm_energy.protocol.controller_endpoint.munge.encode", lambda *_arguments: "MUNGE:x:"
        )
        controller = Controller(lambda body: client.post("/v1/records", body))
        monkeypatch.setattr("slurm_energy.agent.state.delivery._MAX_WAIT_S", 0.01)

        async def run() -> None:
            task = delivery.RecordDelivery(spool, ClusterConfig(), lambda: "n1", work)
            running = asyncio.create_task(task.run())
            while len(controller.bodies) < 3:
                await asyncio.sleep(0.01)
            running.cancel()

        monkeypatch.setattr(delivery, "ControllerClient", lambda *_arguments, **_bounds: controller)
        monkeypatch.setattr(delivery, "_FIRST_WAIT_S", 0.01)
        asyncio.run(run())
        assert spool.count() == 1
    finally:
        server.shutdown()
        server.server_close()


def test_an_error_of_ours_is_answered_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        def status(self, reader: int | None) -> None:
            raise RuntimeError("secret path /x")

    manager: JobManager = Broken()  # type: ignore[assignment]
    answer = asyncio.run(AgentServer(manager, work).respond(b'{"op":"status"}\n', 0))
    assert answer == {"ok": False, "error": "internal error, see the agent's log", "code": 1}
    assert "secret path" in caplog.text
