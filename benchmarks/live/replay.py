"""Simulation of the jobs that the benchmark also runs on a lab cluster of emulated nodes.

The simulation uses the submission times of the live run, the shapes (kinds and numbers of GPUs) of
the jobs, and the calibration. The calibration is the measured time and power of each kind of job.
Measurements of the run that is simulated are not used.
"""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from live import workload
from slurm_energy_lab.model import load_profile

Json = dict[str, Any]
LOOK_S = 0.5
"""Interval at which the simulation looks at the queue.

slurmctld looks when a job ends and every two seconds, the engine every second. Of five intervals tried on the
jobs of seed 1, this one matched the completion times best.
"""
_COLUMNS = ("job_id", "submit_s", "name", "hardware", "units", "time_s", "power_watts", "time_limit_s")


def write(
    folder: Path,
    calibration: Json,
    jobs: Sequence[workload.LiveJob],
    wish: workload.Wish,
) -> Path:
    """Write `submissions.csv` and the scenario `replay.toml`; return the path of the scenario."""
    folder.mkdir(parents=True, exist_ok=True)
    taken = {(entry["model"], entry["shape"]): entry["record"] for entry in calibration["jobs"]}
    nodes = nodes_of(calibration)
    with (folder / "submissions.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, _COLUMNS)
        table.writeheader()
        for job in jobs:
            for shape in job.offered(wish):
                record = taken[job.model, shape.text]
                table.writerow(_row(job, shape, record, nodes[shape.kind], calibration["launch_s"]))
    path = folder / "replay.toml"
    path.write_text(_scenario(nodes, wish))
    return path


def simulate(scenario: Path, policy: str) -> Json:
    """Run `senergy simulate` and return the summary of its only run."""
    command = [sys.executable, "-m", "slurm_energy.cli.main", "simulate", str(scenario), "--json"]
    done = subprocess.run([*command, "--policies", policy], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"live_energy.py: senergy simulate: {done.stderr.strip()}")
    result: list[Json] = json.loads(done.stdout)
    summary: Json = result[0]["summary"]
    return summary


class Node:
    """Idle power of a node, and the part of it that is attributed to a running job.

    The attribution follows the rule in docs/attribution.md. The idle watts of the CPUs are divided among
    the allocated CPUs. The idle watts of the GPUs are divided among the GPUs. Of all other idle watts, a
    job gets a fraction. It is the mean of the job's fraction of the CPUs and its fraction of the GPUs.

    Attributes:
        watts: watts of the whole idle node.
        unit_watts: idle watts that a job gets for each of its GPUs.
    """

    def __init__(self, idle_watts: Mapping[str, float], cpus: int) -> None:
        self.watts = idle_watts["node"]
        rest = self.watts - idle_watts["gpu"] - idle_watts["cpu"]
        self.unit_watts = (idle_watts["gpu"] + rest / 2) / workload.UNITS
        self._job_watts = (idle_watts["cpu"] + rest / 2) * workload.CPUS / cpus

    def dynamic_joules(self, record: Json, gpus: int) -> float:
        """Return the energy of a job in joules, minus its share of the node's idle energy."""
        idle_watts = self._job_watts + gpus * self.unit_watts
        return float(record["energy_joules"]) - float(record["elapsed_s"]) * idle_watts


def _row(job: workload.LiveJob, shape: workload.Shape, record: Json, node: Node, launch_s: float) -> Json:
    """Return the row that describes a job in the workload file of the simulation.

    The job holds its GPUs during launch and run. It draws power during the run only, so `power_watts` is the
    mean over launch and run.
    """
    time_s = launch_s + record["elapsed_s"]
    watts = node.dynamic_joules(record, shape.gpus) / time_s + shape.gpus * node.unit_watts
    return {
        "job_id": job.number,
        "submit_s": round(job.submit_s, 3),
        "name": job.model,
        "hardware": shape.kind,
        "units": shape.gpus,
        "time_s": round(time_s, 3),
        "power_watts": round(watts, 2),
        "time_limit_s": 60 * workload.LIMIT_MINUTES,
    }


def _scenario(nodes: Mapping[str, Node], wish: workload.Wish) -> str:
    """Return the text of the scenario that simulates the live experiment.

    The discipline is the rule by which jobs start. If users accept several kinds or numbers of GPUs, the
    discipline is `packing`: each job gets one of the accepted kinds and numbers that is free now.
    Otherwise it is `conservative`: slurmctld starts jobs in order, and a later job overtakes only if the
    backfill expects no delay of other jobs.
    """
    lines = ['title = "The live experiment, simulated"']
    for kind, node in nodes.items():
        lines += [
            f"[cluster.{kind}]",
            f"units = {workload.UNITS}",
            f"idle_watts = {node.watts:.1f}",
            f"unit_idle_watts = {node.unit_watts:.2f}",
        ]
    lines += ["[workload]", 'file = "submissions.csv"', "[schedule]"]
    discipline = "conservative" if wish == workload.Wish.KIND else "packing"
    lines += [f'discipline = "{discipline}"', "preemption = false"]
    lines += [f"interval_s = {LOOK_S}", "age_weight = 0.01"]
    return "\n".join(lines) + "\n"


def nodes_of(calibration: Json) -> dict[str, Node]:
    """Return the idle power of one node of each kind, by kind."""
    result = {}
    for kind, spec in zip(workload.KINDS, workload.NODES, strict=True):
        cpu = load_profile(spec.profile, spec.overrides).cpu
        cpus = cpu.packages * cpu.cores_per_package * cpu.threads_per_core
        result[kind] = Node(calibration["idle_watts"][spec.name], cpus)
    return result
