"""`senergy study validate`: measure the effect of a deployment, and judge its targets and limits.

The effect is stated with confidence intervals. A deployment that breaks a limit is undone.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from slurm_energy.cli import study_sources
from slurm_energy.cli.output import emit_fitted, emit_json, note
from slurm_energy.cli.study_command import command_line
from slurm_energy.errors import EXIT_FAILURE, EXIT_OK, UsageError


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of `senergy study validate`."""
    study_sources.add_options(parser, "a week before the deployment")
    parser.add_argument(
        "--washout",
        metavar="HOURS",
        type=float,
        help="hours after each switch that do not count (default: from the run times of the baseline)",
    )
    parser.add_argument(
        "--no-undo", action="store_true", help="leave the deployment in force when a limit is broken"
    )
    parser.add_argument(
        "--seed", metavar="N", type=int, default=0, help="seed of the randomisation test (default: 0)"
    )


def run(args: argparse.Namespace) -> int:
    """Measure the effect of the deployment, check its limits, and print the verdicts.

    Return the exit code. The exit code reports a failure if the deployment breaks a limit.
    """
    from slurm_energy.study.directory import StudyDirectory
    from slurm_energy.study.effects.validation import ValidationOptions, deployment_begin_s, run_validation

    if args.washout is not None and not 0.0 <= args.washout < 24.0:
        raise UsageError(
            "--washout", f"{args.washout:g} is not from 0 to less than 24", "such as --washout 4"
        )
    study = StudyDirectory(Path(args.directory))
    objective = study.objective()
    sources = study_sources.sources(args, objective.season.timezone, deployment_begin_s(study))
    options = ValidationOptions(args.seed, args.washout, not args.no_undo)
    result = run_validation(study, sources, command_line(), options)
    is_broken = any(one["verdict"] == "broken" for one in result["limits"])
    if args.json:
        emit_json(result)
        return EXIT_FAILURE if is_broken else EXIT_OK
    emit_fitted(_lines(result, objective.title))
    for text in (*result["period"]["notes"], *result["remarks"]):
        note(text)
    return EXIT_FAILURE if is_broken else EXIT_OK


def _lines(result: dict[str, Any], title: str) -> list[str]:
    from slurm_energy.study.report.report_document import conclusion

    period, deployment = result["period"], result["deployment"]
    interval = f"{result['confidence']:.0%} interval"
    lines = [
        f"Validation of '{title}': {deployment['alternative']['title']}",
        f"{period['begin']} to {period['end']}, {period['jobs']} jobs, design {result['design']}, "
        f"washout {result['washout_hours']:g} h",
        "",
        f"{'KPI':<22} {'Effect':>8} {interval:>20} {'Treated':>8} {'Others':>7}",
    ]
    for name, effect in result["effects"].items():
        unit = "{:+.1%}" if effect["is_relative"] else "{:+.4g}"
        change, low, high = (unit.format(effect[key]) for key in ("change", "low", "high"))
        counts = f"{effect['treated_periods']:>8} {effect['control_periods']:>7}"
        lines.append(f"{name:<22} {change:>8} {f'{low} .. {high}':>20} {counts}")
    lines += ["", "Limits:"]
    for one in result["limits"]:
        lines.append(f"  {one['kpi']:<20} {one['account'] or 'all':<12} {one['verdict']:<16} {one['reason']}")
    if (check := result["placebo"]) is not None:
        lines.append(
            f"Placebo: an effect in {check['false_effects']} of {check['trials']} imagined deployments"
        )
    return [*lines, "", *conclusion(result, None)]
