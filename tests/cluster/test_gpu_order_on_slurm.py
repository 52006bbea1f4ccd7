"""Tests of the order in which slurmd numbers the GPUs of a node.

`slurmd -G` prints the list of slurmd. The file fake_gpus.conf of Slurm's own tests replaces the result of the
automatic detection, which would need a GPU. The tests compare the list with that of `slurm.gpu_order`.
spank-release.sh runs the tests in a bare root directory with another release of Slurm.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path

import pytest
from small_cluster import SEARCH, SmallCluster, cgroup_line, marks

from slurm_energy.slurm import conf_files
from slurm_energy.slurm.gpu_order import DetectedGpu, gpu_files
from slurm_energy.slurm.gres_conf import node_gpus, read_gres_conf

REPOSITORY = Path(__file__).resolve().parents[2]

pytestmark = marks()

SLURM_CONF = """\
ClusterName=gpus
SlurmctldHost=localhost
SlurmUser=root
AuthType=auth/none
CredType=cred/none
GresTypes=gpu
DebugFlags=Gres
SlurmdSpoolDir={dir}/spool
SlurmdPidFile={dir}/slurmd.pid
StateSaveLocation={dir}/state
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
NodeName=DEFAULT CPUs=2
NodeName=n1 NodeHostname=localhost {gres}
NodeName=n2 NodeHostname=localhost Gres=gpu:1
PartitionName=all Nodes=ALL
"""
RECORD = re.compile(r"Gres Name=gpu .*? File=(\S+)")
A100, B200 = "nvidia_a100-sxm4-40gb", "nvidia_b200"


class Node:
    """Directory with the configuration of a node and the device files nvidia0 to nvidia11."""

    def __init__(self, directory):
        self.directory = directory
        self.environment = {"PATH": SEARCH, "LC_ALL": "C"}
        for name in ("spool", "state"):
            (directory / name).mkdir()
        for number in range(12):
            os.mknod(directory / f"nvidia{number}", stat.S_IFCHR | 0o600, os.makedev(1, 3))
        (directory / "cgroup.conf").write_text(f"{cgroup_line()}\n")

    def file(self, number):
        return f"{self.directory}/nvidia{number}"

    def configure(self, gres, lines, detected=()):
        """Write the files of Slurm. `detected` has the minor number and the product of each detected GPU."""
        text = "\n".join(lines).replace("@", f"{self.directory}/nvidia")
        (self.directory / "slurm.conf").write_text(SLURM_CONF.format(dir=self.directory, gres=gres))
        (self.directory / "gres.conf").write_text(text + "\n")
        fake = self.directory / "fake_gpus.conf"
        fake.unlink(missing_ok=True)
        self.detected = [
            DetectedGpu(self.file(minor), kind, index) for index, (minor, kind) in enumerate(detected)
        ]
        if detected:
            links = [[0] * len(detected) for _ in detected]
            for index, own in enumerate(links):
                own[index] = -1
            fake.write_text(
                "".join(
                    f"{gpu.kind}|2|0-1|{','.join(map(str, own))}|{gpu.file}|(null)|nvidia_gpu_env\n"
                    for gpu, own in zip(self.detected, links, strict=True)
                )
            )

    def slurmd_list(self):
        """Return the device files in the order of slurmd's list."""
        done = self._run("slurmd", "-G", "-N", "n1", "-f", f"{self.directory}/slurm.conf")
        assert done.returncode == 0, done.stderr
        files = RECORD.findall(done.stdout + done.stderr)
        if not files:
            return []
        hosts = self._run("scontrol", "show", "hostnames", ",".join(files))
        return hosts.stdout.split()

    def own_list(self):
        conf = self.directory / "slurm.conf"
        counts = node_gpus(conf_files.read_settings(conf), "n1")
        gres = read_gres_conf(conf.with_name("gres.conf"), "n1")
        return [file for files in gpu_files(counts, gres.records, self.detected or None) for file in files]

    def numbers(self, files):
        return [int(file.rpartition("nvidia")[2]) for file in files]

    def _run(self, program, *arguments):
        conf = {"SLURM_CONF": f"{self.directory}/slurm.conf"}
        return subprocess.run(
            [shutil.which(program, path=SEARCH) or program, *arguments],
            env=self.environment | conf,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )


@pytest.fixture(scope="module")
def node():
    with tempfile.TemporaryDirectory(prefix="order-") as directory:  # pytest would keep the device files
        yield Node(Path(directory))


