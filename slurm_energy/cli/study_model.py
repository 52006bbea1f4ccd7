"""The command `senergy study model`, which calibrates the simulator (digital twin) for a cluster.

It also computes the error with which the simulator replays a week that was not used for the calibration.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from slurm_energy.cli.output import emit_fitted, emit_json, note
from slurm_energy.cli.study_command import command_line
from slurm_energy.errors import EXIT_OK, UsageError


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of `senergy study model`."""
    parser.add_argument(
        "--nodes",
        metavar="PARTITION=N",
        action="append",
        default=[],
        help="number of nodes of a partition (default: the maximum that jobs held at once)",
    )
    parser.add_argument(
        "--held-out-days",
        metavar="N",
        type=int,
        default=7,
        help="last days of the baseline, on which the twin is checked (default: 7)",
    )
    parser.add_argument(
        "--max-error",
        metavar="KPI=PERCENT",
        action="append",
        default=[],
        help="permitted error (default: energy_kwh=8, makespan_s=8, mean_jct_s=15)",
    )
    parser.add_argument("--accept-error", action="store_true", help="continue if an error is not permitted")


def run(args: argparse.Namespace) -> int:
    """Calibrate the digital twin (simulation) of the cluster, and print its errors.

    The errors are found by a replay of measured days.
    """
    from slurm_energy.study.directory import StudyDirectory
    from slurm_energy.study.modelling.model import ModelOptions, TwinError, run_model
    from slurm_energy.study.modelling.replay import REPLAY_KPIS

    if not 1 <= args.held_out_days <= 366:
        raise UsageError("--held-out-days", "must be from 1 to 366")
    nodes = {name: int(value) for name, value in _pairs(args.nodes, "--nodes", whole=True)}
    bounds = {name: value / 100 for name, value in _pairs(args.max_error, "--max-error", whole=False)}
    for name in bounds:
        if name not in REPLAY_KPIS:
            raise UsageError(
                f"--max-error {name[:40]}", "is not compared", f"known: {', '.join(REPLAY_KPIS)}"
            )
    options = ModelOptions(nodes, args.held_out_days, args.accept_error, bounds)
    study = StudyDirectory(Path(args.directory))
    try:
        result = run_model(study, options, command_line())
    except TwinError as error:
        if not args.json:
            emit_fitted(_error_lines([one.to_json() for one in error.errors]))
        raise
    if args.json:
        emit_json(result)
        return EXIT_OK
    emit_fitted(_lines(result))
    for text in result["simulator_notes"]:
        note(text)
    return EXIT_OK


def _lines(result: Mapping[str, Any]) -> list[str]:
    calibration, held_out = result["calibration"], result["held_out"]
    lines = [f"Twin calibrated on {calibration['begin']} to {calibration['end']}"]
    lines += [f"  {text}" for text in result["notes"]]
    lines += ["", f"Replay of the held-out days {held_out['begin']} to {held_out['end']}"]
    lines += _error_lines(result["errors"])
    if result["accepted"]:
        lines += ["", f"accepted in spite of the error: {', '.join(result['accepted'])}"]
    return lines


def _error_lines(errors: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = [f"{'KPI':<22} {'Measured':>12} {'Simulated':>12} {'Error':>8} {'Permitted':>9}"]
    for one in errors:
        bound = "" if one["bound"] is None else f"{one['bound']:.0%}"
        error = "-" if one["error"] is None or one["error"] != one["error"] else f"{one['error']:+.1%}"
        mark = "  exceeded" if one["exceeds"] else ""
        figures = f"{_figure(one['measured']):>12} {_figure(one['simulated']):>12}"
        lines.append(f"{one['kpi']:<22} {figures} {error:>8} {bound:>9}{mark}")
    return lines


def _figure(value: float | None) -> str:
    return "-" if value is None or value != value else f"{value:,.5g}"


def _pairs(texts: Sequence[str], option: str, *, whole: bool) -> list[tuple[str, float]]:
    pairs = []
    for text in texts:
        name, equals, value = text.rpartition("=")
        try:
            number = float(int(value) if whole else float(value))
        except ValueError:
            equals, number = "", 0.0
        if not equals or not number > 0:
            form = "PARTITION=N" if whole else "KPI=PERCENT"
            raise UsageError(f"{option} {text[:40]}", f"is not {form}", "with a positive number")
        pairs.append((name, number))
    return pairs
