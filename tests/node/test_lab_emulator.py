"""Tests of the emulator process of a lab node.

The tests check its start, its end and its crash. They also check that real programs on its cores slow down
with the emulated frequency.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from lab_node import LabNode

from slurm_energy_lab import client

pytestmark = [pytest.mark.node, pytest.mark.root]

SPIN = "while True: pass"
MOST_SLOW = 0.15
CPUFREQ = "/sys/devices/system/cpu/cpufreq"


@pytest.fixture
def place(machine, tmp_path) -> Path:
    return tmp_path


def own_groups(name: str) -> list[Path]:
    return [path for path in Path("/sys/fs/cgroup").glob(f"*/{name}") if path.is_dir()]


def test_sigterm_removes_everything(place):
    node = LabNode(place, "xeon-8358").start()
    assert os.path.ismount(node.tree) and node.socket.is_socket()
    assert node.stop() == 0
    assert not os.path.ismount(node.tree)
    assert not node.socket.exists()
    assert list(node.tree.iterdir()) == []


def test_a_busy_mount_does_not_hinder_the_end(place):
    node = LabNode(place, "xeon-8358").start()
    held = os.open(node.file("proc/cpuinfo"), os.O_RDONLY)
    assert node.stop() == 0
    assert not os.path.ismount(node.tree)
    with pytest.raises(OSError):
        os.read(held, 10)
    with contextlib.suppress(OSError):
        os.close(held)


def test_what_a_killed_emulator_left_is_replaced(place):
    node = LabNode(place, "xeon-8358").start()
    assert node.process
    node.process.send_signal(signal.SIGKILL)
    node.process.wait(timeout=60)
    for pipe in (node.process.stdout, node.process.stderr):
        if pipe:
            pipe.close()
    node.start()
    assert node.read("/sys/devices/system/cpu/online") == "0-127"
    assert node.stop() == 0


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("--profile", "pdp-11"), 3, "pdp-11"),
        (("--profile", "xeon-8358", "--set", "nonsense"), 2, "KEY=VALUE"),
        (("--profile", "xeon-8358", "--set", "cpu.wheels=4"), 3, "wheels"),
        (("--profile", "xeon-8358", "--cpu-share", "0"), 2, "--cpu-share"),
    ],
)
def test_wrong_options_end_with_one_line(place, arguments, code, text):
    command = [sys.executable, "-m", "slurm_energy_lab.emulator.main", "--name", "n1", *arguments]
    command += ["--mount", str(place / "fuse"), "--socket", str(place / "sock")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == code
    assert text in done.stderr and done.stderr.count("\n") == 1
    assert not (place / "sock").exists()


def test_counters_start_at_the_given_offset(place):
    node = LabNode(place, "xeon-8358", "--energy-offset", "240000").start()
    try:
        uj = int(node.read("/sys/devices/virtual/powercap/intel-rapl/intel-rapl:0/energy_uj"))
        assert 240_000_000_000 <= uj < 262_143_328_850  # idle, it wraps in minutes
    finally:
        assert node.stop() == 0


@contextlib.contextmanager
def spinning(files: list[str]) -> Iterator[Callable[[], float]]:
    """Run two spinning processes in a job's group; yield a function that measures the real cores they get.

    A delay between reading the clock and the counter makes the measured value smaller.
    """
    join = f"import os\nfor f in {files!r}: open(f, 'w').write(str(os.getpid()))\nprint('in', flush=True)\n"
    command = [sys.executable, "-c", join + SPIN]
    counters = [Path(file).parent / "cpuacct.usage" for file in files]
    counter = next(path for path in counters if path.exists())

    def share() -> float:
        began_s = time.monotonic()
        before = int(counter.read_text())
        time.sleep(1.5)
        used_ns = int(counter.read_text()) - before
        return used_ns / 1e9 / (time.monotonic() - began_s)

    with contextlib.ExitStack() as stack:
        for _ in range(2):
            spinner = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
            stack.callback(spinner.kill)
            assert spinner.stdout and spinner.stdout.readline() == "in\n"
        yield share


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.skipif(not Path("/sys/fs/cgroup/cpuacct").is_dir(), reason="needs control groups version 1")
def test_real_programs_slow_down_with_the_frequency(place):
    group = f"senergy-test-{os.getpid()}"
    node = LabNode(
        place, "xeon-8358", "--set", "cpufreq.driver=acpi-cpufreq", "--cgroup", f"{group}/n1"
    ).start()
    try:
        idle_watts = client.truth(node.socket)["power_watts"]["cpu"]
        files = client.register_job(node.socket, 7, "0-127")
        assert files and all(Path(path).exists() for path in files)
        with spinning(files) as share:
            until(lambda: client.truth(node.socket)["power_watts"]["cpu"] > idle_watts + 50)
            shares = []
            until(lambda: shares.append(share()) or shares[-1] > 1.5 * MOST_SLOW)  # other work may leave less
            for cpu in range(128):
                node.write(f"{CPUFREQ}/policy{cpu}/scaling_governor", "powersave")
            assert max(shares) <= 0.5
            until(lambda: share() <= MOST_SLOW)  # the emulator may be late to follow
        assert client.status(node.socket)["throttle"]["mode"] == "v1"
    finally:
        assert node.stop() == 0
    assert own_groups(group) == []


@pytest.mark.skipif(not Path("/sys/fs/cgroup/cpuacct").is_dir(), reason="needs control groups version 1")
def test_programs_that_outlive_the_emulator_get_their_speed_back(place):
    group = f"senergy-test-{os.getpid()}"
    node = LabNode(place, "xeon-8358", "--cgroup", f"{group}/n1").start()
    sleeper = subprocess.Popen(["sleep", "60"])
    try:
        for path in client.register_job(node.socket, 7):
            Path(path).write_text(str(sleeper.pid))
        assert group in Path(f"/proc/{sleeper.pid}/cgroup").read_text()
        assert node.stop() == 0
        assert group not in Path(f"/proc/{sleeper.pid}/cgroup").read_text()
    finally:
        sleeper.kill()
        sleeper.wait(timeout=60)
    assert own_groups(group) == []
