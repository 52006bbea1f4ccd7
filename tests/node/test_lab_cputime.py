"""Tests of CPU times inside an emulated node.

slurm-energy and other tools must read the CPU times of the emulated processors, not those of this machine.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from lab_node import INSIDE, LabNode

from slurm_energy_lab import client

pytestmark = [pytest.mark.node, pytest.mark.root]

READ = """
import json, os
from pathlib import Path
from slurm_energy.devices.cpu.cpu_time import JobCpuTimeReader, JobProcesses, NodeBusyTimeReader
for path in %r:
    Path(path).write_text("0")
times = JobCpuTimeReader(Path("/"), "n1")
jobs = times.read([JobProcesses(7, pids=(os.getpid(),)), JobProcesses(17), JobProcesses(8), JobProcesses(9)])
sources = {job: times.source(job) for job in jobs}
print(json.dumps({"node": NodeBusyTimeReader(Path("/")).read_ns(), "jobs": jobs, "source": sources}))
"""
GROUP = "/sys/fs/cgroup/system.slice/n1_slurmstepd.scope/job_{}/cpu.stat"
UNIFIED = Path("/sys/fs/cgroup/unified")
ONLY_V2 = 'mount --bind /sys/fs/cgroup/unified /sys/fs/cgroup && exec "$@"'


@pytest.fixture(scope="module")
def node(emulate: Callable[..., LabNode]) -> LabNode:
    return emulate("epyc-7513-a100", "--set", "cpu.system_cpus=0")


def seen(node: LabNode, groups: Sequence[str] = ()) -> dict:
    """Return the CPU times in an emulated node as a process of job 7 sees them.

    The process runs in the node. The result also names the sources of the times. The times are in
    nanoseconds.

    Args:
        node: the node in which the process runs.
        groups: files of control groups that the process joins before it reads the times.
    """
    return json.loads(node.output(sys.executable, "-c", READ % (list(groups),)))


def test_a_kernels_cpu_time_is_the_jobs_and_the_nodes(node):
    before = seen(node)  # other tests' kernels
    first = client.run_kernel(node.socket, "gemm", cpus=[0, 1, 32, 33], full_speed_s=0.1, job_id=17)
    second = client.run_kernel(node.socket, "triad", "gpu", cpus=[4], gpus=[0, 1], full_speed_s=1, job_id=8)
    found = seen(node)
    expected = {"17": 4 * first["seconds"], "8": second["seconds"]}
    assert second["seconds"] == pytest.approx(1.0, rel=0.1)
    for job, seconds in expected.items():
        assert before["jobs"][job] is None
        assert found["jobs"][job] / 1e9 == pytest.approx(seconds, rel=1e-5)
    assert found["jobs"]["9"] is None
    in_ticks = (found["node"] - before["node"]) / 1e9
    assert in_ticks == pytest.approx(sum(expected.values()), abs=0.02)
    assert found["source"]["17"] == GROUP.format(17)
    truth = client.truth(node.socket, jobs=True)["jobs"]
    assert found["jobs"]["17"] / 1e9 == pytest.approx(truth["17"]["cpu_seconds"], abs=1e-5)


@pytest.mark.skipif(not shutil.which("vmstat"), reason="needs procps")
def test_procps_reads_the_same(node):
    client.run_kernel(node.socket, "monte_carlo", cpus=[2], full_speed_s=0.01, job_id=7)
    busy_ticks = seen(node)["node"] / 1e9 * os.sysconf("SC_CLK_TCK")
    lines = [line.split(maxsplit=1) for line in node.output("vmstat", "-s").splitlines()]
    counts = {words[1]: words[0] for words in lines}
    assert float(counts["non-nice user cpu ticks"]) == pytest.approx(busy_ticks, abs=1)
    machine = dict(line.split(maxsplit=1) for line in Path("/proc/stat").read_text().splitlines())
    assert counts["boot time"] == machine["btime"]
    assert "up" in node.output("uptime")


def test_the_groups_of_real_programs_are_not_taken_for_slurms(place):
    """The CPU time of a job is read from its own control group, not from that of a program.

    The test runs a real program in an emulated node. The program's control group counts real CPU time. The
    control group of the Slurm job counts emulated CPU time, and the reader must use it.
    """
    group = f"senergy-test-{os.getpid()}"
    node = LabNode(place, "xeon-8358", "--cgroup", f"{group}/n1").start()
    try:
        files = client.register_job(node.socket, 7, "0-127")
        if not files:
            pytest.skip(client.status(node.socket)["throttle"]["reason"])
        program = f"import os\nfor f in {files!r}: open(f, 'w').write(str(os.getpid()))\nwhile True: pass"
        spinner = subprocess.Popen([sys.executable, "-c", program])
        try:
            deadline = time.monotonic() + 60
            while used(node) < 20:
                assert time.monotonic() < deadline
                time.sleep(0.1)
        finally:
            spinner.kill()
            spinner.wait(timeout=60)
        before, found, after = used(node), seen(node, files), used(node)
        assert found["source"]["7"] == GROUP.format(7)
        assert before - 1e-5 <= found["jobs"]["7"] / 1e9 <= after + 1e-5
    finally:
        assert node.stop() == 0
    folders = os.walk("/sys/fs/cgroup")  # unlike glob it tolerates groups that are removed meanwhile
    assert not [folder for folder, _, _ in folders if Path(folder).name == group]


def used(node: LabNode) -> float:
    return client.truth(node.socket, jobs=True)["jobs"]["7"]["cpu_seconds"]


@pytest.mark.skipif(not UNIFIED.is_dir(), reason="needs version 2 beside version 1 to play version 2 alone")
def test_a_machine_with_version_2_alone(node):
    """The lab works on a machine that has only cgroup version 2.

    On such a machine, /sys/fs/cgroup is itself a cgroup2 mount, in which new mount points cannot be created.
    """
    client.run_kernel(node.socket, "gemm", cpus=[0], full_speed_s=0.01, job_id=7)
    group = UNIFIED / f"senergy-test-{os.getpid()}"
    group.mkdir()
    join = f"echo 0 > /sys/fs/cgroup/{group.name}/cgroup.procs && grep {group.name} /proc/self/cgroup"
    script = f"cat {GROUP.format(7)} && head -c 20 /sys/fs/cgroup/cgroup.procs && {join}"
    inside = [sys.executable, str(INSIDE), str(node.tree), str(node.stage), "0", "sh", "-c", script]
    argv = ["unshare", "-m", "--propagation", "private", "sh", "-c", ONLY_V2, "sh", *inside]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    finally:
        group.rmdir()
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("usage_usec ")


@pytest.fixture
def place(machine, tmp_path) -> Path:
    return tmp_path
