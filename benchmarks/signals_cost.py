"""Benchmark of the CPU time that the sampling of signals adds to senergyd.

It runs on an emulated node with 8 GPUs and 10 jobs. Eight of the jobs have a GPU. Three agents take turns on
the node with the same running jobs. The first agent does not sample signals. The second agent samples every
10 s, and the third agent every 1 s. The cost is the CPU time of all threads of an agent in a window, as a
share of one core, minus the cost of the agent without sampling. The emulated NVML and control groups take
about as many system calls as real ones. Needs root.

Prints `CLAIM signals_10s`: percent of a core that sampling every 10 s adds, target at most 1, and `CLAIM
signals_1s`: the same for 1 s, target at most 5.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import socket
import statistics
import sys
import time
from collections.abc import Iterator
from typing import Any

import own_agent
import peers
from agent_in_node import agent_in_node
from claims import at_most, publish

PROFILE = "xeon-h100"
INTERVALS = ("off", "10s", "1s")
JOBS, GPU_JOBS, FIRST_JOB = 10, 8, 900_001
_TARGETS = {"10s": 1.0, "1s": 5.0}
_WARM_UP_S = 12.0
"""The fallback to processes and the first search for control groups are part of the first ten seconds."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=2, help="windows per interval (default 2)")
    parser.add_argument("--seconds", type=float, default=40.0, help="length of a window (default 40)")
    parser.add_argument("--json", metavar="FILE", help="also write the claims to FILE as JSON")
    arguments = parser.parse_args()
    shares: dict[str, list[float]] = {interval: [] for interval in INTERVALS}
    passes: dict[str, dict[str, Any]] = {}
    with peers.start_node(PROFILE) as node, kernels(node):
        for _ in range(arguments.rounds):
            for interval in INTERVALS:
                share, passes[interval] = measure(node, interval, arguments.seconds)
                shares[interval].append(share)
    base = statistics.median(shares["off"])
    for interval, values in shares.items():
        rounds = ", ".join(f"{value:.2f}" for value in values)
        state = passes[interval]
        own = "" if state["cpu_percent"] is None else f"; senergyd's own figure {state['cpu_percent']:.2f} %"
        print(f"{interval:>4}: {statistics.median(values):6.2f} % of a core ({rounds}){own}")
    claims = [
        at_most(f"signals_{interval}", statistics.median(shares[interval]) - base, target)
        | {"cpu_percent": shares, "state": passes[interval]}
        for interval, target in _TARGETS.items()
    ]
    return publish(claims, arguments.json)


@contextlib.contextmanager
def kernels(node: Any) -> Iterator[None]:
    """Run one compute kernel for each job during the block.

    The jobs then have control groups and busy devices.
    """
    with contextlib.ExitStack() as stack:
        for number in range(JOBS):
            device = {"device": "gpu", "gpus": [number]} if number < GPU_JOBS else {"device": "cpu"}
            message = {"op": "kernel", "kernel": "train", "job_id": FIRST_JOB + number, "cpus": [number]}
            connection = stack.enter_context(socket.socket(socket.AF_UNIX))
            connection.connect(str(node.socket))
            message |= device | {"full_speed_s": 3600.0}
            connection.sendall(json.dumps(message).encode() + b"\n")
        yield


def measure(node: Any, interval: str, seconds: float) -> tuple[float, dict[str, Any]]:
    """Measure what the sampling of signals costs an agent with ten running jobs.

    The function returns the CPU time of the agent in percent of one core, and the agent's own statistics of
    the sampling.
    """
    from slurm_energy.protocol.agent_socket import ask_agent

    with agent_in_node(node, f'signals_interval = "{interval}"', jobs()) as (path, agent):
        time.sleep(_WARM_UP_S)
        before, began_s = peers.thread_seconds(agent), time.monotonic()
        time.sleep(seconds)
        used_s, lasted_s = peers.thread_seconds(agent) - before, time.monotonic() - began_s
        state = dict(ask_agent(path, {"op": "status"})["signals"])
        if state["jobs"] != (0 if interval == "off" else JOBS):
            raise SystemExit(f"signals {interval}: senergyd samples {state['jobs']} jobs")
        return 100 * used_s / lasted_s, state


def jobs() -> list[dict[str, str]]:
    """Return the environments of ten jobs with four CPUs each; eight of them have a GPU."""
    return [
        own_agent.job_environment()
        | {"SLURM_JOB_ID": str(FIRST_JOB + number), "SLURM_JOB_CPUS_PER_NODE": "4"}
        | ({"SLURM_JOB_GPUS": str(number)} if number < GPU_JOBS else {})
        for number in range(JOBS)
    ]


if __name__ == "__main__":
    try:
        sys.exit(main())
    except peers.NotMeasuredError as error:
        sys.exit(str(error))
