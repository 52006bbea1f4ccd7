"""Jobs whose prolog or epilog found no agent: their messages are processed once senergyd runs again."""

from __future__ import annotations

import asyncio
import json
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from report_examples import answer, job_info, usages
from test_job_manager import Node, energy_of, env

from slurm_energy.agent.sockets.server import AgentServer
from slurm_energy.agent.state.deferred_messages import DeferredMessages
from slurm_energy.records import EnergyRecord
from slurm_energy.reports.labels.terminal_label import policy_text


def label_of(record: EnergyRecord) -> str:
    """Return the text about the policy that a report shows for the job of an energy record."""
    (job,) = usages([answer(record, job_info(record.job_id))])
    return policy_text(job)


class Beside:
    """Test directory for the messages that hooks leave as files next to the agent's socket.

    A hook leaves a message as a file if the agent does not answer in time. The test writes such files
    itself.
    """

    def __init__(self, node: Node, folder: Path) -> None:
        self.node, self.socket = node, folder / "agent.sock"
        self.count = 0
        self.deferred = DeferredMessages(self.socket, node.manager, node.clock)

    def leave(self, operation: str, environment: dict[str, str], *, ago_s: float = 0.0) -> Path:
        self.count += 1
        sent_ns = round((self.node.clock.now - ago_s) * 1e9)
        path = self.deferred.folder / f"{sent_ns:020d}-{self.count}.json"
        path.write_text(json.dumps({"op": operation, "env": environment}))
        path.chmod(0o600)
        return path

    def left(self) -> list[str]:
        return [path.name for path in self.deferred.folder.iterdir() if path.name != "boot_id"]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path)
    yield node
    node.die()


@pytest.fixture
def beside(node: Node, tmp_path: Path) -> Beside:
    return Beside(node, tmp_path)


def test_a_deferred_begin_takes_effect_and_the_record_states_the_delay(node: Node, beside: Beside) -> None:
    beside.leave("begin", env(policy="powersave"), ago_s=3.0)
    beside.deferred.replay()
    assert node.tree.policy(3, "scaling_max_freq") == "800000"
    node.use(5)
    node.manager.end(env())
    assert node.tree.snapshot() == node.original
    (record,) = node.records()
    assert (record.elapsed_s, energy_of(record)["cpu"]) == (5.0, 2000.0)
    assert record.notes == (
        "the job began 3.0 s before senergyd received its message; not measured until then",
    )
    assert beside.left() == []


def test_the_first_step_begins_its_job_whose_begin_was_deferred(node: Node, beside: Beside) -> None:
    async def work(function: Callable[..., Any], *arguments: Any) -> Any:
        return function(*arguments)

    def tell(**more: object) -> dict[str, Any]:
        message = {"op": "step", "job_id": 5, "step": "batch", **more}
        return asyncio.run(server.respond(json.dumps(message).encode(), 0))

    server = AgentServer(node.manager, work, beside.deferred.replay)
    assert tell(event="start")["known"] is False
    beside.leave("begin", env(), ago_s=1.0)
    assert tell(event="start", fingerprint="0123456789abcdef")["known"]
    node.use(5)
    node.manager.end(env())
    assert [record.fingerprint for record in node.records() if record.step is None] == ["0123456789abcdef"]


def test_the_deferred_end_of_a_requeued_run_is_not_the_end_of_the_next_run(
    node: Node, beside: Beside
) -> None:
    beside.leave("begin", env(), ago_s=30.0)
    beside.leave("end", env(restart=1), ago_s=20.0)  # slurmctld raised the restart count before
    beside.leave("begin", env(restart=1), ago_s=10.0)
    beside.deferred.replay()
    node.use(5)
    assert node.manager.end(env(restart=1)) == {"known": True}
    records = sorted(node.records(), key=lambda record: record.restart_count)
    assert [(record.restart_count, record.elapsed_s) for record in records] == [(0, 10.0), (1, 5.0)]
    assert records[0].energy_joules is None


def test_a_repeated_begin_of_the_same_run_does_not_hide_its_end(node: Node, beside: Beside) -> None:
    beside.leave("begin", env(), ago_s=30.0)
    beside.leave("begin", env(), ago_s=25.0)
    beside.leave("end", env(), ago_s=10.0)
    beside.deferred.replay()
    (record,) = node.records()
    assert (record.elapsed_s, record.energy_joules) == (pytest.approx(20.0), None)


