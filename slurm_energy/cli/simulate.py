"""`senergy simulate`: what scheduling policies would do with a workload."""

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
from slurm_energy.cli.output import emit, emit_json
from slurm_energy.errors import EXIT_OK, UnavailableError, UsageError, install_extra

if TYPE_CHECKING:
    from slurm_energy.simulator.campaign import RunResult
    from slurm_energy.simulator.job_array import JobArray
    from slurm_energy.simulator.scenario import Scenario
    from slurm_energy.simulator.workload_generator import Predict

HELP = "what scheduling policies would do with a workload: time, energy, fairness, deadlines"
_TELL_EACH_S = 10.0

EPILOG = """\
examples:
  senergy simulate --list                                scenarios and policies that are there
  senergy simulate training                              a shipped scenario
  senergy simulate training --sweep workload.arrivals_per_s=0.003,0.005,0.007
  senergy simulate replay --workload trace.swf           who submits what and when, from a file
  senergy simulate my.toml --policies fcfs,zeus,blend --seeds 10 --out results
  senergy simulate my.toml --sweep schedule.age_weight=0.01,0.1,1
  senergy simulate my.toml --policy-file my_policy.py --policies mine,zeus
  senergy simulate my.toml --out results --html page.html --format parquet
  senergy simulate my.toml --out /shared/results --jobs 20 --slurm="-p short -t 30"

An interrupted campaign with --out goes on where it stopped. One of --slurm cancels its job array when it is
interrupted, terminated or hung up; after kill -9, squeue --me --name=senergy-simulate finds the array.
The policies are the code that orders the real queue. docs/simulator.md explains scenarios and how to write a
policy.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options to `senergy simulate`."""
    parser.epilog = EPILOG
    parser.add_argument(
        "scenario", nargs="?", metavar="SCENARIO", help="a TOML file, or a shipped one's name"
    )
    parser.add_argument("--list", action="store_true", help="list shipped scenarios and policies")
    parser.add_argument("--workload", metavar="FILE", type=Path, help="in place of the scenario's file")
    parser.add_argument("--policies", metavar="A,B,C", help="in place of the scenario's")
    parser.add_argument("--policy-file", metavar="FILE", type=Path, help="Python file with policies of yours")
    parser.add_argument("--seeds", metavar="N", type=int, help="runs with different random numbers")
    parser.add_argument("--sweep", metavar="KEY=A,B", help="run once per value, e.g. workload.hours=5,10")
    parser.add_argument("--jobs", metavar="N", type=int, help="processes at a time (default: one per core)")
    parser.add_argument(
        "--slurm",
        metavar="OPTIONS",
        nargs="?",
        const="",
        help="run as a Slurm job array of --jobs tasks with these options of sbatch, and gather; needs --out",
    )
    parser.add_argument("--part", metavar="I/N", help="run only part I of N and print nothing; needs --out")
    parser.add_argument("--out", metavar="DIR", type=Path, help="write jobs, power and summaries here")
    parser.add_argument(
        "--format", choices=("csv", "parquet", "json"), default="csv", help="of jobs and power"
    )
    parser.add_argument("--html", metavar="FILE", type=Path, help="one page with all tables and charts")
    parser.add_argument("--plots", metavar="DIR", type=Path, help="the plots as PNG files")
    parser.add_argument("--json", action="store_true", help="print every run's summary, or the list, as JSON")


def run(args: argparse.Namespace) -> int:
    """Simulate, or list what there is."""
    try:
        from slurm_energy.scheduling import load_file

        importlib.import_module("slurm_energy.simulator.campaign")
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
    for flag in ("seeds", "jobs"):
        value = getattr(args, flag)
        if value is not None and value < 1:
            raise UsageError(f"--{flag}: {value} is not a positive number")
    _simulate(args)
    return EXIT_OK


def _simulate(args: argparse.Namespace) -> None:
    from slurm_energy.simulator import scenario as scenarios

    variants = _variants(_changed(scenarios.read(args.scenario), args), args)
    simulate_output.check_outputs(args)
    if args.slurm is not None or args.part:
        if not args.out:
            flag = "--part" if args.part else "--slurm"
            raise UsageError(flag, "needs --out", "a folder that all nodes see")
        if args.part:
            _one_part(variants, args)
            return
        _submit(variants, args)
    found: list[tuple[Scenario, list[RunResult], dict[str, Any]]] = []
    for variant in variants:
        results = _campaign(variant, args)
        if not args.json:
            _print(variant, results)
        found.append(
            (
                variant,
                results,
                simulate_output.write_variant(variant, results, args, _oracle(variant)),
            )
        )
    if args.html:
        simulate_output.write_page(found, args.html)
    if args.json:
        emit_json([_object(variant, result) for variant, results, _ in found for result in results])


def _one_part(variants: list[Scenario], args: argparse.Namespace) -> None:
    """Run every Nth task of all variants; results stay in the folder."""
    from slurm_energy.simulator import campaign, job_array

    part, parts = job_array.split(args.part)
    mine = [(v, task) for v in variants for task in campaign.tasks(v)][part::parts]
    for variant in variants:
        tasks = [task for v, task in mine if v is variant]
        folder = variant.variant_folder(args.out)
        campaign.campaign(variant, tasks, _oracle(variant), jobs=1, folder=folder)


