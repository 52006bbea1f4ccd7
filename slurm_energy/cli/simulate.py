"""`senergy simulate`: what scheduling policies would do with a workload."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slurm_energy.cli.printing import emit, emit_json
from slurm_energy.errors import EXIT_OK, UnavailableError, UsageError

if TYPE_CHECKING:
    from slurm_energy.simulator.campaign import Result
    from slurm_energy.simulator.generator import Predict
    from slurm_energy.simulator.scenario import Scenario

HELP = "what scheduling policies would do with a workload: time, energy, fairness, deadlines"

EPILOG = """\
examples:
  senergy simulate --list                                scenarios and policies that are there
  senergy simulate budget-day                            a shipped scenario
  senergy simulate my.toml --policies fcfs,zeus,blend --seeds 10 --out results
  senergy simulate my.toml --policy-file my_policy.py --policies mine,zeus
  senergy simulate my.toml --out results --html page.html --format parquet

An interrupted campaign with --out goes on where it stopped. The policies are the code that orders the real
queue. docs/simulator.md explains scenarios and how to write a policy.
"""

_COLUMNS = {
    "completed": ("done", 1.0, 0),
    "jobs_per_hour": ("jobs/h", 1.0, 2),
    "energy_kwh": ("kWh", 1.0, 2),
    "mean_jct_s": ("JCT min", 1 / 60, 1),
    "mean_wait_s": ("wait min", 1 / 60, 1),
    "max_wait_s": ("max wait", 1 / 60, 1),
    "deadline_miss_rate": ("missed %", 100.0, 1),
    "preemptions": ("preempt", 1.0, 1),
    "peak_watts": ("peak kW", 1e-3, 2),
    "jain_jct": ("Jain JCT", 1.0, 3),
    "jain_energy": ("Jain J", 1.0, 3),
    "over_budget_s": ("over min", 1 / 60, 1),
    "cost": ("cost", 1.0, 2),
    "carbon_kg": ("kg CO2", 1.0, 2),
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options to `senergy simulate`."""
    parser.epilog = EPILOG
    parser.add_argument(
        "scenario", nargs="?", metavar="SCENARIO", help="a TOML file, or a shipped one's name"
    )
    parser.add_argument("--list", action="store_true", help="list shipped scenarios and policies")
    parser.add_argument("--policies", metavar="A,B,C", help="in place of the scenario's")
    parser.add_argument("--policy-file", metavar="FILE", type=Path, help="Python file with policies of yours")
    parser.add_argument("--seeds", metavar="N", type=int, help="runs with different random numbers")
    parser.add_argument("--jobs", metavar="N", type=int, help="processes at a time (default: one per core)")
    parser.add_argument("--out", metavar="DIR", type=Path, help="write jobs, power and summaries here")
    parser.add_argument(
        "--format", choices=("csv", "parquet", "json"), default="csv", help="of jobs and power"
    )
    parser.add_argument("--html", metavar="FILE", type=Path, help="one page with the table and all plots")
    parser.add_argument("--plots", metavar="DIR", type=Path, help="the plots as PNG files")
    parser.add_argument("--json", action="store_true", help="print every run's summary as JSON")


def run(args: argparse.Namespace) -> int:
    """Simulate, or list what there is."""
    try:
        from slurm_energy.scheduling import load_file, policy
        from slurm_energy.simulator import scenario as scenarios
        from slurm_energy.simulator.campaign import Task, campaign
    except ImportError as error:
        raise UnavailableError(
            "senergy simulate", f"needs {error.name}", "pip install 'slurm-energy[simulation]'"
        ) from None
    if args.policy_file:
        load_file(args.policy_file)
    if args.list:
        _list()
        return EXIT_OK
    if not args.scenario:
        raise UsageError(
            "senergy simulate", "no scenario given", "a TOML file, or one of senergy simulate --list"
        )
    scenario = _changed(scenarios.read(args.scenario), args)
    for name in scenario.schedule.policies:
        policy(name)
    tasks = [
        Task(name, seed) for name in scenario.schedule.policies for seed in range(scenario.schedule.seeds)
    ]
    predict = _oracle(scenario)
    results = campaign(
        scenario,
        tasks,
        predict,
        jobs=args.jobs,
        folder=args.out,
        policy_file=args.policy_file,
        progress=_progress if sys.stderr.isatty() else lambda done, total: None,
    )
    _print(scenario, results, as_json=args.json)
    _write(scenario, results, predict, args)
    return EXIT_OK


def _changed(scenario: Scenario, args: argparse.Namespace) -> Scenario:
    schedule = scenario.schedule
    if args.policies:
        schedule = replace(schedule, policies=[name for name in args.policies.split(",") if name])
    for flag in ("seeds", "jobs"):
        value = getattr(args, flag)
        if value is not None and value < 1:
            raise UsageError(f"--{flag}: {value} is not a positive number")
    if args.seeds:
        schedule = replace(schedule, seeds=args.seeds)
    return replace(scenario, schedule=schedule)


