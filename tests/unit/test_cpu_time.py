"""Tests of reading the CPU time of jobs.

The CPU time comes from each layout of control groups that Slurm creates, or from processes.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from hardware_tree import Tree
from hypothesis import given
from hypothesis import strategies as st

from slurm_energy.devices.cpu import process_tree
from slurm_energy.devices.cpu.cpu_time import (
    PROCESS_TREE,
    JobCpuTimeReader,
    JobProcesses,
    NodeBusyTimeReader,
)
from slurm_energy.devices.cpu.process_tree import (
    NS_PER_TICK,
    JobCpuTime,
    accumulate,
    find_slurmstepds,
    parse_stat,
)
from slurm_energy.devices.driver import DeviceError

CG = "sys/fs/cgroup"
SCOPE = f"{CG}/system.slice/slurmstepd.scope"
SLUID = "sEKNKTV3WPV500"  # the example of cgroup.conf(5)
STAT = "usage_usec {usec}\nuser_usec 5\nsystem_usec 6\nnr_periods 0"


OTHER_UID = os.getuid() + 1001  # neither root nor the user who runs the tests


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    made = Tree(tmp_path)
    (tmp_path / "proc").mkdir()
    return made


def v2(tree: Tree, directory: str, usec: int) -> None:
    tree.put(f"{directory}/cpu.stat", STAT.format(usec=usec))


LAYOUTS = {
    "v1": f"{CG}/cpuacct/slurm/uid_1001/job_12/cpuacct.usage",
    "v1, several slurmds": f"{CG}/cpuacct/slurm_n1/uid_1001/job_12/cpuacct.usage",
    "v1, joint mount": f"{CG}/cpu,cpuacct/slurm/uid_1001/job_12/cpuacct.usage",
    "v2": f"{SCOPE}/job_12/cpu.stat",
    "v2, several slurmds": f"{CG}/system.slice/n1_slurmstepd.scope/job_12/cpu.stat",
    "v2, other slice": f"{CG}/batch.slice/slurmstepd.scope/job_12/cpu.stat",
    "v2, hybrid": f"{CG}/unified/system.slice/slurmstepd.scope/job_12/cpu.stat",
    "26.05, SLUID": f"{SCOPE}/{SLUID}/cpu.stat",
}


@pytest.mark.parametrize("path", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_a_job_s_group_is_found(tree: Tree, path: str) -> None:
    usage = STAT.format(usec=1_500) if path.endswith("cpu.stat") else "1500000"
    tree.put(path, usage)
    times = JobCpuTimeReader(tree.root, "n1")
    assert times.read([JobProcesses(12, SLUID)]) == {12: 1_500_000}
    assert times.source(12) == str(tree.root / path)
    times.close()


def test_other_jobs_and_other_nodes_groups_do_not_count(tree: Tree) -> None:
    tree.put(f"{CG}/cpuacct/slurm_n2/uid_1001/job_12/cpuacct.usage", 5)
    v2(tree, f"{SCOPE}/job_123", 6)
    v2(tree, f"{SCOPE}/{SLUID}", 7)
    assert JobCpuTimeReader(tree.root, "n1").read([JobProcesses(12)]) == {12: None}


def test_an_unknown_sluid_is_found_through_a_process(tree: Tree) -> None:
    v2(tree, f"{SCOPE}/{SLUID}", 9)
    tree.put("proc/4711/cgroup", f"0::/system.slice/slurmstepd.scope/{SLUID}/step_0/slurm")
    times = JobCpuTimeReader(tree.root, "n1")
    assert times.read([JobProcesses(12, pids=(4711,))]) == {12: 9_000}
    times.close()


def test_the_scope_s_own_process_is_no_job(tree: Tree) -> None:
    v2(tree, f"{SCOPE}/system", 9)
    tree.put("proc/4711/cgroup", "0::/system.slice/slurmstepd.scope/system")
    assert JobCpuTimeReader(tree.root, "n1").read([JobProcesses(12, pids=(4711,))]) == {12: None}


def test_a_group_that_another_program_made_is_found_through_a_process(tree: Tree) -> None:
    tree.put(f"{CG}/cpuacct/site/n1/job_12/cpuacct.usage", 77)
    tree.put(
        "proc/4711/cgroup", "9:cpuset:/x\n4:cpuacct:/site/n1/job_12/step_0\n1:name=systemd:/job_12\n0::/"
    )
    times = JobCpuTimeReader(tree.root, "n1")
    assert times.read([JobProcesses(12, pids=(4711,))]) == {12: 77}
    times.close()


def test_a_read_is_one_pread_on_an_open_descriptor_and_never_decreases(tree: Tree) -> None:
    file = tree.put(f"{SCOPE}/job_12/cpu.stat", STAT.format(usec=100))
    times, job = JobCpuTimeReader(tree.root, "n1"), JobProcesses(12)
    assert times.read([job]) == {12: 100_000}
    assert tree.open_files() == 1
    file.write_text(STAT.format(usec=250))
    assert times.read([job]) == {12: 250_000}
    file.write_text(STAT.format(usec=200))
    assert times.read([job]) == {12: 250_000}
    assert tree.open_files() == 1
    times.forget(12)
    assert tree.open_files() == 0
    assert times.source(12) is None


def test_the_last_value_stays_when_the_group_is_gone(tree: Tree) -> None:
    file = tree.put(f"{SCOPE}/job_12/cpu.stat", STAT.format(usec=100))
    times, job = JobCpuTimeReader(tree.root, "n1"), JobProcesses(12)
    times.read([job])
    file.write_text("")  # the descriptor of a removed group gives an error; here it gives nothing
    file.unlink()
    assert times.read([job]) == {12: 100_000}
    times.close()


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make a control group")
def test_a_real_control_group_counts(tmp_path: Path) -> None:
    """The CPU time of a real cgroup v2 of this machine increases, wherever cgroup v2 is mounted."""
    mount = next((p for p in (Path(f"/{CG}/unified"), Path(f"/{CG}")) if (p / "cgroup.procs").exists()), None)
    if mount is None or not (mount / "cgroup.controllers").exists():
        pytest.skip("no cgroup v2 here")
    top = mount / f"senergy-test-{os.getpid()}.slice"
    group = top / "slurmstepd.scope" / f"job_{os.getpid()}"
    group.mkdir(parents=True)
    worker = subprocess.Popen([sys.executable, "-c", "import time\nwhile time.process_time() < 30: pass"])
    try:
        (group / "cgroup.procs").write_text(str(worker.pid))
        times, job = JobCpuTimeReader(Path("/"), "n1"), JobProcesses(os.getpid())
        first = times.read([job])[job.job_id]
        deadline = time.monotonic() + 60
        later = first
        while later is not None and first is not None and later - first < 50_000_000:
            assert time.monotonic() < deadline, "the group's CPU time does not grow"
            time.sleep(0.05)
            later = times.read([job])[job.job_id]
        assert times.source(job.job_id) == str(group / "cpu.stat")
        times.close()
    finally:
        worker.kill()
        worker.wait(60)
        for _ in range(100):
            try:
                for folder in (group, group.parent, top):
                    if folder.exists():
                        folder.rmdir()
                break
            except OSError:
                time.sleep(0.05)


# Processes.


def process(
    tree: Tree, pid: int, parent: int, ticks: int, waited: int = 0, title: str = "", start: int = 1
) -> None:
    fields = ["S", parent, *([0] * 9), ticks, 0, waited, 0, 20, 0, 1, 0, start, 0]
    tree.put(f"proc/{pid}/stat", f"{pid} (a) b ( c)) {' '.join(str(field) for field in fields)}")
    file = tree.put(f"proc/{pid}/cmdline", "")
    file.write_bytes(title.encode() + b"\0")
    tree.process_ids(pid)


def test_many_jobs_without_group_share_the_search(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader of CPU times lists the cgroup directories once for all jobs, not once per job.

    This saves time on a node on which Slurm creates no control groups for jobs.
    """
    listed: list[str] = []

    def list_directory(path: str) -> list[str]:
        listed.append(str(path))
        return []

    monkeypatch.setattr(os, "listdir", list_directory)
    counts = []
    for jobs in (1, 30):
        listed.clear()
        JobCpuTimeReader(tree.root, "n1").read([JobProcesses(job_id) for job_id in range(jobs)])
        counts.append(sum(CG in path for path in listed))
    assert counts[0] == counts[1] > 0


