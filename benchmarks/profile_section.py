"""Benchmark of the cost for a program that measures a section of its code.

The cost is the seconds of the begin and the end of the section. slurm-energy is compared with zeus and EA2P.

slurm-energy is measured with `with slurm_energy.profile("x")` through a running senergyd. This file starts a
senergyd on its own socket and announces a job to it, which needs root. Inside a job, the agent of the node
is used.

zeus is measured with ZeusMonitor.begin_window and end_window, without synchronising a device. With --ea2p,
PowerMeter.start_measure and stop_measure of EA2P (not on PyPI) are measured too. EA2P waits for its sampling
thread at the end and therefore runs fewer rounds.

The sections alternate between the tools, with pauses. The sections of slurm-energy thus stay within the rate
limit of a user's fresh samples. All tools run in the same emulated node, which this file starts (root). With
--here, or inside a job, they run on this machine. If another tool measures nothing there, no `CLAIM` line is
printed for it. If slurm-energy measures nothing, the benchmark fails.

The benchmark prints `CLAIM profile_section ratio=... target=<=1`, the median of slurm-energy divided by 1
ms. It also prints `CLAIM profile_section_zeus` and `CLAIM profile_section_ea2p`, the median of slurm-energy
divided by the median of the other tool.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import peers
from claims import Claim, at_most, publish
from own_agent import JOB_ID, own_agent

PROFILE = "xeon-h100"
PACE_S = 0.01
BODY_S = 0.005
Step = Callable[[], object]
LIMIT_MS = 1.0
EA2P_ROUNDS, EA2P_INTERVAL_S = 20, 0.1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=300, help="sections of each tool (default 300)")
    parser.add_argument("--json", metavar="FILE", help="also write the claims to FILE as JSON")
    parser.add_argument("--ea2p", metavar="PATH", help="checkout of EA2P, to compare with it too")
    parser.add_argument("--profile", default=PROFILE, help=f"emulated node (default {PROFILE})")
    parser.add_argument("--here", action="store_true", help="on this machine, not in an emulated node")
    arguments = parser.parse_args()
    in_job = bool(os.environ.get("SLURM_JOB_ID"))
    if not (arguments.here or in_job):
        return run_in_node(arguments.profile, sys.argv[1:])
    with contextlib.nullcontext() if in_job else announced_job():
        claims = evaluate(measure(arguments.rounds, arguments.ea2p))
    return publish(claims, arguments.json)


def run_in_node(profile: str, arguments: list[str]) -> int:
    """Run this file with --here in an emulated node; return its exit status."""
    with peers.start_node(profile) as node:
        command = [sys.executable, str(Path(__file__).resolve()), *arguments, "--here"]
        argv, environment = peers.command_inside(node, *command)
        return subprocess.run(argv, env=environment, check=False).returncode


@contextlib.contextmanager
def announced_job() -> Iterator[None]:
    """Run a private senergyd and announce a job that consists of this process."""
    with own_agent() as agent:
        agent.begin()
        os.environ |= {"SENERGY_CONFIG": str(agent.config), "SLURM_JOB_ID": str(JOB_ID)}
        os.environ["SENERGY_PROFILE_DIR"] = f"{agent.folder}/out"
        yield
        # Lines that are written only at the exit of Python would create the folder again.
        from slurm_energy import profiling

        profiling.flush()


def measure(rounds: int, ea2p: str | None) -> dict[str, list[float]]:
    """Return the cost in seconds of measuring a section of code, for slurm-energy and other tools.

    The cost is the time that the begin and the end of a measured section take together. slurm-energy and
    Zeus are measured in turn, so that noise affects both alike.
    """
    import slurm_energy

    ours = slurm_energy.profile("x")
    last: list[Any] = [None]

    def enter() -> None:
        last[0] = ours.__enter__()

    kinds: dict[str, tuple[Step, Step]] = {"ours": (enter, lambda: ours.__exit__(None, None, None))}
    if zeus := zeus_window():
        kinds["zeus"] = zeus
    times: dict[str, list[float]] = {name: [] for name in kinds}
    for number in range(-20, rounds):
        for name, steps in kinds.items():
            cost_s = cost(*steps)
            if number >= 0:
                times[name].append(cost_s)
            time.sleep(PACE_S)
    with ea2p_measure(ea2p) as measured:
        if measured:
            cost(*measured)
            times["ea2p"] = [cost(*measured) for _ in range(EA2P_ROUNDS)]
    parts = ", ".join(last[0].energy_joules)
    if not parts:
        raise SystemExit("nothing to compare: a section of slurm-energy measures nothing on this machine")
    print(f"a section of slurm-energy measures {parts}; its samples were {last[0].age_s} s old in total")
    return times


def cost(begin_section: Step, end_section: Step) -> float:
    """Return the seconds that entering and leaving one measured section of a program take together."""
    start = time.perf_counter()
    begin_section()
    inside = time.perf_counter()
    time.sleep(BODY_S)
    outside = time.perf_counter()
    end_section()
    return inside - start + time.perf_counter() - outside


@contextlib.contextmanager
def ea2p_measure(path: str | None) -> Iterator[tuple[Step, Step] | None]:
    """Context manager for a measurement of a section with the tool EA2P.

    It yields two functions: one begins the measurement, the other ends it. It yields None if EA2P cannot
    run.
    """
    tool, here = peers.Ea2p(EA2P_INTERVAL_S, path), Path.cwd()
    try:
        tool.prepare()
    except Exception as error:
        print(f"EA2P not measured: {error}")
        yield None
        return
    yield tool.begin, tool.meter.stop_measure
    os.chdir(here)
    shutil.rmtree(tool.folder)


def zeus_window() -> tuple[Step, Step] | None:
    """Return the functions that begin and end a measurement window of zeus.

    None if zeus cannot run or measures nothing here.
    """
    try:
        from zeus.monitor import ZeusMonitor

        monitor = ZeusMonitor()
        steps = (
            lambda: monitor.begin_window("x", sync_execution=False),
            lambda: monitor.end_window("x", sync_execution=False),
        )
        steps[0]()
        window = steps[1]()
    except Exception as error:
        print(f"zeus cannot run here: {type(error).__name__}: {error}")
        return None
    measured = [f"gpu[{index}]" for index in window.gpu_energy] + sorted(
        f"cpu[{index}]" for index in window.cpu_energy or {}
    )
    if not measured:
        print("zeus is not compared: it measures nothing here")
        return None
    print(f"a window of zeus measures {', '.join(measured)}")
    return steps


def evaluate(times: dict[str, list[float]]) -> list[Claim]:
    medians = {}
    for name, values in times.items():
        cuts = statistics.quantiles(values, n=20)
        medians[name] = statistics.median(values)
        print(f"{name:<6} median {medians[name] * 1e3:.3f} ms, 95 % under {cuts[-1] * 1e3:.3f} ms")
    median_ms = medians["ours"] * 1e3
    claims = [at_most("profile_section", median_ms / LIMIT_MS, 1)]
    for name in sorted(medians.keys() - {"ours"}):
        claims.append(at_most(f"profile_section_{name}", medians["ours"] / medians[name], 1))
    return [entry | {"median_ms": {n: v * 1e3 for n, v in medians.items()}} for entry in claims]


if __name__ == "__main__":
    sys.exit(main())
