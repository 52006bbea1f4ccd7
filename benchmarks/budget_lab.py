"""Power budgets on a lab of 8 emulated nodes, four with GPUs, and 30 minutes of arriving jobs.

The benchmark compares methods that keep the power of the cluster within a budget. The budget is 60 % of the
sum of the thermal design powers for 10 minutes, then 45 %, then 80 %. The power is the power of whole nodes,
including memory, fans and losses. It is the emulator's true power at 10 Hz.

A seed determines hardware and jobs. The hardware is drawn at random. Only hardware is used with which equal
caps on all nodes can keep the lowest limit of the budget. The jobs use one or two whole nodes. They run the
lab's kernels and programs for 1 to 7 minutes at full speed. The site has run each program before, so the
program's power and its response to limits are known. With `--blind` they are unknown.

These methods keep the budget:

- `equal watts`: a static cap, the same watts for every node.
- `equal share`: a static cap, the same share of each node's range of power.
- `cray`: Slurm's removed plugin power/cray_aries with its default parameters
  (`cray_power_plugin.py`).
- `cray improved`: the plugin's algorithm with three improvements
  (`budget_baselines.CrayBalancer`).
- `equal watts kept`, `equal share kept`, `cray kept`, `cray improved kept`: the same methods
  with a lower limit. The limit is multiplied by a constant factor so that the power stays within the limit
  of the budget, except for 5 s after a step of the budget.
- `budget`: the job managers of senergyd on every node and the decisions of senergyctld, on a
  virtual clock. With `--direct` the agents read and write the model directly (`budget_direct.py`), which is
  six times as fast.

With all these methods the jobs start in the order of their submission, with backfill. One more method also
decides which jobs start, as slurm-energy does at a site:

- `suite`: like `budget`, but the queue is in the order of the scheduling policy `lean` of
  slurm-energy (`--policy` selects another policy).

`suite` predicts the power of a job from earlier runs of the program. Jobs that have waited for `--bound`
seconds come first. A comparison of `suite` with `cray` shows the effect of order and distribution together.
A comparison of `budget` with `cray` shows the effect of the distribution alone. With `--methods "cray
ordered,cray improved ordered"`, Cray's algorithm uses the same order of jobs as `suite`.

Further methods run only if `--methods` names them. `clairvoyant` and `unlimited` are bounds on the gain of
any distribution (`budget_bounds.py`): `clairvoyant` knows every program, `unlimited` has no limit.
`clairvoyant ordered` starts jobs like `suite`.

Jobs arrive faster than the nodes can run them, so arrivals do not limit the throughput. With the methods
outside slurm-energy, every job starts as soon as nodes are free. With the methods of slurm-energy, a job
also waits for power, as with the product's default `admission = "licenses"`. `--no-admission` switches this
wait off.

Throughput is completed work per time, in node-seconds at full speed. Running jobs count with their completed
part. The energy-delay product is energy times time per unit of work squared.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from budget_baselines import CrayBalancer, EqualCaps, is_feasible
from budget_bounds import ClairvoyantCaps, UnlimitedPower
from budget_cluster import NODES, STEPS, budget_of, lab_agents, node_names
from budget_lab_results import (
    ALLOWED_S,
    BOUNDS,
    KEPT,
    METHODS,
    LabResult,
    lab_claims,
    table,
)
from budget_order import priority_order, waits_of
from claims import Claim, publish
from cray_power_plugin import CrayPlugin

from slurm_energy.controller.budgets.facts import EngineSettings
from slurm_energy_lab.model import load_profile
from slurm_energy_lab.realtime_model import RealtimeModel
from slurm_energy_lab.virtual_cluster.budgeted_cluster import (
    BudgetController,
    BudgetedCluster,
    slurm_nodes,
)
from slurm_energy_lab.virtual_cluster.cluster import (
    TICK_S,
    BareNode,
    ClusterNode,
    ClusterRun,
    PowerManager,
    VirtualCluster,
)
from slurm_energy_lab.virtual_cluster.program_history import ProgramHistory
from slurm_energy_lab.virtual_cluster.workload import (
    JobMix,
    draw_jobs,
    draw_profiles,
)
from slurm_energy_lab.virtual_node import ModelClock

SECONDS = 1800.0
ORDERED = " ordered"
WAIT_BOUND_S = 900.0
"""Default of `--bound`: half of the run. Slurm's sites set `priority.wait_bound_s` to hours or days."""
EVALUATION_SEED = 100
"""First seed of the evaluation; smaller seeds were used for the development."""