def test_without_groups_the_stepd_s_tree_is_added_up(tree: Tree) -> None:
    process(tree, 1, 0, 1000)
    process(tree, 100, 1, 3, waited=7, title="slurmstepd: [12.batch]")
    process(tree, 101, 100, 10, title="bash")
    process(tree, 102, 101, 20)
    process(tree, 200, 1, 5, title="slurmstepd: [12.0]")
    process(tree, 300, 1, 500, title="slurmstepd: [123.0]")
    process(tree, 301, 1, 400, title="bash slurmstepd: [12.0]")
    times = JobCpuTimeReader(tree.root, "n1")
    assert times.read([JobProcesses(12), JobProcesses(123), JobProcesses(5)]) == {
        12: 45 * NS_PER_TICK,
        123: 500 * NS_PER_TICK,
        5: None,
    }
    assert times.source(12) == PROCESS_TREE


def test_known_processes_count_without_a_stepd(tree: Tree) -> None:
    process(tree, 50, 1, 4)
    process(tree, 51, 50, 6)
    assert JobCpuTimeReader(tree.root, "n1").read([JobProcesses(12, pids=(50,))]) == {12: 10 * NS_PER_TICK}


def test_the_time_of_a_process_is_kept_when_it_ends(tree: Tree) -> None:
    process(tree, 100, 1, 0, title="slurmstepd: [12.0]")
    process(tree, 101, 100, 40)
    process(tree, 102, 100, 60)
    times, job = JobCpuTimeReader(tree.root, "n1"), JobProcesses(12)
    assert times.read([job]) == {12: 100 * NS_PER_TICK}
    for file in (tree.root / "proc/101").iterdir():
        file.unlink()
    process(tree, 100, 1, 1, waited=45, title="slurmstepd: [12.0]")  # 101 used 5 more and was waited for
    assert times.read([job]) == {12: 106 * NS_PER_TICK}
    for file in (tree.root / "proc/102").iterdir():
        file.unlink()
    process(tree, 100, 1, 2, waited=45, title="slurmstepd: [12.0]")  # no process waited for 102
    assert times.read([job]) == {12: 107 * NS_PER_TICK}
    process(tree, 103, 100, 9)
    assert times.read([job]) == {12: 116 * NS_PER_TICK}


