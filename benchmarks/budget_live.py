"""Benchmark of a power budget on 8 emulated nodes (a lab) with real Slurm daemons.

Jobs arrive for 30 minutes. Four nodes have only CPUs, and four nodes have eight GPUs each. The power
limit of the budget comes from a calendar file. Relative to the sum of the thermal design powers, the
limit is 60 % in the first third of the time, 45 % in the second third, and 80 % in the last third. A
job starts only when enough Slurm licenses are free for its power. The emulator's true power of all
nodes is read ten times per second. The jobs run synthetic compute kernels on the emulated devices,
and are submitted with sbatch.

The program prints the number of jobs by state. It prints one `CLAIM` line for each result that is
compared with a target: the seconds above the limit, and the number of killed jobs. The files of the
run stay in --out: power.csv (seconds, watts, limit) and jobs.json. The program needs root.
"""

from __future__ import annotations

import argparse
import csv
import functools
import itertools
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from budget_baselines import is_feasible
from claims import at_most, publish

from slurm_energy_lab import client
from slurm_energy_lab.cluster import layout, lifecycle
from slurm_energy_lab.cluster.lab import Lab
from slurm_energy_lab.cluster.nodes_file import from_profiles
from slurm_energy_lab.cluster.specification import LabSpec
from slurm_energy_lab.model import load_profile
from slurm_energy_lab.reading_thread import ReadingThread
from slurm_energy_lab.virtual_cluster.workload import (
    ClusterJob,
    JobMix,
    draw_jobs,
    draw_profiles,
    nameplate_watts,
)

HARDWARE_SEED = 103
PROFILES = [
    name
    for name in draw_profiles(HARDWARE_SEED, lambda cpu, gpu: is_feasible(cpu, gpu, 0.45))
    for _ in range(4)
]
"""The drawn hardware of the virtual lab with this seed."""
PARTITIONS = {"cpu": 4, "gpu": 4}
SHARES = (0.60, 0.45, 0.80)
PERIOD_S = 5.0
TICK_S = 0.1
_SCHEDULER = "SchedulerParameters=batch_sched_delay=2,bf_interval=5,bf_licenses,bf_continue"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", metavar="DIR", type=Path, default=Path("budget-live"), help="%(default)s")
    parser.add_argument("--minutes", type=float, default=30.0, help="duration (30)")
    parser.add_argument("--seed", type=int, default=100, help="seed of the jobs (100)")
    parser.add_argument("--load", type=float, default=1.0, help="arriving work per node-second (1.0)")
    parser.add_argument("--json", metavar="FILE", help="also write the claims to FILE as JSON")
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        print("budget_live.py: error: a lab needs root: run it with sudo", file=sys.stderr)
        return 2
    arguments.out.mkdir(parents=True, exist_ok=True)
    root = layout.locate_lab(tempfile.mkdtemp(prefix="senergy-budget-", dir="/var/tmp"))
    energy = {
        "budget": {"mode": "observe", "admission": "licenses"},
        "budgets": [{"name": "site", "cluster": True, "watts": total_watts()}],
    }
    settings = (_SCHEDULER, f"Licenses=watts:{2 * total_watts():.0f}")
    lab = lifecycle.up(root, LabSpec(from_profiles(PROFILES), settings, energy=energy))
    try:
        return run(lab, arguments)
    finally:
        lifecycle.down(root)


@functools.cache
def total_watts() -> float:
    """Return the sum of the thermal design powers of the benchmark's nodes in watts."""
    return sum(nameplate_watts(load_profile(name)) for name in PROFILES)


def true_watts(lab: Lab) -> float:
    """Return the true power of all nodes."""
    sockets = [lab.layout.emulator_socket(node) for node in lab.nodes]
    return float(sum(client.truth(path)["power_watts"]["node"] for path in sockets))


