"""Replay of the tuner (the search for a good power limit) on measured responses of GPUs.

`--data DIR` holds files `summary_power_GPU.csv` with the columns dataset, network, batch_size, optimizer,
power_limit, time_per_epoch and average_power. Each combination of network, batch size and optimizer is a
job. The true response of a job to power limits is the monotone curve nearest to its measured points
(isotonic regression of the logarithms). The curve is constant where the power varies by less than 10 %,
because no limit is below the job's power there. The noise of a step is the deviation of the points from the
curve. This noise is at least the median of the GPU's jobs and at least 1 %. A run has 300 steps. The search
measures windows of 5 steps and may set every measured limit. The highest limit is the default.

The search knows the range of the limits and the measured untuned power of the job. Its generic prior is a
physical model, conditioned on published responses of other GPUs (docs/tuning.md). No row of the data enters
the prior, so all rows of the evaluated GPU and network are withheld. The constants of the search were chosen
by hand to give good results on the Quadro RTX 6000. One rule was added after a look at the results on the
A40: if the losses that the search may cause are used up, the search does not end. For these constants, both
GPUs are therefore not independent test data.

EDP means energy-delay product. The stated EDP is that of the whole run, computed from the curve without
noise. It includes the measurement of the untuned job and all limits that the search tries. The loss of EDP
is relative to the best static limit of the job in hindsight. A job does not respond if no limit improves its
EDP by 1 %. The hit rate is the share of the runs of all other jobs that end within 1 % of the best EDP.
Slowdowns are given for the limit at the end and for the whole run. For recurring jobs, the replay assumes
that they report no progress. The power limit of their first run is chosen from the prior and the untuned
power alone. The limit of each later run is chosen from measurements of whole earlier runs.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import tuning_strategies as strategies
from claims import Claim, at_least, at_most, publish
from power_limit_runs import MIN_LIMITS, MeasuredJob, SimulatedRun, load

from slurm_energy.tuning.objective import Objective
from slurm_energy.worker_processes import end_with_parent

DATA = Path(__file__).resolve().parents[1].parent / "shared/data/power-limits"
LIMITS = (0.03, 0.05, 0.1)
VIOLATION = 0.01
HIT = 0.01
MIN_SAVING = 0.002
"""Minimum saving of hindsight on a GPU for a claim about the share of it that the search saves."""
UNKNOWN_LENGTH = "search, length unknown"
SEARCH, CONSTANT, FIXED = "search", "0.63 of the default", "best fixed limit of the GPU"
ZEUS, EXHAUSTIVE, UNTUNED = "Zeus", "exhaustive", "untuned"


@dataclass(frozen=True)
class Settings:
    """Settings of the replayed tuning; the help of the command line explains them."""

    steps: int
    window_steps: int
    runs: int
    recurring_runs: int
    seed: int
    min_step_cv: float
    zeus: bool


@dataclass
class JobResult:
    """Results of the replay for one job.

    Each list has one entry for each replayed run. EDP means energy-delay product. EDP values are relative to
    the EDP of the best static limit. The limit that the search holds is the power limit at which it has
    settled.

    Attributes:
        job: the job.
        edp: EDP of each whole run, by strategy.
        held: EDP of the limit that the search holds at the end of each run.
        recurring: EDP of each run of the recurring job, one list per series of runs.
        slowdowns: by slowdown limit: slowdown at the held limit, slowdown of the whole run, energy saved,
            and energy that the best static limit saves in hindsight.
        recurring_slowdowns: the same values by slowdown limit, for each run of the recurring job.
        probes: number of limits that each search tried.
    """

    job: MeasuredJob
    edp: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    held: list[float] = field(default_factory=list)
    recurring: list[list[float]] = field(default_factory=list)
    slowdowns: dict[float, list[tuple[float, float, float, float]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    recurring_slowdowns: dict[float, list[list[tuple[float, float, float, float]]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    probes: list[int] = field(default_factory=list)


def main() -> int:
    arguments = _arguments()
    try:
        jobs = load(arguments.data, smooth=arguments.truth == "smooth")
    except ValueError as error:
        sys.exit(str(error))
    if not jobs:
        sys.exit(
            f"{arguments.data}: no summary_power_*.csv with a job at {MIN_LIMITS} power limits: "
            "name the folder of the study with --data"
        )
    missing = strategies.zeus_missing()
    if missing:
        print(f"Zeus skipped: {missing}")
    settings = Settings(
        arguments.steps,
        arguments.window_steps,
        arguments.runs,
        arguments.recurring_runs,
        arguments.seed,
        arguments.min_step_cv,
        missing is None,
    )
    fixed = {
        gpu: strategies.best_fixed_limit([job for job in jobs if job.gpu == gpu])
        for gpu in sorted({job.gpu for job in jobs})
    }
    results = _evaluate(jobs, fixed, settings, arguments.workers)
    _print_edp(results, settings)
    _print_slowdowns(results)
    _print_recurring_slowdowns(results)
    return publish(_claims(results), arguments.json)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=DATA, help="folder of the study")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--seed", type=int, default=1, help="seed of the noise (default 1)")
    parser.add_argument("--runs", type=int, default=10, help="runs of each job (default 10)")
    parser.add_argument("--recurring-runs", type=int, default=10, help="runs of a recurring job (default 10)")
    parser.add_argument("--steps", type=int, default=300, help="steps of a run (default 300)")
    parser.add_argument("--window-steps", type=int, default=5, help="steps of a window (default 5)")
    parser.add_argument("--min-step-cv", type=float, default=0.0, help="minimum relative noise of a step")
    parser.add_argument("--truth", choices=("smooth", "measured"), default="smooth", help="the true response")
    parser.add_argument("--json", metavar="FILE", help="also write the claims to FILE as JSON")
    arguments = parser.parse_args()
    if not arguments.data.is_dir():
        sys.exit(f"{arguments.data}: no such folder: name the folder of the study with --data")
    for name in ("workers", "runs", "recurring_runs", "steps", "window_steps"):
        if getattr(arguments, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1")
    return arguments


def _evaluate(
    jobs: Sequence[MeasuredJob], fixed: dict[str, float], settings: Settings, workers: int
) -> list[JobResult]:
    """Return the results of the tuning search for all measured jobs.

    The progress is printed to the standard error stream.
    """
    results: dict[int, JobResult] = {}
    with ProcessPoolExecutor(workers, initializer=end_with_parent) as pool:
        futures = {
            pool.submit(evaluate, job, fixed[job.gpu], settings, number): number
            for number, job in enumerate(jobs)
        }
        for done, future in enumerate(as_completed(futures), 1):
            results[futures[future]] = future.result()
            print(f"\rjob {done} of {len(jobs)}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return [results[number] for number in range(len(jobs))]


def evaluate(job: MeasuredJob, fixed_limit: float, settings: Settings, number: int) -> JobResult:
    """Replay the runs of one job under all tuning strategies, and return the results."""
    result = JobResult(job)
    best, steps = float(job.edp.min()), settings.steps
    fixed_index = strategies.nearest(job, fixed_limit)
    for repeat in range(settings.runs):

        def new_run(strategy: int, repeat: int = repeat) -> SimulatedRun:
            generator = np.random.default_rng([settings.seed, number, repeat, strategy])
            return SimulatedRun(job, generator, settings.min_step_cv)

        for name, known in ((SEARCH, True), (UNKNOWN_LENGTH, False)):
            run, tuner = strategies.search(
                new_run(known), steps, settings.window_steps, Objective("edp"), known
            )
            result.edp[name].append(_edp(run) / best)
            if known:
                result.held.append(float(job.edp[run.log[-1]]) / best)
                result.probes.append(tuner.summary()["probes"])
        result.edp[CONSTANT].append(_edp(strategies.constant(new_run(2), steps)) / best)
        result.edp[FIXED].append(float(job.edp[fixed_index]) / best)
        result.edp[EXHAUSTIVE].append(_edp(strategies.exhaustive(new_run(3), steps)) / best)
        result.edp[UNTUNED].append(1.0 / best)
        if settings.zeus:
            result.edp[ZEUS].append(_edp(strategies.zeus(new_run(4), steps)) / best)
        generator = np.random.default_rng([settings.seed, number, repeat, 5])
        again = strategies.recurring(job, generator, steps, settings.recurring_runs, Objective("edp"))
        result.recurring.append([_edp(run) / best for run in again])
        for limit in LIMITS:
            objective = Objective("energy", limit)
            run, _ = strategies.search(
                new_run(6 + round(100 * limit)), steps, settings.window_steps, objective, True
            )
            result.slowdowns[limit].append(_slowdown(run, limit))
            generator = np.random.default_rng([settings.seed, number, repeat, 50 + round(100 * limit)])
            again = strategies.recurring(job, generator, steps, settings.recurring_runs, objective)
            result.recurring_slowdowns[limit].append([_slowdown(run, limit) for run in again])
    return result


def _edp(run: SimulatedRun) -> float:
    """Return the EDP of a run relative to the untuned run."""
    return run.time * run.energy / run.steps**2 / run.job.watts[-1]


def _slowdown(run: SimulatedRun, limit: float) -> tuple[float, float, float, float]:
    job = run.job
    allowed = np.array(job.time) <= 1.0 + limit
    saved = 1.0 - run.energy / run.steps / job.watts[-1]
    return (
        job.time[run.log[-1]] - 1.0,
        run.time / run.steps - 1.0,
        saved,
        1.0 - float(job.energy[allowed].min()),
    )


def _print_edp(results: Sequence[JobResult], settings: Settings) -> None:
    for gpu in [*sorted({result.job.gpu for result in results}), None]:
        some = [result for result in results if gpu in (None, result.job.gpu)]
        responsive = [result for result in some if result.job.responds]
        print(
            f"\n{gpu or 'all GPUs'}: {len(some)} jobs, {len(responsive)} respond; "
            f"EDP of {settings.steps} steps over the best static limit in hindsight"
        )
        print(f"{'strategy':<32}{'all':>9}{'responsive':>12}{'worst job':>11}")
        for name in some[0].edp:
            _print_line(name, some, responsive, lambda result, name=name: np.mean(result.edp[name]))
        if gpu is not None or settings.recurring_runs:
            label = f"recurring, first {settings.recurring_runs} runs"
            _print_line(label, some, responsive, lambda result: np.mean(result.recurring))
        if responsive:
            hits = np.mean([np.array(result.held) <= 1.0 + HIT for result in responsive])
            probes = [count for result in some for count in result.probes]
            print(
                f"hit rate of the search {hits:.3f}; probes mean {np.mean(probes):.1f}, maximum {max(probes)}"
            )


def _print_line(name, some, responsive, value) -> None:  # type: ignore[no-untyped-def]
    every = [100.0 * (float(value(result)) - 1.0) for result in some]
    among = [100.0 * (float(value(result)) - 1.0) for result in responsive]
    shown = f"{np.mean(among):>+11.2f}%" if among else f"{'-':>12}"
    print(f"{name:<32}{np.mean(every):>+8.2f}%{shown}{max(every):>+10.1f}%")


def _print_slowdowns(results: Sequence[JobResult]) -> None:
    print("\nobjective energy: slowdown of the limit held and of the run, energy saved of that in hindsight")
    head = f"{'GPU':<12}{'limit':>6}{'held > limit + 1 pt':>21}{'run > limit + 1 pt':>20}{'maximum':>9}"
    print(f"{head}{'saved':>8}{'hindsight':>11}{'share':>7}")
    for gpu in [*sorted({result.job.gpu for result in results}), None]:
        for limit in LIMITS:
            rows = _rows(results, limit, gpu)
            over = rows[:, :2] > limit + VIOLATION
            share = rows[:, 2].mean() / rows[:, 3].mean() if rows[:, 3].mean() > 0 else float("nan")
            print(
                f"{gpu or 'all':<12}{limit:>6.0%}{over[:, 0].mean():>20.2%}{over[:, 1].mean():>19.2%}"
                f"{rows[:, 0].max():>10.1%}{rows[:, 2].mean():>8.2%}{rows[:, 3].mean():>10.2%}{share:>8.3f}"
            )


def _print_recurring_slowdowns(results: Sequence[JobResult]) -> None:
    print("\nobjective energy, recurring jobs without a progress signal: runs > limit + 1 pt, energy saved")
    head = f"{'GPU':<12}{'limit':>6}{'first run':>11}{'all runs':>10}{'maximum':>9}"
    print(f"{head}{'first':>8}{'all':>8}{'last':>8}{'hindsight':>11}")
    for gpu in [*sorted({result.job.gpu for result in results}), None]:
        for limit in LIMITS:
            rows = _recurring_rows(results, limit, gpu)
            over, saved = rows[:, :, 1] > limit + VIOLATION, rows[:, :, 2].mean(axis=0)
            print(
                f"{gpu or 'all':<12}{limit:>6.0%}{over[:, 0].mean():>11.2%}{over.mean():>10.2%}"
                f"{rows[:, :, 1].max():>9.1%}{saved[0]:>8.2%}{saved.mean():>8.2%}{saved[-1]:>8.2%}"
                f"{rows[:, 0, 3].mean():>11.2%}"
            )


def _recurring_rows(results: Sequence[JobResult], limit: float, gpu: str | None = None) -> np.ndarray:
    """Return the benchmark results of recurring jobs as an array with three axes.

    The axes are the series (sequence of runs of one job), the run in the series, and the measured quantity
    of the run.

    Args:
        results: results of the jobs.
        limit: slowdown limit of the runs.
        gpu: kind of GPU whose jobs are selected; None selects all jobs.
    """
    return np.array(
        [
            series
            for result in results
            if gpu in (None, result.job.gpu)
            for series in result.recurring_slowdowns[limit]
        ]
    )


def _rows(results: Sequence[JobResult], limit: float, gpu: str | None = None) -> np.ndarray:
    return np.array(
        [row for result in results if gpu in (None, result.job.gpu) for row in result.slowdowns[limit]]
    )


def _claims(results: Sequence[JobResult]) -> list[Claim]:
    """Return the comparisons of the benchmark's results with targets (claims), for each GPU.

    They concern the loss of energy-delay product (EDP), exceeded slowdown limits, and the saving. A loss
    of EDP is the mean excess of the EDP over the EDP at the best static limit.
    """
    claims = []
    for gpu in sorted({result.job.gpu for result in results}):
        some = [result for result in results if result.job.gpu == gpu]
        name = "".join(letter if letter.isalnum() else "_" for letter in gpu)
        loss = {
            key: float(np.mean([np.mean(result.edp[key]) for result in some])) - 1.0 for key in some[0].edp
        }
        recurring = float(np.mean([np.mean(result.recurring) for result in some])) - 1.0
        claims += [
            at_most(f"tuning_edp_loss_{name}", loss[SEARCH], 0.02),
            at_most(f"tuning_edp_against_constant_{name}", (1 + loss[SEARCH]) / (1 + loss[CONSTANT]), 1.0),
            at_most(f"tuning_recurring_loss_{name}", recurring, 0.03),
            at_most(f"tuning_recurring_against_constant_{name}", (1 + recurring) / (1 + loss[CONSTANT]), 1.0),
        ]
        for limit in LIMITS:
            over = (_rows(some, limit)[:, :2] > limit + VIOLATION).any(axis=1)
            claims.append(
                at_most(f"tuning_violations_{limit * 100:.0f}_percent_{name}", float(over.mean()), 0.01)
            )
            over = _recurring_rows(some, limit)[:, :, 1] > limit + VIOLATION
            claims += [
                at_most(f"tuning_{key}_violations_{limit * 100:.0f}_percent_{name}", float(runs.mean()), 0.01)
                for key, runs in (("first_run", over[:, 0]), ("recurring", over))
            ]
        rows = _rows(some, 0.05)
        if rows[:, 3].mean() >= MIN_SAVING:
            saved = float(rows[:, 2].mean() / rows[:, 3].mean())
            claims.append(at_least(f"tuning_energy_of_hindsight_5_percent_{name}", saved, 0.9))
    return claims


if __name__ == "__main__":
    sys.exit(main())
