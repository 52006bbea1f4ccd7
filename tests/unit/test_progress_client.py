"""Tests of how a program reports its progress to the agent.

The tests check the messages, and that the program never waits or fails because of a report.
"""

from __future__ import annotations

import json
import math
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import slurm_energy
from slurm_energy.cli.main import main
from slurm_energy.profiling import progress as module
from slurm_energy.profiling.progress import ProgressReporter


class Listener:
    """An agent's socket at which the test reads messages and sends responses itself."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(60)
        self.socket.bind(self.path)
        self.socket.listen()
        self.peer: socket.socket | None = None

    def messages(self, count: int) -> list[dict[str, Any]]:
        if self.peer is None:
            self.peer, _ = self.socket.accept()
            self.peer.settimeout(60)
            self.lines = self.peer.makefile("rb")
        return [json.loads(self.lines.readline()) for _ in range(count)]

    def respond(self, **fields: Any) -> None:
        assert self.peer is not None
        self.peer.sendall(json.dumps({"ok": True, "interval_s": 0.5, **fields}).encode() + b"\n")

    def hang_up(self) -> None:
        assert self.peer is not None
        self.lines.close()
        self.peer.close()
        self.peer = None


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A clock that the test moves."""
    clock = SimpleNamespace(now=100.0, CLOCK_BOOTTIME=0)
    clock.monotonic = lambda: clock.now
    clock.clock_gettime = lambda _: clock.now
    monkeypatch.setattr(module, "time", clock)
    return clock


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Listener]:
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    monkeypatch.setenv("SLURM_PROCID", "3")
    monkeypatch.setenv("SLURM_STEP_ID", "0")
    monkeypatch.chdir(tmp_path)
    listener = Listener(Path("agent.sock"))  # relative: long paths are no socket names
    monkeypatch.setattr(module, "socket_path", lambda: listener.path)
    yield listener
    listener.socket.close()


def test_calls_add_up_to_two_messages_a_second(agent: Listener, clock: SimpleNamespace) -> None:
    reporter = ProgressReporter()
    for _ in range(49):
        reporter.add(1, total=500)
        clock.now += 0.0625
    sent = agent.messages(6)
    assert [message["units"] for message in sent] == [1 + 8 * index for index in range(6)]
    assert {(message["op"], message["job_id"], message["total"]) for message in sent} == {
        ("progress", 12, 500)
    }
    assert len({message["process"] for message in sent}) == 1
    assert sent[0]["process"].startswith(f"0.3.{os.getpid()}.")
    assert sent[1]["time_s"] == pytest.approx(100.5)


def test_the_agent_sets_the_interval(agent: Listener, clock: SimpleNamespace) -> None:
    reporter = ProgressReporter()
    reporter.add(1)
    agent.messages(1)
    agent.respond(interval_s=4.0)
    for _ in range(100):
        clock.now += 0.125
        reporter.add(1)
    assert [message["units"] for message in agent.messages(3)] == [5, 37, 69]


def test_an_agent_that_never_responds_is_sent_little(agent: Listener, clock: SimpleNamespace) -> None:
    reporter = ProgressReporter()
    for _ in range(200):
        reporter.add(1)
        clock.now += 1.0
    assert reporter._unanswered <= module._MAX_UNANSWERED


def test_a_lost_connection_is_opened_again_and_loses_no_units(
    agent: Listener, clock: SimpleNamespace
) -> None:
    reporter = ProgressReporter()
    reporter.add(1)
    agent.messages(1)
    agent.hang_up()
    for _ in range(3):
        clock.now += 1.0
        reporter.add(1)
    assert agent.messages(1)[0]["units"] in (2, 3)


def test_a_refusal_pauses_the_reports(agent: Listener, clock: SimpleNamespace) -> None:
    reporter = ProgressReporter()
    reporter.add(1)
    agent.messages(1)
    agent.respond(ok=False, error="progress: job 12 belongs to another user")
    time.sleep(0.01)
    clock.now += 1.0
    reporter.add(1)
    assert reporter._connection is None
    assert reporter._next_s == pytest.approx(clock.now + 30)


@pytest.mark.parametrize("n", [-1, math.nan, math.inf, "x", None, [], 10**400])
def test_nothing_raises(agent: Listener, clock: SimpleNamespace, n: Any) -> None:
    reporter = ProgressReporter()
    reporter.add(n)
    assert reporter._units == 0


def test_a_signal_handler_may_report(agent: Listener, clock: SimpleNamespace) -> None:
    """A signal handler may report progress even if the interrupted program is just reporting.

    The handler runs in the thread that holds the reporter's lock.
    """
    reporter = ProgressReporter()
    with reporter._lock:
        reporter.add(2)
    reporter.add(1)
    assert agent.messages(1)[0]["units"] == 3


def test_without_a_job_or_an_agent_nothing_happens(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, clock: SimpleNamespace
) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    reporter = ProgressReporter()
    reporter.add(1)
    assert reporter._next_s == math.inf
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    monkeypatch.setattr(module, "socket_path", lambda: str(tmp_path / "none.sock"))
    reporter = ProgressReporter()
    reporter.add(1)
    assert reporter._next_s == clock.now + 30


def test_a_full_queue_does_not_block(agent: Listener) -> None:
    agent.socket.listen(0)
    waiting = []
    for _ in range(3):
        connection = socket.socket(socket.AF_UNIX)
        connection.setblocking(False)
        waiting.append(connection)
        try:
            connection.connect(agent.path)
        except BlockingIOError:
            break
    else:
        pytest.skip("the kernel accepts every connection")
    reporter = ProgressReporter()
    reporter.add(1)  # returns at once instead of waiting for the queue
    assert reporter._connection is None
    for connection in waiting:
        connection.close()