def _oracle(scenario: Scenario) -> Predict | None:
    """Return the oracle for scenarios with models, None for those with files."""
    if not scenario.models:
        return None
    raise UnavailableError("[[model]]", "this release has no oracle yet", "give [workload] a file")


def _list() -> None:
    from slurm_energy.scheduling import names, policy
    from slurm_energy.simulator import scenario as scenarios

    emit(["scenarios:"])
    emit(f"  {name:<22} {scenarios.read(name).title}" for name in scenarios.shipped())
    emit(["", "policies:"])
    emit(f"  {name:<22} {policy(name).summary}" for name in names())


def _progress(done: int, total: int) -> None:
    end = "\n" if done == total else ""
    print(f"\r{done} of {total} runs", end=end, file=sys.stderr, flush=True)


def _means(results: list[Result]) -> dict[str, dict[str, Any]]:
    from slurm_energy.simulator.results import mean_and_deviation

    grouped: dict[str, list[dict[str, Any]]] = {}
    for result in results:
        grouped.setdefault(result.policy, []).append(result.summary)
    return {name: mean_and_deviation(rows) for name, rows in grouped.items()}


def _table(scenario: Scenario, results: list[Result]) -> list[str]:
    """Return a row per policy: means over the seeds, with standard deviations if there are several."""
    means = _means(results)
    several = scenario.schedule.seeds > 1
    shown = [name for name in _COLUMNS if any(_tells(row.get(name), name) for row in means.values())]
    header = ["policy", *(_COLUMNS[name][0] for name in shown)]
    lines = [header]
    for policy, row in means.items():
        lines.append([policy, *(_cell(row.get(name), name, several) for name in shown)])
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    return [
        "  ".join(
            [line[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(line[1:], widths[1:], strict=True))]
        )
        for line in lines
    ]


def _tells(value: tuple[float, float] | None, name: str) -> bool:
    """Return whether a figure is worth a column."""
    return value is not None and (name not in ("preemptions", "over_budget_s") or value[0] > 0)


def _cell(value: tuple[float, float] | None, name: str, several: bool) -> str:
    if value is None:
        return "-"
    _, factor, digits = _COLUMNS[name]
    mean, deviation = value[0] * factor, value[1] * factor
    return f"{mean:.{digits}f}±{deviation:.{digits}f}" if several else f"{mean:.{digits}f}"


def _print(scenario: Scenario, results: list[Result], *, as_json: bool) -> None:
    if as_json:
        emit_json(
            [{"policy": r.policy, "seed": r.seed, "summary": r.summary, "notes": r.notes} for r in results]
        )
        return
    emit([scenario.title, *_table(scenario, results)])
    for note in dict.fromkeys(note for result in results for note in result.notes):
        print(f"senergy: note: {note}", file=sys.stderr)


def _write(
    scenario: Scenario, results: list[Result], predict: Predict | None, args: argparse.Namespace
) -> None:
    """Write what was asked for; jobs and power of the first seed of each policy."""
    if not (args.out or args.html or args.plots):
        return
    from slurm_energy.simulator import results as files
    from slurm_energy.simulator.campaign import Task
    from slurm_energy.simulator.campaign import run as simulate

    outcomes = {name: simulate(scenario, Task(name, 0), predict) for name in scenario.schedule.policies}
    kinds = list(scenario.kinds)
    if args.out:
        for name, outcome in outcomes.items():
            files.write(
                files.job_columns(outcome, kinds), args.out / f"jobs-{name}.{args.format}", args.format
            )
            files.write(files.power_columns(outcome), args.out / f"power-{name}.{args.format}", args.format)
        rows: dict[str, list[Any]] = {"policy": [r.policy for r in results]}
        rows["seed"] = [r.seed for r in results]
        rows |= {name: [r.summary.get(name) for r in results] for name in results[0].summary}
        files.write(rows, args.out / f"summary.{args.format}", args.format)
    if args.html or args.plots:
        _draw(scenario, results, outcomes, args)


def _draw(
    scenario: Scenario, results: list[Result], outcomes: dict[str, Any], args: argparse.Namespace
) -> None:
    try:
        from slurm_energy.simulator import plots
    except ImportError:
        raise UnavailableError("plots", "need matplotlib", "pip install 'slurm-energy[plots]'") from None
    figures = plots.all_figures(outcomes, _means(results), scenario.budget())
    try:
        if args.plots:
            args.plots.mkdir(parents=True, exist_ok=True)
            for name, figure in figures.items():
                figure.savefig(args.plots / f"{name}.png", dpi=110)
        if args.html:
            args.html.write_text(plots.page(scenario.title, _table(scenario, results), figures))
    except OSError as error:
        raise UnavailableError(f"{error.filename}", error.strerror or "cannot be written") from None
