"""The command `senergy study choose`, which recommends one of several plans for saving energy.

It simulates each plan (alternative) with the digital twin, the calibrated simulator of the site.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from slurm_energy.cli.output import emit_fitted, emit_json
from slurm_energy.cli.progress_line import ProgressLine
from slurm_energy.cli.study_command import command_line
from slurm_energy.errors import EXIT_OK, UsageError

_MAX_SEEDS = 1000


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of `senergy study choose`."""
    parser.add_argument(
        "--alternative",
        action="append",
        default=[],
        metavar="NAME:LEVER=VALUE,...",
        help="a further alternative: tuning=energy|edp|ed2p, slowdown=PERCENT, ranking=POLICY, "
        "weight.TERM=NUMBER, budget=WATTS, deferral=POLICY, off=yes; may be repeated",
    )
    parser.add_argument("--only", action="store_true", help="simulate only the alternatives of --alternative")
    parser.add_argument("--seeds", type=int, default=8, metavar="N", help="periods to simulate (default: 8)")
    parser.add_argument(
        "--slack-share",
        type=float,
        default=0.0,
        metavar="S",
        help="assumed share of jobs that may wait, 0 to 1",
    )
    parser.add_argument(
        "--slack-hours", type=float, default=8.0, metavar="H", help="assumed time they may wait (default: 8)"
    )
    parser.add_argument("--processes", type=int, metavar="N", help="parallel processes (default: cores)")


def run(args: argparse.Namespace) -> int:
    """Simulate the alternatives of a study and print which one is recommended.

    An alternative is one combination of means to save energy.
    """
    from slurm_energy.study.choice.alternatives import parse_alternative
    from slurm_energy.study.choice.choose_step import ChoiceRequest, run_choose
    from slurm_energy.study.directory import StudyDirectory

    if not 2 <= args.seeds <= _MAX_SEEDS:
        why = f"from 2 to {_MAX_SEEDS}: a single period shows no uncertainty"
        raise UsageError(f"--seeds {args.seeds}", why, "such as --seeds 8")
    if args.processes is not None and args.processes < 1:
        raise UsageError(f"--processes {args.processes}", "must be positive", "such as --processes 2")
    if not (0 <= args.slack_share <= 1 and 0 < args.slack_hours <= 168):
        raise UsageError("--slack-share", "is from 0 to 1, and --slack-hours up to 168", "such as 0.3 and 8")
    if args.only and not args.alternative:
        raise UsageError("--only", "there is nothing to simulate", "add --alternative")
    alternatives = tuple(map(parse_alternative, args.alternative))
    processes = args.processes or os.cpu_count() or 1
    request = ChoiceRequest(
        alternatives, args.only, args.seeds, processes, args.slack_share, args.slack_hours
    )
    study = StudyDirectory(Path(args.directory))
    with ProgressLine("simulating", "runs") as line:
        result = run_choose(study, request, command_line(), line.report)
    if args.json:
        emit_json(result)
    else:
        emit_fitted(_lines(result, args.directory))
    return EXIT_OK


def _lines(result: dict[str, Any], directory: str) -> list[str]:
    held_out = result["held_out"]
    lines = [
        f"Held-out period {held_out['begin']} to {held_out['end']}, {result['seeds']} simulated periods, "
        f"intervals of {100 * result['confidence']:g} % for another period like these",
        "",
        "Decision tree:",
    ]
    for node in result["tree"]:
        answer = f"yes: {node['lever']}" if node["answer"] else "no"
        lines.append(f"  {node['question']} {answer} ({node['reason']})")
    lines += ["", *_table(result["alternatives"], result["objective_kpis"])]
    lines += [f"assumed: {text}" for text in result["assumptions"]]
    if result["recommended"] is None:
        lines += ["", "No alternative is recommended:", *(f"  {reason}" for reason in result["reasons"])]
        return lines
    chosen = next(one for one in result["alternatives"] if one["name"] == result["recommended"])
    lines += ["", f"Recommended: {chosen['name']} ({chosen['title']})"]
    lines += [f"  {reason}" for reason in result["reasons"]]
    lines += ["", *_cost_table("Account", chosen["accounts"])]
    if any(row["name"] for row in chosen["classes"]):
        lines += ["", *_cost_table("Class", chosen["classes"])]
    return [
        *lines,
        "",
        f"next: senergy study deploy {directory} --stage shadow --config /etc/slurm/energy.toml",
    ]


def _table(alternatives: list[dict[str, Any]], kpis: list[str]) -> list[str]:
    """Return the lines of the table that compares plans for saving energy (alternatives).

    The table shows how each plan changes the energy and the KPIs of the study's objective.

    Args:
        alternatives: results of the simulated plans.
        kpis: KPIs of the objective.
    """
    names = [name for name in dict.fromkeys([*kpis, "energy_kwh"]) if name in alternatives[0]["kpis"]]
    width = max(len("Alternative"), *(len(one["name"]) for one in alternatives))
    widths = [max(16, len(name)) for name in names]
    head = "  ".join(f"{name:>{size}}" for name, size in zip(names, widths, strict=True))
    lines = [f"{'Alternative':<{width}} {'Limits':<8} {'Pareto':<6}  {head}"]
    for one in alternatives:
        limits = "safe" if one["safe"] else "at risk" if one["permitted"] else "broken"
        cells = [_change(one["kpis"].get(name)) for name in names]
        front = "front" if one["on_front"] else ""
        row = "  ".join(f"{cell:>{size}}" for cell, size in zip(cells, widths, strict=True))
        lines.append(f"{one['name']:<{width}} {limits:<8} {front:<6}  {row}")
    return lines


def _change(kpi: dict[str, float] | None) -> str:
    if kpi is None or kpi["change_percent"] != kpi["change_percent"]:
        return "unknown"
    half = (kpi["high_percent"] - kpi["low_percent"]) / 2
    return f"{kpi['change_percent']:+.1f} ± {half:.1f} %"


def _cost_table(title: str, rows: list[dict[str, Any]]) -> list[str]:
    """Return the lines of a table that compares the present operation with a simulated alternative.

    The alternative is a combination of energy measures. Each line shows the energy, wait and completion time
    of one element of `rows`, such as an account.
    """
    width = max(len(title), *(len(row["name"]) for row in rows), len("(unknown)"))
    lines = [f"{title:<{width}} {'Jobs':>8} {'kWh today':>10} {'Change':>8} {'Wait':>10} {'Completion':>10}"]
    for row in rows:
        before, after = row["today"], row["alternative"]
        energy = _relative(before["energy_kwh"], after["energy_kwh"])
        cells = f"{before['jobs']:>8.0f} {before['energy_kwh']:>10.1f} {energy:>8}"
        waits = _seconds(before["wait_s"], after["wait_s"])
        spent = _relative(before["completion_s"], after["completion_s"])
        lines.append(f"{row['name'] or '(unknown)':<{width}} {cells} {waits:>10} {spent:>10}")
    return lines


def _relative(before: float | None, after: float | None) -> str:
    return f"{100 * (after / before - 1):+.1f} %" if before and after is not None else "unknown"


def _seconds(before: float | None, after: float | None) -> str:
    return "unknown" if before is None or after is None else f"{after - before:+.0f} s"
