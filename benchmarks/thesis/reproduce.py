"""Run the simulations behind Figures 5.3 to 5.9 of the thesis.

The output shows the numbers of the thesis beside the simulated numbers. README.md describes the protocol and
explains the differences. A single experiment runs with `senergy simulate
benchmarks/thesis/scenarios/NAME.toml`. The fairness experiment also needs `--policy-file
benchmarks/thesis/printed_rankings.py`.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

import thesis_claims

from slurm_energy.cli.output import emit, emit_json
from slurm_energy.errors import EXIT_OK, EnergyError
from slurm_energy.scheduling import load_file
from slurm_energy.simulator import scenario as scenarios
from slurm_energy.simulator.campaigns import campaign, sweeps
from slurm_energy.simulator.campaigns.run_result import RunResult
from slurm_energy.simulator.model_predictions import predict
from slurm_energy.simulator.results.summary_table import aligned, means, summary_lines
from slurm_energy.simulator.scenario import Scenario

FOLDER = Path(__file__).parent
RANKINGS = FOLDER / "printed_rankings.py"


def main(words: list[str] | None = None) -> int:
    """Run all experiments.

    Args:
        words: arguments of the command line; None: those of this process.

    Returns:
        The exit code.
    """
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", metavar="N", type=_positive, help="runs of each policy (default 10)")
    parser.add_argument(
        "--jobs", metavar="N", type=_positive, help="processes at a time (default: one per core)"
    )
    parser.add_argument(
        "--out", metavar="DIR", type=Path, help="folder of results; an interrupted run resumes from it"
    )
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    args = parser.parse_args(words)
    try:
        load_file(RANKINGS)
        _reproduce(args)
    except EnergyError as error:
        print(f"reproduce.py: error: {error}", file=sys.stderr)
        return error.exit_code
    return EXIT_OK


def read(name: str) -> Scenario:
    """Read the scenario file of one of the experiments in `thesis_claims.SCENARIOS`."""
    return scenarios.read(str(FOLDER / "scenarios" / f"{name}.toml"))


def _reproduce(args: argparse.Namespace) -> None:
    runs = {}
    for name in thesis_claims.SCENARIOS:
        scenario = read(name)
        if args.seeds:
            scenario = replace(scenario, schedule=replace(scenario.schedule, seeds=args.seeds))
        folder = args.out / name if args.out else None
        for variant in sweeps.variants(scenario):
            runs[name, variant.label] = results = _run(variant, args.jobs, folder)
            if not args.json:
                table = summary_lines(means(results), several=variant.schedule.seeds > 1)
                emit([variant.heading, *table, ""])
            for note in dict.fromkeys(note for result in results for note in result.notes):
                print(f"reproduce.py: note: {note}", file=sys.stderr)
    claims = thesis_claims.claims(runs)
    if args.json:
        emit_json(thesis_claims.objects(claims))
    else:
        emit(aligned(thesis_claims.rows(claims), left=2))


def _run(variant: Scenario, jobs: int | None, folder: Path | None) -> list[RunResult]:
    return campaign.campaign(
        variant,
        campaign.tasks(variant),
        predict,
        jobs=jobs,
        folder=variant.variant_folder(folder) if folder else None,
        policy_file=RANKINGS,
    )


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not a positive number")
    return number


if __name__ == "__main__":
    sys.exit(main())