@pytest.mark.parametrize(
    ("gres", "lines", "detected", "minors"),
    [
        # Without automatic detection
        ("Gres=gpu:4", ["Name=gpu File=@[0-3]"], (), [0, 1, 2, 3]),
        ("Gres=gpu:3", ["Name=gpu File=@[1-3]"], (), [1, 2, 3]),
        ("Gres=gpu:4", ["Name=gpu File=@[3,1],@0", "Name=gpu File=@2"], (), [3, 1, 0, 2]),
        ("Gres=gpu:2", ["Name=gpu File=@[3,1,0]"], (), [3, 1]),
        ("Gres=gpu:b:1,gpu:a:2", ["Name=gpu Type=a File=@[0-1]", "Name=gpu Type=b File=@2"], (), [2, 0, 1]),
        ("Gres=gpu:A:2", ["Name=gpu Type=b File=@0", "Name=gpu Type=a File=@[1-2]"], (), [1, 2]),
        ("Gres=gpu:3", ["Name=gpu Type=a File=@2", "Name=gpu Type=b File=@[0-1]"], (), [2, 0, 1]),
        ("Gres=gpu:2", ["NodeName=n[1-2] Name=gpu File=@0", "Name=gpu File=@1"], (), [1, 0]),
        ("Gres=gpu:1", ["NodeName=n2 Name=gpu File=@0", "NodeName=n1 Name=gpu File=@1"], (), [1]),
        ("Gres=gpu:2", ["AutoDetect=off", "Name=gpu \\", "File=@[2-3] # two"], (), [2, 3]),
        # With automatic detection
        ("Gres=gpu:4", [], [(2, A100), (3, A100), (0, A100), (1, A100)], [2, 3, 0, 1]),
        ("Gres=gpu:4", ["Name=gpu File=@[0-3]"], [(2, A100), (3, A100), (0, A100), (1, A100)], [2, 3, 0, 1]),
        ("Gres=gpu:2", ["Name=gpu File=@[0,3]"], [(2, A100), (3, A100), (0, A100), (1, A100)], [3, 0]),
        ("Gres=gpu:2", [], [(10, A100), (3, A100), (2, A100)], [3, 2]),
        ("Gres=gpu:b200:1,gpu:a100:1", [], [(1, A100), (0, B200)], [1, 0]),
        ("Gres=gpu:a100:1", [], [(1, B200), (2, A100), (0, A100)], [0]),
        ("Gres=gpu:hopper:2", ["Name=gpu Type=hopper File=@[0-1]"], [(1, A100), (0, A100)], [0, 1]),
        ("Gres=gpu:3", ["Name=gpu File=@[0-2]"], [(2, A100), (1, A100)], [2, 1, 0]),
    ],
)
def test_the_order_of_slurmd(node, gres, lines, detected, minors):
    node.configure(gres, lines, detected)
    assert node.numbers(node.slurmd_list()) == minors
    assert node.numbers(node.own_list()) == minors


@pytest.mark.parametrize("seed", range(40))
def test_any_configuration_has_the_order_of_slurmd(node, seed):
    draw = random.Random(seed)
    kinds = draw.choice([[None], ["a100"], ["a100", "b200"], ["a100", "a100-sxm4", "other"]])
    minors = draw.sample(range(12), draw.randint(1, 8))
    split, lines, counts = list(minors), [], {}
    while split:
        kind, size = draw.choice(kinds), draw.randint(1, 3)
        own, split = split[:size], split[size:]
        text = (
            ",".join(f"@{minor}" for minor in own)
            if draw.random() < 0.5
            else f"@{sorted(own)}".replace(" ", "")
        )
        start = draw.choice(["Name=gpu", "NodeName=n[1-2] Name=gpu"])
        lines.append(f"{start} {f'Type={kind} ' if kind else ''}File={text}")
        counts[kind] = counts.get(kind, 0) + len(own)
    detected = []
    if draw.random() < 0.7:
        present = draw.sample(range(12), draw.randint(1, 12))
        detected = [(minor, draw.choice([A100, B200])) for minor in present]
        if draw.random() < 0.4:
            lines = []
    items = [(kind, max(1, count - draw.choice([0, 0, 0, 1]))) for kind, count in counts.items()]
    draw.shuffle(items)
    gres = ",".join(f"gpu:{kind}:{count}" if kind else f"gpu:{count}" for kind, count in items)
    if draw.random() < 0.2:
        gres = f"gpu:{sum(count for _, count in items)}"
    node.configure(f"Gres={gres}", lines, detected)
    assert node.numbers(node.own_list()) == node.numbers(node.slurmd_list())


class TypedCluster(SmallCluster):
    """Cluster whose node n1 has GPUs of two types. Their order differs between slurm.conf and gres.conf."""

    def _gres(self, node):
        return " Gres=gpu:b:1,gpu:a:2" if node == "n1" else ""

    def _gres_line(self, node):
        for number in range(3):
            os.mknod(self.directory / f"nvidia{number}", stat.S_IFCHR | 0o600, os.makedev(1, 3))
        start = f"NodeName={node} Name=gpu File={self.directory}/nvidia"
        return f"{start}[2,0] Type=a\n{start}1 Type=b"


def test_hooks_get_the_numbers_of_the_order():
    with tempfile.TemporaryDirectory(prefix="order-") as directory:
        plugin, hook = REPOSITORY / "spank" / "energy.so", REPOSITORY / "prolog_epilog" / "senergy-hook"
        with TypedCluster(Path(directory), plugin, hook, "GresTypes=gpu", {"n1": ""}) as cluster:
            conf = cluster.directory / "slurm.conf"
            counts = node_gpus(conf_files.read_settings(conf), "n1")
            files = gpu_files(counts, read_gres_conf(cluster.directory / "gres.conf", "n1").records, None)
            assert files == tuple((f"{directory}/nvidia{number}",) for number in (1, 2, 0))
            script = cluster.script("true", name="true.sh")
            for request, numbers in (("a:2", "1,2"), ("b:1", "0")):
                job_id = cluster.batch("-wn1", f"--gres=gpu:{request}", script)
                for operation in ("begin", "end"):
                    environment = cluster.hook_environment(operation, job_id)
                    assert environment["SLURM_JOB_GPUS"] == numbers
                    assert environment["SLURM_CONF"] == str(conf)  # senergyd reads this file
