"""`senergy simulate`: simulate scheduling policies on a workload."""

from __future__ import annotations

import argparse
import importlib
import shlex
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slurm_energy.cli import simulate_output
from slurm_energy.cli.output import emit_fitted, emit_json
from slurm_energy.cli.progress_line import ProgressLine
from slurm_energy.errors import EXIT_OK, UnavailableError, UsageError, install_extra

if TYPE_CHECKING:
    from slurm_energy.simulator.campaigns.run_result import RunResult
    from slurm_energy.simulator.scenario import Scenario
    from slurm_energy.simulator.workloads.job_array import JobArray
    from slurm_energy.simulator.workloads.workload_generator import Predict

HELP = "simulate scheduling policies on a workload: time, energy, fairness, deadlines"
_REPORT_INTERVAL_S = 10.0

EPILOG = """\
examples:
  senergy simulate --list                                list shipped scenarios and policies
  senergy simulate training                              run a shipped scenario
  senergy simulate training --sweep workload.arrivals_per_s=0.003,0.005,0.007
  senergy simulate replay --workload trace.swf           replay users, submissions and run times of a file
  senergy simulate my.toml --policies fcfs,zeus,blend --seeds 10 --out results
  senergy simulate my.toml --sweep workload.load=0.5:1.1:0.1 --sweep schedule.discipline=easy,strict
  senergy simulate my.toml --sweep "workload.hours,workload.arrivals_per_s=[5,0.01],[10,0.005]"
  senergy simulate my.toml --policy-file my_policy.py --policies mine,zeus
  senergy simulate my.toml --out results --html page.html --format parquet
  senergy simulate my.toml --out /shared/results --jobs 20 --slurm="-p short -t 30"

With --out, an interrupted campaign (all policies with all seeds) resumes where it stopped. With --slurm, the
command cancels the job array when it receives SIGINT, SIGTERM or SIGHUP; after kill -9, squeue --me
--name=senergy-simulate shows the array. The same code of the policies orders the live queue.
docs/simulator.md explains scenarios and how to write a policy.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of `senergy simulate`."""
    parser.epilog = EPILOG
    parser.add_argument(
        "scenario", nargs="?", metavar="SCENARIO", help="TOML file, or name of a shipped scenario"
    )
    parser.add_argument("--list", action="store_true", help="list shipped scenarios and policies")
    parser.add_argument(
        "--workload", metavar="FILE", type=Path, help="workload file instead of the scenario's"
    )
    parser.add_argument("--policies", metavar="A,B,C", help="policies instead of the scenario's")
    parser.add_argument("--policy-file", metavar="FILE", type=Path, help="Python file with your own policies")
    parser.add_argument(
        "--seeds", metavar="N", type=int, help="runs per policy, each with other random numbers"
    )
    parser.add_argument(
        "--sweep",
        metavar="KEY=A,B",
        action="append",
        help="run once per value, e.g. workload.load=0.5:1.0:0.1; several: every combination",
    )
    parser.add_argument(
        "--max-runs", metavar="N", type=int, help="limit of the number of simulations (default: 10000)"
    )
    parser.add_argument("--jobs", metavar="N", type=int, help="parallel processes (default: one per core)")
    parser.add_argument(
        "--slurm",
        metavar="OPTIONS",
        nargs="?",
        const="",
        help="run as a Slurm job array of --jobs tasks with these sbatch options; needs --out",
    )
    parser.add_argument("--part", metavar="I/N", help="run only part I of N and print nothing; needs --out")
    parser.add_argument(
        "--out", metavar="DIR", type=Path, help="write jobs, power and summaries to this folder"
    )
    parser.add_argument(
        "--format", choices=("csv", "parquet", "json"), default="csv", help="format of the files in --out"
    )
    parser.add_argument("--html", metavar="FILE", type=Path, help="write one page with all tables and charts")
    parser.add_argument("--plots", metavar="DIR", type=Path, help="write the plots as PNG files")
    parser.add_argument("--json", action="store_true", help="print every run's summary, or the list, as JSON")