def test_a_forked_child_reports_for_itself(agent: Listener, clock: SimpleNamespace) -> None:
    reporter = ProgressReporter()
    reporter.add(5)
    agent.messages(1)
    parent = reporter._connection
    assert parent is not None
    child = ProgressReporter()
    child.__dict__.update(reporter.__dict__)
    child._connection = parent.dup()  # what a fork leaves to the child
    child.reset_after_fork()
    assert child._units == 0
    assert child._connection is None
    assert child._identity is None
    clock.now += 1
    reporter.add(1)
    assert agent.messages(1)[0]["units"] == 6


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, float | None]]:
    calls: list[tuple[float, float | None]] = []
    monkeypatch.setattr(module, "progress", lambda n=1, total=None: calls.append((n, total)))
    return calls


def test_track_counts_after_the_work_on_each_item(counted: list[Any]) -> None:
    for item in slurm_energy.track([10, 20]):
        assert len(counted) == item / 10 - 1
    assert counted == [(1, 2), (1, 2)]
    assert list(slurm_energy.track(iter("ab"))) == ["a", "b"]
    assert counted[2:] == [(1, None), (1, None)]


def test_steps_of_an_optimizer_are_counted_through_its_hook(counted: list[Any]) -> None:
    hooks: list[Callable[..., Any]] = []
    optimizer = SimpleNamespace(register_step_post_hook=lambda hook: hooks.append(hook) or "handle")
    assert slurm_energy.report_steps(optimizer, total=9) == "handle"
    hooks[0](optimizer, (), {})
    assert counted == [(1, 9)]


def document(**fields: Any) -> Callable[[int], str | None]:
    return lambda limit: json.dumps({"pid": 7, **fields})[:limit]


def test_steps_are_sent_when_the_agent_takes_them_every_ten_seconds(
    agent: Listener, clock: SimpleNamespace
) -> None:
    reporter, limits = ProgressReporter(), []
    reporter.document_source = lambda limit: limits.append(limit) or '{"pid": 7}'
    reporter.add(1)
    assert "steps" not in agent.messages(1)[0]  # the agent may be of an earlier release
    agent.respond(steps_bytes=48 * 1024)
    sent = []
    for _ in range(24):
        clock.now += 1.0
        reporter.add(1)
        sent += agent.messages(1)
        agent.respond(steps_bytes=48 * 1024)
    assert [index for index, message in enumerate(sent) if "steps" in message] == [0, 10, 20]
    assert sent[0]["steps"] == {"pid": 7}
    assert sent[0]["units"] == 2
    assert max(limits) < 48 * 1024


def test_steps_are_sent_without_units(agent: Listener, clock: SimpleNamespace) -> None:
    reporter, limits = ProgressReporter(), []
    reporter.document_source = lambda limit: limits.append(limit) or '{"pid": 7}'
    reporter.add(0)
    message = agent.messages(1)[0]
    assert message["steps"] == {"pid": 7}
    assert "units" not in message
    agent.respond(steps_bytes=20_000)
    clock.now += 5.0
    reporter.add(0)
    clock.now += 5.0
    reporter.add(0)
    agent.messages(1)
    assert limits[0] < 4096 - 512 < limits[1] < 20_000


def test_a_long_document_reaches_a_slow_agent_whole(agent: Listener, clock: SimpleNamespace) -> None:
    reporter = ProgressReporter()
    reporter.document_source = lambda limit: json.dumps({"text": "x" * (limit - 20)})
    reporter.add(1)
    agent.messages(1)
    agent.respond(steps_bytes=1_000_000)
    for _ in range(3):  # more than the socket's buffer takes
        clock.now += 10.0
        reporter.add(1)
    assert reporter._unsent
    received = b""
    while not received.endswith(b"\n"):
        assert agent.peer is not None
        received += agent.peer.recv(1 << 20)
        clock.now += 1.0
        reporter.add(1)
    assert len(json.loads(received.splitlines()[0])["steps"]["text"]) > 900_000


def test_an_agent_without_signals_is_sent_no_steps(agent: Listener, clock: SimpleNamespace) -> None:
    reporter = ProgressReporter()
    reporter.document_source = document()
    for _ in range(3):
        reporter.add(1)
        assert "steps" not in agent.messages(1)[0]
        agent.respond()
        clock.now += 20.0


def test_the_last_steps_are_sent_at_exit(agent: Listener, clock: SimpleNamespace) -> None:
    reporter = ProgressReporter()
    reporter.document_source = document()
    reporter.flush()  # without a connection nothing happens
    reporter.add(1)
    agent.messages(1)
    agent.respond(steps_bytes=9000)
    reporter.flush()
    assert agent.messages(1)[0]["steps"] == {"pid": 7}


def test_the_command_warns_without_an_agent_and_succeeds(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "energy.toml"
    config.write_text(f'[agent]\nsocket = "{tmp_path}/none.sock"\n')
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    assert main(["progress", "--config", str(config)]) == 0
    assert "not reported" in capsys.readouterr().err
    assert main(["progress", "--strict", "--config", str(config)]) == 4
    assert main(["progress", "--config", str(config), "--", "-1"]) == 2
    monkeypatch.delenv("SLURM_JOB_ID")
    assert main(["progress"]) == 0
