"""Demonstration on a lab: thirteen jobs under different energy policies, a power budget, and a report.

The demonstration uses only commands that are available to users and operators: `senergy template`, `sbatch`,
`squeue`, `senergy acct`, `senergy job` and `senergy budget`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from slurm_energy.policies.operating_point import OperatingPoint
from slurm_energy_lab import demo_budget
from slurm_energy_lab.cluster.nodes_file import DEFAULT_PROFILES, NodeSpec, from_profiles
from slurm_energy_lab.demo_commands import DemoJob, Shell, follow, records, submit
from slurm_energy_lab.model import UNKNOWN_PROFILE

TITLE = "Thirteen jobs, five kinds of nodes, five energy policies, and a power budget"
COLUMNS = "JobID%5,JobName%-22,Policy,NodeList%8,Elapsed,ConsumedEnergy,AvePower,PeakPower,EDP,Quality"


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
    """Return the nodes of the demonstration cluster, whose nodes are emulated.

    These are the default nodes of an emulated cluster (lab), and one node with unknown hardware.
    """
    return from_profiles((*DEFAULT_PROFILES, UNKNOWN_PROFILE))


def run_demo(
    environment: Mapping[str, str],
    page: Path,
    enforce: Callable[[], None],
    say: Callable[[str], None] = print,
) -> list[int]:
    """Submit the jobs, show their progress, print the report, and write the HTML page.

    Before the HTML page is written, further jobs run under a power budget.

    Args:
        environment: environment variables of the lab's login node.
        page: HTML file to write.
        enforce: function that lets senergyctld enforce the budget. Until then, senergyctld only observes the
            budget.
        say: function that is called with each line of output.

    Returns:
        The ids of the jobs.

    Raises:
        EnergyError: a command failed, or the jobs did not end within the timeout.
    """
    shell = Shell(environment)
    say(f"Submitting {len(JOBS)} jobs with sbatch, each for a whole node:")
    ids = {}
    with tempfile.TemporaryDirectory(prefix="senergy-demo-") as folder:
        for job in JOBS:
            ids[submit(shell, job, Path(folder))] = job
            say(f"  {max(ids):>4}  {job.name:<24} on {job.node}")
        follow(shell, len(ids), say)
    jobs = records(shell, list(ids))
    selection = ",".join(str(number) for number in ids)
    command = ["senergy", "acct", "-X", "-j", selection, "-o", COLUMNS]
    say("\n$ " + " ".join(command))
    say(shell(*command))
    lines = explain(jobs)
    tuned = next(number for number, job in ids.items() if job == TUNED_JOB)
    say(f"$ senergy job {tuned}")
    say(shell("senergy", "job", str(tuned)))
    budget_ids, budget_line = demo_budget.run_budget_step(shell, enforce, say)
    lines.append(budget_line)
    notes = [argument for line in lines for argument in ("--note", line)]
    shell(
        *("senergy", "job", *map(str, [*ids, *budget_ids]), "--html", str(page)),
        *("--budget", demo_budget.BUDGET, "--title", TITLE, *notes),
    )
    say("Results:")
    for line in lines:
        say(f"  - {line}")
    return [*ids, *budget_ids]


def explain(jobs: list[dict[str, Any]]) -> list[str]:
    """Return a six-line summary of jobs.

    Args:
        jobs: job objects from the output of `senergy acct --json`, with `name`, `elapsed_s`, `energy_joules`
            and `nodes`.
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
    """Return the result of the tuned job, relative to its own untuned speed and power."""
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
