"""One client cannot prevent the agent's socket from serving others.

The tests cover limits of message size, time, number of connections and request rate, and the order of
responses. They need no hardware.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import socket
import tempfile
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_energy.agent.jobs.job_manager import JobManager
from slurm_energy.agent.sockets import connections, messages
from slurm_energy.agent.sockets.rate_limit import UserTokenBuckets
from slurm_energy.agent.sockets.server import AgentServer
from slurm_energy.diagnosis.json_codec import MAX_OUTLIERS, MAX_PHASES, rank_to_json
from slurm_energy.diagnosis.steps import PhaseStatistics, RankSteps, StepOutlier
from slurm_energy.errors import UsageError
from slurm_energy.protocol.agent_socket import root_socket_path

pytestmark = pytest.mark.slow

STATUS = b'{"op":"status"}\n'
USER = 4711


class Numbering:
    """Stand-in for the agent's job manager. Its status is the number of status requests so far."""

    def __init__(self, padding: int = 0) -> None:
        self.count = 0
        self.padding = "x" * padding

    def status(self, _reader: int | None) -> dict[str, Any]:
        self.count += 1
        return {"count": self.count, "padding": self.padding}


@pytest.fixture
def path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="senergyd-") as folder:
        yield Path(folder) / "agent.sock"


