"""Benchmark of tuning: jobs on emulated nodes, compared with the best fixed setting.

The coefficients of each node are drawn at random (`senergy lab profile`), so that the tuning cannot
know them from a table. Half of the nodes have GPUs. Seven kernels and three programs of several
phases run on each node. The objectives are `edp` without a limit, and `energy` with slowdown limits
of 3, 5 and 10 %. The energy of a job is the energy of its whole node.

Each run is a job of an agent's job manager on a virtual clock. `--search-only` runs only the search
for the best setting, which is faster. The progress per second that a job reports varies by 2 %.

To find the best fixed setting, each program also runs without noise at every point of a grid of GPU
limits and CPU frequencies. The results have three figures. `saving` is the fraction of the untuned
energy-delay product or energy that a tuned run saves; the search is a part of the run. `possible` is
the saving at the best point of the grid. `share` is the sum of `saving` divided by the sum of
`possible`. A run is called responsive if `possible` is at least 2 %.

`--regain` measures something else: how fast a program becomes fast again after it has changed. The
program is memory-bound for 200 steps of one second, then compute-bound for 100 steps. Its speed is
regained when the program is at most 6 % slower than untuned.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean

from claims import Claim, at_least, at_most, publish
from lab_runs import TunedRun, memory_folder, regain_seconds, run_agent, run_search

from slurm_energy.policies.operating_point import OperatingPoint
from slurm_energy.tuning.objective import TIME_EXPONENTS, Objective
from slurm_energy_lab.model import default_size, kernel_names, load_profile, program_names
from slurm_energy_lab.model.programs import workload_spec
from slurm_energy_lab.model.steady_state import StaticRun, SteadyState
from slurm_energy_lab.virtual_node import VirtualNode

OBJECTIVES = (("edp", None), ("energy", 0.03), ("energy", 0.05), ("energy", 0.10))
RESPONSIVE = 0.02
REGAIN_RUN_S, REGAIN_S = 300.0, 10.0


@dataclass(frozen=True)
class ProgramResult:
    """Result of a tuned run, compared with the untuned run and with the best constant setting."""

    seed: int
    device: str
    program: str
    objective: str
    limit: float | None
    slowdown: float
    saving: float
    possible: float
    probes: int
    chosen: str
    best: str

    @property
    def exceeds_limit(self) -> bool:
        """Whether the slowdown of the run exceeds its limit by more than one percentage point."""
        return self.limit is not None and self.slowdown > self.limit + 0.01

    @property
    def goal(self) -> str:
        """Text that names the objective and the slowdown limit of the run, for example `energy 5%`."""
        return self.objective if self.limit is None else f"{self.objective} {self.limit:.0%}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=20, help="number of nodes (20)")
    parser.add_argument("--seed", type=int, default=1000, help="seed of the first node (1000)")
    parser.add_argument("--seconds", type=float, default=1800, help="untuned run time (1800)")
    parser.add_argument("--workers", type=int, default=2, help="processes (2)")
    parser.add_argument("--programs", default="", help="comma-separated names (default: all)")
    parser.add_argument("--search-only", action="store_true", help="without the agent")
    parser.add_argument("--regain", action="store_true", help="measure the change to compute-bound work")
    parser.add_argument("--verbose", action="store_true", help="print every run")
    parser.add_argument("--results", type=Path, metavar="FILE", help="file of results to write and to resume")
    parser.add_argument("--json", metavar="FILE", help="also write the claims to FILE as JSON")
    arguments = parser.parse_args()
    if arguments.regain:
        return regain(arguments)
    programs = tuple(filter(None, arguments.programs.split(","))) or (*kernel_names(), *program_names())
    print(f"{arguments.nodes} nodes with seeds from {arguments.seed}, runs of {arguments.seconds:g} s")
    begin = time.monotonic()
    results = evaluate(arguments, programs)
    for item in results if arguments.verbose else ():
        print(line(item))
    report(results)
    print(f"{len(results)} runs in {time.monotonic() - begin:.0f} s")
    return publish(claims(results), arguments.json)


def regain(arguments: argparse.Namespace) -> int:
    """Measure how fast tuning restores the speed of a program that becomes compute-bound.

    The program runs on every node. Publish the claim (comparison with a target) about the longest time until
    the program regains its speed.
    """
    seeds = range(arguments.seed, arguments.seed + arguments.nodes)
    print(f"{arguments.nodes} nodes with seeds from {arguments.seed}, runs of {REGAIN_RUN_S:g} s")
    with ProcessPoolExecutor(arguments.workers) as pool:
        parts = list(pool.map(regain_on_node, seeds))
    for seed, times in zip(seeds, parts, strict=True):
        print(seed, ", ".join(f"{goal} {seconds:.1f} s" for goal, seconds in times.items()))
    seconds = [value for times in parts for value in times.values()]
    late = [value for value in seconds if value > REGAIN_S]
    slowed = sum(value > 1 for value in seconds)
    print(
        f"{len(seconds)} runs, {slowed} slowed for more than a second, {len(late)} for more than {REGAIN_S} s"
    )
    return publish([at_most("lab_regain_seconds", max(seconds), REGAIN_S)], arguments.json)


def regain_on_node(seed: int) -> dict[str, float]:
    """Measure how fast tuning regains the speed of a program on an emulated node.

    Return the time in seconds until the program has regained its speed, by objective of the tuning.
    """
    logging.disable(logging.WARNING)
    device = "gpu" if seed % 2 else "cpu"
    name = f"random-{device}-{seed}"
    profile = load_profile(name)
    truth, size = SteadyState(profile, device), default_size(profile, "solver", device, REGAIN_RUN_S)
    times = {}
    with memory_folder() as folder:
        node = VirtualNode(folder, name, sampling_hz=1.0, node_meter=True)
        for objective in (Objective("edp"), Objective("energy", 0.05)):
            run = run_agent(node, device, "solver", size, objective, f"{seed}/{objective.name}")
            times[objective.name] = regain_seconds(truth, size, run, 0.06)
        node.close()
    return times


def evaluate(arguments: argparse.Namespace, programs: Sequence[str]) -> list[ProgramResult]:
    """Run the benchmark on all nodes and return the results.

    Results that the results file already contains are taken from this file.
    """
    results: list[ProgramResult] = []
    if arguments.results and arguments.results.exists():
        results = [ProgramResult(**json.loads(text)) for text in arguments.results.read_text().splitlines()]
    done = {item.seed for item in results}
    seeds = [seed for seed in range(arguments.seed, arguments.seed + arguments.nodes) if seed not in done]
    with ProcessPoolExecutor(arguments.workers) as pool:
        parts = [
            pool.submit(evaluate_node, seed, programs, arguments.seconds, arguments.search_only)
            for seed in seeds
        ]
        for part in parts:
            results += part.result()
            if arguments.results:
                with arguments.results.open("a") as file:
                    file.writelines(json.dumps(asdict(item)) + "\n" for item in part.result())
    return results


def evaluate_node(
    seed: int, programs: Sequence[str], seconds: float, search_only: bool
) -> list[ProgramResult]:
    """Tune all programs with all objectives on one emulated node, and return the results.

    The seed determines the hardware of the node. Nodes with odd seeds have GPUs.
    """
    logging.disable(logging.WARNING)
    device = "gpu" if seed % 2 else "cpu"
    results = []
    with memory_folder() as folder:
        name = f"random-{device}-{seed}"
        profile = load_profile(name)
        truth = SteadyState(profile, device)
        node = None if search_only else VirtualNode(folder, name, sampling_hz=1.0, node_meter=True)
        for program in programs:
            size = default_size(profile, program, device, seconds)
            sweep = truth.sweep(workload_spec(program), size)
            for name, limit in OBJECTIVES:
                objective, key = Objective(name, limit), f"{seed}/{program}/{name}/{limit}"
                if node is None:
                    run = run_search(truth, program, size, objective, key)
                else:
                    run = run_agent(node, device, program, size, objective, key)
                results.append(judged((seed, device, program), objective, sweep, run))
        if node is not None:
            node.close()
    return results


def judged(
    key: tuple[int, str, str], objective: Objective, sweep: Sequence[StaticRun], run: TunedRun
) -> ProgramResult:
    """Compare a tuned run with the untuned run and with the best run at fixed settings.

    Only runs that the objective allows are candidates for the best run.
    """
    untuned = sweep[0]

    def saving(other: StaticRun | TunedRun) -> float:
        exponent = TIME_EXPONENTS[objective.name] - 1
        return 1 - other.joules / untuned.joules * (other.seconds / untuned.seconds) ** exponent

    best = max((one for one in sweep if objective.allows(one.seconds / untuned.seconds)), key=saving)
    return ProgramResult(
        *key,
        objective.name,
        objective.slowdown_limit,
        run.seconds / untuned.seconds - 1,
        saving(run),
        saving(best),
        run.summary["probes"],
        str(OperatingPoint.from_json(run.summary["chosen"] or {})),
        str(best.point),
    )


def line(item: ProgramResult) -> str:
    """Return the result of one tuned program as one line of text."""
    return (
        f"{item.seed} {item.device} {item.program:<13}{item.goal:<11} saving {item.saving:6.1%} of"
        f" {item.possible:6.1%}, slowdown {item.slowdown:6.1%}, {item.probes:2} probes, {item.chosen};"
        f" best {item.best}"
    )


def report(results: Sequence[ProgramResult]) -> None:
    """Print a table of the savings by device and objective."""
    groups = defaultdict(list)
    for item in results:
        groups[item.device, item.goal].append(item)
    print(
        f"{'device':<7}{'objective':<12}{'runs':>5}{'saving':>8}{'possible':>9}{'share':>7}{'resp.':>6}"
        f"{'share':>7}{'worst':>8}{'slowdown':>9}{'max':>7}{'over':>6}"
    )
    for (device, goal), items in groups.items():
        wide = [item for item in items if item.possible >= RESPONSIVE]
        print(
            f"{device:<7}{goal:<12}{len(items):>5}"
            f"{fmean(i.saving for i in items):>8.1%}{fmean(i.possible for i in items):>9.1%}"
            f"{share(items):>7.0%}{len(wide):>6}{share(wide):>7.0%}{min(i.saving for i in items):>8.1%}"
            f"{fmean(i.slowdown for i in items):>9.1%}{max(i.slowdown for i in items):>7.1%}"
            f"{sum(i.exceeds_limit for i in items):>6}"
        )


def share(items: Sequence[ProgramResult]) -> float:
    """Return the saving that was achieved as a fraction of the possible saving.

    Both savings are summed over all programs.
    """
    possible = sum(item.possible for item in items)
    return sum(item.saving for item in items) / possible if possible else math.nan


def claims(results: Sequence[ProgramResult]) -> list[Claim]:
    """Return the checks of the benchmark's targets for savings, losses and slowdown limits.

    Each check has a ratio and its target.
    """
    edp = [item for item in results if item.objective == "edp"]
    limited = [item for item in results if item.limit is not None]
    five = [item for item in limited if item.limit == 0.05]
    return [
        at_least("lab_edp_share_of_possible_saving", share(edp), 0.8),
        at_most("lab_edp_worst_loss", max(-item.saving for item in edp), 0.01),
        at_most("lab_slowdown_limit_exceeded", fmean(item.exceeds_limit for item in limited), 0.01),
        at_least("lab_energy_at_5_percent_share", share(five), 0.9),
    ]


if __name__ == "__main__":
    sys.exit(main())
