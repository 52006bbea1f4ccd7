"""Cost of slurm-energy for a cluster with many short jobs: jobs per second with and without it.

Three labs with the same emulated nodes run at the same time: one with all parts (SPANK plugin, job_submit
module, prolog and epilog hooks, senergyd on every node, senergyctld), one with Slurm alone, and one with
Slurm and `/bin/true` as prolog and epilog. Each batch of jobs runs on the three labs in turn. A batch is
timed from its first sbatch to the end of its last job. Needs root.

Prints `CLAIM job_throughput ratio=... target=>=0.9 holds=yes|no`. The ratio is the jobs per second with
slurm-energy divided by the jobs per second with Slurm alone, as medians over the batches. Also prints:

- `CLAIM job_throughput_less_emulation`: the same ratio with corrected lengths of the
  batches. From each length, the CPU time of the emulators divided by the number of CPUs is
  subtracted. The reason is that emulators stand for hardware: senergyd's readings cost the
  emulators CPU time that a real node does not spend. The correction is valid if all CPUs are busy during the
  batches; otherwise it is too large.
- `CLAIM job_throughput_empty_hooks`: jobs per second with slurm-energy, divided by jobs per
  second of Slurm with an empty prolog and epilog. slurmd starts a process for each prolog and epilog, even
  an empty one; Slurm alone has neither.
- The CPU time per job of each kind of daemon. The time of slurmd includes prologs and
  epilogs, but not slurmstepd. All other processes are not listed.
- The time that a prolog and an epilog wait for senergyd on the idle lab. Nodes of a real
  cluster have their own CPUs. There, slurm-energy delays a job by this time, not by the CPU time.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import own_agent
from claims import Claim, at_least, publish

from slurm_energy.protocol.agent_socket import ask_agent
from slurm_energy_lab.cluster import layout, lifecycle
from slurm_energy_lab.cluster.lab import Lab
from slurm_energy_lab.cluster.specification import LabSpec

TARGET = 0.9
DAEMONS = ("emulator", "senergyd", "senergyctld", "slurmd", "slurmctld")
BATCH_TIMEOUT_S = 240
SUBMITTERS = 2
WAITING_JOBS = 40
FIRST_WAITING_JOB = 900_001
SUITE, ALONE, EMPTY_HOOKS = "slurm-energy", "Slurm alone", "empty hooks"
SPECS = {
    ALONE: LabSpec(product=False),
    EMPTY_HOOKS: LabSpec(product=False, slurm=("Prolog=/bin/true", "Epilog=/bin/true")),
    SUITE: LabSpec(),
}


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
        for name, spec in SPECS.items():
            index = layout.locate_lab(tempfile.mkdtemp(prefix="senergy-bench-", dir="/var/tmp"))
            labs[name] = lifecycle.up(index, spec)
        rates = measure(labs, arguments.jobs, arguments.batches)
        waits_ms = measure_waits(labs[SUITE])
    finally:
        for lab in labs.values():
            lifecycle.down(lab.layout)
    raw = {name: [one[0] for one in pairs] for name, pairs in rates.items()}
    less = {name: [one[1] for one in pairs] for name, pairs in rates.items()}
    claims = [
        evaluate("job_throughput", raw, ALONE) | {"wait_ms": waits_ms},
        evaluate("job_throughput_less_emulation", less, ALONE),
        evaluate("job_throughput_empty_hooks", raw, EMPTY_HOOKS),
    ]
    return publish(claims, arguments.json)


def measure(labs: dict[str, Lab], jobs: int, batches: int) -> dict[str, list[tuple[float, float]]]:
    """Measure the job throughput of each lab (emulated cluster) in batches.

    The first batch of each lab is a warm-up and is not part of the result.

    Returns:
        For each lab by name, one pair of rates per batch, in jobs per second. The first is the measured
        rate. The second is the rate after the CPU time of the emulators has been subtracted.
    """
    rates: dict[str, list[tuple[float, float]]] = {name: [] for name in labs}
    for batch in range(batches + 1):
        names = list(labs) if batch % 2 else list(reversed(labs))  # none always runs first
        for name in names:
            before = cpu_seconds(labs.values())
            length_s = run_batch(labs[name], jobs, ["--energy-policy=monitor"] if name == SUITE else [])
            used = {part: seconds - before[part] for part, seconds in cpu_seconds(labs.values()).items()}
            rate = jobs / length_s, jobs / (length_s - used["emulator"] / len(os.sched_getaffinity(0)))
            shares = ", ".join(f"{part} {1000 * seconds / jobs:.1f}" for part, seconds in used.items())
            print(f"batch {batch} {name:<13} {rate[0]:6.1f} jobs/s; CPU ms per job: {shares}", flush=True)
            if batch:
                rates[name].append(rate)
    return rates


def cpu_seconds(labs: Iterable[Lab]) -> dict[str, float]:
    """Return the CPU seconds that the daemons of all labs (emulated clusters) have used, by kind."""
    used = dict.fromkeys(DAEMONS, 0.0)
    for lab in labs:
        status = lab.status()
        for daemons in (status["daemons"], *(node["daemons"] for node in status["nodes"].values())):
            for part in DAEMONS:
                used[part] += process_seconds(pid) if (pid := daemons.get(part)) else 0.0
    return used


def process_seconds(pid: int) -> float:
    """Return the CPU seconds of a living process and of the children that it has waited for."""
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
        return sum(int(word) for word in words[11:15]) / os.sysconf("SC_CLK_TCK")
    return 0.0


def measure_waits(lab: Lab) -> dict[str, float]:
    """Return the median milliseconds that a prolog (`begin`) and an epilog (`end`) wait for senergyd.

    The begin and end of each job are announced as the hooks announce them. The jobs run one after
    the other, on all nodes in turn.
    """
    waits: dict[str, list[float]] = {"begin": [], "end": []}
    for number in range(WAITING_JOBS):
        node = lab.nodes[number % len(lab.nodes)]
        own = {
            "SLURM_JOB_ID": str(FIRST_WAITING_JOB + number),
            "SLURM_JOB_CPUS_PER_NODE": "1",
            "SLURMD_NODENAME": node,
        }
        path = lab.layout.node_run(node) / "senergy/agent.sock"
        for operation, values in waits.items():
            start = time.perf_counter()
            response = ask_agent(path, {"op": operation, "env": own_agent.job_environment() | own})
            values.append(1000 * (time.perf_counter() - start))
            if not response.get("ok"):
                raise SystemExit(f"throughput.py: senergyd: {response}")
    medians = {operation: round(statistics.median(values), 2) for operation, values in waits.items()}
    print(f"wait for senergyd: begin {medians['begin']} ms, end {medians['end']} ms (medians, idle lab)")
    return medians


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


def evaluate(claim: str, rates: dict[str, list[float]], base: str) -> Claim:
    """Return the claim that a lab with slurm-energy runs enough jobs per second.

    The rate of slurm-energy is divided by the rate of the lab `base`.

    Args:
        claim: name of the claim.
        rates: jobs per second of each batch, by lab.
        base: name of the lab for the comparison.
    """
    medians = {name: statistics.median(values) for name, values in rates.items()}
    ratio = medians[SUITE] / medians[base]
    return at_least(claim, ratio, TARGET) | {
        "median_jobs_per_s": {name: round(value, 2) for name, value in medians.items()},
        "batches": {name: [round(value, 2) for value in values] for name, values in rates.items()},
    }


if __name__ == "__main__":
    sys.exit(main())
