"""Tests of the start and the end of a lab, a Slurm cluster of emulated nodes.

The lab leaves nothing behind, even if a process is killed or fails meanwhile.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab_driver import PARENT, LabDriver, LabRequest, traces_of

from slurm_energy.errors import AlreadyRunningError, ConfigError, UsageError
from slurm_energy_lab.cluster import layout, lifecycle, processes
from slurm_energy_lab.cluster.artifacts import SYSTEM_PATH
from slurm_energy_lab.cluster.lab import Lab
from slurm_energy_lab.cluster.nodes_file import from_profiles
from slurm_energy_lab.cluster.specification import LabSpec
from slurm_energy_lab.cluster.startup import StepError

pytestmark = [pytest.mark.cluster, pytest.mark.root, pytest.mark.usefixtures("machine")]

SENERGY = [sys.executable, "-m", "slurm_energy.cli.main", "lab"]
SMALL = ["--no-accounting", "--no-energy"]
ONE_NODE = '[[node]]\nname = "box"\nprofile = "xeon-8358"\noverrides = { memory.total_mb = 4096 }\n'
# More memory than any machine has, and slurmd says so: `up` waits for this node until its time is over.
NEVER_IDLE = ONE_NODE.replace("4096", "99000000")
NEVER_UP = [*SMALL, "--set", "SlurmdParameters=shutdown_on_reboot"]
HOST_PLACES = ["/etc", "/run", "/var/lib", "/var/log", "/dev/shm", "/etc/slurm", "/etc/munge", "/run/munge"]
DAEMONS = [
    ("munged", None),
    ("mariadbd", None),
    ("slurmdbd", None),
    ("slurmctld", None),
    ("emulator", "n1"),
    ("slurmd", "n1"),
]


@pytest.fixture
def root() -> Iterator[Path]:
    """A directory for a lab of this test; the lab is removed at the end."""
    path = PARENT / f"senergy-test-{os.getpid()}-life"
    yield path
    lifecycle.down(layout.locate_lab(path))


@pytest.fixture
def nodes_file(tmp_path: Path) -> Path:
    path = tmp_path / "nodes.toml"
    path.write_text(ONE_NODE)
    return path


@pytest.fixture
def up_in_vain(root: Path, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process `senergy lab up` that is running, has started all daemons, but will never finish."""
    nodes = tmp_path / "never.toml"
    nodes.write_text(NEVER_IDLE)
    argv = [*SENERGY, "up", "--nodes", str(nodes), *NEVER_UP]
    environment = {**os.environ, "SENERGY_LAB_DIR": str(root)}
    with subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, text=True) as up:
        yield up
        up.kill()


def read_until(up: subprocess.Popen[str], words: str) -> None:
    assert up.stdout is not None
    assert any(words in line for line in up.stdout), f"up has ended without saying {words!r}"


def kill_first_process(lab: Lab, node: str | None) -> None:
    """Kill a supervisor, and wait until the kernel has ended everything in its namespaces."""
    pid = processes.SupervisorClient(lab.layout.supervisor_socket(node)).pid()
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + 60
    while processes.is_running(pid):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def senergy(root: Path, *argv: str, **options) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "SENERGY_LAB_DIR": str(root)}
    return subprocess.run(
        [*SENERGY, *argv],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        **options,
    )


def small_spec(**more) -> LabSpec:
    return LabSpec(from_profiles(["xeon-8358"]), accounting=False, product=False, **more)


def host_files() -> set[tuple[str, int | bytes]]:
    """Return the host's files that a lab could have changed, each with its modification time.

    The linker's cache is returned with its content instead, because other tests and programs write
    the same content repeatedly. Temporary files of ldconfig, whose names end in `~`, are left out.
    """
    found = set()
    for place in HOST_PLACES:
        for path in Path(place).glob("*") if Path(place).is_dir() else []:
            if path.name.endswith("~"):
                continue
            if re.search("slurm|munge|mysql|maria|senergy|ld.so|hosts", str(path)) and not path.is_dir():
                with contextlib.suppress(FileNotFoundError):  # a file of another program that disappears
                    cache = path.name == "ld.so.cache"
                    found.add((str(path), path.read_bytes() if cache else path.stat().st_mtime_ns))
    return found


