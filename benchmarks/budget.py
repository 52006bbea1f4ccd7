"""Benchmark of power budgets: a control cycle, a simulated week, and a cluster of emulated nodes.

The control cycle and the week are measured with 10,000 nodes. The week has random jobs on CPU and GPU nodes.
The power budget is between 45 and 80 % of the sum of the maximum power. The benchmark simulates the week
twice with the same limits over time. In the first simulation, the controller knows future limits. In the
second simulation, the limit is a signal whose future the controller does not know. A decision takes effect
one control period (5 s) later. Every second of the week is checked. The runs on emulated nodes are those of
`budget_lab`.

Each claim (a result compared with its target) is printed as soon as it is known. Progress goes to standard
error.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from claims import Claim, at_most, publish

from slurm_energy.budget.messages import DeviceReport, JobReport, NodePoll
from slurm_energy.controller.budgets.engine import BudgetEngine
from slurm_energy.controller.budgets.facts import (
    BudgetedJob,
    BudgetedNode,
    BudgetInForce,
    BudgetScope,
    EngineSettings,
    ScopeKind,
)
from slurm_energy.scheduling import policy
from slurm_energy.scheduling.backfill import Discipline
from slurm_energy.simulator.cluster import NodeKind
from slurm_energy.simulator.engine import simulate
from slurm_energy.simulator.power.budget_control import BudgetControl
from slurm_energy.simulator.power.step_function import StepFunction
from slurm_energy.simulator.results.simulation_result import SimulationResult
from slurm_energy.simulator.schedule_settings import BudgetRules, ScheduleSettings
from slurm_energy.simulator.workloads.workload import Workload, workload

NODES, DAYS, LOAD, SEED = 10_000, 7.0, 0.95, 13
PERIOD_S, CYCLE_TARGET_S, CYCLES = 5.0, 1.0, 7
DAY_S = 86400.0
MIN_NODES = 2
"""One with processors only and one with GPUs."""
PARTS = ("cycle", "week", "lab")
CURVE = ((0.0, 0.80), (7.0, 0.65), (11.0, 0.75), (17.0, 0.45), (20.5, 0.60), (22.0, 0.80))
"""Hour of the day, and the budget from then on as a share of the maximum power."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=NODES, help=f"nodes of the week (default {NODES})")
    parser.add_argument("--days", type=float, default=DAYS, help=f"days to simulate (default {DAYS:g})")
    parser.add_argument(
        "--only", action="append", choices=PARTS, help="run this part only; may be repeated (default: all)"
    )
    parser.add_argument("--lab-seeds", type=int, default=4, help="seeds of the lab (default 4)")
    parser.add_argument("--json", metavar="FILE", help="also write the claims to FILE as JSON")
    parser.add_argument("--child", choices=("announced", "signal"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.nodes < MIN_NODES or not 0.0 < args.days < math.inf or args.lab_seeds < 1:
        parser.error(f"--nodes: at least {MIN_NODES}; --days and --lab-seeds: more than 0")
    if args.child:
        print(json.dumps(week(args.nodes, args.days, announced=args.child == "announced")))
        return 0
    return publish(all_claims(args), args.json)


def all_claims(args: argparse.Namespace) -> Iterator[Claim]:
    """Run the chosen parts of the benchmark, and yield the checks of their targets (claims)."""
    parts = args.only or PARTS
    if "cycle" in parts:
        progress("cycle: decisions of the controller for 1,000 and 10,000 nodes")
        yield from cycle_claims(1000)
        yield from cycle_claims(10_000)
    if "week" in parts:
        yield from week_claims(args)
    if "lab" in parts:
        progress(f"lab: {args.lab_seeds} seeds")
        yield from lab_claims(args.lab_seeds)


def progress(text: str) -> None:
    """Print a line with the time of day to standard error."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def lab_claims(seeds: int) -> Iterable[Claim]:
    """Evaluate the power budget in the emulated lab, and print the table of the results.

    Return the claims (results that are compared with a target).
    """
    from budget_lab import evaluation_claims

    return evaluation_claims(seeds)


def week_claims(args: argparse.Namespace) -> Iterator[Claim]:
    """Simulate a week under a power budget, and compare the results with the targets.

    Each simulation runs in its own process, so that its memory use can be measured. The function yields
    each comparison as a claim (a measured ratio with its target).
    """
    for name in ("announced", "signal"):
        progress(f"week: {name} limits, {args.nodes} nodes, {args.days:g} days")
        command = [sys.executable, __file__, "--child", name]
        command += ["--nodes", str(args.nodes), "--days", str(args.days)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        print(f"{name}: {json.dumps(result)}", flush=True)
        periods = result["longest_over_s"] / PERIOD_S
        over = at_most(f"budget_week_{name}_periods_over", periods, 0.0 if name == "announced" else 1.0)
        yield over | {"over_s": result["over_s"], "steps_down": result["steps_down"]}
        cycle = at_most(f"budget_week_{name}_cycle", result["max_cycle_s"] / CYCLE_TARGET_S, 1.0)
        yield cycle | {"cycles": result["cycles"], "memory_gb": result["memory_gb"]}


def week(nodes: int, days: float, *, announced: bool) -> dict[str, Any]:
    """Simulate a week of random jobs under a power budget. Return the totals of the simulation."""
    kinds = node_kinds(nodes)
    budget = budget_curve(kinds, days)
    settings = ScheduleSettings(
        Discipline.EASY,
        interval_s=30.0,
        horizon_s=days * DAY_S,
        budget_watts=budget,
        budget_rules=BudgetRules(period_s=PERIOD_S, announced=announced, interrupts=False),
        preemption=None,
    )
    jobs = random_jobs(kinds, days)
    cycles = CycleTimes()
    begin = time.perf_counter()
    with cycles:
        outcome = simulate(jobs, kinds, policy("charon"), settings)
    seconds = time.perf_counter() - begin
    over = excess(outcome, budget)
    return {
        "jobs": jobs.count,
        "completed": len(outcome.done),
        "preemptions": int(outcome.accounts.preemptions.sum()),
        "limit_mw": [round(float(value) / 1e6, 2) for value in budget.values[: len(CURVE)]],
        "mean_mw": round(outcome.energy_joules / outcome.end_s / 1e6, 3),
        "used_share": round(used_share(outcome, budget), 4),
        "utilisation": round(outcome.utilisation() or 0.0, 4),
        "over_s": round(float(np.sum(over)), 3),
        "longest_over_s": round(float(np.max(over, initial=0.0)), 3),
        "steps_down": int(np.sum(np.diff(budget.values) < 0)),
        "cycles": len(cycles.seconds),
        "median_cycle_s": round(float(np.median(cycles.seconds)), 5),
        "max_cycle_s": round(max(cycles.seconds), 4),
        "seconds": round(seconds, 1),
        "memory_gb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9, 3),
    }


class CycleTimes:
    """Context manager that measures the duration of each control cycle of simulated power budgets."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._decide = BudgetControl.decide

    def __enter__(self) -> None:
        def timed(*args: Any) -> None:
            begin = time.perf_counter()
            self._decide(*args)
            self.seconds.append(time.perf_counter() - begin)

        BudgetControl.decide = timed  # type: ignore[method-assign, assignment]

    def __exit__(self, *_: object) -> None:
        BudgetControl.decide = self._decide  # type: ignore[method-assign]


def cycle_claims(nodes: int) -> Iterator[Claim]:
    """Measure decisions of the controller with one job on each node.

    Yield the claim (comparison with a target) that one decision takes less processor time than its target.
    """
    engine, polls = busy_engine(nodes)
    now_s, decide_s, wall_s, poll_s = 0.0, [], [], []
    for _ in range(CYCLES):
        now_s += PERIOD_S
        begin = time.process_time()
        for poll in polls:
            engine.poll(poll, now_s)
        polled, polled_at = time.process_time(), time.perf_counter()
        cycle = engine.decide(now_s)
        wall_s.append(time.perf_counter() - polled_at)
        decide_s.append(time.process_time() - polled)
        poll_s.append((polled - begin) / nodes)
    memory_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    devices = sum(len(poll.devices) for poll in polls)
    print(
        f"controller, {nodes} nodes, {devices} devices, {len(cycle.budgets)} budgets: decision "
        f"{statistics.median(decide_s):.3f} s of one core (maximum {max(decide_s):.3f}, elapsed "
        f"{statistics.median(wall_s):.3f}), poll {1e6 * statistics.median(poll_s):.0f} us, "
        f"memory {memory_gb:.2f} GB",
        flush=True,
    )
    yield at_most(f"budget_cycle_{nodes}", statistics.median(decide_s) / CYCLE_TARGET_S, 1.0) | {
        "max_cycle_s": round(max(decide_s), 3),
        "memory_gb": round(memory_gb, 3),
    }


def busy_engine(nodes: int) -> tuple[BudgetEngine, list[NodePoll]]:
    """Return an engine of power budgets for a busy cluster, and one report (poll) of each node.

    Each node runs a job. Every fifth node has four GPUs. The cluster, two partitions and twenty accounts
    have budgets.
    """
    random = np.random.default_rng(SEED)
    polls, jobs, facts = [], {}, {}
    for number in range(nodes):
        kind = "gpu" if number % 5 == 0 else "cpu"
        job_id, account = number + 1, f"account{number % 20}"
        devices = [
            DeviceReport(f"package-{i}", "Xeon", 150.0, 350.0, 350.0, 300.0, (job_id,)) for i in (0, 1)
        ]
        if kind == "gpu":
            drawn = random.uniform(350.0, 700.0, 4)
            devices += [
                DeviceReport(f"gpu{i}", "H100", 200.0, 700.0, 700.0, float(watts), (job_id,))
                for i, watts in enumerate(drawn)
            ]
        name = f"{kind}{number}"
        watts = sum(device.watts or 0.0 for device in devices)
        polls.append(NodePoll(name, "boot", 0, tuple(devices), watts + 150.0, 40.0, (JobReport(job_id, 0),)))
        jobs[job_id] = BudgetedJob(job_id, account=account, partition=kind, nodes=frozenset({name}))
        facts[name] = BudgetedNode(partitions=frozenset({kind}), reserve_watts=150.0)
    engine = BudgetEngine(EngineSettings())
    total_watts = sum(poll.node_watts or 0.0 for poll in polls)
    engine.set_budgets(
        [
            BudgetInForce("cluster", BudgetScope(ScopeKind.CLUSTER), 0.75 * total_watts, 0.6 * total_watts),
            *(
                BudgetInForce(
                    name, BudgetScope(ScopeKind.PARTITION, frozenset({name})), 0.6 * total_watts, 1e6
                )
                for name in ("cpu", "gpu")
            ),
            *(
                BudgetInForce(
                    f"account{row}",
                    BudgetScope(ScopeKind.ACCOUNT, frozenset({f"account{row}"})),
                    (0.03 + 0.001 * row) * total_watts,
                    0.03 * total_watts,
                )
                for row in range(20)
            ),
        ]
    )
    engine.set_nodes(facts)
    engine.set_jobs(jobs)
    return engine, polls


@dataclass(frozen=True, slots=True)
class UnitPower:
    """Power range of one unit: a node that jobs hold as a whole, or one GPU with its part of a node.

    Attributes:
        min_watts: lowest power limit of the unit.
        low_watts: power of the unit under the least demanding job.
        max_watts: power of the unit under the most demanding job.
    """

    min_watts: float
    low_watts: float
    max_watts: float


CPU_UNIT, GPU_UNIT = UnitPower(300.0, 420.0, 700.0), UnitPower(200.0, 350.0, 700.0)


def node_kinds(nodes: int) -> list[NodeKind]:
    """Return the kinds of nodes of the benchmark's cluster.

    80 % of the nodes have two processors; jobs hold such a node as a whole. 20 % of the nodes have four
    GPUs.
    """
    gpu_nodes = max(1, nodes // 5)
    return [
        NodeKind("cpu", nodes - gpu_nodes, 1, 250.0, 150.0, unit_min_watts=CPU_UNIT.min_watts),
        NodeKind("gpu", gpu_nodes, 4, 700.0, 70.0, unit_min_watts=GPU_UNIT.min_watts),
    ]


def max_watts(kinds: list[NodeKind]) -> float:
    """Return the power of the cluster if every unit (CPU or GPU) draws its maximum."""
    units = (CPU_UNIT, GPU_UNIT)
    return sum(
        kind.nodes * (kind.idle_watts + kind.units * (unit.max_watts - kind.unit_idle_watts))
        for kind, unit in zip(kinds, units, strict=True)
    )


def budget_curve(kinds: list[NodeKind], days: float) -> StepFunction:
    """Return the power budget of a simulated week as a function of time, equal on all days."""
    whole = range(int(np.ceil(days)))
    times = [day * DAY_S + hour * 3600.0 for day in whole for hour, _ in CURVE]
    return StepFunction(times, [share * max_watts(kinds) for _ in whole for _, share in CURVE])


def random_jobs(kinds: list[NodeKind], days: float) -> Workload:
    """Return random jobs with a load of `LOAD` on each kind of nodes."""
    random = np.random.default_rng(SEED)
    parts = []
    for number, (kind, unit) in enumerate(zip(kinds, (CPU_UNIT, GPU_UNIT), strict=True)):
        total = kind.nodes * kind.units
        doublings = max(1, int(np.log2(total / 16)))
        time_s = lambda count: np.clip(random.lognormal(8.8, 0.9, count), 60.0, 2 * DAY_S)  # noqa: E731
        mean_s = float(np.mean(time_s(100_000)) * np.mean(2.0 ** np.arange(doublings)))
        count = int(LOAD * total * days * DAY_S / mean_s)
        units, times = 2 ** random.integers(0, doublings, count), time_s(count)
        parts.append(
            {
                "submit_s": random.uniform(0.0, days * DAY_S, count),
                "hardware": np.full(count, number),
                "units": units,
                "time_s": times,
                "time_limit_s": times * random.uniform(1.1, 4.0, count),
                "power_watts": units * random.uniform(unit.low_watts, unit.max_watts, count),
                "compute_share": random.beta(2.0, 2.0, count),
            }
        )
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    job = {name: columns.pop(name) for name in ("submit_s", "time_limit_s", "compute_share")}
    return workload(np.arange(len(job["submit_s"]) + 1), job, columns)


def excess(outcome: SimulationResult, budget: StepFunction) -> np.ndarray:
    """Return the length in seconds of each interval in which the power exceeded the budget."""
    times, watts = outcome.power
    edges = np.union1d(times, budget.times_s[budget.times_s < times[-1]])
    power = watts[np.searchsorted(times, edges[:-1], "right") - 1]
    limit = budget.values[np.searchsorted(budget.times_s, edges[:-1], "right") - 1]
    above = np.concatenate([[False], power > limit + 1.0, [False]])
    change = np.flatnonzero(np.diff(above.astype(np.int8)))
    lengths: np.ndarray = edges[change[1::2]] - edges[change[::2]]
    return lengths


def used_share(outcome: SimulationResult, budget: StepFunction) -> float:
    """Return the energy of the cluster divided by the energy that the budget allows."""
    ends = np.append(budget.times_s[1:], outcome.end_s)
    lengths = np.maximum(0.0, np.minimum(ends, outcome.end_s) - budget.times_s)
    return float(outcome.energy_joules / np.sum(budget.values * lengths))


if __name__ == "__main__":
    sys.exit(main())
