"""Benchmark of the CPU time that senergyd needs per short job.

The benchmark checks that the CPU time per job does not grow with the number of earlier jobs. It
compares the first jobs of an hour with jobs that follow many others. One senergyd runs in an emulated
node without GPUs. Each job is announced as slurmd and slurmstepd announce a batch job (begin, start
and end of one step, end). Three jobs share the node at any time. The figure is the CPU time of all
threads, divided by the number of jobs. Files and sensors of the node are served by FUSE, so system
time is higher than on real hardware. Records are not delivered. The benchmark needs root.

It prints `CLAIM short_jobs ratio=... target=<=1.5 holds=yes|no`. The ratio is the CPU time per job
after many jobs divided by that of the first jobs.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import own_agent
import peers
from agent_in_node import agent_in_node
from claims import at_most, publish

PROFILE = "xeon-8358"
FIRST_JOB, FILLING_JOB = 900_001, 2_000_000
RATE_HZ, FILLING_HZ = 8.0, 30.0
TARGET = 1.5
_SETTLE_S = 2.0
"""Records of the last jobs are written and synced within this time."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=200, help="measured jobs (default 200)")
    parser.add_argument("--earlier", type=int, default=1200, help="jobs that ended before (default 1200)")
    parser.add_argument("--json", metavar="FILE", help="also write the claim to FILE as JSON")
    arguments = parser.parse_args()
    with peers.start_node(PROFILE) as node, agent_in_node(node, "", [job(1)]) as (path, agent):
        end(path, 1)
        few = measure(path, agent, FIRST_JOB, arguments.jobs)
        run(path, FILLING_JOB, arguments.earlier, FILLING_HZ)
        many = measure(path, agent, FIRST_JOB + arguments.jobs, arguments.jobs)
    print(f"first jobs {few:.2f} ms, after {arguments.earlier} jobs {many:.2f} ms of CPU time per job")
    claim = at_most("short_jobs", many / few, TARGET) | {"first_ms": few, "later_ms": many}
    return publish([claim], arguments.json)


def measure(path: Path, agent: int, first: int, count: int) -> float:
    """Run `count` short jobs. Return the CPU time that senergyd uses per job, in milliseconds."""
    time.sleep(_SETTLE_S)
    before = peers.thread_seconds(agent)
    run(path, first, count, RATE_HZ)
    time.sleep(_SETTLE_S)
    return 1000 * (peers.thread_seconds(agent) - before) / count


def run(path: Path, first: int, count: int, rate_hz: float) -> None:
    """Send the messages that start and end jobs to the agent, at a given rate of starts.

    Job n ends directly after the start of job n + 2.
    """
    start = time.monotonic()
    for number in range(count + 2):
        if number < count:
            ask(path, {"op": "begin", "env": job(first + number)})
            ask(path, step("start", first + number))
        if number >= 2:
            ask(path, step("end", first + number - 2))
            end(path, first + number - 2)
        time.sleep(max(0.0, start + number / rate_hz - time.monotonic()))


def end(path: Path, job_id: int) -> None:
    ask(path, {"op": "end", "env": job(job_id)})


def step(event: str, job_id: int) -> dict[str, Any]:
    return {"op": "step", "event": event, "job_id": job_id, "step": "batch"}


def job(job_id: int) -> dict[str, str]:
    """Return the environment that the prolog of a job with one CPU has."""
    return own_agent.job_environment() | {"SLURM_JOB_ID": str(job_id), "SLURM_JOB_CPUS_PER_NODE": "1"}


def ask(path: Path, message: dict[str, Any]) -> None:
    from slurm_energy.protocol.agent_socket import ask_agent

    if not (response := ask_agent(path, message)).get("ok"):
        raise SystemExit(f"short_jobs.py: senergyd: {response}")


if __name__ == "__main__":
    try:
        sys.exit(main())
    except peers.NotMeasuredError as error:
        sys.exit(str(error))