def run(args: argparse.Namespace) -> int:
    """Run the simulations of a scenario, or list shipped scenarios and policies."""
    try:
        from slurm_energy.scheduling import load_file

        importlib.import_module("slurm_energy.simulator.campaigns.campaign")
    except ImportError as error:
        raise UnavailableError(
            "senergy simulate", f"needs {error.name}", install_extra("simulation")
        ) from None
    if args.policy_file:
        load_file(args.policy_file)
    if args.list:
        _list(as_json=args.json)
        return EXIT_OK
    if not args.scenario:
        raise UsageError(
            "senergy simulate", "no scenario given", "a TOML file, or one of senergy simulate --list"
        )
    for flag in ("seeds", "jobs", "max_runs"):
        value = getattr(args, flag)
        if value is not None and value < 1:
            raise UsageError(f"--{flag.replace('_', '-')}: {value} is not a positive number")
    _simulate(args)
    return EXIT_OK


def _simulate(args: argparse.Namespace) -> None:
    from slurm_energy.simulator import scenario as scenarios

    scenario = _changed(scenarios.read(args.scenario), args)
    variants = _variants(scenario, args)
    simulate_output.check_outputs(args)
    if args.slurm is not None or args.part:
        if not args.out:
            flag = "--part" if args.part else "--slurm"
            raise UsageError(flag, "needs --out", "a folder that is visible on all nodes")
        if args.part:
            _one_part(variants, args)
            return
        _submit(variants, args)
    results = list(zip(variants, _run(variants, args), strict=True))
    if not args.json:
        _print(results)
    outcomes = simulate_output.write_all(scenario, results, args, _oracle(scenario))
    if args.html:
        simulate_output.write_page(scenario, results, outcomes, args.html)
    if args.json:
        emit_json([_object(variant, result) for variant, listed in results for result in listed])


def _one_part(variants: list[Scenario], args: argparse.Namespace) -> None:
    """Run the simulations of one task of a job array.

    The task runs every N-th simulation of all variants, where N is the number of tasks. The results go to
    the output folder.
    """
    from slurm_energy.simulator.campaigns import campaign
    from slurm_energy.simulator.workloads import job_array

    part, parts = job_array.split(args.part)
    own_tasks = [(v, task) for v in variants for task in campaign.tasks(v)][part::parts]
    for variant in variants:
        tasks = [task for v, task in own_tasks if v is variant]
        folder = variant.variant_folder(args.out)
        campaign.campaign(
            variant, tasks, _oracle(variant), jobs=1, folder=folder, policy_file=args.policy_file
        )


def _submit(variants: list[Scenario], args: argparse.Namespace) -> None:
    """Run the simulations without a stored result as a Slurm job array and wait for it.

    Afterwards the output folder holds every result.
    """
    from slurm_energy.simulator.campaigns import campaign
    from slurm_energy.simulator.campaigns.result_cache import ResultCache
    from slurm_energy.simulator.workloads import job_array

    def missing() -> int:
        caches = [
            (ResultCache(v.variant_folder(args.out), v, args.policy_file), campaign.tasks(v))
            for v in variants
        ]
        return sum(cache.recall(task) is None for cache, tasks in caches for task in tasks)

    total = sum(len(campaign.tasks(variant)) for variant in variants)
    if not missing():
        return
    parts = min(total, args.jobs or job_array.DEFAULT_TASKS)
    command = job_array.sbatch_command(_same_command(args), parts, args.out.absolute(), args.slurm)

    with ProgressLine("simulating", "runs") as line:
        progress = _Progress(total, line)

        def complete() -> bool:
            left = missing()
            progress.report(total - left)
            return left == 0

        job_array.run(command, complete, lambda array: _report_array(array, parts))
    left = missing()
    if left:
        why = f"{left} of {total} runs are missing"
        raise UnavailableError("--slurm", why, f"see {args.out}/slurm-*.out; the same command runs the rest")


def _report_array(array: JobArray, parts: int) -> None:
    print(
        f"senergy: note: Slurm runs this as job array {array.job_id} of {parts} tasks; it ends with this "
        f"command, after kill -9 with: {shlex.join(array.scancel)}",
        file=sys.stderr,
        flush=True,
    )


class _Progress:
    """Progress display of a job array: a bar on a terminal, elsewhere a line at intervals."""

    def __init__(self, total: int, line: ProgressLine) -> None:
        self._total, self._line = total, line
        self._reported, self._next = -1, 0.0

    def report(self, done: int) -> None:
        """Show that `done` simulations have finished."""
        self._line.report(done, self._total)
        if sys.stderr.isatty():
            return
        if done != self._reported and (time.monotonic() >= self._next or done == self._total):
            print(f"senergy: {done} of {self._total} runs", file=sys.stderr, flush=True)
            self._reported, self._next = done, time.monotonic() + _REPORT_INTERVAL_S