def _submit(variants: list[Scenario], args: argparse.Namespace) -> None:
    """Run what is not done yet as a job array; afterwards every result is in the folder."""
    from slurm_energy.simulator import campaign, job_array

    def missing() -> int:
        caches = [(campaign.ResultCache(v.variant_folder(args.out), v), campaign.tasks(v)) for v in variants]
        return sum(cache.recall(task) is None for cache, tasks in caches for task in tasks)

    total = sum(len(campaign.tasks(variant)) for variant in variants)
    if not missing():
        return
    parts = min(total, args.jobs or job_array.DEFAULT_TASKS)
    command = job_array.sbatch_command(_same_command(args), parts, args.out.absolute(), args.slurm)

    progress = _Progress(total)

    def complete() -> bool:
        left = missing()
        progress.tell(total - left)
        return left == 0

    job_array.run(command, complete, lambda array: _tell_array(array, parts))
    left = missing()
    if left:
        why = f"{left} of {total} runs are missing"
        raise UnavailableError("--slurm", why, f"see {args.out}/slurm-*.out; the same command runs the rest")


def _tell_array(array: JobArray, parts: int) -> None:
    print(
        f"senergy: note: Slurm runs this as job array {array.job_id} of {parts} tasks; ended along with this "
        f"command, after kill -9 by: {shlex.join(array.scancel)}",
        file=sys.stderr,
        flush=True,
    )


class _Progress:
    """Tells how far an array is: at once on a terminal, else in a line now and then where it has changed."""

    def __init__(self, total: int) -> None:
        self._total, self._told, self._next = total, -1, 0.0

    def tell(self, done: int) -> None:
        """Print that so many runs are done."""
        if sys.stderr.isatty():
            _progress(done, self._total)
        elif done != self._told and (time.monotonic() >= self._next or done == self._total):
            print(f"senergy: {done} of {self._total} runs", file=sys.stderr, flush=True)
            self._told, self._next = done, time.monotonic() + _TELL_EACH_S


def _same_command(args: argparse.Namespace) -> list[str]:
    """Return the words of this command for an array task, with absolute paths."""
    scenario = str(Path(args.scenario).absolute()) if Path(args.scenario).exists() else args.scenario
    words = [sys.executable, "-m", "slurm_energy.cli.main", "simulate", scenario]
    words += ["--out", str(args.out.absolute())]
    for flag in ("workload", "policy_file"):
        if getattr(args, flag):
            words += [f"--{flag.replace('_', '-')}", str(getattr(args, flag).absolute())]
    for flag in ("policies", "seeds", "sweep"):
        if getattr(args, flag):
            words += [f"--{flag}", str(getattr(args, flag))]
    return words


def _variants(scenario: Scenario, args: argparse.Namespace) -> list[Scenario]:
    from slurm_energy.scheduling import policy
    from slurm_energy.simulator import sweeps

    for name in scenario.schedule.policies:
        policy(name)
    return sweeps.variants(replace(scenario, sweep=sweeps.parse(args.sweep)) if args.sweep else scenario)


def _changed(scenario: Scenario, args: argparse.Namespace) -> Scenario:
    schedule, workload = scenario.schedule, scenario.workload
    if args.policies:
        schedule = replace(schedule, policies=[name for name in args.policies.split(",") if name])
    if args.seeds:
        schedule = replace(schedule, seeds=args.seeds)
    if args.workload:
        workload = replace(workload, file=str(args.workload.absolute()))
    return replace(scenario, schedule=schedule, workload=workload)


def _campaign(scenario: Scenario, args: argparse.Namespace) -> list[RunResult]:
    from slurm_energy.simulator import campaign

    return campaign.campaign(
        scenario,
        campaign.tasks(scenario),
        _oracle(scenario),
        jobs=args.jobs,
        folder=scenario.variant_folder(args.out) if args.out else None,
        policy_file=args.policy_file,
        progress=_progress if sys.stderr.isatty() else lambda done, total: None,
    )


def _oracle(scenario: Scenario) -> Predict | None:
    """Return the oracle for scenarios with models, None for those with files only."""
    if not scenario.models:
        return None
    from slurm_energy.simulator.model_predictions import predict

    return predict


def _list(*, as_json: bool) -> None:
    from slurm_energy.scheduling import names, policy
    from slurm_energy.simulator import scenario as scenarios

    titles = {name: scenarios.read(name).title for name in scenarios.shipped()}
    policies = {name: policy(name).summary for name in names()}
    if as_json:
        emit_json({"scenarios": titles, "policies": policies})
        return
    emit(["scenarios:", *(f"  {name:<22} {title}" for name, title in titles.items())])
    emit(["", "policies:", *(f"  {name:<22} {summary}" for name, summary in policies.items())])


def _progress(done: int, total: int) -> None:
    end = "\n" if done == total else ""
    print(f"\r{done} of {total} runs", end=end, file=sys.stderr, flush=True)


def _lines(scenario: Scenario, results: list[RunResult]) -> list[str]:
    from slurm_energy.simulator.summary_table import means, summary_lines

    return summary_lines(means(results), several=scenario.schedule.seeds > 1)


def _print(scenario: Scenario, results: list[RunResult]) -> None:
    emit([scenario.heading, *_lines(scenario, results)])
    for note in dict.fromkeys(note for result in results for note in result.notes):
        print(f"senergy: note: {note}", file=sys.stderr)


def _object(scenario: Scenario, result: RunResult) -> dict[str, Any]:
    found = {"policy": result.policy, "seed": result.seed, "summary": result.summary, "notes": result.notes}
    return {"variant": scenario.label, **found} if scenario.label else found
