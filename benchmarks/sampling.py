"""Benchmark of the CPU time that one sample of a node costs, for senergyd and for other tools.

Each tool samples 2 sockets, DRAM and 8 GPUs of the same emulated node once per interval, in a
separate process. The cost of a sample is the CPU time of this process and its children after
start-up, divided by the number of samples. `bare` reads the same files with pread, calls NVML as
often as senergyd's sampler does, and stores nothing. `senergyd` is the whole agent while one job uses
the node: sampling, attribution, trace, checkpoints. The tools run one after another, in several
rounds. The result of a tool is its minimum over the rounds, because other work on the machine only
adds time. The benchmark needs root and the optional dependencies `judges`. The tool EA2P also needs
`--ea2p PATH` of a checkout.

The benchmark prints these results about ratios of CPU time per sample:
- `CLAIM sampling_TOOL ratio=...`: the tool divided by the sampler, target at least 5;
- `CLAIM sampling_bare`: the sampler divided by bare reads, target at most 1.5;
- `CLAIM sampling_whole_agent`: the whole agent divided by Zeus, target at most 0.5.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

import own_agent
import peers
from agent_in_node import agent_in_node
from claims import Claim, at_least, at_most, publish

PROFILE = "xeon-4210-rtx6000"
JUDGED = ("zeus", "codecarbon", "ea2p")
SHOWN = ("ours", "bare", "senergyd", *JUDGED, "pyjoules", "pyrapl")
LEAST_PEER_RATIO, MOST_BARE_RATIO, MOST_AGENT_RATIO = 5.0, 1.5, 0.5


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, help="windows per tool (default 3)")
    parser.add_argument("--seconds", type=float, default=20.0, help="length of a window (default 20)")
    parser.add_argument("--hz", type=float, default=1.0, help="samples per second (default 1)")
    parser.add_argument("--profile", default=PROFILE, help=f"emulated node (default {PROFILE})")
    parser.add_argument("--ea2p", metavar="PATH", help="checkout of EA2P")
    parser.add_argument("--tools", help="only these, separated by commas")
    parser.add_argument("--json", metavar="FILE", help="also write the claims to FILE as JSON")
    arguments = parser.parse_args()
    with peers.start_node(arguments.profile) as node:
        costs = measure(node, arguments)
    return publish(evaluate(costs), arguments.json)


def measure(node: Any, arguments: argparse.Namespace) -> dict[str, float]:
    """Measure the CPU time that each tool needs to take one sample.

    The function prints the times of all rounds. It returns the shortest time of each tool in ms.
    """
    result: dict[str, list[float]] = {}
    reasons: dict[str, str] = {}
    for _ in range(arguments.rounds):
        for tool in arguments.tools.split(",") if arguments.tools else SHOWN:
            try:
                result.setdefault(tool, []).append(1e3 * cost_s(node, tool, arguments))
            except peers.NotMeasuredError as error:
                reasons[tool] = str(error)
    for tool in SHOWN:
        values = sorted(result.get(tool, []))
        rounds = ", ".join(f"{value:.3f}" for value in values)
        if values:
            print(f"{tool:<12} {values[0]:8.3f} ms per sample ({rounds})")
        elif tool in reasons:
            print(f"{tool:<12} not measured: {reasons[tool]}")
    return {tool: min(values) for tool, values in result.items() if values}


def cost_s(node: Any, tool: str, arguments: argparse.Namespace) -> float:
    """Measure one tool during one time window. Return the CPU seconds that it needs per sample."""
    if tool == "senergyd":
        return agent_s(node, arguments.hz, arguments.seconds)
    window = peers.run(node, tool, arguments.seconds, 1 / arguments.hz, arguments.ea2p)
    if not window.samples:
        raise peers.NotMeasuredError(f"{tool}: took no sample")
    return window.cpu_s / window.samples


def agent_s(node: Any, hz: float, seconds: float) -> float:
    """Return the CPU seconds that senergyd needs per sample, on a node with one job.

    The job has the whole node.
    """
    jobs = [own_agent.job_environment()]
    with agent_in_node(node, f"sampling_hz = {hz}", jobs) as (_, agent):
        time.sleep(2)
        before = peers.thread_seconds(agent)
        time.sleep(seconds)
        return (peers.thread_seconds(agent) - before) / (seconds * hz)


def evaluate(costs: dict[str, float]) -> list[Claim]:
    judged = [tool for tool in JUDGED if tool in costs]
    claims = [at_least(f"sampling_{tool}", costs[tool] / costs["ours"], LEAST_PEER_RATIO) for tool in judged]
    if {"zeus", "senergyd"} <= costs.keys():
        claims.append(at_most("sampling_whole_agent", costs["senergyd"] / costs["zeus"], MOST_AGENT_RATIO))
    claims.append(at_most("sampling_bare", costs["ours"] / costs["bare"], MOST_BARE_RATIO))
    return [entry | {"ms_per_sample": costs} for entry in claims]


if __name__ == "__main__":
    sys.exit(main())
