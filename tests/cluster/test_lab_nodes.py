"""Tests of a lab (cluster of emulated nodes) with its four default nodes.

The tests check the nodes, Slurm's jobs and steps, and the commands of the lab. The daemons and
plugins of slurm-energy are not tested here.
"""

from __future__ import annotations

import json
import os
import pwd
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from lab_driver import LabDriver

from slurm_energy_lab import client
from slurm_energy_lab.cluster.nodes_file import DEFAULT_PROFILES

pytestmark = [pytest.mark.cluster, pytest.mark.root, pytest.mark.lab(product=False)]

NODES = ["n1", "n2", "n3", "n4"]
MODELS = ["Platinum 8358", "EPYC 7513", "Silver 4210", "Xeon"]
GPUS = [0, 4, 8, 8]
STATUS = (
    "import json; from slurm_energy_lab import client as c; print(json.dumps(c.status(c.DEFAULT_SOCKET)))"
)
NVML_COUNT = "import pynvml as p; p.nvmlInit(); print(p.nvmlDeviceGetCount())"


@pytest.fixture
def shared_dir(lab: LabDriver) -> Path:
    """A directory that every user may write to."""
    path = lab.layout.root / "shared"
    path.mkdir(exist_ok=True)
    path.chmod(0o1777)
    return path


def test_every_node_is_idle_and_shows_its_profile_to_slurm(lab: LabDriver):
    assert lab.lab.node_states() == dict.fromkeys(NODES, "idle")
    gres = lab.run("sinfo", "-h", "-N", "-p", "all", "-o", "%N %c %G").stdout.split("\n")[:4]
    assert gres == ["n1 128 (null)", "n2 64 gpu:a100:4", "n3 40 gpu:rtx6000:8", "n4 128 gpu:h100:8"]
    assert lab.run("sinfo", "-h", "-o", "%R %D").stdout.split("\n")[:3] == ["all 4", "cpu 1", "gpu 3"]


@pytest.mark.parametrize(("node", "model", "gpus"), list(zip(NODES, MODELS, GPUS, strict=True)))
def test_exec_sees_the_emulated_machine(lab: LabDriver, node: str, model: str, gpus: int):
    assert lab.exec(node, "hostname").stdout.strip() == node
    assert model in lab.exec(node, "grep", "-m1", "model name", "/proc/cpuinfo").stdout
    assert "0-" in lab.exec(node, "cat", "/sys/devices/system/cpu/online").stdout
    zones = lab.exec(node, "sh", "-c", "cat /sys/class/powercap/intel-rapl:*/name").stdout
    assert "package-0" in zones
    devices = lab.exec(node, "ls", "/dev").stdout.split()
    assert {"null", "pts", "shm", "cpu"} <= set(devices)
    assert [name for name in devices if name.startswith("nvidia")] == sorted(
        f"nvidia{index}" for index in range(gpus)
    ) + (["nvidiactl"] if gpus else [])


def test_exec_sees_only_processes_of_its_node(lab: LabDriver):
    commands = lab.exec("n2", "ps", "-e", "-o", "args=").stdout.replace(str(lab.layout.root), "ROOT")
    assert "slurmd -D -N n2" in commands
    assert "n1" not in commands and "slurmctld" not in commands and "mariadbd" not in commands


def test_the_host_sees_nothing_of_the_emulated_machine(lab: LabDriver):
    assert str(lab.layout.root) not in Path("/proc/self/mountinfo").read_text()
    assert not Path("/dev/nvidiactl").exists()


def test_exec_keeps_directory_input_and_exit_code(lab: LabDriver, tmp_path: Path):
    done = lab.exec("n1", "sh", "-c", "pwd; cat; exit 7", cwd=tmp_path, input="hello", check=False)
    assert done.returncode == 7
    assert done.stdout == f"{tmp_path}\nhello"


@pytest.mark.parametrize(("node", "gpus"), list(zip(NODES, GPUS, strict=True)))
def test_the_real_nvml_module_finds_the_emulated_driver(lab: LabDriver, node: str, gpus: int):
    done = lab.exec(node, "env", "-u", "LD_LIBRARY_PATH", sys.executable, "-c", NVML_COUNT, check=False)
    if gpus:
        assert done.stdout.strip() == str(gpus), done.stderr
    else:
        assert "DriverNotLoaded" in done.stderr


