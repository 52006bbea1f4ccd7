"""Tests of `slurm_energy.adjusted` on a node: values that the controller adjusts for a program.

The tests check the permission to request the values, the requests to senergyctld, and the responses.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import slurm_energy
from slurm_energy.adjustment import AdjustmentKind
from slurm_energy.agent.jobs.adjusted_values import AdjustedValues
from slurm_energy.agent.jobs.sessions import Session, SessionTable
from slurm_energy.errors import ForbiddenError, NotFoundError, UsageError
from slurm_energy.profiling import adjusted_value
from slurm_energy.protocol.adjustment_requests import ValuesRequest

OWNER = 1000
ANSWER = {"known": True, "values": {"workers": 8}}


class Jobs:
    """The store of adjusted values on a node with one running job, for tests.

    The id of the job is 5. The test sets the clock of the store.
    """

    def __init__(self) -> None:
        self.now = 100.0
        self.sessions = SessionTable()
        session = SimpleNamespace(job_id=5, restart_count=0, key=(5, 0), uid=OWNER, node="n1")
        session.fingerprint, session.model = "0123456789abcdef", None
        self.sessions[(5, 0)] = cast(Session, session)
        self.values = AdjustedValues(self.sessions, lambda: self.now)

    def ask(self, name: Any = "workers", reader: int | None = OWNER) -> dict[str, Any]:
        return self.values.ask(5, name, reader)

    def answer(self, response: Mapping[str, Any] | None) -> None:
        (request,) = self.values.requests()
        assert ValuesRequest.from_query(request.parameters()) == request
        self.values.answer(request, response)


def test_senergyctld_is_asked_once_per_job_and_told_each_requested_kind() -> None:
    jobs = Jobs()
    assert not jobs.values.has_requests
    assert jobs.ask() == {"value": None, "pending": True}
    jobs.answer(ANSWER)
    assert jobs.ask() == {"value": 8, "pending": False}
    assert not jobs.values.has_requests
    assert jobs.ask("pin-memory") == {"value": None, "pending": False}
    (request,) = jobs.values.requests()
    assert request.requested == {AdjustmentKind.WORKERS, AdjustmentKind.PIN_MEMORY}
    jobs.answer({"known": True, "values": {"workers": 2}})
    assert jobs.ask()["value"] == 8  # the values of a run do not change


@pytest.mark.parametrize("response", [None, {"known": False, "values": {}}, {}])
def test_programs_do_not_wait_for_a_controller_without_an_answer(response: Any) -> None:
    jobs = Jobs()
    jobs.ask()
    jobs.answer(response)
    assert jobs.ask() == {"value": None, "pending": False}
    assert not jobs.values.has_requests
    jobs.now += 11.0
    assert jobs.ask()["pending"]
    jobs.answer(ANSWER)
    assert jobs.ask()["value"] == 8


@pytest.mark.parametrize(
    "values", [None, [], {"workers": "8"}, {"workers": 1e9}, {"workers": -1}, {"rm": 1}, {"nodes": 2}]
)
def test_malformed_values_of_a_controller_are_left_out(values: Any) -> None:
    jobs = Jobs()
    jobs.ask()
    jobs.answer({"known": True, "values": values})
    assert jobs.ask() == {"value": None, "pending": False}


def test_only_the_owner_and_root_ask_and_only_for_values_of_programs() -> None:
    jobs = Jobs()
    with pytest.raises(ForbiddenError):
        jobs.ask(reader=OWNER + 1)
    with pytest.raises(NotFoundError):
        jobs.values.ask(6, "workers", OWNER)
    for name in ("nodes", "worker", None, 5, ["workers"]):
        with pytest.raises(UsageError):
            jobs.ask(name)
    assert not jobs.values.has_requests
    assert jobs.ask(reader=None)["pending"]


def test_values_of_ended_jobs_are_forgotten() -> None:
    jobs = Jobs()
    jobs.ask()
    del jobs.sessions[(5, 0)]
    assert jobs.values.requests() == []
    assert not jobs.values.has_requests


class Agent:
    """Stand-in for senergyd on a socket. It answers each message with the next response in a list."""

    def __init__(self, path: Path, responses: list[bytes]) -> None:
        self.messages: list[Any] = []
        self._responses = responses
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(path))
        self._socket.listen()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        for response in self._responses:
            connection, _ = self._socket.accept()
            with connection, connection.makefile("rwb") as stream:
                self.messages.append(json.loads(stream.readline()))
                stream.write(response + b"\n")

    def close(self) -> None:
        self._thread.join()
        self._socket.close()


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Agent]]:
    """Fixture: prepare the test process as a program of job 5, and return a function.

    The function starts a fake agent, which gives the responses that are passed to the function.
    """
    path, agents = tmp_path / "s", []
    monkeypatch.setenv("SLURM_JOB_ID", "5")
    monkeypatch.setattr(adjusted_value, "socket_path", lambda: str(path))
    monkeypatch.setattr(adjusted_value, "_requester", adjusted_value.ValueRequester())

    def start(*responses: Any) -> Agent:
        agents.append(Agent(path, [json.dumps(one).encode() for one in responses]))
        return agents[-1]

    yield start
    for agent in agents:
        agent.close()


def test_program_gets_the_value_once_in_the_type_of_its_default(program: Callable[..., Agent]) -> None:
    agent = program(
        {"ok": True, "value": None, "pending": True},
        {"ok": True, "value": 600, "pending": False},
        {"ok": True, "value": 1, "pending": False},
    )
    assert slurm_energy.adjusted("checkpoint-interval", default=60.0) == 600.0
    assert slurm_energy.adjusted("checkpoint-interval", default=60) == 600
    assert slurm_energy.adjusted("pin-memory", default=False) is True
    assert agent.messages[0] == {"op": "adjusted", "job_id": 5, "name": "checkpoint-interval"}


def test_workers_never_exceed_the_cpus_of_the_process(program: Callable[..., Agent]) -> None:
    program({"ok": True, "value": 1024, "pending": False})
    assert slurm_energy.adjusted("workers", default=1) == len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    "response",
    [
        {"ok": True, "value": None, "pending": False},
        {"ok": True, "value": "8"},
        {"ok": True, "value": 10**9},
        {"ok": True, "value": True},
        {"ok": False, "error": "job 5 belongs to another user"},
        [],
    ],
)
def test_program_keeps_its_own_value_otherwise(program: Callable[..., Agent], response: Any) -> None:
    program(response)
    assert slurm_energy.adjusted("workers", default=3) == 3


def test_program_without_agent_or_with_a_wrong_name_keeps_its_value(
    program: Callable[..., Agent], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert slurm_energy.adjusted("workers", default=3) == 3
    assert slurm_energy.adjusted("nodes", default=3) == 3
    assert slurm_energy.adjusted("wörker", default=3) == 3
    assert slurm_energy.adjusted(cast(Any, None), default=3) == 3
    monkeypatch.delenv("SLURM_JOB_ID")
    assert slurm_energy.adjusted("batch-size", default=32) == 32


def test_a_response_in_pieces_does_not_extend_the_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "s"
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(path))
    server.listen()

    def send_slowly() -> None:
        connection, _ = server.accept()
        with connection, contextlib.suppress(OSError):
            for byte in b'{"ok": true, "value": 1,' + b" " * 40 + b'"pending": false}\n':
                connection.sendall(bytes([byte]))
                time.sleep(0.01)

    thread = threading.Thread(target=send_slowly)
    thread.start()
    monkeypatch.setenv("SLURM_JOB_ID", "5")
    monkeypatch.setattr(adjusted_value, "socket_path", lambda: str(path))
    monkeypatch.setattr(adjusted_value, "_requester", adjusted_value.ValueRequester())
    monkeypatch.setattr(adjusted_value, "_WAIT_S", 0.05)
    assert slurm_energy.adjusted("pin-memory", default=7) == 7
    thread.join()
    server.close()
