"""Commands of the demonstration on the login node of the lab.

The commands submit the jobs of the demonstration, show the queue and read the energy records.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slurm_energy.errors import EnergyError

JOB_TIMEOUT_S = 300


@dataclass(frozen=True, slots=True)
class DemoJob:
    """One job of the demonstration: a compute kernel on a node under an energy policy.

    Attributes:
        kernel: name of the emulated compute kernel.
        device: `cpu` or `gpu`, where the kernel runs.
        node: name of the node.
        machine: readable name of the node's hardware.
        policy: name of the energy policy that the job requests.
        gpu_cap_watts: power cap per GPU in watts; None if the job requests no cap.
        gpus: number of GPUs that the job requests.
        size_s: run time of the kernel at full speed in seconds.
        reports: whether the kernel reports its progress to the agent.
        purpose: text that replaces the policy in the job name, for jobs outside the comparison of policies;
            empty if the name contains the policy.
    """

    kernel: str
    device: str
    node: str
    machine: str
    policy: str
    gpu_cap_watts: int | None = None
    gpus: int = 0
    size_s: float = 10.0
    reports: bool = False
    purpose: str = ""

    @property
    def name(self) -> str:
        """Name of the job, for example `gemm-a100-cap200`."""
        return f"{self.kernel}-{self.machine}-{self.purpose or self.policy}{self.gpu_cap_watts or ''}"

    def settings(self) -> dict[str, str]:
        """Return the values for the batch script template `cpu` or `gpu`."""
        values = {
            "job_name": self.name,
            "command": f"senergy lab run {self.kernel} --{self.device} --seconds {self.size_s:g}"
            + (" --report-progress" if self.reports else ""),
            "policy": self.policy,
            "model": "" if self.reports else f"{self.kernel}-{self.purpose}".removesuffix("-"),
            "nodelist": self.node,
        }
        if self.gpu_cap_watts:
            values["gpu_cap"] = f"{self.gpu_cap_watts}W"
        if self.gpus:
            values |= {"gpus": str(self.gpus), "exclusive": "yes"}  # all GPUs of the node; runs are compared
        return values


class Shell:
    """Runner of commands on the lab's login node.

    Args:
        environment: environment variables of the login node.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.environment = dict(environment)

    def __call__(self, *command: str, timeout_s: float = 60) -> str:
        """Run a command and return its output.

        Raises:
            EnergyError: the command failed or did not end in time.
        """
        try:
            done = subprocess.run(
                command, env=self.environment, capture_output=True, text=True, timeout=timeout_s, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise EnergyError(f"demo: {' '.join(command[:2])}", str(error)) from None
        if done.returncode != 0:
            raise EnergyError(
                f"demo: {' '.join(command[:3])} failed", done.stderr.strip() or done.stdout.strip()
            )
        return done.stdout


def submit(shell: Shell, job: DemoJob, folder: Path) -> int:
    """Submit a job with a script from the templates, and return its id."""
    script = folder / f"{job.name}-{job.node}.sh"
    values = [argument for key, value in job.settings().items() for argument in ("--set", f"{key}={value}")]
    shell("senergy", "template", "render", job.device, *values, "-o", str(script))
    output = shell("sbatch", "--parsable", f"--output={folder}/%j.out", str(script))
    return int(output.strip().split(";")[0])


def follow(shell: Shell, count: int, say: Callable[[str], None]) -> None:
    """Print the progress of `count` jobs until no job is in the queue.

    Raises:
        EnergyError: the jobs did not end within the timeout.
    """
    begin, shown = time.monotonic(), ""
    while time.monotonic() - begin < JOB_TIMEOUT_S:
        states = shell("squeue", "--noheader", "--format=%T").split()
        running = states.count("RUNNING")
        line = f"{count - len(states)} of {count} jobs done, {running} running"
        if line != shown:
            say(f"  {time.monotonic() - begin:5.0f} s  {line}")
            shown = line
        if not states:
            return
        time.sleep(1)
    raise EnergyError(
        "demo: the jobs did not end", f"after {JOB_TIMEOUT_S} s", "see the logs in the lab's log folder"
    )


def records(shell: Shell, ids: list[int]) -> list[dict[str, Any]]:
    """Wait for the energy records and Slurm's data of all jobs, then return the records of all jobs."""
    selection = ",".join(str(number) for number in ids)
    for _ in range(60):
        jobs = json.loads(shell("senergy", "acct", "--json", "-X", "-j", selection))["jobs"]
        recorded = [{**job, **job["energy"]} for job in jobs if job["energy"]]
        if len(recorded) == len(ids) and all(job["missing_nodes"] == 0 for job in recorded):
            return recorded
        time.sleep(1)
    print("senergy: demo: not every record has arrived after 60 s", file=sys.stderr)
    return recorded