@pytest.fixture
def as_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the agent treat every process that connects to it as unprivileged.

    The tests then give the same result whether or not root runs them.
    """
    monkeypatch.setattr(connections, "privileged", lambda _uid: False)
    monkeypatch.setattr("slurm_energy.agent.sockets.server.privileged", lambda _uid: False)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_SWEEP_S", 0.02)
    for name in ("_MESSAGE_S", "_WRITE_S"):
        monkeypatch.setattr(connections, name, 0.2)


async def at_once(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)


@contextlib.asynccontextmanager
async def served(
    path: Path, manager: Any, work: Callable[..., Awaitable[Any]] = at_once
) -> AsyncIterator[AgentServer]:
    server = AgentServer(manager, work)
    await server.open(path)
    try:
        yield server
    finally:
        await server.close()
    assert not path.exists() and not root_socket_path(path).exists()


def run(path: Path, test: Callable[[], Awaitable[None]], manager: Any = None) -> None:
    async def all_of_it() -> None:
        async with served(path, manager or Numbering()):
            await asyncio.wait_for(test(), 60)

    asyncio.run(all_of_it())


async def lines_of(
    path: Path, *chunks: bytes, end: bool = True, pause_s: float = 0.0
) -> list[dict[str, Any]]:
    """Send the given chunks to a Unix socket, and return all JSON responses.

    The function reads responses until the server closes the connection.
    """
    reader, writer = await asyncio.open_unix_connection(path)
    with contextlib.suppress(ConnectionError):
        for chunk in chunks:
            writer.write(chunk)
            await writer.drain()
            await asyncio.sleep(pause_s)
        if end:
            writer.write_eof()
    answers = []
    with contextlib.suppress(ConnectionError):
        while line := await reader.readline():
            answers.append(json.loads(line))
    writer.close()
    return answers


def test_lines_are_answered_in_order_however_they_arrive(path: Path) -> None:
    async def test() -> None:
        together = await lines_of(path, STATUS * 50)
        assert [answer["count"] for answer in together] == list(range(1, 51))
        bytewise = await lines_of(path, *(STATUS[i : i + 1] for i in range(len(STATUS))), STATUS[:-1])
        assert [answer["count"] for answer in bytewise] == [51, 52]

    run(path, test)


@pytest.mark.parametrize("user", [True, False])
def test_a_line_may_fill_its_limit_and_no_more(
    path: Path, request: pytest.FixtureRequest, user: bool
) -> None:
    if user:
        request.getfixturevalue("as_user")
    padding = 64 * 1024 - len('{"op":"status","x":""}\n')

    async def test() -> None:
        fits = await lines_of(path, b'{"op":"status","x":"%s"}\n' % (b"x" * padding))
        refused = await lines_of(path, b'{"op":"status","x":"%s"}\n' % (b"x" * (padding + 1)))
        assert fits[0]["ok"]
        assert refused == [{"ok": False, "error": "message: longer than 64 KiB", "code": 2}]

    run(path, test)


@pytest.mark.usefixtures("impatient")
def test_who_writes_a_byte_at_a_time_is_cut_off(path: Path) -> None:
    async def test() -> None:
        assert await lines_of(path, *([b" "] * 100), end=False, pause_s=0.02) == []
        assert (await lines_of(path, STATUS))[0]["ok"]

    run(path, test)


@pytest.mark.usefixtures("impatient")
def test_who_does_not_read_is_cut_off_and_holds_one_answer_at_most(path: Path) -> None:
    manager = Numbering(padding=1_000_000)

    async def test() -> None:
        loop = asyncio.get_running_loop()
        with socket.socket(socket.AF_UNIX) as deaf:
            deaf.setblocking(False)
            await loop.sock_connect(deaf, str(path))
            await loop.sock_sendall(deaf, STATUS * 100)
            while manager.count < 1:
                await asyncio.sleep(0.01)
            hang_up = select.poll()
            hang_up.register(deaf, 0)  # POLLHUP is always reported
            while not hang_up.poll(0):
                await asyncio.sleep(0.01)
            received = 0
            with contextlib.suppress(ConnectionError):
                while data := await loop.sock_recv(deaf, 1 << 20):
                    received += len(data)
        assert received < 1_000_000  # cut off in the middle of the first answer
        assert manager.count == 1

    run(path, test, manager)


@pytest.mark.usefixtures("as_user")
def test_a_user_s_connections_have_an_end_and_places_come_back(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "MAX_PER_USER", 5)

    async def test() -> None:
        held = [await asyncio.open_unix_connection(path) for _ in range(5)]
        for _, writer in held:
            writer.write(STATUS)
        for reader, _ in held:
            assert json.loads(await reader.readline())["ok"]
        for _ in range(20):
            assert await lines_of(path, STATUS) == []
        for _, writer in held:
            writer.close()
        while not await lines_of(path, STATUS):
            await asyncio.sleep(0.02)

    run(path, test)


@pytest.mark.usefixtures("as_user")
def test_beyond_the_rate_limit_responses_are_delayed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MESSAGES_PER_S", 2.0)
    monkeypatch.setattr(connections, "MESSAGES_BURST", 4.0)

    async def test() -> None:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        answers = await lines_of(path, STATUS * 5)
        assert [answer["count"] for answer in answers] == list(range(1, 6))
        assert loop.time() - begun > 0.95  # two of them were not saved up

    run(path, test)


@pytest.mark.usefixtures("as_user")
def test_a_long_message_counts_as_several(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []

    def reserve(_: object, uid: int, now: float, count: int = 1) -> float:
        taken.append(count)
        return 0.0

    monkeypatch.setattr(connections.UserTokenBuckets, "reserve", reserve)

    async def test() -> None:
        line = b'{"op":"status","x":"%s"}\n' % (b"x" * 40_000)
        assert len(await lines_of(path, line, STATUS)) == 2
        assert taken == [10, 1]

    run(path, test)


@pytest.mark.usefixtures("as_user")
def test_beyond_the_rate_limit_connections_are_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MESSAGES_PER_S", 0.001)
    monkeypatch.setattr(connections, "MESSAGES_BURST", 4.0)

    async def test() -> None:
        assert len(await lines_of(path, STATUS * 3)) == 3  # a connection and its three messages
        assert await lines_of(path, STATUS) == []

    run(path, test)


async def settled() -> None:
    """Let every task run until it waits for the clock or for another task."""
    for _ in range(20):
        await asyncio.sleep(0)


def test_root_waits_for_one_question_of_users_at_most() -> None:
    async def test() -> None:
        going = asyncio.Event()
        running: list[Any] = []

        async def work(function: Callable[..., Any], reader: int | None) -> Any:
            running.append(reader)
            await going.wait()
            return {}

        manager: JobManager = Numbering()  # type: ignore[assignment]
        server = AgentServer(manager, work)
        users = [asyncio.create_task(server.respond(STATUS, USER + i % 3)) for i in range(50)]
        await settled()
        assert len(running) == 1
        root = asyncio.create_task(server.respond(STATUS, os.geteuid()))
        await settled()
        assert running[1:] == [None]
        going.set()
        assert all(answer["ok"] for answer in await asyncio.gather(root, *users))

    asyncio.run(test())


def test_waiting_messages_of_users_are_kept_as_text() -> None:
    line = b'{"op":"status","x":[%s]}\n' % b",".join([b"0.5"] * 16_000)

    async def test() -> None:
        going = asyncio.Event()

        async def work(function: Callable[..., Any], reader: int | None) -> Any:
            await going.wait()
            return {}

        manager: JobManager = Numbering()  # type: ignore[assignment]
        server = AgentServer(manager, work)
        tracemalloc.start()
        users = [asyncio.create_task(server.respond(line, USER)) for _ in range(100)]
        await settled()
        held, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        going.set()
        assert all(answer["ok"] for answer in await asyncio.gather(*users))
        assert held < 5_000_000

    asyncio.run(test())


@pytest.mark.usefixtures("as_user")
def test_a_user_s_message_of_many_lists_is_refused(path: Path) -> None:
    async def test() -> None:
        refused = await lines_of(path, b'{"op":"status","x":[%s]}\n' % b",".join([b"[]"] * 21_000))
        assert refused == [{"ok": False, "error": "message: more than 2000 lists and objects", "code": 2}]
        outlier = StepOutlier(1.0, 2.0, 0.1, "layer[12]")
        phase = PhaseStatistics(1, 1.0, 1.0, {0: 1})
        phases = {f"layer[{number}]": phase for number in range(MAX_PHASES)}
        steps = RankSteps("n1", 0, 0, 1, phases, outliers=(outlier,) * MAX_OUTLIERS)
        report = {"op": "status", "steps": rank_to_json(steps)}
        assert (await lines_of(path, json.dumps(report).encode()))[0]["ok"]

    run(path, test)


@pytest.mark.usefixtures("as_user")
def test_a_closed_connection_counts_until_its_message_was_executed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "MAX_PER_USER", 1)

    async def test() -> None:
        going = asyncio.Event()

        async def work(function: Callable[..., Any], reader: int | None) -> Any:
            await going.wait()
            return function(reader)

        async with served(path, Numbering(), work):
            _, writer = await asyncio.open_unix_connection(path)
            writer.write(b"x\n" + STATUS)  # the first response cannot be sent, which closes the connection
            writer.close()
            await asyncio.sleep(0.1)
            assert await lines_of(path, STATUS) == []
            going.set()
            while not (answers := await lines_of(path, STATUS)):
                await asyncio.sleep(0.02)
            assert answers[0]["count"] == 2

    asyncio.run(asyncio.wait_for(test(), 60))


def test_the_door_of_root_is_root_s_and_the_other_everybody_s(path: Path) -> None:
    async def test() -> None:
        assert (path.stat().st_mode & 0o777, root_socket_path(path).stat().st_mode & 0o777) == (0o666, 0o600)
        assert (await lines_of(root_socket_path(path), STATUS))[0]["ok"]

    run(path, test)


def test_an_error_of_ours_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        manager: JobManager = None  # type: ignore[assignment]
        server = AgentServer(manager, at_once)
        for _ in range(1000):
            assert (await server.respond(STATUS, USER))["code"] == 1

    asyncio.run(test())
    assert len(caplog.records) == 1


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
names = st.sampled_from(["op", "env", "job_id", "step", "event", "fresh", "cap_watts", "gpu_cap_watts"])


@given(st.dictionaries(names, values))
def test_any_object_is_accepted_or_refused_in_one_line(message: dict[str, Any]) -> None:
    read = messages.parse(json.dumps(message).encode())
    for check in (messages.environment, messages.job_id, messages.fresh, messages.step, messages.caps):
        try:
            check(read)
        except UsageError as error:
            assert "\n" not in str(error)
            assert len(str(error)) < 200


@given(st.lists(st.tuples(st.integers(0, 3), st.floats(0, 5), st.booleans()), max_size=60))
def test_token_buckets_never_grant_more_than_burst_and_rate(asks: list[tuple[int, float, bool]]) -> None:
    allowance = UserTokenBuckets(10.0, 5.0)
    now, granted = 0.0, dict.fromkeys(range(4), 0)
    for uid, pause_s, waits in asks:
        now += pause_s
        if waits:
            due = now + allowance.reserve(uid, now)
            granted[uid] += 1
            assert granted[uid] <= 5.0 + 10.0 * due + 1e-6
        elif allowance.try_take(uid, now):
            granted[uid] += 1
            assert granted[uid] <= 5.0 + 10.0 * now + 1e-6


def test_token_buckets_keep_a_bounded_number_of_users() -> None:
    allowance = UserTokenBuckets(1.0, 2.0)
    for uid in range(100_000):
        assert allowance.try_take(uid, 0.0)
    assert len(allowance._left) <= 1000
