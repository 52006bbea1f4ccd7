"""Tests that the agent removes a job only when the job's record is on disk.

The tests simulate power failures, failing disks and kill -9.
"""

from __future__ import annotations

import asyncio
import errno
import os
import random
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_agent_daemon import Agent, eventually
from test_job_manager import Node, env

from slurm_energy import atomic_file
from slurm_energy.agent import daemon
from slurm_energy.config import AgentConfig, Config
from slurm_energy.records import EnergyRecord

EIO = OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path)
    yield node
    node.die()


def run_job(node: Node, job_id: int = 5) -> None:
    node.manager.begin(env(job_id))
    node.use(3.0)
    node.manager.step("start", job_id, "0")
    node.use(2.0)
    node.manager.step("end", job_id, "0")
    node.manager.end(env(job_id))


def session_files(node: Node) -> list[str]:
    return sorted(path.name for path in (node.folder / "state/sessions").iterdir())


def spool_files(node: Node) -> list[Path]:
    return sorted(path for path in (node.folder / "state/spool").iterdir() if path.is_file())


def test_the_job_stays_until_its_record_is_on_disk(node: Node) -> None:
    run_job(node)
    flush = node.manager.finalize_jobs()
    assert session_files(node)
    assert {str(path) for path in spool_files(node)} <= set(flush.files)
    node.manager.flushed(flush)
    assert session_files(node) == []


def test_files_that_a_record_replaces_are_not_synced(node: Node) -> None:
    run_job(node)
    node.manager.begin(env(6))
    files = {Path(path).name for path in node.manager.finalize_jobs().files}
    assert {name for name in files if name.endswith((".json", ".ended"))} == {
        *(path.name for path in spool_files(node) if path.suffix == ".json"),
        *(name for name in session_files(node) if name.startswith("6.") and name.endswith(".json")),
        "accounts.json",
    }


@pytest.mark.parametrize("delivered", [False, True])
def test_a_step_that_ended_before_a_crash_has_one_record(node: Node, delivered: bool) -> None:
    """A step that ended before a crash of the agent has exactly one record.

    The agent stores the state of a job on disk (session). This state still contains an ended step until
    the next finalization or the job's end. A crash before this time must not cause a second record of the
    step.
    """
    node.manager.begin(env())
    node.manager.step("start", 5, "0")
    node.use(2.0)
    node.manager.step("end", 5, "0")
    (ended,) = node.manager.spool.items(10**9, 10)
    before = EnergyRecord.from_json(ended.record)
    if delivered:
        node.manager.finalize_jobs()
        node.manager.spool.remove(ended.name)
    node.die()
    node.manager = node.start()
    node.use(3.0)
    node.manager.end(env())
    steps = [record for record in node.records() if record.step]
    expected = [] if delivered else [(before.record_id, before.energy_joules, before.end)]
    assert [(step.record_id, step.energy_joules, step.end) for step in steps] == expected


@pytest.mark.parametrize("empty", [False, True])
def test_a_power_failure_before_the_flush_costs_no_record(
    node: Node, caplog: pytest.LogCaptureFixture, empty: bool
) -> None:
    """A job's record survives a power failure that happens before the record is flushed to disk.

    The power failure is simulated: all files that were not flushed are lost or empty, as on ext4 and XFS. The
    restarted agent writes the same record again.
    """
    run_job(node)
    node.manager.finalize_jobs()
    (job,) = [r for r in node.records() if r.step is None]
    node.die()
    for path in spool_files(node):
        if empty:
            os.truncate(path, 0)
        else:
            path.unlink()
    files = [str(path) for path in spool_files(node)]
    node.manager = node.start()
    assert sorted(r.args[0] for r in caplog.records if r.args and "was empty" in r.msg) == files
    (again,) = [r for r in node.records() if r.step is None]
    assert (again.record_id, again.end) == (job.record_id, job.end)
    assert again.energy_joules == job.energy_joules


