"""Cost of slurm-energy for a cluster with many short jobs: jobs per second with and without it.

Two labs on the same emulated nodes run at the same time: one with all parts (SPANK plugin, job_submit module,
prolog and epilog hooks, senergyd on every node, senergyctld), one with Slurm alone. Batches of jobs run on
both in turn. A batch is timed from its first sbatch to the end of its last job. Needs root.

Prints `CLAIM job_throughput ratio=... target=>=0.9 holds=yes|no`: jobs per second with slurm-energy over
Slurm alone, medians over the batches. Prints also `CLAIM job_throughput_less_emulation`: the same after the
CPU time of the emulators, divided by the number of CPUs, was subtracted from the length of each batch of
both labs. Emulators stand for hardware: senergyd's readings cost them CPU time that a real node does not
spend. The correction holds where all CPUs are busy during the batches; otherwise it is too large.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

import peers
from claims import Claim, at_least, publish

from slurm_energy_lab.cluster import layout, lifecycle
from slurm_energy_lab.cluster.lab import Lab
from slurm_energy_lab.cluster.specification import LabSpec

TARGET = 0.9
DAEMONS = ("emulator", "senergyd", "senergyctld")
BATCH_TIMEOUT_S = 240
SUBMITTERS = 2
FLAGS = {"Slurm alone": [], "slurm-energy": ["--energy-policy=monitor"]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=200, help="jobs in a batch (default 200)")
    parser.add_argument("--batches", type=int, default=5, help="batches through each lab (default 5)")
    parser.add_argument("--json", metavar="FILE", help="also write the claim to FILE as JSON")
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        print("throughput.py: error: a lab needs root: run it with sudo", file=sys.stderr)
        return 2
    labs: dict[str, Lab] = {}
    try:
        for name in FLAGS:
            index = layout.locate_lab(tempfile.mkdtemp(prefix="senergy-bench-", dir="/var/tmp"))
            labs[name] = lifecycle.up(index, LabSpec(product=name == "slurm-energy"))
        rates = measure(labs, arguments.jobs, arguments.batches)
    finally:
        for lab in labs.values():
            lifecycle.down(lab.layout)
    measured = evaluate("job_throughput", {name: [one[0] for one in pairs] for name, pairs in rates.items()})
    less = {name: [one[1] for one in pairs] for name, pairs in rates.items()}
    return publish([measured, evaluate("job_throughput_less_emulation", less)], arguments.json)


def measure(labs: dict[str, Lab], jobs: int, batches: int) -> dict[str, list[tuple[float, float]]]:
    """Return jobs per second per batch and lab, as measured and without the time of the emulators.

    The first batch of each lab is not counted (warm-up).
    """
    rates: dict[str, list[tuple[float, float]]] = {name: [] for name in labs}
    for batch in range(batches + 1):
        names = list(labs) if batch % 2 else list(reversed(labs))
        for name in names:
            before = cpu_seconds(labs.values())
            length_s = run_batch(labs[name], jobs, FLAGS[name])
            used = {part: seconds - before[part] for part, seconds in cpu_seconds(labs.values()).items()}
            rate = jobs / length_s, jobs / (length_s - used["emulator"] / len(os.sched_getaffinity(0)))
            shares = ", ".join(f"{part} {1000 * seconds / jobs:.1f}" for part, seconds in used.items())
            print(f"batch {batch} {name:<13} {rate[0]:6.1f} jobs/s; CPU ms per job: {shares}", flush=True)
            if batch:
                rates[name].append(rate)
    return rates


def cpu_seconds(labs: Iterable[Lab]) -> dict[str, float]:
    """Return the CPU seconds so far of the emulators, senergyds and senergyctlds of all labs."""
    used = dict.fromkeys(DAEMONS, 0.0)
    for lab in labs:
        status = lab.status()
        for daemons in (status["daemons"], *(node["daemons"] for node in status["nodes"].values())):
            for part in DAEMONS:
                used[part] += peers.thread_seconds(pid) if (pid := daemons.get(part)) else 0.0
    return used


def run_batch(lab: Lab, jobs: int, flags: Sequence[str]) -> float:
    """Submit jobs of one CPU each and return the seconds until all have ended, including epilogs."""
    environment = {**os.environ, **lab.environment()}
    command = ["sbatch", "--quiet", "--ntasks=1", "--output=/dev/null", *flags, "--wrap", "true"]

    def submit(_: int) -> None:
        subprocess.run(command, env=environment, check=True, timeout=60, stdout=subprocess.DEVNULL)

    start = time.perf_counter()
    with ThreadPoolExecutor(SUBMITTERS) as pool:
        list(pool.map(submit, range(jobs)))
    while _queued(environment):
        if time.perf_counter() - start > BATCH_TIMEOUT_S:
            raise SystemExit(f"throughput.py: {jobs} jobs did not end in {BATCH_TIMEOUT_S} s")
        time.sleep(0.1)
    return time.perf_counter() - start


def _queued(environment: dict[str, str]) -> bool:
    command = ["squeue", "--noheader", "--format=%i"]
    return bool(subprocess.run(command, env=environment, capture_output=True, timeout=60, check=True).stdout)


def evaluate(claim: str, rates: dict[str, list[float]]) -> Claim:
    """Return the claim of this name."""
    medians = {name: statistics.median(values) for name, values in rates.items()}
    ratio = medians["slurm-energy"] / medians["Slurm alone"]
    return at_least(claim, ratio, TARGET) | {
        "median_jobs_per_s": {name: round(value, 2) for name, value in medians.items()},
        "batches": {name: [round(value, 2) for value in values] for name, values in rates.items()},
    }


if __name__ == "__main__":
    sys.exit(main())