def gone_within(root: Path, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while processes.lab_processes(root) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not processes.lab_processes(root)


def test_up_status_up_again_and_down(root: Path, nodes_file: Path):
    before = host_files()
    program = Path(sys.executable).with_name("senergy")  # as make calls it: not in PATH
    argv = [program, "lab", "up", "--dir", root, "--nodes", nodes_file, *SMALL]
    first = subprocess.run(
        argv, env={"PATH": SYSTEM_PATH}, capture_output=True, text=True, timeout=240, check=False
    )
    assert first.returncode == 0, first.stderr
    assert re.search(r"^  box slurmd +\d+\.\d\d s$", first.stdout, re.MULTILINE)
    assert first.stdout.splitlines()[-3].strip() == f"{program} lab shell --dir {root}"
    assert first.stdout.startswith(f"Bringing up a lab of 1 node in {root}\n")

    second = senergy(root, "up")
    assert (second.returncode, second.stdout) == (0, f"The lab is up in {root}: nodes box.\n")

    status = json.loads(senergy(root, "status", "--json").stdout)
    assert status["nodes"]["box"]["state"] == "idle"
    assert senergy(root, "exec", "box", "hostname").stdout == "box\n"

    down = senergy(root, "down")
    assert (down.returncode, down.stdout) == (0, f"The lab in {root} is gone.\n")
    assert traces_of(root) == []
    assert host_files() == before
    assert senergy(root, "down").stdout == f"There is no lab in {root}.\n"
    status = senergy(root, "status")
    assert status.returncode == 4
    assert status.stderr == f"senergy: error: no lab is up in {root}: senergy lab up\n"


def test_a_control_group_is_removed_after_its_last_process(root: Path):
    """`senergy lab down` removes the lab's control group even if a process is still ending in it.

    After SIGKILL a process takes a moment to leave its control group.
    """
    home = next(path for path in (Path("/sys/fs/cgroup/cpuacct"), Path("/sys/fs/cgroup")) if path.is_dir())
    group = home / layout.locate_lab(root).cgroup
    group.mkdir()
    last = subprocess.Popen(["sleep", "0.7"])
    (group / "cgroup.procs").write_text(str(last.pid))
    root.mkdir()
    assert senergy(root, "down").returncode == 0
    assert last.wait() == 0
    assert not group.exists()


def test_overrides_and_settings_reach_node_and_slurm(root: Path, nodes_file: Path):
    up = senergy(
        root, "up", "--nodes", str(nodes_file), *SMALL, "--set", "KillWait=17", "--set", "MaxArraySize=77"
    )
    assert up.returncode == 0, up.stderr
    lab = lifecycle.running_lab(layout.locate_lab(root))
    environment = {**os.environ, **lab.environment()}
    config = subprocess.check_output(["scontrol", "show", "config"], env=environment, text=True, timeout=120)
    assert re.search(r"KillWait += 17 sec", config)
    assert re.search(r"MaxArraySize += 77", config)
    node = subprocess.check_output(
        ["scontrol", "show", "node", "box"], env=environment, text=True, timeout=120
    )
    assert "RealMemory=4096" in node


@pytest.fixture(scope="module")
def product_lab(machine) -> Iterator[LabDriver]:
    driver = LabDriver(LabRequest(profiles=("xeon-8358",), product=False))
    yield driver
    driver.down()


@pytest.mark.parametrize(("daemon", "node"), [pair for pair in DAEMONS if pair[0] != "emulator"])
def test_a_killed_daemon_starts_again(product_lab: LabDriver, daemon: str, node: str | None):
    product_lab.kill(daemon, node)
    product_lab.start(daemon, node)
    assert processes.is_running(product_lab.pid(daemon, node))


@pytest.mark.parametrize(("daemon", "node"), DAEMONS)
def test_down_after_kill_of_any_daemon_leaves_nothing(daemon: str, node: str | None):
    accounting = daemon in ("mariadbd", "slurmdbd")
    driver = LabDriver(LabRequest(profiles=("xeon-8358",), product=False, accounting=accounting))
    try:
        job = driver.sbatch("sleep 100")
        driver.kill(daemon, node)
        assert job == 1
    finally:
        driver.down()
    assert traces_of(driver.layout.root) == []


def test_down_ends_srun_on_the_login_node():
    driver = LabDriver(LabRequest(profiles=("xeon-8358",), product=False, accounting=False))
    try:
        srun = subprocess.Popen(["srun", "sleep", "100"], env=driver.env, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        while driver.lab.node_states().get("n1", "idle") == "idle":
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        driver.down()
    assert srun.wait(timeout=60) != 0
    assert traces_of(driver.layout.root) == []


@pytest.mark.parametrize("node", [None, "n1"])
def test_down_after_kill_of_a_first_process_leaves_nothing(node: str | None):
    driver = LabDriver(LabRequest(profiles=("xeon-8358",), product=False, accounting=False))
    try:
        driver.run("srun", "--overlap", "true")
        kill_first_process(driver.lab, node)
        refused = senergy(driver.layout.root, "exec", "n1", "true")
        assert refused.returncode == 4
        assert len(refused.stderr.splitlines()) == 1
    finally:
        driver.down()
    assert traces_of(driver.layout.root) == []


@pytest.mark.parametrize("last_line", ["Bringing up", "emulator", "slurmctld"])
def test_a_killed_up_ends_its_processes_and_down_the_rest(
    root: Path, up_in_vain: subprocess.Popen[str], last_line: str
):
    read_until(up_in_vain, last_line)
    up_in_vain.kill()
    up_in_vain.wait()
    assert gone_within(root, 60)
    assert senergy(root, "down").returncode == 0
    assert traces_of(root) == []


def test_up_removes_the_remains_of_a_killed_up(root: Path, nodes_file: Path):
    lab = lifecycle.up(layout.locate_lab(root), small_spec())
    kill_first_process(lab, None)
    up = senergy(root, "up", "--nodes", str(nodes_file), *SMALL)
    assert up.returncode == 0, up.stderr
    assert senergy(root, "exec", "box", "true").returncode == 0


def test_an_interrupted_up_cleans_up(root: Path, up_in_vain: subprocess.Popen[str]):
    read_until(up_in_vain, "emulator")
    up_in_vain.terminate()
    up_in_vain.communicate(timeout=60)
    assert up_in_vain.returncode == 130
    assert traces_of(root) == []


def test_a_broken_setting_names_the_daemon_and_shows_its_log(root: Path, nodes_file: Path):
    up = senergy(root, "up", "--nodes", str(nodes_file), *SMALL, "--set", "SlurmctldDebug=nonsense")
    assert up.returncode == 4
    *log, error = up.stderr.splitlines()
    assert error == "senergy: error: slurmctld: ended with exit code 1"
    assert any("Invalid SlurmctldDebug nonsense" in line for line in log)
    assert traces_of(root) == []


def test_a_taken_port_names_the_daemon(root: Path, monkeypatch: pytest.MonkeyPatch):
    with socket.create_server(("127.0.0.1", 0)) as other:
        reserve = processes.reserve_ports

        def taken_first(count: int, start: int) -> list[socket.socket]:
            return [other.dup(), *reserve(count - 1, start)]

        monkeypatch.setattr(processes, "reserve_ports", taken_first)
        with pytest.raises(StepError) as caught:
            lifecycle.up(layout.locate_lab(root), small_spec())
    assert str(caught.value).startswith("slurmctld: ")
    assert any("Address already in use" in line for line in caught.value.log_tail)
    assert traces_of(root) == []


def test_a_machine_without_hosts_file_and_slurm_directory(root: Path, nodes_file: Path, tmp_path: Path):
    for name in ("upper", "work"):
        (tmp_path / name).mkdir()
    options = f"lowerdir=/etc,upperdir={tmp_path}/upper,workdir={tmp_path}/work"
    up = shlex.join([*SENERGY, "up", "--nodes", str(nodes_file), *SMALL])
    script = f"mount -t overlay etc -o {options} /etc && rm -rf /etc/hosts /etc/hostname /etc/slurm && {up}"
    environment = {**os.environ, "SENERGY_LAB_DIR": str(root)}
    argv = ["unshare", "-m", "--propagation", "private", "sh", "-c", script]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=240, check=False)
    if "mount:" in done.stderr:
        pytest.skip(f"no overlay file system here: {done.stderr}")
    assert done.returncode == 0, done.stderr
    assert "controller box" in senergy(root, "exec", "box", "cat", "/etc/hosts").stdout
    assert senergy(root, "exec", "box", "cat", "/etc/hostname").stdout == "box\n"
    assert "slurm.conf" in senergy(root, "exec", "box", "ls", "/etc/slurm").stdout
    assert "root:" in senergy(root, "exec", "box", "cat", "/etc/passwd").stdout


def test_two_concurrent_ups_do_not_disturb_each_other(root: Path):
    place = layout.locate_lab(root)
    with lifecycle._locked(place), pytest.raises(AlreadyRunningError, match="another senergy lab"):
        lifecycle.up(place, small_spec())
    root.rmdir()


def test_a_directory_with_other_files_is_unchanged():
    folder = Path(tempfile.mkdtemp(prefix="other-"))
    text = folder / "thesis.tex"
    text.write_text("years of work")
    for act in (lambda place: lifecycle.up(place, small_spec()), lifecycle.down):
        with pytest.raises(UsageError, match="not empty and not a lab's"):
            act(layout.locate_lab(folder))
    assert text.read_text() == "years of work"
    text.unlink()
    folder.rmdir()


def test_an_unknown_profile_is_refused_before_anything_begins(root: Path):
    with pytest.raises(ConfigError):
        lifecycle.up(layout.locate_lab(root), LabSpec(from_profiles(["abacus"])))
    assert not root.exists()


@pytest.mark.parametrize("command", [["up"], ["down"], ["status"], ["exec", "n1", "true"]])
@pytest.mark.other_user
def test_users_other_than_root_are_refused(root: Path, command: list[str]):
    done = senergy(root, *command, user="nobody", cwd="/")
    assert done.returncode == 5
    assert done.stderr.splitlines() == [
        "senergy: error: senergy lab: namespaces, FUSE and Slurm's daemons need root: run it with sudo"
    ]