def test_no_job_is_removed_before_a_flush_with_its_record(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record of a job is flushed to disk or delivered before the files of the job are removed.

    This order also holds across restarts of the agent.
    """
    synced: set[str] = set()
    record_of: dict[str, str] = {}
    real_flush, real_forget = atomic_file.flush, type(node.state).forget

    def flush(paths: Any) -> None:
        real_flush(paths)
        synced.update(Path(path).name for path in paths)

    def forget(self: Any, session: Any) -> None:
        assert any(session.record_id in name for name in synced), session.owner
        record_of[session.owner] = session.record_id
        real_forget(self, session)

    monkeypatch.setattr(atomic_file, "flush", flush)
    monkeypatch.setattr(type(node.state), "forget", forget)
    chance = random.Random(3)
    for job_id in range(5, 35):
        run_job(node, job_id)
        if chance.random() < 0.5:
            batch = node.manager.finalize_jobs()
            if chance.random() < 0.5:
                atomic_file.flush(batch.files)
                node.manager.flushed(batch)
            else:
                node.manager.flushed(batch, succeeded=False)
        if chance.random() < 0.3:
            node.die()
            node.manager = node.start()
    node.stop()
    assert len(record_of) == 30
    assert session_files(node) == []


def test_a_file_whose_fsync_failed_is_written_again(node: Node) -> None:
    """If the fsync of a file fails, the file is written again as a new file.

    A second fsync is not enough. After a failed fsync, the kernel regards the unwritten data as written, so
    the second fsync succeeds although the data is lost.
    """
    run_job(node)
    flush = node.manager.finalize_jobs()
    paths = spool_files(node)
    before = {path: (path.stat().st_ino, path.read_bytes()) for path in paths}
    for path in paths:
        path.write_bytes(b"")  # unwritten data is lost
    node.manager.flushed(flush, succeeded=False)
    for path in paths:
        inode, content = before[path]
        assert path.stat().st_ino != inode and path.read_bytes() == content
    assert session_files(node)
    again = node.manager.finalize_jobs()
    assert {str(path) for path in paths} <= set(again.files)
    node.manager.flushed(again)
    assert session_files(node) == []


def test_records_delivered_meanwhile_do_not_return(node: Node) -> None:
    run_job(node)
    flush = node.manager.finalize_jobs()
    for item in node.manager.spool.items(10**9, 100):
        node.manager.spool.remove(item.name)
    node.manager.flushed(flush, succeeded=False)
    assert spool_files(node) == []
    node.manager.flushed(node.manager.finalize_jobs())
    assert session_files(node) == []


def test_a_requeued_job_is_not_removed_with_its_first_run(node: Node) -> None:
    run_job(node)
    flush = node.manager.finalize_jobs()
    node.manager.begin(env())
    node.manager.flushed(flush)
    node.die()
    node.manager = node.start()
    assert [job["job_id"] for job in node.manager.status()["jobs"]] == [5]


@pytest.mark.slow
def test_a_disk_that_fails_temporarily(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    config = Config(agent=AgentConfig(socket=tmp_path / "s", state_dir=tmp_path / "state"))
    monkeypatch.setattr(daemon, "_FLUSH_RETRY_S", 0.05)
    failures = [5]
    real = os.fsync

    def fsync(descriptor: int) -> None:
        if failures[0] and "spool" in str(Path(f"/proc/self/fd/{descriptor}").readlink()):
            failures[0] -= 1
            raise EIO
        real(descriptor)

    async def until(condition: Any) -> None:
        async with asyncio.timeout(60):
            while not condition():
                await asyncio.sleep(0.01)

    async def run() -> None:
        agent = daemon.AgentDaemon(config)
        running = asyncio.create_task(agent.run())
        await until(lambda: running.done() or Path(tmp_path / "s").exists())
        monkeypatch.setattr(os, "fsync", fsync)
        sessions = tmp_path / "state/sessions"
        await agent._work(agent._jobs.begin, env())
        await agent._work(agent._jobs.end, env())
        await until(lambda: failures[0] < 5)
        assert list(sessions.iterdir())
        await until(lambda: not failures[0] and not list(sessions.iterdir()))
        agent._stop.set()
        await running

    asyncio.run(run())
    assert caplog.text.count("cannot be synced to disk") == 1
    assert len(list((tmp_path / "state/spool").glob("*.json"))) == 1


@pytest.mark.slow
@pytest.mark.parametrize("jobs", [5, pytest.param(60, marks=[pytest.mark.soak, pytest.mark.timeout(1800)])])
def test_kill_9_at_random_moments_leaves_one_record_of_each_job(jobs: int) -> None:
    chance = random.Random(11)
    with tempfile.TemporaryDirectory(prefix="senergyd-") as folder:
        agent = Agent(Path(folder))
        try:
            agent.start()
            for job_id in range(1, jobs + 1):
                agent.ask({"op": "begin", "env": env(job_id)}, {"op": "end", "env": env(job_id)})
                time.sleep(chance.uniform(0.0, 0.3))  # the record is written 0.2 s after the end
                agent.stop(signal.SIGKILL)
                agent.start()
            eventually(lambda: len(agent.spooled()) == jobs, "each job has a record")
            eventually(lambda: not list(Path(folder, "state/sessions").iterdir()), "all jobs are forgotten")
            assert set(Counter(record["job_id"] for record in agent.spooled()).values()) == {1}
        finally:
            agent.stop(signal.SIGKILL)
