"""Speed of the simulator in jobs per second, compared with AccaSim 1.1.3 and SimPy.

The SimPy simulation has one process per job. All simulators run the same rigid jobs: lognormal run times,
sizes 1 to 128 of 1,000 nodes, load 0.8, EASY backfilling. SimPy has no scheduler and uses first come, first
served. slurm-energy computes exact energies. AccaSim simulates only the first jobs, because all jobs would
take minutes.

Further tests measure slurm-energy alone. The policies zeus, kairos, blend and metis run on the same jobs, on
jobs with a load of 1.5, and on jobs that can each run on eight different sets of resources (shapes). In
another test, 100,000 jobs are submitted at once. In another test, a year with a million jobs is simulated.
The mean wait is also checked: under first come, first served, it must equal the mean wait in AccaSim to the
second, which is AccaSim's resolution.

All rates are jobs per second of processor time, so that other programs on the machine change them little.
All simulators use one thread. Only the thesis' experiments use two processes. Their duration is measured in
wall-clock time.

Needs: pip install accasim simpy
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from claims import publish
from simulator_peers import LOAD, NODES, SEED, accasim, columns, simpy_processes

from slurm_energy.scheduling.backfill import Discipline
from slurm_energy.scheduling.registry import policy
from slurm_energy.simulator.cluster import NodeKind
from slurm_energy.simulator.kernels import column_engine, fast_path
from slurm_energy.simulator.schedule_settings import ScheduleSettings
from slurm_energy.simulator.workloads.workload import Workload, workload

ACCASIM_TARGET, SIMPY_TARGET, MEMORY_TARGET_BYTES = 500.0, 20.0, 2e9
THESIS_TARGET_S = 60.0
POLICIES = ("zeus", "kairos", "blend", "metis")
RIGID_TARGET, RIGID_ACCASIM_TARGET, MALLEABLE_TARGET, OVERLOAD_TARGET = 100_000.0, 200.0, 30_000.0, 10_000.0
AT_ONCE_TARGET_S, YEAR_TARGET_S = 5.0, 60.0
OVERLOAD, OVERLOAD_JOBS, MALLEABLE_NODES, SHAPES = 1.5, 8000, 256, 8


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--jobs", type=int, default=100_000, help="jobs of slurm-energy and SimPy (default 100000)"
    )
    parser.add_argument("--accasim-jobs", type=int, default=10_000, help="jobs of AccaSim (default 10000)")
    parser.add_argument("--many", type=int, default=10_000_000, help="jobs of the memory test; 0: none")
    parser.add_argument(
        "--runs", type=int, default=5, help="runs of slurm-energy, of which the median counts (default 5)"
    )
    parser.add_argument("--json", metavar="FILE", help="also write the claims to FILE as JSON")
    parser.add_argument(
        "--year", type=int, default=1_000_000, help="jobs of a year under zeus (default 1000000); 0: none"
    )
    parser.add_argument("--child", choices=("accasim", "memory", "year"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps({"accasim": accasim, "memory": memory, "year": year}[args.child](args.jobs)))
        return 0
    claims = [*speed(args), *policies_speed(args), *([] if not args.year else year_claims(args.year))]
    claims += [thesis_claim(), *([] if not args.many else [memory_claim(args.many)])]
    return publish(claims, args.json)


def speed(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    jobs = random_jobs(args.jobs)
    rate = {}
    for discipline in (Discipline.STRICT, Discipline.EASY):
        rate[discipline] = ours(jobs, discipline, args.runs)
        print(f"ours, {discipline:<9} {rate[discipline]:>12,.0f} jobs/s", flush=True)
    if importlib.util.find_spec("accasim"):
        result = child("accasim", args.accasim_jobs)
        print(f"AccaSim, easy   {result['easy_jobs_per_s']:>12,.0f} jobs/s", flush=True)
        few = random_jobs(args.accasim_jobs)
        wait_s = float(
            np.mean(fast_path.simulate(few, [node()], ScheduleSettings(Discipline.STRICT)).wait_s())
        )
        print(f"mean wait, FCFS: slurm-energy {wait_s:.2f} s, AccaSim {result['fcfs_wait_s']:.2f} s")
        easy_s = float(np.mean(fast_path.simulate(few, [node()], ScheduleSettings(Discipline.EASY)).wait_s()))
        print(
            f"mean wait, EASY: slurm-energy {easy_s:.2f} s, AccaSim {result['easy_wait_s']:.2f} s", end=", "
        )
        print(f"jobs that its own rule starts at its second: {result['easy_explained']:.0%}")
        yield same_wait(wait_s / result["fcfs_wait_s"])
        yield claim("simulator_easy_explained", result["easy_explained"], 1.0)
        yield claim("simulator_accasim", rate[Discipline.EASY] / result["easy_jobs_per_s"], ACCASIM_TARGET)
        for name in POLICIES:
            ratio = jobs.count / column_seconds(name, jobs, args.runs) / result["easy_jobs_per_s"]
            print(f"{name} against AccaSim: {ratio:,.0f}")
            yield claim(f"simulator_accasim_{name}", ratio, RIGID_ACCASIM_TARGET)
    else:
        print("AccaSim: not measured: pip install accasim")
    if importlib.util.find_spec("simpy"):
        simpy_rate = simpy_processes(jobs)
        print(f"SimPy           {simpy_rate:>12,.0f} jobs/s", flush=True)
        yield claim("simulator_simpy", rate[Discipline.STRICT] / simpy_rate, SIMPY_TARGET)
    else:
        print("SimPy: not measured: pip install simpy")


def policies_speed(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Measure the speed of the simulator's compiled engine for every scheduling policy.

    EASY and packing, two rules by which the simulator starts jobs, are both measured.
    """
    jobs, few = random_jobs(args.jobs), random_jobs(OVERLOAD_JOBS)
    malleable, nodes = malleable_jobs(args.jobs // 4), [NodeKind("node", MALLEABLE_NODES, 1, 150.0, 150.0)]
    overload = submitted(few, few.submit_s * LOAD / OVERLOAD)
    for name in POLICIES:
        yield rate_claim(
            f"simulator_{name}", jobs.count / column_seconds(name, jobs, args.runs), RIGID_TARGET
        )
        rate = overload.count / column_seconds(name, overload, args.runs)
        yield rate_claim(f"simulator_overload_{name}", rate, OVERLOAD_TARGET)
        for discipline in (Discipline.EASY, Discipline.PACKING):
            rate = malleable.count / column_seconds(name, malleable, args.runs, nodes, discipline)
            yield rate_claim(f"simulator_malleable_{discipline}_{name}", rate, MALLEABLE_TARGET)
    at_once = submitted(jobs, np.zeros(jobs.count))
    for name in ("fcfs", "zeus"):
        seconds = column_seconds(name, at_once, 1)
        print(f"{jobs.count:,} jobs at once, EASY, {name}: {seconds:.2f} s", flush=True)
        yield limit_claim(f"simulator_at_once_{name}", seconds / AT_ONCE_TARGET_S)


def rate_claim(name: str, jobs_per_s: float, target: float) -> dict[str, Any]:
    print(f"{name:<36} {jobs_per_s:>12,.0f} jobs/s", flush=True)
    return claim(name, jobs_per_s / target, 1.0)


def limit_claim(name: str, ratio: float) -> dict[str, Any]:
    return {"claim": name, "ratio": round(ratio, 3), "target": "<=1", "holds": ratio <= 1}


def column_seconds(
    name: str,
    jobs: Workload,
    runs: int,
    nodes: Sequence[NodeKind] = (),
    discipline: Discipline = Discipline.EASY,
) -> float:
    """Return the median processor time of a simulation with the compiled engine.

    The engine supports all scheduling policies. The time for its compilation is not included.
    """
    kinds, settings = nodes or [node()], ScheduleSettings(discipline)
    column_engine.simulate(random_jobs(100), [node()], policy(name), settings)
    times = []
    for _ in range(runs):
        begin = time.process_time()
        column_engine.simulate(jobs, kinds, policy(name), settings)
        times.append(time.process_time() - begin)
    return statistics.median(times)


def year(jobs: int) -> dict[str, float]:
    work = random_jobs(jobs)
    span_s = 365 * 86_400.0
    work = submitted(work, work.submit_s * span_s / work.submit_s[-1])
    mean_units = float(np.mean(work.units * work.time_s)) * jobs / span_s
    nodes = [NodeKind("node", math.ceil(mean_units / LOAD), 1, 150.0, 150.0)]  # load 0.8 on a larger cluster
    seconds = column_seconds("zeus", work, 1, nodes)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0
    return {"peak_bytes": peak, "seconds": seconds, "nodes": nodes[0].nodes}


def year_claims(jobs: int) -> Iterator[dict[str, Any]]:
    result = child("year", jobs)
    seconds, peak = result["seconds"], result["peak_bytes"]
    nodes = result["nodes"]
    print(f"{jobs:,} jobs of a year, zeus, EASY, {nodes:,} nodes: {seconds:.1f} s, {peak / 1e9:.2f} GB")
    yield limit_claim("simulator_year", seconds / YEAR_TARGET_S)
    yield limit_claim("simulator_year_memory", peak / MEMORY_TARGET_BYTES)


def submitted(jobs: Workload, submit_s: np.ndarray) -> Workload:
    """Return a copy of the workload with the submission times `submit_s`.

    Each job is rigid: it has only one possible size.
    """
    shape = {"units": jobs.units, "time_s": jobs.time_s, "power_watts": jobs.power_watts}
    job = {"submit_s": submit_s, "time_limit_s": jobs.time_limit_s}
    return workload(np.arange(jobs.count + 1), job, shape)


def malleable_jobs(count: int) -> Workload:
    """Return jobs that run on 1 to 128 nodes; 50 to 95 % of a job's work is parallel."""
    random = np.random.default_rng(SEED)
    sizes = 2 ** np.arange(SHAPES)
    parallel = random.uniform(0.5, 0.95, count)[:, np.newaxis]
    time_s = random.lognormal(8.0, 0.95, count)[:, np.newaxis] * (1 - parallel + parallel / sizes)
    watts = 250.0 * sizes * random.uniform(0.8, 1.2, count)[:, np.newaxis]
    lean = np.argmin(watts * time_s**2, axis=1)
    used = float(np.mean(time_s[np.arange(count), lean] * sizes[lean]))
    submit_s = np.cumsum(random.exponential(used / (LOAD * MALLEABLE_NODES), count))
    shape = {"units": np.tile(sizes, count), "time_s": time_s.ravel(), "power_watts": watts.ravel()}
    return workload(np.arange(count + 1) * SHAPES, {"submit_s": submit_s}, shape)


def claim(name: str, ratio: float, least: float) -> dict[str, Any]:
    return {"claim": name, "ratio": round(ratio, 1), "target": f">={least:g}", "holds": ratio >= least}


def same_wait(ratio: float) -> dict[str, Any]:
    holds = abs(ratio - 1) < 1e-6
    return {"claim": "simulator_fcfs_wait", "ratio": round(ratio, 9), "target": "=1", "holds": holds}


def thesis_claim() -> dict[str, Any]:
    """Measure how long all experiments of the thesis take in the simulator.

    Return a claim: the measured time compared with its target. The experiments use every policy and 10
    seeds. They run on two cores.
    """
    begin = time.perf_counter()
    program = Path(__file__).parent / "thesis" / "reproduce.py"
    command = [sys.executable, str(program), "--jobs", "2", "--json"]
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    seconds = time.perf_counter() - begin
    print(f"the thesis' experiments: {seconds:.1f} s")
    ratio = seconds / THESIS_TARGET_S
    return {"claim": "simulator_thesis", "ratio": round(ratio, 3), "target": "<=1", "holds": ratio <= 1}


def memory_claim(jobs: int) -> dict[str, Any]:
    result = child("memory", jobs)
    peak = result["peak_bytes"]
    print(f"{jobs:,} jobs: {peak / 1e9:.2f} GB, {result['seconds']:.1f} s")
    ratio = peak / MEMORY_TARGET_BYTES
    return {"claim": "simulator_memory", "ratio": round(ratio, 3), "target": "<=1", "holds": ratio <= 1}


def child(what: str, jobs: int) -> dict[str, Any]:
    command = [sys.executable, __file__, "--child", what, "--jobs", str(jobs)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def random_jobs(count: int) -> Workload:
    submit_s, units, time_s, limit_s = columns(count)
    job = {"submit_s": submit_s, "time_limit_s": limit_s}
    return workload(
        np.arange(count + 1), job, {"units": units, "time_s": time_s, "power_watts": 300.0 * units}
    )


def node() -> NodeKind:
    return NodeKind("node", NODES, 1, idle_watts=150.0, unit_idle_watts=150.0)


def ours(jobs: Workload, discipline: Discipline, runs: int) -> float:
    """Return the speed of slurm-energy's simulator in simulated jobs per second of processor time.

    The time of compilation is excluded.
    """
    settings = ScheduleSettings(discipline)
    fast_path.simulate(random_jobs(100), [node()], settings)
    times = []
    for _ in range(runs):
        begin = time.process_time()
        fast_path.simulate(jobs, [node()], settings)
        times.append(time.process_time() - begin)
    return jobs.count / statistics.median(times)


def memory(jobs: int) -> dict[str, float]:
    work = random_jobs(jobs)
    begin = time.process_time()
    outcome = fast_path.simulate(work, [node()], ScheduleSettings(Discipline.EASY))
    seconds = time.process_time() - begin
    assert len(outcome.done) == jobs
    return {"peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0, "seconds": seconds}


if __name__ == "__main__":
    sys.exit(main())