@dataclass(frozen=True)
class LabOptions:
    """Options of a run of the benchmark of power budgets.

    The benchmark compares several methods that keep a budget. The method `suite` combines the power
    budget with a scheduling policy of slurm-energy.

    Attributes:
        load: work that arrives per node and second.
        blind: the methods start without a history of the programs.
        admission: start only jobs that fit in the budget, as with Slurm licenses.
        direct: use agents without emulated files.
        policy: scheduling policy under the method `suite`, which also orders the queue.
        bound_s: maximum waiting time of jobs under the method `suite`, in seconds.
    """

    load: float = 1.5
    blind: bool = False
    admission: bool = True
    policy: str = "lean"
    bound_s: float = WAIT_BOUND_S
    direct: bool = False

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> LabOptions:
        """Return the options of the budget lab that the command line selects."""
        own = arguments
        return cls(own.load, own.blind, own.admission, own.policy, own.bound, own.direct)


def main() -> int:
    arguments = option_parser().parse_args()
    results = evaluate(arguments)
    print(table(results))
    if arguments.plot:
        plot(arguments.seed, LabOptions.of(arguments), arguments.plot)
    return publish(lab_claims(results), arguments.json)


def option_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=4, help="number of seeds (4)")
    parser.add_argument("--seed", type=int, default=EVALUATION_SEED, help=f"first seed ({EVALUATION_SEED})")
    parser.add_argument("--load", type=float, default=1.5, help="arriving work per node-second (1.5)")
    parser.add_argument(
        "--methods",
        default="",
        help=f"comma-separated of {', '.join((*METHODS, *BOUNDS))} (default: {', '.join(METHODS)})",
    )
    parser.add_argument("--policy", default="lean", help="scheduling policy of `suite` (lean)")
    parser.add_argument(
        "--bound",
        type=float,
        default=WAIT_BOUND_S,
        help=f"bound on waiting of `suite` ({WAIT_BOUND_S:.0f} s)",
    )
    parser.add_argument(
        "--no-admission",
        dest="admission",
        action="store_false",
        help="start all jobs (admission = off)",
    )
    parser.add_argument("--blind", action="store_true", help="without knowledge of the programs")
    parser.add_argument(
        "--direct", action="store_true", help="agents without emulated files, six times as fast"
    )
    parser.add_argument("--workers", type=int, default=2, help="processes (2)")
    parser.add_argument("--results", type=Path, metavar="FILE", help="file of results to write and to resume")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="write the power of the first seed as PNG")
    parser.add_argument("--json", metavar="FILE", help="also write the claims to FILE as JSON")
    return parser


def evaluation_claims(seeds: int) -> Iterable[Claim]:
    """Run the benchmark of power budgets with some seeds of the random numbers.

    Print the table of results, and return the claims (comparisons with targets).
    """
    results = evaluate(option_parser().parse_args(["--seeds", str(seeds)]))
    print(table(results))
    return lab_claims(results)


def evaluate(arguments: argparse.Namespace) -> list[LabResult]:
    """Run the benchmark with each seed and each method, and return all results.

    Results that the results file already contains are taken from this file.
    """
    file = arguments.results
    lines = file.read_text().splitlines() if file and file.exists() else []
    results = [LabResult(**json.loads(line)) for line in lines]
    done = {(item.seed, item.method) for item in results}
    methods = tuple(filter(None, arguments.methods.split(","))) or METHODS
    seeds = range(arguments.seed, arguments.seed + arguments.seeds)
    runs = [(seed, method) for method in reversed(methods) for seed in seeds if (seed, method) not in done]
    with ProcessPoolExecutor(arguments.workers) as pool:
        futures = [pool.submit(judge, *run, LabOptions.of(arguments)) for run in runs]
        for number, (future, (seed, method)) in enumerate(zip(futures, runs, strict=True), 1):
            results.append(future.result())
            print(f"run {number} of {len(runs)}: seed {seed}, {method}", file=sys.stderr, flush=True)
            if file:
                with file.open("a") as stream:
                    stream.write(json.dumps(asdict(results[-1])) + "\n")
    return results


def judge(seed: int, method: str, options: LabOptions) -> LabResult:
    """Run one control method with one random seed, and return its result.

    A method whose name ends with `KEPT` must keep the power within the budget. If its power exceeds the
    budget, it is run again with a lower limit. The repetitions end when the power stays within the budget,
    or when a lower limit no longer shortens the time above the budget.
    """
    result = judge_once(seed, method, options, 1.0)
    above_s = math.inf
    while method.endswith(KEPT) and 0 < result.otherwise_s < above_s:
        above_s, factor = result.otherwise_s, result.limit_factor * min(0.98, 1.0 / result.max_share)
        result = judge_once(seed, method, options, factor)
    return result


