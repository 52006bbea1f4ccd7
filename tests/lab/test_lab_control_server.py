"""Tests of the emulator's control server.

The tests need no mounted file tree.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from temporary_directories import open_to_others

from slurm_energy.errors import AlreadyRunningError, EnergyError, UnavailableError
from slurm_energy_lab import client
from slurm_energy_lab.emulator.control_server import ControlServer
from slurm_energy_lab.emulator.cpu_throttle import CpuThrottle
from slurm_energy_lab.emulator.request_handler import EmulatorRequestHandler
from slurm_energy_lab.model import load_profile
from slurm_energy_lab.realtime_model import RealtimeModel
from slurm_energy_lab.tree.entries import Tree
from slurm_energy_lab.tree.hwmon import AcpiPowerMeter
from slurm_energy_lab.tree.job_cgroups import JobCgroups

WAIT_S = 120.0

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="ops job and fault are for root only")


class Clock:
    """A monotonic clock that a test can stop."""

    def __init__(self) -> None:
        self.lag_s = 0.0
        self.held_s: float | None = None

    def __call__(self) -> float:
        held_s = self.held_s
        return time.monotonic() - self.lag_s if held_s is None else held_s

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        self.held_s = self()
        yield
        self.lag_s, self.held_s = time.monotonic() - self.held_s, None


class Node:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = Clock()
        self.realtime_model = RealtimeModel(load_profile("epyc-7513-a100"), self.clock)
        self.throttle = CpuThrottle(self.realtime_model, None, "not in this test")
        self.tree = Tree()
        self.faults = self.tree.faults
        groups = JobCgroups(self.tree, self.realtime_model, "n1", self.realtime_model.clock)
        requests = EmulatorRequestHandler("n1", self.realtime_model, self.throttle, groups, self.tree)
        self.server = ControlServer(
            path, self.realtime_model, requests, self.throttle, AcpiPowerMeter(self.realtime_model)
        )


@pytest.fixture
def node(tmp_path):
    made = Node(tmp_path / "emulator.sock")
    made.server.start()
    yield made
    made.server.stop()
    made.realtime_model.close()
    assert not made.path.exists()


def say(node: Node, line: bytes) -> dict:
    with socket.socket(socket.AF_UNIX) as peer:
        peer.settimeout(WAIT_S)
        peer.connect(str(node.path))
        peer.sendall(line)
        return json.loads(peer.makefile("rb").readline())


def eventually(condition) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_kernel_answers_with_its_own_time_and_energy(node):
    first = client.run_kernel(node.path, "gemm", full_speed_s=0.2)
    assert first["seconds"] == pytest.approx(0.2, rel=0.1)
    assert first["energy_joules"]["cpu"] > 0
    assert first["end"] - first["start"] == pytest.approx(first["seconds"])
    again = client.run_kernel(node.path, "gemm", size=first["size"])
    assert again["seconds"] == pytest.approx(first["seconds"], abs=1e-3)


def test_kernels_run_side_by_side(node):
    results: dict[int, dict] = {}

    def work(gpu: int) -> None:
        results[gpu] = client.run_kernel(node.path, "triad", "gpu", gpus=[gpu], full_speed_s=0.3)

    threads = [threading.Thread(target=work, args=(gpu,)) for gpu in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert sorted(results) == [0, 1, 2, 3]
    for result in results.values():
        assert result["seconds"] == pytest.approx(results[0]["seconds"], abs=1e-6)


def test_a_program_reports_each_step(node):
    units = []
    client.run_kernel(node.path, "train", "gpu", gpus=[0], size=0.4, on_progress=units.append)
    client.run_kernel(node.path, "pipeline", "gpu", gpus=[0], full_speed_s=0.6, on_progress=units.append)
    assert units == sorted(units)
    assert 10 < units[-1] <= 300
    assert all(value == int(value) for value in units)


def test_a_kernel_dies_with_its_client(node):
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(str(node.path))
        peer.sendall(b'{"op":"kernel","kernel":"gemm","device":"cpu","full_speed_s":1000}\n')
        eventually(lambda: client.status(node.path)["kernels"] == 1)
        assert client.truth(node.path)["power_watts"]["cpu"] > 100
    eventually(lambda: client.status(node.path)["kernels"] == 0)
    eventually(lambda: client.truth(node.path)["power_watts"]["cpu"] < 100)


@pytest.mark.slow
def test_a_slower_clock_ends_a_running_kernel_later(node):
    def work() -> None:
        results.append(client.run_kernel(node.path, "gemm", "gpu", gpus=[0], full_speed_s=0.4))

    results: list[dict] = []
    thread = threading.Thread(target=work)
    with node.clock.held():  # otherwise the kernel could end before its clock is changed
        thread.start()
        eventually(lambda: client.status(node.path)["kernels"] == 1)
        with node.realtime_model.modify() as model:
            model.set_gpu(0, 400, (210, 420))
    thread.join(WAIT_S)
    assert results[0]["seconds"] > 0.6


def test_every_change_wakes_the_thread_that_waits_for_events():
    realtime_model = RealtimeModel(load_profile("epyc-7513-a100"))

    def reported() -> bool:
        return bool(select.select([realtime_model.change_event_fd], [], [], 0)[0])

    assert not reported()
    with realtime_model.now() as model:
        assert model.gpu_state(0).limit_watts == 400
    assert not reported()
    with realtime_model.modify() as model:
        model.set_gpu(0, 300)
    assert reported()
    realtime_model.clear_change_event()
    assert not reported()
    realtime_model.close()


def test_truth_is_consistent(node):
    found = client.truth(node.path)
    energy = found["energy_joules"]
    assert energy["gpu"] == pytest.approx(sum(energy[f"gpu[{i}]"] for i in range(4)))
    assert energy["node"] == pytest.approx(energy["cpu"] + energy["dram"] + energy["gpu"] + energy["other"])
    assert found["time"] == pytest.approx(time.time(), abs=5)


@as_root
def test_truth_by_job_has_the_usage_of_each_job(node):
    client.register_job(node.path, 6)
    client.run_kernel(node.path, "gemm", cpus=[0, 1], full_speed_s=0.01, job_id=7)
    client.run_kernel(node.path, "triad", "gpu", gpus=[1], full_speed_s=0.1)
    assert "jobs" not in client.truth(node.path)
    found = client.truth(node.path, jobs=True)
    assert list(found["jobs"]) == ["6", "7"]
    assert found["jobs"]["6"]["cpu_seconds"] == 0
    assert found["jobs"]["7"]["cpu_seconds"] > 0 < found["jobs"]["7"]["dynamic_joules"]["cpu"]
    assert found["no_job"]["dynamic_joules"]["gpu[1]"] > 0 == found["no_job"]["dynamic_joules"]["gpu[0]"]
    shares = [found["no_job"], *found["jobs"].values()]
    for name, idle in found["idle_joules"].items():
        total = idle + sum(share["dynamic_joules"][name] for share in shares)
        assert total == pytest.approx(found["energy_joules"][name])
    groups = node.tree.directory("/sys/fs/cgroup/system.slice/n1_slurmstepd.scope").children
    assert set(groups) == {"job_6", "job_7"}


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (b"rubbish\n", "not JSON"),
        (b"[1]\n", "not a JSON object"),
        (b'{"op":"explode"}\n', "unknown operation"),
        (b"{}\n", "unknown operation"),
        (b'{"op":"kernel"}\n', "kernel"),
        (b'{"op":"kernel","kernel":"gemm","size":-1}\n', "size"),
        (b'{"op":"kernel","kernel":"gemm","size":1e999}\n', "size"),
        (b'{"op":"kernel","kernel":"gemm","size":true}\n', "size"),
        (b'{"op":"kernel","kernel":"gemm","cpus":[-1]}\n', "cpus"),
        (b'{"op":"kernel","kernel":"gemm","cpus":[999]}\n', "999"),
        (b'{"op":"kernel","kernel":"doom","device":"cpu"}\n', "doom"),
        (b'{"op":"kernel","kernel":"gemm","device":"tpu"}\n', "tpu"),
        (b'{"op":"kernel","kernel":"gemm","job_id":0}\n', "job_id"),
        (b'{"op":"kernel","kernel":"gemm","job_id":true}\n', "job_id"),
        pytest.param(b'{"op":"job","job_id":"x"}\n', "job_id", marks=as_root),
        pytest.param(b'{"op":"job"}\n', "job_id", marks=as_root),
        pytest.param(b'{"op":"job","job_id":1,"cpus":"7-3"}\n', "CPU list", marks=as_root),
        pytest.param(b'{"op":"job","job_id":1,"cpus":"0-999"}\n', "999", marks=as_root),
        pytest.param(b'{"op":"fault","path":"x","errno":"EIO"}\n', "path", marks=as_root),
        pytest.param(b'{"op":"fault","path":"/x","errno":"EWHAT"}\n', "errno", marks=as_root),
        (b"[" * 60000 + b"\n", "not JSON"),
        (b"x" * 70000 + b"\n", "64 KiB"),
        (b"\xff\xfe\n", "not JSON"),
    ],
)
def test_bad_messages_get_one_line(node, line, text):
    answer = say(node, line)
    assert answer["ok"] is False
    assert text in answer["error"] and "\n" not in answer["error"]
    assert answer["code"] == 2
    assert client.status(node.path)["ok"]


def test_several_messages_on_one_connection(node):
    with socket.socket(socket.AF_UNIX) as peer:
        peer.settimeout(WAIT_S)
        peer.connect(str(node.path))
        peer.sendall(b'{"op":"kernel","kernel":"gemm","full_speed_s":0.1}\n{"op":"status"}\n{"op":"sta')
        answers = peer.makefile("rb")
        assert "seconds" in json.loads(answers.readline())
        assert json.loads(answers.readline())["profile"] == "epyc-7513-a100"
        peer.sendall(b'tus"}\n')
        assert json.loads(answers.readline())["ok"]


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")
def test_jobs_and_faults_are_for_root(node, tmp_path):
    open_to_others(tmp_path)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setuid(1001)
            client.truth(node.path)
            for message in ({"op": "job", "job_id": 1}, {"op": "fault", "path": "/x"}):
                try:
                    client.ask(node.path, message)
                except EnergyError as error:
                    code = error.exit_code
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
    assert client.register_job(node.path, 1) == [], "no throttling, no files"


def test_a_second_emulator_is_refused_and_a_stale_socket_replaced(node, tmp_path):
    with pytest.raises(AlreadyRunningError):
        Node(node.path)
    stale = tmp_path / "stale.sock"
    with socket.socket(socket.AF_UNIX) as left_behind:
        left_behind.bind(str(stale))
    other = Node(stale)
    other.server.start()
    assert client.status(stale)["ok"]
    other.server.stop()


def test_the_client_names_a_socket_without_server(tmp_path):
    with pytest.raises(UnavailableError, match=r"nobody\.sock"):
        client.truth(tmp_path / "nobody.sock")
