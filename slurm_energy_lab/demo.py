"""Demonstration on a lab: thirteen jobs under different energy policies, and a report of the results.

It uses only commands that are available to users: `senergy template`, `sbatch`, `squeue`, `senergy acct` and
`senergy job`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slurm_energy.errors import EnergyError
from slurm_energy.policies.operating_point import OperatingPoint
from slurm_energy_lab.cluster.nodes_file import DEFAULT_PROFILES, NodeSpec, from_profiles
from slurm_energy_lab.model import UNKNOWN_PROFILE

TITLE = "Thirteen jobs, five kinds of nodes, five energy policies"
JOB_TIMEOUT_S = 300
COLUMNS = "JobID%5,JobName%-22,Policy,NodeList%8,Elapsed,ConsumedEnergy,AvePower,PeakPower,EDP,Quality"


@dataclass(frozen=True, slots=True)
class DemoJob:
    """One job of the demonstration: a kernel on a node under an energy policy.

    Attributes:
        kernel: name of the lab's kernel.
        device: `cpu` or `gpu`.
        node: name of the node.
        machine: readable name of the node's hardware.
        policy: energy policy.
        gpu_cap_watts: power cap per GPU; None: none.
        gpus: number of GPUs.
        size_s: run time of the kernel at full speed in seconds.
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

    @property
    def name(self) -> str:
        """Name of the job, for example `gemm-a100-cap200`."""
        return f"{self.kernel}-{self.machine}-{self.policy}{self.gpu_cap_watts or ''}"

    def settings(self) -> dict[str, str]:
        """Return the values for the batch script template `cpu` or `gpu`."""
        values = {
            "job_name": self.name,
            "command": f"senergy lab run {self.kernel} --{self.device} --seconds {self.size_s:g}"
            + (" --report-progress" if self.reports else ""),
            "policy": self.policy,
            "model": "" if self.reports else self.kernel,
            "nodelist": self.node,
        }
        if self.gpu_cap_watts:
            values["gpu_cap"] = f"{self.gpu_cap_watts}W"
        if self.gpus:
            values |= {"gpus": str(self.gpus), "exclusive": "yes"}  # all GPUs of the node; runs are compared
        return values


JOBS = (
    DemoJob("gemm", "cpu", "n1", "xeon", "performance"),
    DemoJob("gemm", "cpu", "n1", "xeon", "powersave"),
    DemoJob("triad", "cpu", "n1", "xeon", "performance"),
    DemoJob("triad", "cpu", "n1", "xeon", "powersave"),
    DemoJob("gemm", "gpu", "n2", "a100", "monitor", gpus=4),
    DemoJob("gemm", "gpu", "n2", "a100", "cap", gpu_cap_watts=200, gpus=4),
    DemoJob("triad", "gpu", "n2", "a100", "monitor", gpus=4),
    DemoJob("triad", "gpu", "n2", "a100", "cap", gpu_cap_watts=200, gpus=4),
    DemoJob("train", "gpu", "n3", "rtx6000", "monitor", gpus=8),
    DemoJob("train", "gpu", "n3", "rtx6000", "cap", gpu_cap_watts=170, gpus=8),
    DemoJob("train", "gpu", "n4", "h100", "monitor", gpus=8),
    DemoJob("train", "gpu", "n4", "h100", "cap", gpu_cap_watts=450, gpus=8),
    DemoJob("train", "gpu", "n5", "unknown", "energy", gpus=4, size_s=80.0, reports=True),
)
TUNED_JOB = JOBS[-1]


def demo_nodes() -> tuple[NodeSpec, ...]:
    """Return the nodes of the demonstration: the default nodes of a lab, and one with unknown hardware."""
    return from_profiles((*DEFAULT_PROFILES, UNKNOWN_PROFILE))


def run_demo(environment: Mapping[str, str], page: Path, say: Callable[[str], None] = print) -> list[int]:
    """Submit the jobs, show their progress, print the report and write the HTML page.

    Args:
        environment: environment variables of the lab's login node.
        page: HTML file to write.
        say: called with each line of output.

    Returns:
        The ids of the jobs.

    Raises:
        EnergyError: a command failed, or the jobs did not end within the timeout.
    """
    shell = _Shell(environment)
    say(f"Submitting {len(JOBS)} jobs with sbatch, each for a whole node:")
    ids = {}
    with tempfile.TemporaryDirectory(prefix="senergy-demo-") as folder:
        for job in JOBS:
            ids[_submit(shell, job, Path(folder))] = job
            say(f"  {max(ids):>4}  {job.name:<24} on {job.node}")
        _follow(shell, ids, say)
    jobs = _records(shell, list(ids))
    selection = ",".join(str(number) for number in ids)
    command = ["senergy", "acct", "-X", "-j", selection, "-o", COLUMNS]
    say("\n$ " + " ".join(command))
    say(shell(*command))
    lines = explain(jobs)
    notes = [argument for line in lines for argument in ("--note", line)]
    shell("senergy", "job", *map(str, ids), "--html", str(page), "--title", TITLE, *notes)
    tuned = next(number for number, job in ids.items() if job == TUNED_JOB)
    say(f"$ senergy job {tuned}")
    say(shell("senergy", "job", str(tuned)))
    say("Results:")
    for line in lines:
        say(f"  - {line}")
    return list(ids)


