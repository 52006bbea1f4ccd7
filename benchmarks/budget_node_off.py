"""Check in random simulations that the power never exceeds the budget.

The simulations have a budget, nodes that are switched off, node failures and preemption. Every run is drawn
from its seed. If a run breaks a guarantee of docs/simulator.md, its seed is printed. `--seed N --runs 1`
repeats the run with seed N.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from claims import Claim, at_least, at_most, publish

from slurm_energy.budget.lowering_order import DistributionPolicy
from slurm_energy.power_saving.power_down_rule import PowerSavingRules
from slurm_energy.scheduling import names, policy
from slurm_energy.scheduling.backfill import Discipline
from slurm_energy.scheduling.ranking import Options
from slurm_energy.simulator.cluster import NodeKind
from slurm_energy.simulator.engine import simulate
from slurm_energy.simulator.power.step_function import StepFunction
from slurm_energy.simulator.results.simulation_result import SimulationResult
from slurm_energy.simulator.schedule_settings import BudgetRules, PowerSaving, Preemption, ScheduleSettings
from slurm_energy.simulator.workloads.workload import Workload, workload

RUNS = 5000
TOLERANCE_WATTS, TOLERANCE_S = 1e-5, 1e-6
HORIZON_S = 1500.0


@dataclass(frozen=True, slots=True)
class BudgetRun:
    """A random simulation that tests power budgets: its jobs, nodes, scheduling policy and settings."""

    jobs: Workload
    kinds: tuple[NodeKind, ...]
    policy: str
    settings: ScheduleSettings

    @property
    def idle_watts(self) -> float:
        return sum(kind.nodes * kind.idle_watts for kind in self.kinds)

    @property
    def budget(self) -> StepFunction:
        assert self.settings.budget_watts is not None
        return self.settings.budget_watts

    @property
    def covers_idle_nodes(self) -> bool:
        """Whether the budget is always at least the power of the cluster with all nodes on and idle."""
        return float(np.min(self.budget.values)) >= self.idle_watts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=RUNS, help=f"number of runs (default {RUNS})")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first run (default 0)")
    parser.add_argument("--processes", type=int, default=1, help="runs at the same time (default 1)")
    parser.add_argument("--json", metavar="FILE", help="also write the claims to FILE as JSON")
    args = parser.parse_args()
    if args.runs < 1 or args.processes < 1:
        parser.error("--runs and --processes: at least 1")
    return publish(all_claims(args), args.json)


def all_claims(args: argparse.Namespace) -> Iterator[Claim]:
    kinds: Counter[str] = Counter()
    broken = 0
    seeds = range(args.seed, args.seed + args.runs)
    with ProcessPoolExecutor(args.processes) as pool:
        for seed, (kind, faults) in zip(seeds, pool.map(judged, seeds, chunksize=20), strict=True):
            kinds[kind] += 1
            broken += bool(faults)
            for fault in faults:
                print(f"seed {seed}: {fault}", file=sys.stderr, flush=True)
    for kind, count in sorted(kinds.items()):
        print(f"{count:6d} runs: {kind}", file=sys.stderr)
    yield at_most(f"runs of {args.runs} that broke a promise", float(broken), 0.0)
    strict = sum(count for kind, count in kinds.items() if kind.endswith("never above"))
    yield at_least("share of runs in which the power may never be above", strict / args.runs, 0.3)


def judged(seed: int) -> tuple[str, list[str]]:
    """Simulate a random run of a power budget, and check the result.

    The function returns the guarantee that applies to the run, and the faults that were found. The seed
    determines the run.
    """
    run = drawn(seed)
    try:
        outcome = simulate(run.jobs, run.kinds, policy(run.policy), run.settings)
    except Exception as error:
        return "failed", [f"{type(error).__name__}: {error}"]
    return promise(run), faults(run, outcome)


def promise(run: BudgetRun) -> str:
    """Return the guarantee about the power budget that applies to a simulated run, as text.

    The guarantees are those of docs/simulator.md.
    """
    rules = run.settings.budget_rules
    known = "announced" if rules.announced else "not announced"
    if not (rules.interrupts or floors_hold(run)):
        return f"{known}, floors, jobs may exceed their limits: excess is reported"
    if not (rules.interrupts or rules.announced):
        return f"{known}, floors: excess is reported"
    ends = "interrupts" if rules.interrupts else "floors"
    if not run.covers_idle_nodes:
        return f"{known}, {ends}, below idle nodes: above only while nodes alone are"
    if rules.announced:
        return f"{known}, {ends}: never above"
    return f"{known}, {ends}: above for a control period, or while nodes alone are"


def floors_hold(run: BudgetRun) -> bool:
    """Return whether the power floors are checked correctly if they are checked only at job starts.

    A power floor is the lowest power limit of a job. The result is True if every job of the simulated run
    is killed at its time limit.
    """
    return run.settings.kill_at_limit and not np.any(np.isnan(run.jobs.time_limit_s))


def faults(run: BudgetRun, outcome: SimulationResult) -> list[str]:
    """Return the guarantees of the budget rules that a run has violated, one line each."""
    above_s = seconds_above(run, outcome, control_period=False)
    found = []
    if abs(above_s - outcome.over_budget_s) > TOLERANCE_S:
        found.append(f"above the budget for {above_s} s, reported {outcome.over_budget_s} s")
    if outcome.nodes_over_budget_s and not any("nodes alone" in note for note in outcome.notes):
        found.append("no note that the nodes alone exceeded the budget")
    rules, text = run.settings.budget_rules, promise(run)
    if "excess is reported" in text:
        return found
    if text.endswith("never above"):
        if above_s:
            found.append(f"{text}: above for {above_s} s")
        return found
    if not rules.announced:
        above_s = seconds_above(run, outcome, control_period=True)
    if above_s > outcome.nodes_over_budget_s + TOLERANCE_S:
        found.append(f"{text}: above for {above_s} s, nodes alone for {outcome.nodes_over_budget_s} s")
    return found


def seconds_above(run: BudgetRun, outcome: SimulationResult, *, control_period: bool) -> float:
    """Return for how many seconds the simulated power exceeded the budget.

    Args:
        run: settings of the simulated run.
        outcome: result of the simulation.
        control_period: whether to leave out the first control period after each fall of the budget.
    """
    times, watts = outcome.power
    budget, period_s = run.budget, run.settings.budget_rules.period_s
    edges = np.union1d(times, budget.times_s[(budget.times_s > 0) & (budget.times_s < times[-1])])
    falls = budget.times_s[1:][np.diff(budget.values) < 0]
    if control_period:
        edges = np.union1d(edges, (falls + period_s)[falls + period_s < times[-1]])
    left = edges[:-1]
    power = watts[np.searchsorted(times, left, "right") - 1]
    limit = np.array([budget.at(time_s) for time_s in left.tolist()])
    above = power > limit + TOLERANCE_WATTS
    if control_period:
        above &= ~np.any((left[:, None] >= falls) & (left[:, None] < falls + period_s), axis=1)
    return float(np.sum(np.diff(edges)[above]))


def drawn(seed: int) -> BudgetRun:
    """Return a randomly drawn simulation run; `seed` is the seed of the random numbers."""
    random = np.random.default_rng(seed)
    kinds = tuple(drawn_kind(random, f"kind{number}") for number in range(random.integers(1, 3)))
    jobs = drawn_jobs(random, kinds)
    idle_watts = sum(kind.nodes * kind.idle_watts for kind in kinds)
    name = str(random.choice(names()))
    discipline = Discipline(random.choice(list(Discipline)))
    settings = ScheduleSettings(
        discipline,
        interval_s=one_of(random, 0.0, 0.0, 1.0, 7.0) or float(discipline == Discipline.PACKING),
        horizon_s=HORIZON_S,
        budget_watts=drawn_budget(random, idle_watts),
        hard_budget=name != "charon" or bool(random.random() < 0.5),
        budget_rules=drawn_rules(random),
        preemption=Preemption(
            one_of(random, 0.0, 5.0, 30.0, float("inf")),
            one_of(random, 0.0, 3.0),
            one_of(random, 0.0, 20.0, 60.0),
        )
        if random.random() < 0.8
        else None,
        idle_off_s=one_of(random, None, 0.0, 5.0, 30.0, 120.0),
        power_saving=PowerSaving(
            PowerSavingRules(min_idle_s=5.0, min_on_s=10.0, cycle_s=30.0),
            reserve_nodes=int(random.integers(0, 3)),
        )
        if random.random() < 0.25
        else None,
        options=Options(wait_bound_s=one_of(random, 150.0, 1e9)),
        kill_at_limit=bool(random.random() < 0.5),
        seed=seed,
    )
    return BudgetRun(jobs, kinds, name, settings)


def one_of(random: np.random.Generator, *values: Any) -> Any:
    return values[random.integers(len(values))]


def drawn_kind(random: np.random.Generator, name: str) -> NodeKind:
    """Return a random kind of nodes for the benchmark.

    Booting and shutting down may take less or more power than an idle node.
    """
    units, idle_watts = int(random.integers(1, 4)), one_of(random, 10.0, 30.0, 60.0)
    unit_idle_watts = one_of(random, 0.0, 0.5, 1.0) * idle_watts / units
    return NodeKind(
        name,
        nodes=int(random.integers(1, 5)),
        units=units,
        idle_watts=idle_watts,
        unit_idle_watts=unit_idle_watts,
        off_watts=one_of(random, 0.0, 0.0, 5.0, 40.0),
        boot_s=one_of(random, 0.0, 7.0, 30.0, 90.0),
        boot_watts=one_of(random, 0.0, 0.5, 1.0, 1.7, 4.0) * idle_watts,
        shutdown_s=one_of(random, 0.0, 4.0, 25.0, 60.0),
        shutdown_watts=one_of(random, 0.0, 0.5, 1.0, 1.7, 4.0) * idle_watts,
        failures_per_s=one_of(random, 0.0, 0.0, 0.001, 0.01),
        repair_s=one_of(random, 1.0, 15.0, 80.0),
        unit_min_watts=one_of(random, 0.0, 1.0, 1.5) * unit_idle_watts,
    )


def drawn_jobs(random: np.random.Generator, kinds: Sequence[NodeKind]) -> Workload:
    """Return a workload of 1 to 12 random jobs, each with 1 to 4 shapes.

    A shape is a set of resources on which the job may run. Some jobs draw less power than idle units. Some
    jobs run longer than their time limits.
    """
    count = int(random.integers(1, 13))
    counts = random.integers(1, 5, count)
    rows = [drawn_shapes(random, kinds, int(number)) for number in counts]
    columns = {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}
    submit_s = np.sort(random.integers(0, 200, count)).astype(float)
    shortest_s = np.array([np.min(row["time_s"]) for row in rows])
    limited = random.random(count) < one_of(random, 0.5, 1.1)
    due = random.random(count) < 0.5
    return workload(
        np.concatenate([[0], np.cumsum(counts)]),
        {
            "submit_s": submit_s,
            "user": random.integers(0, 3, count),
            "deadline_s": np.where(due, submit_s + random.uniform(0.5, 6.0, count) * shortest_s, np.nan),
            "time_limit_s": np.where(limited, random.uniform(0.5, 3.0, count) * shortest_s, np.nan),
            "compute_share": np.where(random.random(count) < 0.5, random.random(count), np.nan),
        },
        columns,
        users=("a", "b", "c"),
    )


def drawn_shapes(random: np.random.Generator, kinds: Sequence[NodeKind], count: int) -> dict[str, Any]:
    """Return random shapes (possible sets of resources) of one job.

    The shapes either have different sizes, or the same size but different power caps.
    """
    hardware = random.integers(0, len(kinds), count)
    units = random.integers(1, 6, count)
    time_s = random.uniform(1.0, 90.0, count)
    unit_watts = random.choice([1.0, 15.0, 60.0, 120.0], count) * random.uniform(0.5, 1.5, count)
    if random.random() < 0.5:
        hardware[:], units[:] = hardware[0], units[0]
        time_s = time_s[0] * np.linspace(1.0, 2.0, count)
        unit_watts = unit_watts[0] * np.linspace(1.0, 0.4, count)
    return {
        "hardware": hardware,
        "units": units,
        "time_s": time_s,
        "power_watts": units * unit_watts,
        "predicted_time_s": time_s * random.uniform(0.7, 1.3, count),
    }


def drawn_budget(random: np.random.Generator, idle_watts: float) -> StepFunction:
    """Return a random power budget that has one to six constant values, one after another.

    In one of five cases, the budget may fall below the power of the idle nodes.
    """
    count = int(random.integers(1, 7))
    times = np.concatenate([[0.0], np.sort(random.choice(np.arange(1, 400), count - 1, replace=False))])
    watts = idle_watts + random.choice([0.0, 10.0, 80.0, 300.0, 800.0], count)
    if random.random() < 0.2:
        watts = watts * random.uniform(0.3, 1.0, count)
    return StepFunction(times.tolist(), watts.tolist())


def drawn_rules(random: np.random.Generator) -> BudgetRules:
    return BudgetRules(
        distribution=str(random.choice(list(DistributionPolicy))),
        period_s=one_of(random, 0.0, 1.0, 5.0, 20.0),
        floor_share=one_of(random, 0.0, 0.5, 1.0),
        slowdown_limit=one_of(random, float("nan"), 0.0, 0.3),
        announced=bool(random.random() < 0.6),
        interrupts=bool(random.random() < 0.75),
    )


def changed(run: BudgetRun, **settings: Any) -> BudgetRun:
    """Return a copy of a test run with some settings changed.

    The benchmark uses such copies to find the settings that cause a fault.
    """
    return dataclasses.replace(run, settings=dataclasses.replace(run.settings, **settings))


if __name__ == "__main__":
    sys.exit(main())