def run(lab: Lab, arguments: argparse.Namespace) -> int:
    """Run the jobs of the benchmark under the budget, write the result files and publish the claims.

    The claims compare the results with targets.
    """
    seconds = 60.0 * arguments.minutes
    time.sleep(20.0)  # senergyd learns the idle power of the nodes
    begin_s = float(int(time.time()) + 10)
    steps = [(begin_s - 10.0 if not i else begin_s + i * seconds / 3, SHARES[i]) for i in range(3)]
    enforce(lab, arguments.out / "calendar.csv", steps)
    time.sleep(max(0.0, begin_s - time.time()))
    with ReadingThread(lambda: true_watts(lab), TICK_S, time.time) as truth:
        submit(lab, draw_jobs(arguments.seed, PARTITIONS, JobMix(seconds, arguments.load)), begin_s)
        time.sleep(max(0.0, begin_s + seconds - time.time()))
    states = job_states(lab)
    (arguments.out / "jobs.json").write_text(json.dumps(states, indent=1) + "\n")
    rows = [(at - begin_s, watts, limit_at(steps, at)) for at, watts in truth.readings]
    with (arguments.out / "power.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("seconds", "watts", "limit"), *rows])
    counts = Counter(job["state"] for job in states)
    print(f"{len(rows)} values of the power, jobs: {dict(counts)}")
    return publish(claims(rows, seconds, counts), arguments.json)


def claims(rows: list[tuple[float, float, float]], seconds: float, counts: Counter[str]) -> list[Any]:
    """Return the claims (measured values compared with targets) of this benchmark.

    The claims are about the time in which the power exceeds the budget, and about killed jobs.
    """
    after, otherwise, worst = 0.0, 0.0, 0.0
    for (before, *_), (at, watts, limit) in itertools.pairwise(rows):
        if watts <= limit:
            continue
        since_s = min(at - seconds / 3 * i for i in range(3) if at >= seconds / 3 * i or not i)
        worst = max(worst, watts / limit)
        if since_s < PERIOD_S:
            after += at - before
        else:
            otherwise += at - before
    killed = sum(count for state, count in counts.items() if state not in ("COMPLETED", "RUNNING", "PENDING"))
    used = sum(watts for _, watts, _ in rows) / sum(limit for _, _, limit in rows)
    print(f"mean power {used:.1%} of the limit, highest power above it {worst:.1%}")
    return [
        at_most("budget_live_above_after_step_s", after, PERIOD_S),
        at_most("budget_live_above_otherwise_s", otherwise, 0.0),
        at_most("budget_live_killed_jobs", float(killed), 0.0),
    ]


def enforce(lab: Lab, calendar: Path, steps: list[tuple[float, float]]) -> None:
    """Configure senergyctld to keep a power budget whose limits change over time.

    senergyctld runs in a lab (cluster of emulated nodes). The function writes the limits to a calendar
    file and enforces them.
    """
    path = lab.layout.root / calendar.name
    rows = [(f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(at))}Z", total_watts() * s) for at, s in steps]
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("time", "watts"), *rows])
    budgets = [{"name": "site", "cluster": True, "calendar": str(path)}]
    lab.set_energy({"budget": {"mode": "enforce"}, "budgets": budgets})


def limit_at(steps: list[tuple[float, float]], at: float) -> float:
    """Return the power limit of the benchmark's budget in watts at a Unix time.

    Args:
        steps: begin of each part of the run in Unix seconds, and the limit in this part as a fraction of the
            sum of the thermal design powers.
        at: Unix time.
    """
    return total_watts() * next(share for begin_s, share in reversed(steps) if at >= begin_s)


def call(lab: Lab, *argv: str, text: str | None = None) -> str:
    """Run a command on the login node and return its output."""
    environment = {**os.environ, **lab.environment()}
    done = subprocess.run(
        argv, env=environment, input=text, capture_output=True, text=True, timeout=120, check=False
    )
    if done.returncode:
        raise SystemExit(f"budget_live.py: {' '.join(argv[:3])}: {done.stderr.strip()}")
    return done.stdout


def submit(lab: Lab, jobs: list[ClusterJob], begin_s: float) -> None:
    """Submit each job at its time. A job runs its program on all devices of its nodes."""
    names = {"cpu": lab.nodes[:4], "gpu": lab.nodes[4:]}
    for job in jobs:
        time.sleep(max(0.0, begin_s + job.submit_s - time.time()))
        others = ",".join(names["gpu" if job.partition == "cpu" else "cpu"])
        # A job without a time limit would wait for the lowest limit of the calendar.
        options = [
            f"-t{math.ceil(job.limit_s / 60)}",
            f"-N{job.nodes}",
            "--ntasks-per-node=1",
            "--exclusive",
            f"--exclude={others}",
        ]
        options += (
            [f"--gpus-per-node={load_profile(PROFILES[-1]).gpu_count}"] if job.partition == "gpu" else []
        )
        device = f"--{job.partition}"
        script = f"#!/bin/sh\nexec srun senergy lab run {job.program} {device} --seconds {job.seconds:.0f}\n"
        call(lab, "sbatch", "--parsable", "-o", "/dev/null", *options, text=script)


def job_states(lab: Lab) -> list[dict[str, Any]]:
    """Return id, state and seconds of each job from Slurm's accounting."""
    columns = "JobID,State,ElapsedRaw,NNodes"
    text = call(lab, "sacct", "-X", "-n", "-P", "-S", "now-3hours", "-o", columns)
    fields = [line.split("|") for line in text.splitlines()]
    return [
        {"job_id": row[0], "state": row[1], "seconds": int(row[2]), "nodes": int(row[3])} for row in fields
    ]


if __name__ == "__main__":
    sys.exit(main())