def test_nvml_stays_when_the_host_runs_ldconfig(lab: LabDriver):
    """Programs on a lab node still find NVML after ldconfig has run on the host.

    The installation of any package with a library runs ldconfig. ldconfig replaces /etc/ld.so.cache by
    renaming a new file.
    """
    before = Path("/etc/ld.so.cache").stat().st_ino
    subprocess.run(["ldconfig"], check=True, timeout=60)
    assert Path("/etc/ld.so.cache").stat().st_ino != before
    for node, gpus in zip(NODES, GPUS, strict=True):
        if gpus:
            done = lab.exec(
                node, "env", "-u", "LD_LIBRARY_PATH", sys.executable, "-c", NVML_COUNT, check=False
            )
            assert done.stdout.strip() == str(gpus), done.stderr


@pytest.mark.parametrize("node", NODES)
def test_a_batch_job_runs_on_each_node(lab: LabDriver, shared_dir: Path, node: str):
    output = shared_dir / f"{node}.out"
    job = lab.sbatch("hostname; srun -n1 hostname", "-w", node, "-o", str(output))
    assert lab.wait(job) == "COMPLETED"
    assert output.read_text().split() == [node, node]


def test_a_job_of_a_user_who_is_not_root(lab: LabDriver, shared_dir: Path):
    output = shared_dir / "nobody.out"
    command = "id -un; hostname; cat /sys/class/powercap/intel-rapl:0/energy_uj"
    job = lab.sbatch(command, "-w", "n1", "-o", str(output), user="nobody", cwd=shared_dir)
    assert lab.wait(job) == "FAILED"  # energy counters are root's, as on real machines
    user, node, refusal = output.read_text().splitlines()
    assert (user, node) == ("nobody", "n1")
    assert "Permission denied" in refusal
    assert output.stat().st_uid == pwd.getpwnam("nobody").pw_uid
    account = lab.run("sacctmgr", "-n", "-P", "list", "assoc", "user=nobody", "format=account").stdout
    assert account.split() == ["lab"]


def test_a_step_runs_across_nodes(lab: LabDriver):
    done = lab.run("srun", "-N4", "-n4", "-l", "hostname")
    assert sorted(line.split()[1] for line in done.stdout.splitlines()) == NODES


def test_salloc_and_a_step_from_inside_a_job(lab: LabDriver):
    done = lab.run("salloc", "-N2", "-w", "n1,n2", "srun", "-n2", "-N2", "hostname")
    assert sorted(done.stdout.split()) == ["n1", "n2"]


def test_an_array_runs_every_task(lab: LabDriver, shared_dir: Path):
    output = shared_dir / "array.%a"
    job = lab.sbatch("echo $SLURM_ARRAY_TASK_ID; hostname", "--array=1-6", "-o", str(output))
    lab.wait(job)
    assert [(shared_dir / f"array.{n}").read_text().split()[0] for n in range(1, 7)] == list("123456")


def test_gpus_are_allocated_by_slurm(lab: LabDriver):
    script = "echo $SLURM_STEP_GPUS; senergy lab run gemm --gpu --seconds 0.5 --json"
    done = lab.run("srun", "-w", "n2", "--exclusive", "--gpus-per-node=2", "sh", "-c", script)
    gpus, result = done.stdout.splitlines()
    assert gpus == "0,1"
    joules = json.loads(result)["energy_joules"]
    assert joules["gpu[1]"] > 1.5 * joules["gpu[2]"]


def test_a_job_without_gpus_cannot_run_a_gpu_kernel(lab: LabDriver):
    done = lab.run("srun", "-w", "n2", "--exclusive", "senergy", "lab", "run", "gemm", "--gpu", check=False)
    assert "this job has no GPU: ask for some" in done.stderr


def test_a_kernel_runs_on_the_cpus_of_its_step(lab: LabDriver):
    argv = ["senergy", "lab", "run", "gemm", "--seconds", "0.5", "--json"]
    whole = json.loads(lab.run("srun", "-w", "n1", "--exclusive", *argv).stdout)
    half = json.loads(lab.run("srun", "-w", "n1", "-n1", "-c64", *argv).stdout)
    assert whole["seconds"] == pytest.approx(0.5, rel=0.05)
    assert half["energy_joules"]["cpu[0]"] > half["energy_joules"]["cpu[1]"]
    assert half["seconds"] > 1.5 * whole["seconds"]