def test_an_end_without_restart_count_ends_a_run_after_a_requeue(node: Node, beside: Beside) -> None:
    without_count = env()
    del without_count["SLURM_JOB_RESTART_COUNT"]
    beside.leave("begin", env(restart=1), ago_s=30.0)
    beside.leave("end", without_count, ago_s=10.0)
    beside.deferred.replay()
    (record,) = node.records()
    assert (record.restart_count, record.elapsed_s) == (1, pytest.approx(20.0))
    assert record.energy_joules is None


def test_messages_that_wait_for_a_hanging_driver_are_processed_once(
    node: Node, beside: Beside, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each hook gives up while the worker thread hangs in a driver, and stores its message as a file.

    The messages also wait for the worker thread. Job 6 begins after job 5 and runs on.
    """
    monkeypatch.setattr("slurm_energy.agent.sockets.connections.privileged", lambda _uid: True)
    monkeypatch.setattr("slurm_energy.agent.sockets.server.privileged", lambda _uid: True)

    async def test() -> None:
        loop, driver = asyncio.get_running_loop(), threading.Event()
        with ThreadPoolExecutor(1) as worker:

            async def work(function: Callable[..., Any], *arguments: Any) -> Any:
                return await loop.run_in_executor(worker, function, *arguments)

            server = AgentServer(node.manager, work, beside.deferred.replay)
            await server.open(beside.socket)
            worker.submit(driver.wait, 60)
            for operation, environment in (
                ("begin", env(5, policy="powersave")),
                ("end", env(5, policy="powersave")),
                ("begin", env(6, policy="powersave")),
            ):
                _, writer = await asyncio.open_unix_connection(beside.socket)
                writer.write(json.dumps({"op": operation, "env": environment}).encode() + b"\n")
                await asyncio.sleep(0.1)
                writer.close()
                await writer.wait_closed()
                node.clock.now += 1.0
                beside.leave(operation, environment)
            driver.set()
            reader, writer = await asyncio.open_unix_connection(beside.socket)
            writer.write(b'{"op":"status"}\n')
            status = json.loads(await reader.readline())
            writer.close()
            await server.close()
        assert [job["job_id"] for job in status["jobs"] if job["phase"] == "open"] == [6]

    asyncio.run(asyncio.wait_for(test(), 60))
    assert node.tree.policy(3, "scaling_max_freq") == "800000"
    node.manager.end(env(6))
    assert [record.job_id for record in node.records()] == [5, 6]
    assert node.tree.snapshot() == node.original


def test_a_deferred_end_restores_and_the_record_is_an_upper_bound(node: Node, beside: Beside) -> None:
    node.manager.begin(env(policy="powersave"))
    node.use(5)
    beside.leave("end", env(), ago_s=2.0)
    beside.deferred.replay()
    assert node.tree.snapshot() == node.original
    (record,) = node.records()
    assert record.elapsed_s == 5.0
    assert "ended 2.0 s before senergyd received its message" in record.notes[0]


def test_a_job_with_both_messages_deferred_has_a_record_without_energy(node: Node, beside: Beside) -> None:
    beside.leave("begin", env(policy="powersave", tag="x"), ago_s=60.0)
    beside.leave("end", env(policy="powersave", tag="x"), ago_s=20.0)
    beside.deferred.replay()
    assert node.tree.snapshot() == node.original
    (record,) = node.records()
    assert record.elapsed_s == pytest.approx(40.0)
    assert (record.energy_joules, record.applied, record.policy) == (None, (), "powersave")
    assert label_of(record) == "powersave (requested, not set)"
    assert record.requested == {"policy": "powersave", "tag": "x"}
    assert record.notes == (
        "senergyd did not run during the job: no setting was applied, and its energy is unknown",
    )


@pytest.mark.parametrize(
    ("flags", "policy", "label"),
    [
        ({}, "monitor", "monitor (default)"),
        ({"cap": "200"}, "cap", "cap (default, not set)"),
        ({"policy": "nonsense"}, "monitor", "monitor (default)"),
    ],
)
def test_the_record_of_an_unmeasured_job_states_the_policy_that_would_have_applied(
    node: Node, beside: Beside, flags: dict[str, str], policy: str, label: str
) -> None:
    beside.leave("begin", env(**flags), ago_s=60.0)
    beside.leave("end", env(**flags), ago_s=20.0)
    beside.deferred.replay()
    (record,) = node.records()
    assert (record.policy, record.applied, label_of(record)) == (policy, (), label)
    assert any("nonsense" in note for note in record.notes) == ("nonsense" in flags.values())


def test_taking_messages_twice_changes_nothing(node: Node, beside: Beside) -> None:
    """Check that processing the same messages twice changes nothing.

    senergyd may crash between processing a message and removing the message's file.
    """
    whole = [("begin", env(4), 9.0), ("end", env(4), 8.0)]
    begin, end = ("begin", env(5, policy="powersave"), 7.0), ("end", env(5), 0.0)
    for messages in ([*whole], [*whole, begin], [begin], [end], [end]):
        for operation, environment, ago_s in messages:
            beside.leave(operation, environment, ago_s=ago_s)
        beside.deferred.replay()
        node.records()
    assert [record.job_id for record in node.records()] == [4, 5]
    assert node.tree.snapshot() == node.original


def test_a_requeued_job_is_two_jobs(node: Node, beside: Beside) -> None:
    node.manager.begin(env())
    beside.leave("end", env(), ago_s=2.0)
    beside.leave("begin", env(restart=1), ago_s=1.0)
    beside.deferred.replay()
    assert [record.restart_count for record in node.records()] == [0]
    assert [job["restart_count"] for job in node.manager.status()["jobs"]] == [1]


def test_messages_of_an_earlier_boot_are_dropped(node: Node, beside: Beside) -> None:
    beside.leave("begin", env())
    node.clock.boot_id = "another"
    DeferredMessages(beside.socket, node.manager, node.clock).replay()
    assert node.manager.status()["jobs"] == []
    assert beside.left() == []


def test_messages_of_this_boot_outlive_senergyd_and_a_step_of_the_wall_clock(
    node: Node, beside: Beside, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside.leave("begin", env(), ago_s=2.0)
    monkeypatch.setattr(node.clock, "unix", lambda: 1_700_000_000 + node.clock.now + 86_400)
    DeferredMessages(beside.socket, node.manager, node.clock).replay()
    node.manager.end(env())
    assert "began 2.0 s before" in node.records()[0].notes[0]


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        '{"op":"end"}',
        '{"op":"set","env":{}}',
        '{"op":"end","env":{}}',
        '{"op":"end","env":[1]}',
    ],
)
def test_rubbish_is_dropped_and_said(
    node: Node, beside: Beside, content: str, caplog: pytest.LogCaptureFixture
) -> None:
    beside.leave("begin", env()).write_text(content)
    beside.deferred.replay()
    assert beside.left() == []
    assert "not a hook's message" in caplog.text


def test_what_a_hook_is_still_writing_waits(beside: Beside) -> None:
    (beside.deferred.folder / ".00000000000000000001-5.json").write_text("{")
    beside.deferred.replay()
    assert beside.left() == [".00000000000000000001-5.json"]


def test_a_removed_directory_is_created_again(node: Node, beside: Beside) -> None:
    shutil.rmtree(beside.deferred.folder)
    beside.deferred.replay()
    beside.leave("begin", env())
    beside.deferred.replay()
    assert node.manager.has_job((5, 0))


@pytest.mark.parametrize("spoil", ["mode", "link"])
def test_a_directory_that_others_could_write_is_refused(node: Node, tmp_path: Path, spoil: str) -> None:
    folder = tmp_path / "agent.sock.deferred"
    if spoil == "link":
        folder.symlink_to(tmp_path)
    else:
        folder.mkdir()
        folder.chmod(0o777)
    arguments: Any = (tmp_path / "agent.sock", node.manager, node.clock)
    with pytest.raises(PermissionError, match="other users could write to it"):
        DeferredMessages(*arguments)


def test_a_message_that_leads_to_an_error_of_ours_does_not_stop_the_others(
    node: Node, beside: Beside, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    begin = node.manager.begin

    def broken(environment: dict[str, str], **more: Any) -> dict[str, Any]:
        if environment["SLURM_JOB_ID"] == "8":
            raise KeyError("of ours")
        return begin(environment, **more)

    monkeypatch.setattr(node.manager, "begin", broken)
    beside.leave("begin", env(8), ago_s=3.0)
    beside.leave("begin", env(9), ago_s=2.0)
    beside.deferred.replay()
    assert node.manager.has_job((9, 0))
    assert beside.left() == []
    assert "of ours" in caplog.text
