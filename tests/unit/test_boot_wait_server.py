"""Tests of the wait of a starting job for the boot of its nodes.

prolog_slurmctld asks senergyctld through the boot socket. A job waits until all its nodes respond, but not
longer.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import importlib.machinery
import logging
import os
import socket
import subprocess
import sys
import types
from pathlib import Path

import pytest

from slurm_energy.controller.power_saving import boot_wait_server
from slurm_energy.controller.power_saving.boot_wait_server import BootWaitServer
from slurm_energy.controller.power_saving.node_boots import NodeBoots
from slurm_energy.errors import UnavailableError
from slurm_energy.log_once import RepeatedFailureLog
from slurm_energy.slurm.node_power_states import NodePowerStatus

PROGRAM = Path(__file__).parents[2] / "prolog_epilog" / "prolog_slurmctld"
TIMEOUT_S = 60.0


class Nodes:
    """Substitute for slurmctld in tests: the states of nodes by name."""

    def __init__(self, **states: str) -> None:
        self.states = states
        self.reads = 0
        self.error: Exception | None = None

    def read(self) -> list[NodePowerStatus]:
        self.reads += 1
        if self.error:
            raise self.error
        return [
            NodePowerStatus(name, frozenset(text.split("+")), kind="k") for name, text in self.states.items()
        ]


@contextlib.asynccontextmanager
async def serving(path: Path, nodes: Nodes, boots: NodeBoots | None = None):
    failures = RepeatedFailureLog(logging.getLogger("test"))
    server = BootWaitServer(lambda: path, nodes.read, boots or NodeBoots(), failures, poll_s=0.05)
    task = asyncio.create_task(server.loop())
    try:
        while not path.exists():
            assert not task.done(), task.exception()
            await asyncio.sleep(0.01)
        yield server
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def prolog(path: Path, nodes: str) -> asyncio.subprocess.Process:
    environment = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": nodes}
    return await asyncio.create_subprocess_exec(
        sys.executable, "-IS", PROGRAM, "--socket", path, env=environment, stdout=-1, stderr=-1
    )


async def ended(process: asyncio.subprocess.Process) -> None:
    output, errors = await asyncio.wait_for(process.communicate(), TIMEOUT_S)
    assert (process.returncode, output, errors) == (0, b"", b"")


def test_job_waits_until_all_its_nodes_respond(tmp_path: Path) -> None:
    async def run() -> None:
        nodes = Nodes(n1="IDLE", n2="ALLOCATED+POWERED_DOWN", n3="IDLE+POWERED_DOWN")
        async with serving(tmp_path / "s", nodes):
            waiting = await prolog(tmp_path / "s", "n[1-2]")
            for state in ("ALLOCATED+POWERING_UP", "ALLOCATED+NOT_RESPONDING", "ALLOCATED"):
                before = nodes.reads
                while nodes.reads < before + 2:
                    await asyncio.sleep(0.02)
                assert waiting.returncode is None
                nodes.states["n2"] = state
            await ended(waiting)
            # n3 is still off: other nodes do not matter.
            await ended(await prolog(tmp_path / "s", "n1"))

    asyncio.run(run())


@pytest.mark.parametrize("state", ["DOWN+POWERED_DOWN", "ALLOCATED", ""])
def test_job_does_not_wait_for_such_nodes(tmp_path: Path, state: str) -> None:
    async def run() -> None:
        async with serving(tmp_path / "s", Nodes(n1=state) if state else Nodes()):
            await ended(await prolog(tmp_path / "s", "n1"))

    asyncio.run(run())


def test_jobs_are_released_when_slurmctld_or_senergyctld_fails(tmp_path: Path) -> None:
    async def run() -> None:
        nodes = Nodes(n1="IDLE+POWERED_DOWN")
        async with serving(tmp_path / "s", nodes):
            waiting = await prolog(tmp_path / "s", "n1")
            while nodes.reads < 2:
                await asyncio.sleep(0.02)
            nodes.error = UnavailableError("scontrol", "slurmctld does not answer")
            await ended(waiting)
            nodes.error = None
            waiting = await prolog(tmp_path / "s", "n1")
            before = nodes.reads
            while nodes.reads < before + 2:
                await asyncio.sleep(0.02)
        await ended(waiting)
        await ended(await prolog(tmp_path / "s", "n1"))  # no senergyctld

    asyncio.run(run())


def test_wait_is_bounded(tmp_path: Path) -> None:
    async def run() -> None:
        async with serving(tmp_path / "s", Nodes(n1="IDLE+POWERED_DOWN")) as server:
            server.timeout_s = 0.5
            await ended(await prolog(tmp_path / "s", "n1"))

    asyncio.run(run())


@pytest.mark.parametrize("text", [b"\n", b"1 n[1-\n", b"1 2 3\n", b"\xff \xff\n", b"x" * 300_000, b""])
def test_malformed_requests_are_answered_or_closed(tmp_path: Path, text: bytes) -> None:
    async def run() -> None:
        async with serving(tmp_path / "s", Nodes(n1="IDLE+POWERED_DOWN")):
            reader, writer = await asyncio.open_unix_connection(tmp_path / "s")
            writer.write(text)
            with contextlib.suppress(OSError):
                await writer.drain()
                writer.write_eof()
            with contextlib.suppress(OSError):
                assert (await asyncio.wait_for(reader.read(), TIMEOUT_S)).lstrip(b".") in (b"", b"\n")
            writer.close()

    asyncio.run(run())


def test_socket_is_replaced_after_a_kill(tmp_path: Path) -> None:
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(tmp_path / "s"))
    left.close()

    async def run() -> None:
        nodes = Nodes(n1="IDLE")
        async with serving(tmp_path / "s", nodes):
            await ended(await prolog(tmp_path / "s", "n1"))

    asyncio.run(run())


def loaded_program(monkeypatch: pytest.MonkeyPatch, silence_s: float) -> types.ModuleType:
    loader = importlib.machinery.SourceFileLoader("prolog_slurmctld", str(PROGRAM))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    program = types.ModuleType(loader.name)
    loader.exec_module(program)
    monkeypatch.setattr(program, "SILENCE_S", silence_s)
    return program


def test_program_does_not_wait_for_a_senergyctld_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = loaded_program(monkeypatch, silence_s=0.1)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen(1)  # the kernel completes the connection, and nothing answers
        with pytest.raises(TimeoutError):
            program.wait_for_boot(str(tmp_path / "s"), "7", "n1")


def test_program_waits_for_a_senergyctld_that_shows_that_it_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = loaded_program(monkeypatch, silence_s=TIMEOUT_S)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen(1)
        with concurrent.futures.ThreadPoolExecutor() as threads:
            waiting = threads.submit(program.wait_for_boot, str(tmp_path / "s"), "7", "n1")
            connection, _ = listener.accept()
            with connection:
                assert connection.recv(100) == b"7 n1\n"
                connection.sendall(b"..")
                with pytest.raises(concurrent.futures.TimeoutError):
                    waiting.result(timeout=0.2)
                connection.sendall(b".\n")
                waiting.result(timeout=TIMEOUT_S)


def test_program_ends_without_a_job_or_with_a_silent_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for environment in ({}, {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n1"}):
        done = subprocess.run(
            [sys.executable, "-IS", PROGRAM, "--socket", tmp_path / "file"],
            env=environment,
            capture_output=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert os.access(PROGRAM, os.X_OK)


def test_boot_times_are_measured_from_the_request_to_the_response() -> None:
    boots = NodeBoots()

    def status(state: str, slurmd: float | None = None) -> list[NodePowerStatus]:
        return [NodePowerStatus("n1", frozenset(state.split("+")), kind="k", slurmd_unix_s=slurmd)]

    boots.observe(status("IDLE+POWERED_DOWN"), 100.0)
    boots.request(["n1", "unknown"], 101.0)
    boots.request(["n1"], 105.0)  # a second job: the boot has begun before
    boots.observe(status("ALLOCATED+POWERING_UP"), 160.0)
    boots.observe(status("ALLOCATED"), 161.0)
    assert boots.boot_s("k") == boots.boot_s() == boots.boot_s("other") == 60.0
    # The readings are far apart: the start of slurmd is the end of the boot.
    boots.observe(status("IDLE+POWERED_DOWN"), 300.0)
    boots.request(["n1"], 300.0)
    boots.observe(status("IDLE", slurmd=340.0), 900.0)
    assert boots.boot_s("k") == 50.0
    # A boot that failed is not a boot time.
    boots.observe(status("IDLE+POWERED_DOWN"), 1000.0)
    boots.request(["n1"], 1000.0)
    boots.observe(status("DOWN+POWERED_DOWN"), 1400.0)
    boots.observe(status("IDLE"), 1401.0)
    assert boots.boot_s("k") == 50.0


@pytest.mark.parametrize(("slurm_uid", "waits"), [(65534, True), (None, False), (1234, False)])
def test_only_slurm_user_root_and_own_user_may_wait(
    tmp_path: Path, slurm_uid: int | None, waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(boot_wait_server, "_peer_uid", lambda connection: 65534)

    async def run() -> None:
        nodes = Nodes(n1="IDLE+POWERED_DOWN")
        async with serving(tmp_path / "s", nodes) as server:
            server.slurm_uid = slurm_uid
            process = await prolog(tmp_path / "s", "n1")
            if waits:
                while nodes.reads < 2:
                    await asyncio.sleep(0.02)
                assert process.returncode is None
            nodes.states["n1"] = "IDLE"
            await ended(process)
            assert (nodes.reads > 0) == waits

    asyncio.run(run())