def test_a_process_id_used_again_is_another_process() -> None:
    earlier = JobCpuTime(100, {(7, 1): 100}, 0)
    assert accumulate(earlier, JobCpuTime(30, {(7, 2): 30}, 0)) == JobCpuTime(130, {(7, 2): 30}, 0)


LIVING = st.dictionaries(st.tuples(st.integers(1, 9), st.integers(0, 2)), st.integers(0, 1000))


@given(st.lists(st.tuples(LIVING, st.integers(0, 1000)), min_size=1, max_size=8))
def test_the_sum_never_decreases(readings: list[tuple[dict[tuple[int, int], int], int]]) -> None:
    total: JobCpuTime | None = None
    for living, waited in readings:
        before = total.ticks if total else 0
        total = accumulate(total, JobCpuTime(sum(living.values()) + waited, living, waited))
        assert total is not None and total.ticks >= before


@given(st.binary(max_size=200))
def test_damaged_stat_lines_are_refused(content: bytes) -> None:
    with contextlib.suppress(ValueError):
        parse_stat(content)


def test_own_processes_are_found() -> None:
    mine = process_tree.read_processes(Path("/"))[os.getpid()]
    assert mine.parent == os.getppid()
    assert abs(mine.ticks * NS_PER_TICK - time.process_time_ns()) < 1e9


def test_busy_time_leaves_idle_out(tree: Tree) -> None:
    reader = NodeBusyTimeReader(tree.root)
    tree.put("proc/stat", "cpu  10 20 30 40000 5000 1 2 0 0 0\ncpu0 1 2 3 4 5 6 7 0 0 0")
    assert reader.read_ns() == 63 * NS_PER_TICK
    tree.put("proc/stat", "nothing")
    with pytest.raises(DeviceError, match="known form"):
        reader.read_ns()
    (tree.root / "proc/stat").unlink()
    with pytest.raises(DeviceError, match="No such file"):
        reader.read_ns()
    tree.put("proc/stat", "cpu  11 20 30 40000 5000 1 2 0 0 0")
    assert reader.read_ns() == 64 * NS_PER_TICK
    reader.close()


def test_busy_time_of_this_machine_grows_and_costs_one_open_file() -> None:
    reader = NodeBusyTimeReader(Path("/"))
    first = reader.read_ns()
    files = len(list(Path("/proc/self/fd").iterdir()))
    start = time.process_time_ns()
    while time.process_time_ns() - start < 5 * NS_PER_TICK:
        pass
    assert reader.read_ns() > first > 0
    assert len(list(Path("/proc/self/fd").iterdir())) == files
    reader.close()


@pytest.mark.parametrize(
    ("uid", "gid", "effective_uid"),
    [
        pytest.param(OTHER_UID, OTHER_UID, OTHER_UID, id="a program of a user"),
        pytest.param(OTHER_UID, OTHER_UID, 0, id="a set-uid program"),
        pytest.param(0, OTHER_UID, 0, id="sudo"),
    ],
)
def test_a_user_s_process_that_calls_itself_slurmstepd_does_not_count(
    tree: Tree, uid: int, gid: int, effective_uid: int
) -> None:
    process(tree, 100, 1, 3, title="slurmstepd: [12.batch]")
    process(tree, 200, 1, 500, title="slurmstepd: [12.0]")
    process(tree, 201, 200, 400)
    tree.process_ids(200, uid, gid, effective_uid)
    assert JobCpuTimeReader(tree.root, "n1").read([JobProcesses(12)]) == {12: 3 * NS_PER_TICK}


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root for a set-uid program")
def test_a_set_uid_program_that_a_user_calls_slurmstepd_does_not_count() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        Path(directory).chmod(0o755)
        program = Path(shutil.copy("/bin/sleep", directory))
        program.chmod(0o4755)
        title = f"slurmstepd: [{os.getpid()}.0]"
        with subprocess.Popen([title, "60"], executable=program, user=65534, group=65534) as user_s:
            with subprocess.Popen([title, "60"], executable="/bin/sleep") as root_s:
                for child in (user_s, root_s):
                    while not Path(f"/proc/{child.pid}/cmdline").read_bytes():  # execve has not ended
                        time.sleep(0.01)
                stepds = find_slurmstepds(Path("/"), [user_s.pid, root_s.pid])
                root_s.kill()
            user_s.kill()
    assert stepds == {os.getpid(): [root_s.pid]}