def judge_once(seed: int, method: str, options: LabOptions, limit_factor: float) -> LabResult:
    """Simulate one method of power limiting with one random seed, and return its result.

    The power limits are multiplied by `limit_factor`.
    """
    run, limits = run_lab(seed, method, options, limit_factor=limit_factor)
    steps = [start for start, _ in STEPS[1:]]
    after_step, otherwise, shares = 0, 0, [0.0]
    for index, (watts, limit) in enumerate(zip(run.watts, limits, strict=True)):
        since_s = min((index * TICK_S - step for step in steps if index * TICK_S >= step), default=math.inf)
        if since_s < ALLOWED_S:
            after_step += watts > limit
        else:
            otherwise += watts > limit
            shares.append(watts / limit)
    return LabResult(
        seed,
        method,
        run.throughput,
        run.edp,
        run.joules / 1e3,
        len(run.ended),
        len(run.over_limit),
        round(after_step * TICK_S, 1),
        round(otherwise * TICK_S, 1),
        max(shares),
        sum(run.watts) / sum(limits),
        *waits_of(run.waits_s),
        limit_factor,
    )


def run_lab(
    seed: int, method: str, options: LabOptions, seconds: float = SECONDS, limit_factor: float = 1.0
) -> tuple[ClusterRun, list[float]]:
    """Run one power management method with one seed in the simulated lab.

    Return the result of the run, and the power limit at the time of each sample of the power.
    """
    logging.disable(logging.WARNING)
    names = dict(zip(NODES, draw_profiles(seed, lambda cpu, gpu: is_feasible(cpu, gpu, 0.45)), strict=True))
    profiles = {partition: load_profile(name) for partition, name in names.items()}
    jobs = draw_jobs(seed, NODES, JobMix(duration_s=SECONDS, load=options.load))
    clock = ModelClock()
    limit_watts = budget_of(profiles, clock.now_s)
    with ExitStack() as stack:
        nodes: dict[str, ClusterNode] = {}
        history = None if options.blind else ProgramHistory()
        is_suite = method == "suite" or method.endswith(ORDERED)
        order = (
            priority_order(profiles, ProgramHistory(), options.policy, options.bound_s) if is_suite else None
        )
        if method in ("budget", "suite"):
            agents = lab_agents(stack, names, clock, direct=options.direct)
            settings = EngineSettings(counts_idle=options.admission)
            controller = BudgetController(limit_watts, slurm_nodes(list(agents)), settings)
            manager: PowerManager = BudgetedCluster(
                agents, clock, controller, history, admission=options.admission
            )
            nodes.update(agents)
        else:
            bare = {name: BareNode(profiles[name[:3]], clock) for name in node_names()}
            for node in bare.values():
                stack.callback(node.close)
            models = {name: node.model for name, node in bare.items()}
            name = method.removesuffix(ORDERED).removesuffix(KEPT)
            manager = bare_manager(name, models, lambda now_s: limit_factor * limit_watts(now_s))
            nodes.update(bare)
        start_s = clock.now_s
        run = VirtualCluster(clock, nodes, jobs, order).run(seconds, manager)
    # A value of the power is the mean of the time before it.
    return run, [limit_watts(start_s + index * TICK_S + TICK_S / 2) for index in range(len(run.watts))]


def bare_manager(
    method: str, models: dict[str, RealtimeModel], limit_watts: Callable[[float], float]
) -> PowerManager:
    """Return the object that controls the nodes' power for a method that works without senergyd.

    Examples are equal caps and the algorithm of Cray's plugin.
    """
    if method == "unlimited":
        return UnlimitedPower()
    if method == "clairvoyant":
        return ClairvoyantCaps(models, limit_watts)
    if method == "cray":
        return CrayPlugin(models, limit_watts)
    if method == "cray improved":
        return CrayBalancer(models, limit_watts)
    return EqualCaps(models, limit_watts, same_watts=method == "equal watts")


def plot(seed: int, options: LabOptions, path: Path) -> None:
    """Write the power of all methods and the limit over time as an image."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(9, 4.5))
    for method in ("equal share", "cray", "budget", "suite"):
        run, limits = run_lab(seed, method, options)
        seconds = [sum(run.watts[i : i + 10]) / 1e4 for i in range(0, len(run.watts), 10)]
        minutes = [index / 60 for index in range(len(seconds))]
        axes.plot(minutes, seconds, linewidth=0.8, label=f"{method} (1 s mean)")
    axes.step([i * TICK_S / 60 for i in range(len(limits))], [w / 1e3 for w in limits], "k", label="limit")
    axes.set(xlabel="minutes", ylabel="power of the cluster in kW", ylim=(0, None))
    axes.legend(loc="lower right")
    figure.tight_layout()
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    sys.exit(main())
