"""Tests of senergyd on an emulated node with resctrl, on which jobs of different kinds run.

The jobs run at the same time. The tests check senergyd's monitoring groups, the real processes and the exact
energy of the jobs.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from agent_node import NodeAgent
from lab_node import LabNode

from slurm_energy.records import EnergyRecord
from slurm_energy_lab.model import load_profile

pytestmark = [pytest.mark.node, pytest.mark.root]

GROUPS = "sys/fs/resctrl/mon_groups"
SECONDS = 6.0
PROFILE = "xeon-8358"
STEPD = """
import os, subprocess, sys
python, socket, kernel, cpus, seconds, job = sys.argv[1:]
print(os.getpid(), flush=True)
sys.stdin.readline()
program = (
    "from pathlib import Path; from slurm_energy_lab import client; "
    f"client.run_kernel(Path({socket!r}), {kernel!r}, cpus={cpus}, full_speed_s={seconds}, job_id={job})"
)
sys.exit(subprocess.run([python, "-c", program]).returncode)
"""


class FakeStep:
    """A process inside the emulated node that acts as slurmstepd.

    The method `run` makes the process start a compute kernel in a child process.
    """

    def __init__(self, agent: NodeAgent, job_id: int, kernel: str, cpus: list[int]) -> None:
        share = SECONDS * len(cpus) / 128
        arguments = [sys.executable, str(agent.node.socket), kernel, str(cpus), str(share), str(job_id)]
        title = f"slurmstepd: [{job_id}.batch]"
        command = ["nsenter", "-t", str(agent.pid()), "-m", "-p", "bash", "-c", 'exec -a "$0" "$@"', title]
        self.process = subprocess.Popen(
            [*command, sys.executable, "-c", STEPD, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout
        self.pid = int(self.process.stdout.readline())

    def run(self) -> None:
        assert self.process.stdin
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def wait(self) -> None:
        try:
            assert self.process.wait(timeout=120) == 0
        finally:
            self.process.kill()
            self.process.communicate()


@pytest.fixture
def agent(emulate: Callable[..., LabNode]) -> Iterator[NodeAgent]:
    node = emulate(PROFILE, "--set", "resctrl.num_rmids=16")
    cpu = load_profile(PROFILE)
    idle = f"idle_watts = {{cpu = {2 * cpu.cpu.idle_watts}, dram = {2 * cpu.memory.idle_watts}}}\n"
    made = NodeAgent(node, sampling_hz=5.0, extra=idle).start()
    yield made
    made.remove()


def environment(agent: NodeAgent, job_id: int, cpus: int) -> dict[str, str]:
    return {**agent.env(job_id), "SLURM_JOB_CPUS_PER_NODE": str(cpus)}


def groups(agent: NodeAgent) -> set[str]:
    return {path.name for path in (agent.node.tree / GROUPS).iterdir()}


def test_gemm_beside_triad_and_a_killed_agent_leave_no_group(agent: NodeAgent) -> None:
    kernels = {7: ("gemm", [*range(8), *range(64, 72)]), 8: ("triad", [*range(8, 16), *range(72, 80)])}
    steps: dict[int, FakeStep] = {}
    for job_id, (kernel, cpus) in kernels.items():
        assert agent.ask(op="begin", env=environment(agent, job_id, len(cpus)))["ok"]
        steps[job_id] = FakeStep(agent, job_id, kernel, cpus)
        answer = agent.ask(op="step", event="start", job_id=job_id, step="batch", pid=steps[job_id].pid)
        assert answer["known"]
    assert groups(agent) == {"senergy-7.0", "senergy-8.0"}
    for step in steps.values():
        step.run()
    for step in steps.values():
        step.wait()
    truth = jobs_truth(agent)
    records = {job_id: end(agent, job_id) for job_id in kernels}
    for job_id, record in records.items():
        energy = {part.name: part.energy_joules for part in record.components}
        for component, idle_watts in (("cpu", 96.0), ("dram", 19.1)):
            expected = truth[job_id][component] + 16 / 128 * idle_watts * record.elapsed_s
            assert energy[component] == pytest.approx(expected, rel=0.1), (job_id, component, record.notes)
        assert any("memory traffic" in note for note in record.notes)
    assert groups(agent) == set()
    assert agent.ask(op="begin", env=environment(agent, 9, 16))["ok"]
    idle = FakeStep(agent, 9, "gemm", [0])
    agent.ask(op="step", event="start", job_id=9, step="batch", pid=idle.pid)
    assert groups(agent) == {"senergy-9.0"}
    agent.stop(signal.SIGKILL)  # which ends the processes in the node's namespace, too
    idle.process.communicate()
    (agent.node.tree / GROUPS / "site-tool").mkdir()
    (agent.node.tree / GROUPS / "senergy-5.0").mkdir()
    agent.start()
    assert groups(agent) == {"site-tool", "senergy-9.0"}
    end(agent, 9)
    assert groups(agent) == {"site-tool"}


def jobs_truth(agent: NodeAgent) -> dict[int, dict[str, Any]]:
    from slurm_energy_lab import client

    jobs = client.truth(agent.node.socket, jobs=True)["jobs"]
    return {int(job): usage["dynamic_joules"] for job, usage in jobs.items()}


def end(agent: NodeAgent, job_id: int) -> EnergyRecord:
    earlier = agent.record_ids()
    assert agent.ask(op="end", env=agent.env(job_id))["known"]
    return agent.new_record(earlier)