def explain(jobs: list[dict[str, Any]]) -> list[str]:
    """Return a summary in six lines of the jobs as `senergy acct --json` reports them.

    Args:
        jobs: objects with `name`, `elapsed_s`, `energy_joules` and `nodes`.
    """
    by_name = {job["name"]: job for job in jobs}

    def compare(kernel: str, changed: str, base: str) -> tuple[float, float, float]:
        a, b = by_name[f"{kernel}-{changed}"], by_name[f"{kernel}-{base}"]
        slower = a["elapsed_s"] / b["elapsed_s"]
        energy = a["energy_joules"] / b["energy_joules"]
        return slower, 100 * (energy - 1), 100 * (energy * slower - 1)

    def line(label: str, kernel: str, changed: str, base: str, moral: str) -> str:
        slower, energy, edp = compare(kernel, changed, base)
        change = f"{energy:+.0f} % energy, {edp:+.0f} % EDP".replace("-", "\N{MINUS SIGN}")
        return f"{label}: {slower:.2f}x the time, {change}. {moral}"

    return [
        line("GEMM on CPUs, powersave against performance", "gemm", "xeon-powersave", "xeon-performance",
             "Compute-bound work takes longer at low frequencies."),
        line("TRIAD on CPUs, the same", "triad", "xeon-powersave", "xeon-performance",
             "Memory-bound work hardly slows down: the memory is the bottleneck."),
        line("GEMM on A100s capped at 200 W of 400 W", "gemm", "a100-cap200", "a100-monitor",
             "Its best cap is higher."),
        line("TRIAD on A100s capped at 200 W", "triad", "a100-cap200", "a100-monitor",
             "Half the nominal power is close to its best EDP."),
        line("Training on RTX 6000s capped at 170 W of 260 W", "train", "rtx6000-cap170", "rtx6000-monitor",
             "The cap is the best published one; all settings were restored."),
        _tuned_line(by_name[TUNED_JOB.name]),
    ]  # fmt: skip


def _tuned_line(job: dict[str, Any]) -> str:
    """Return the result of the tuned job: its settings against its own untuned speed and power."""
    tuning = job["nodes"][0]["tuning"] or {}
    label = "Training on GPUs that no table lists, tuned to the least energy at most 5 % slower"
    point = next((item for item in tuning.get("points", ()) if item["point"] == tuning.get("chosen")), None)
    if not tuning.get("chosen") or point is None:
        return f"{label}: no better setting was found in {tuning.get('probes') or 0} probes."
    time, energy = point["time_ratio"], point["time_ratio"] * point["power_ratio"]
    change = f"{100 * (energy - 1):+.0f} % energy, {100 * (energy * time - 1):+.0f} % EDP"
    return (
        f"{label}: {time:.2f}x the time, {change} at {OperatingPoint.from_json(tuning['chosen'])}, measured"
        " during the job."
    ).replace("-", "\N{MINUS SIGN}")


class _Shell:
    def __init__(self, environment: Mapping[str, str]) -> None:
        self.environment = dict(environment)

    def __call__(self, *command: str, timeout_s: float = 60) -> str:
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


def _submit(shell: _Shell, job: DemoJob, folder: Path) -> int:
    script = folder / f"{job.name}-{job.node}.sh"
    values = [argument for key, value in job.settings().items() for argument in ("--set", f"{key}={value}")]
    shell("senergy", "template", "render", job.device, *values, "-o", str(script))
    output = shell("sbatch", "--parsable", f"--output={folder}/%j.out", str(script))
    return int(output.strip().split(";")[0])


def _follow(shell: _Shell, ids: Mapping[int, DemoJob], say: Callable[[str], None]) -> None:
    begin, shown = time.monotonic(), ""
    while time.monotonic() - begin < JOB_TIMEOUT_S:
        states = shell("squeue", "--noheader", "--format=%T").split()
        running = states.count("RUNNING")
        line = f"{len(ids) - len(states)} of {len(ids)} jobs done, {running} running"
        if line != shown:
            say(f"  {time.monotonic() - begin:5.0f} s  {line}")
            shown = line
        if not states:
            return
        time.sleep(1)
    raise EnergyError(
        "demo: the jobs did not end", f"after {JOB_TIMEOUT_S} s", "see the logs in the lab's log folder"
    )


def _records(shell: _Shell, ids: list[int]) -> list[dict[str, Any]]:
    """Return the records of all jobs.

    The function waits until these energy records and Slurm's own data about the jobs have arrived.
    """
    selection = ",".join(str(number) for number in ids)
    for _ in range(60):
        jobs = json.loads(shell("senergy", "acct", "--json", "-X", "-j", selection))["jobs"]
        if len(jobs) == len(ids) and all(job["name"] for job in jobs):
            return list(jobs)
        time.sleep(1)
    print("senergy: demo: not every record has arrived after 60 s", file=sys.stderr)
    return list(jobs)
