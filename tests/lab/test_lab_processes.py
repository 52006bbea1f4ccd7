from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from slurm_energy.errors import UnavailableError
from slurm_energy_lab.cluster import processes, supervisor
from slurm_energy_lab.cluster.processes import SupervisorClient
from slurm_energy_lab.cluster.startup import Startup, StartupStep, StepError


def test_listening_and_taken_ports():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert processes.listens(port)
    assert not processes.listens(port)


def numbers(held: list[socket.socket]) -> set[int]:
    return {probe.getsockname()[1] for probe in held}


def test_reserved_ports_are_held_until_their_release():
    first = processes.reserve_ports(3, 20000)
    second = processes.reserve_ports(3, min(numbers(first)))
    assert len(numbers(first) | numbers(second)) == 6
    (port,) = numbers(first[:1])
    with socket.socket() as daemon:
        daemon.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        daemon.bind(("127.0.0.1", port))
        daemon.listen()
        processes.release([*first, *second])
        assert processes.listens(port)
        third = processes.reserve_ports(1, port)
        assert port not in numbers(third)
        processes.release(third)
    with pytest.raises(UnavailableError, match="TCP ports"):
        processes.reserve_ports(2, 32767)


def test_only_a_served_socket_accepts(tmp_path):
    path = tmp_path / "socket"
    assert not processes.accepts(path)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        assert not processes.accepts(path)
        server.listen()
        assert processes.accepts(path)
    assert not processes.accepts(path)


def test_the_processes_of_a_lab_are_found_and_ended(tmp_path):
    environment = {**os.environ, supervisor.SUPERVISOR_MARK: str(tmp_path)}
    with subprocess.Popen(["sleep", "60"], env=environment) as process:
        assert processes.lab_processes(tmp_path) == [process.pid]
        assert processes.lab_processes(tmp_path.parent) == []
        assert processes.kill_until_gone(lambda: processes.lab_processes(tmp_path), 30) == []
        assert process.wait(timeout=60) == -signal.SIGKILL
    assert not processes.is_running(process.pid)


def test_a_process_is_found_during_execve(tmp_path, monkeypatch):
    """The search for processes of a lab (emulated cluster) finds a process that executes execve.

    The environment of such a process is empty for a short time, but the search identifies processes by their
    environment. In this test, the environment appears after a twentieth of a second.
    """
    folder = tmp_path / "4711"
    folder.mkdir()
    for name, text in (("environ", ""), ("cmdline", ""), ("stat", "4711 (sleep) R 1 1 1 0 -1 4194560 0")):
        (folder / name).write_text(text)
    monkeypatch.setattr(processes, "_PROC", tmp_path)
    mark = f"A=1\0{supervisor.SUPERVISOR_MARK}=/lab\0"
    later = threading.Timer(0.05, lambda: (folder / "environ").write_text(mark))
    later.start()
    assert processes.lab_processes(Path("/lab")) == [4711]
    later.join()


@pytest.mark.parametrize("stat", ["2 (kthreadd) S 0 0 0 0 -1 2129984 0", "2 (sleep) Z 1 1 1 0 -1 4194560 0"])
def test_processes_without_memory_are_skipped(tmp_path, monkeypatch, stat):
    (tmp_path / "2").mkdir()
    (tmp_path / "2/stat").write_text(stat)
    monkeypatch.setattr(processes, "_PROC", tmp_path)
    monkeypatch.setattr(time, "sleep", lambda _: pytest.fail("waited for what never comes"))
    assert processes.lab_processes(Path("/lab")) == []


def test_killed_processes_are_awaited_after_the_search_misses_them(monkeypatch):
    monkeypatch.setattr(processes, "send_signal", lambda pids: None)  # the process takes half a second to end
    with subprocess.Popen(["sleep", "0.5"]) as process:
        found = iter([[process.pid]])
        assert processes.kill_until_gone(lambda: next(found, []), 20) == []
        assert process.poll() == 0


def test_a_zombie_counts_as_ended():
    with subprocess.Popen(["true"]) as process:
        deadline = time.monotonic() + 60
        while processes.is_running(process.pid):
            assert time.monotonic() < deadline
            time.sleep(0.01)