def _same_command(args: argparse.Namespace) -> list[str]:
    """Return the arguments of this command for an array task, with absolute paths."""
    from slurm_energy.simulator.scenario_files import shipped

    scenario = args.scenario if args.scenario in shipped() else str(Path(args.scenario).absolute())
    command = [sys.executable, "-m", "slurm_energy.cli.main", "simulate", scenario]
    command += ["--out", str(args.out.absolute())]
    for flag in ("workload", "policy_file"):
        if getattr(args, flag):
            command += [f"--{flag.replace('_', '-')}", str(getattr(args, flag).absolute())]
    for flag in ("policies", "seeds", "max_runs"):
        if getattr(args, flag):
            command += [f"--{flag.replace('_', '-')}", str(getattr(args, flag))]
    for text in args.sweep or ():
        command += ["--sweep", text]
    return command


def _variants(scenario: Scenario, args: argparse.Namespace) -> list[Scenario]:
    from slurm_energy import deferral
    from slurm_energy.scheduling import policy
    from slurm_energy.simulator.campaigns import sweeps
    from slurm_energy.simulator.deferral.deferral_schema import split_policy

    variants = sweeps.variants(scenario, args.max_runs or sweeps.MAX_RUNS)
    for name in dict.fromkeys(name for variant in variants for name in variant.schedule.policies):
        ranking, deferred = split_policy(name)
        policy(ranking)
        deferral.policy(deferred or deferral.OFF)
    return variants


def _changed(scenario: Scenario, args: argparse.Namespace) -> Scenario:
    from slurm_energy.simulator.campaigns import sweeps

    schedule, workload = scenario.schedule, scenario.workload
    if args.policies is not None:
        policies = [name for name in args.policies.split(",") if name]
        if not policies:
            raise UsageError("--policies", "names no policy", "e.g. fcfs,zeus")
        schedule = replace(schedule, policies=policies)
    if args.seeds:
        schedule = replace(schedule, seeds=args.seeds)
    if args.workload:
        workload = replace(workload, file=str(args.workload.absolute()), files=[])
    axes = sweeps.parse(args.sweep) if args.sweep else scenario.sweep
    return replace(scenario, schedule=schedule, workload=workload, sweep=axes)


def _run(variants: list[Scenario], args: argparse.Namespace) -> list[list[RunResult]]:
    from slurm_energy.simulator.campaigns import campaign

    with ProgressLine("simulating", "runs") as line:
        return campaign.sweep(
            variants,
            _oracle(variants[0]),
            jobs=args.jobs,
            folder=args.out,
            policy_file=args.policy_file,
            progress=line.report,
        )


def _oracle(scenario: Scenario) -> Predict | None:
    """Return the function that predicts the time and power of a scenario's training jobs.

    The result is None if the scenario names no models.
    """
    if not scenario.models:
        return None
    from slurm_energy.simulator.model_predictions import predict

    return predict


def _list(*, as_json: bool) -> None:
    from slurm_energy.scheduling import names, policy
    from slurm_energy.simulator import scenario as scenarios
    from slurm_energy.simulator import scenario_files

    titles = {name: scenarios.read(name).title for name in scenario_files.shipped()}
    policies = {name: policy(name).summary for name in names()}
    if as_json:
        emit_json({"scenarios": titles, "policies": policies})
        return
    emit_fitted(["scenarios:", *(f"  {name:<22} {title}" for name, title in titles.items())])
    emit_fitted(["", "policies:", *(f"  {name:<22} {summary}" for name, summary in policies.items())])


def _print(results: list[tuple[Scenario, list[RunResult]]]) -> None:
    """Print one table per variant.

    If there are many variants or several swept keys, print one table for all.
    """
    from slurm_energy.simulator.campaigns.sweep_results import table_rows
    from slurm_energy.simulator.results.summary_table import aligned, means, summary_lines

    first = results[0][0]
    if simulate_output.needs_one_table(results):
        emit_fitted([first.title, *aligned(table_rows(results), left=len(first.point) + 1)])
    else:
        for scenario, runs in results:
            lines = summary_lines(means(runs), several=scenario.schedule.seeds > 1)
            emit_fitted([scenario.heading, *lines])
    for note in dict.fromkeys(note for _, runs in results for run in runs for note in run.notes):
        print(f"senergy: note: {note}", file=sys.stderr)


def _object(scenario: Scenario, result: RunResult) -> dict[str, Any]:
    summary = {"policy": result.policy, "seed": result.seed, "summary": result.summary, "notes": result.notes}
    return {"variant": scenario.label, **summary} if scenario.label else summary
