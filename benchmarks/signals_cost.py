"""CPU time that the sampling of signals adds to senergyd, on an emulated node with 8 GPUs and 10 jobs.

Three agents take turns on the same node with the same ten running jobs, eight of which have a GPU: without
sampling of signals, with an interval of 10 s, and with one of 1 s. The cost is the CPU time of all threads of
the process in a window, as share of one core; that of the agent without sampling is subtracted. The emulated
NVML and control groups take about as many system calls as real ones. Needs root.

Prints `CLAIM signals_10s`: percent of a core that sampling every 10 s adds, target at most 1, and `CLAIM
signals_1s`: the same for 1 s, target at most 5.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import own_agent
import peers
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
    """Keep a kernel of each job running, so that the jobs have control groups and busy devices."""
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
    """Return the percent of a core that an agent with ten jobs uses, and its own statistics of sampling."""
    from slurm_energy.protocol.agent_socket import ask_agent

    with tempfile.TemporaryDirectory(prefix="senergy-") as folder:
        config, path = Path(folder) / "energy.toml", Path(folder) / "agent.sock"
        config.write_text(
            f'[cluster]\ncontroller_url = "http://127.0.0.1:9"\n'
            f'[agent]\nsocket = "{path}"\nstate_dir = "{folder}/state"\nsignals_interval = "{interval}"\n'
        )
        command, environment = peers.command_inside(
            node, sys.executable, "-m", "slurm_energy.agent.main", "--config", str(config)
        )
        waiting = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
        try:
            begin_jobs(path, waiting)
            agent = int(Path(f"/proc/{waiting.pid}/task/{waiting.pid}/children").read_text())
            time.sleep(_WARM_UP_S)
            before, began_s = peers.thread_seconds(agent), time.monotonic()
            time.sleep(seconds)
            used_s, lasted_s = peers.thread_seconds(agent) - before, time.monotonic() - began_s
            state = dict(ask_agent(path, {"op": "status"})["signals"])
            if state["jobs"] != (0 if interval == "off" else JOBS):
                raise SystemExit(f"signals {interval}: senergyd samples {state['jobs']} jobs")
            return 100 * used_s / lasted_s, state
        finally:
            for child in Path(f"/proc/{waiting.pid}/task/{waiting.pid}/children").read_text().split():
                os.kill(int(child), signal.SIGTERM)
            waiting.wait(30)


def begin_jobs(path: Path, agent: subprocess.Popen[bytes]) -> None:
    """Announce ten jobs with four CPUs each; eight of them have a GPU."""
    from slurm_energy.errors import UnavailableError
    from slurm_energy.protocol.agent_socket import ask_agent

    deadline = time.monotonic() + 30
    number = 0
    while number < JOBS and time.monotonic() < deadline and agent.poll() is None:
        environment = own_agent.job_environment() | {
            "SLURM_JOB_ID": str(FIRST_JOB + number),
            "SLURM_JOB_CPUS_PER_NODE": "4",
            **({"SLURM_JOB_GPUS": str(number)} if number < GPU_JOBS else {}),
        }
        try:
            answer = ask_agent(path, {"op": "begin", "env": environment})
        except UnavailableError:
            time.sleep(0.05)
            continue
        if not answer.get("ok"):
            raise SystemExit(f"senergyd: {answer}")
        number += 1
    if number < JOBS:
        raise SystemExit("senergyd: does not answer")


if __name__ == "__main__":
    sys.exit(main())
