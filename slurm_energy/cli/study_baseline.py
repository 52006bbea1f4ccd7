"""The command `senergy study baseline`, which measures the present state of the cluster.

It prints the KPIs of the state, and whether the data suffice to detect the wanted changes.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from slurm_energy.cli import study_sources
from slurm_energy.cli.output import emit_fitted, emit_json, note
from slurm_energy.cli.study_command import command_line
from slurm_energy.errors import EXIT_OK

_WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of `senergy study baseline`."""
    study_sources.add_options(parser)
    parser.add_argument("--seed", metavar="N", type=int, default=0, help="seed of the bootstrap (default: 0)")


def run(args: argparse.Namespace) -> int:
    """Run the study step `baseline`: measure the period before the deployment and print it."""
    from slurm_energy.study.baseline import run_baseline
    from slurm_energy.study.directory import StudyDirectory

    study = StudyDirectory(Path(args.directory))
    objective = study.objective()
    sources = study_sources.sources(args, objective.season.timezone)
    result = run_baseline(study, sources, command_line(), args.seed)
    if args.json:
        emit_json(result)
        return EXIT_OK
    emit_fitted(_lines(result, objective.title, objective.statistics.confidence))
    for text in result["period"]["notes"]:
        note(text)
    return EXIT_OK


def _lines(result: dict[str, Any], title: str, confidence: float) -> list[str]:
    period = result["period"]
    lines = [
        f"Baseline of '{title}': {period['begin']} to {period['end']}, {period['jobs']} jobs, "
        f"{period['used_days']} of {period['days']} days used",
        f"Energy: {result['energy_of_days']}",
    ]
    lines += [f"not used: {day}: {reason}" for day, reason in period["outages"].items()]
    interval = f"{confidence:.0%} interval"
    lines += ["", f"{'KPI':<22} {'Mean':>12} {interval:>27} {'Days vary':>9}  Unit"]
    for name, kpi in result["kpis"].items():
        bounds = f"{_figure(kpi['low'])} .. {_figure(kpi['high'])}"
        varies = kpi["deviation"] / abs(kpi["mean"]) if kpi["mean"] else float("nan")
        share = "" if varies != varies else f"{varies:.0%}"
        lines.append(f"{name:<22} {_figure(kpi['mean']):>12} {bounds:>27} {share:>9}  {kpi['unit']}")
    if result["unknown_kpis"]:
        lines.append(f"unknown: {', '.join(result['unknown_kpis'])}")
    lines += ["", *_pattern(result), "", *result["statement"]]
    if result["symptoms"]:
        lines += ["", "Symptoms:"]
        lines += [f"  {one['text']}; {one['hypothesis']}" for one in result["symptoms"]]
    return lines


def _pattern(result: dict[str, Any]) -> list[str]:
    """Return two lines of text with the mean of a KPI on each day of the week.

    The KPI is the one to which the main target of the study refers.
    """
    name = result["power"][0]["kpi"]
    if name not in result["kpis"]:
        return []
    means = result["kpis"][name]["weekdays"]
    row = " ".join(f"{_figure(mean):>9}" for mean in means)
    return [f"{'Weekly pattern':<22} " + " ".join(f"{day:>9}" for day in _WEEKDAYS), f"{name:<22} {row}"]


def _figure(value: float) -> str:
    return "-" if value != value else f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