def test_the_cpu_time_of_a_kernel_counts_for_its_job(lab: LabDriver):
    """Check that the CPU time of a compute kernel is charged to the Slurm job that runs the kernel.

    The job's control group on the node contains the CPU time. The kernel gets the job id from the
    job's environment.
    """
    script = "senergy lab run gemm --seconds 0.5 --json; echo $SLURM_JOB_ID"
    result, job = lab.run("srun", "-w", "n2", "-n1", "-c32", "sh", "-c", script).stdout.splitlines()
    kernel_s = 32 * json.loads(result)["seconds"]
    group = f"/sys/fs/cgroup/system.slice/n2_slurmstepd.scope/job_{job}/cpu.stat"
    usage_s = int(lab.exec("n2", "cat", group).stdout.split()[1]) / 1e6
    used = client.truth(lab.layout.emulator_socket("n2"), jobs=True)["jobs"][job]
    assert kernel_s <= usage_s <= used["cpu_seconds"] + 1e-6
    assert used["dynamic_joules"]["cpu"] > 0


def test_tasks_run_in_the_jobs_control_group_and_daemons_do_not(lab: LabDriver):
    status = lab.exec("n1", sys.executable, "-c", STATUS).stdout
    if not json.loads(status)["throttle"]["mode"].startswith("v"):
        pytest.skip(f"no throttling here: {status}")
    groups = lab.run("srun", "-w", "n1", "--exclusive", "cat", "/proc/self/cgroup").stdout
    assert f"/{lab.layout.cgroup}/n1/tasks_of_" in groups
    assert lab.layout.cgroup not in Path(f"/proc/{lab.pid('slurmd', 'n1')}/cgroup").read_text()


def test_accounting_knows_finished_jobs(lab: LabDriver):
    job = lab.sbatch("true", "--job-name=told")
    lab.wait(job)
    argv = ["sacct", "-n", "-X", "-P", "-j", str(job), "-o", "jobname,account,state"]
    deadline = time.monotonic() + 60  # slurmdbd hears of a short job's end before it hears its name
    while (line := lab.run(*argv).stdout.strip()) != "told|root|COMPLETED":
        assert time.monotonic() < deadline, line
        time.sleep(0.2)


def test_daemons_listen_on_the_loopback_interface_only(lab: LabDriver):
    addresses = []
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        local, state = line.split()[1], line.split()[3]
        address, port = local.split(":")
        if state == "0A" and int(port, 16) in lab.lab.record.ports.values():
            addresses.append(socket.inet_ntoa(bytes.fromhex(address)[::-1]))
    assert len(addresses) >= len(lab.nodes) + 2
    assert set(addresses) == {"127.0.0.1"}


def test_status_names_daemons_and_states(lab: LabDriver):
    argv = [sys.executable, "-m", "slurm_energy.cli.main", "lab", "status"]
    status = json.loads(lab.run(*argv, "--json").stdout)
    assert status["nodes"]["n3"]["profile"] == DEFAULT_PROFILES[2]
    assert status["nodes"]["n3"]["state"] == "idle"
    pids = [status["daemons"]["slurmctld"], status["nodes"]["n3"]["daemons"]["slurmd"]]
    names = [Path(f"/proc/{pid}/comm").read_text().strip() for pid in pids]
    assert names == ["slurmctld", "slurmd"]
    assert "all running" in lab.run(*argv).stdout


def test_env_makes_any_shell_the_login_node(lab: LabDriver):
    script = f'eval "$({sys.executable} -m slurm_energy.cli.main lab env)"; sinfo -h -o %D -p all'
    environment = {"PATH": os.environ["PATH"], "SENERGY_LAB_DIR": str(lab.layout.root)}
    done = subprocess.run(
        ["sh", "-c", script], env=environment, capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.strip() == "4"


def test_shell_runs_commands_on_the_login_node(lab: LabDriver):
    argv = [sys.executable, "-m", "slurm_energy.cli.main", "lab", "shell"]
    done = lab.run(
        *argv, input="sinfo -h -p gpu -o %D; exit\n", env={"SHELL": "/bin/bash", "HOME": "/nonexistent"}
    )
    assert "3" in done.stdout.split()