@pytest.fixture
def served(tmp_path):
    """Start a supervisor process of the lab for the test, and yield a client of the supervisor.

    The supervisor starts and stops the processes of a lab. Here it runs without namespaces.
    """
    path = tmp_path / "supervisor.sock"
    code = (
        "import pathlib, sys; from slurm_energy_lab.cluster import supervisor;"
        "supervisor.Supervisor(supervisor._listen(pathlib.Path(sys.argv[1])), None).serve()"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(path)]) as process:
        deadline = time.monotonic() + 60
        while not processes.accepts(path):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        client = SupervisorClient(path)
        yield client
        processes.send_signal(child["pid"] for child in client.children().values() if child["exit"] is None)
        process.kill()


def startup(client: SupervisorClient, *steps: StartupStep) -> Startup:
    return Startup(steps, lambda node: client, {"PATH": os.environ["PATH"]})


def step(tmp_path, name: str, script: str, **more) -> StartupStep:
    return StartupStep(name, tmp_path / f"{name}.log", ["sh", "-c", script], **more)


def test_a_supervisor_starts_reaps_and_reports_processes(served, tmp_path):
    served.spawn("short", ["sh", "-c", "exit 3"], {}, tmp_path / "log")
    deadline = time.monotonic() + 60
    while served.children()["short"]["exit"] is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert served.children()["short"]["exit"] == 3
    with pytest.raises(UnavailableError, match="No such file"):
        served.spawn("none", ["/nonexistent"], {}, tmp_path / "log")


def test_a_name_runs_once(served, tmp_path):
    served.spawn("long", ["sleep", "60"], dict(os.environ), tmp_path / "log")
    with pytest.raises(UnavailableError, match="long is already running"):
        served.spawn("long", ["sleep", "60"], dict(os.environ), tmp_path / "log")


def test_a_supervisor_outlives_clients_with_invalid_requests(served, tmp_path):
    for data in (b"", b"nonsense\n", b"[]\n", b"{}\n", b'{"op":"spawn"}\n', b'{"op":'):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(served.path))
            connection.sendall(data)
    assert served.children() == {}


def test_steps_run_after_what_they_need(served, tmp_path):
    order: list[str] = []
    record = tmp_path / "record"
    first = step(tmp_path, "first", f"sleep 0.1; echo first >> {record}")
    second = step(tmp_path, "second", f"echo second >> {record}", needs=("first",))
    run = Startup(
        [second, first], lambda node: served, dict(os.environ), lambda done, _: order.append(done.name)
    )
    run.run()
    assert order == ["first", "second"]
    assert record.read_text().split() == order


def test_a_failed_task_shows_the_end_of_its_log(served, tmp_path):
    bad = step(tmp_path, "bad", "echo one; echo two; exit 4")
    with pytest.raises(StepError, match=r"^bad: ended with exit code 4$") as caught:
        startup(served, bad).run()
    assert caught.value.log_tail == ["one", "two"]


def test_a_daemon_that_ends_is_no_success_even_with_code_0(served, tmp_path):
    with pytest.raises(StepError, match="ended with exit code 0"):
        startup(served, step(tmp_path, "daemon", "exit 0", ready=lambda: False)).run()


def test_a_daemon_that_dies_while_others_start_is_named(served, tmp_path):
    dies = step(tmp_path, "dies", "sleep 0.3; kill -9 $$", ready=lambda: True)
    waits = step(tmp_path, "waits", "sleep 20", ready=lambda: False)
    with pytest.raises(StepError, match="dies: ended with signal 9"):
        startup(served, dies, waits).run()


def test_a_daemon_that_does_not_get_ready_in_time_is_named(served, tmp_path):
    slow = step(tmp_path, "slow", "sleep 20", ready=lambda: False, timeout_s=0.2)
    with pytest.raises(StepError, match="slow: not ready after"):
        startup(served, slow).run()


def test_a_supervisor_ends_with_its_starter(tmp_path):
    path = tmp_path / "tied.sock"
    reader, writer = os.pipe()
    code = (
        "import pathlib, sys; from slurm_energy_lab.cluster import supervisor;"
        "supervisor.Supervisor(supervisor._listen(pathlib.Path(sys.argv[1])), int(sys.argv[2])).serve()"
    )
    argv = [sys.executable, "-c", code, str(path), str(reader)]
    with subprocess.Popen(argv, pass_fds=(reader,)) as process:
        os.close(reader)
        threading.Timer(0.2, os.close, [writer]).start()
        assert process.wait(timeout=60) == 1
