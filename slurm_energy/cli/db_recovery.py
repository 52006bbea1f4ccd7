"""Command `senergy db recover`, which copies the readable rows of a damaged SQLite file."""

from __future__ import annotations

import argparse
import dataclasses

from slurm_energy.accounting.backups import recovery
from slurm_energy.cli.output import emit, emit_json, note
from slurm_energy.cli.progress_line import ProgressLine
from slurm_energy.errors import EXIT_OK


def run(args: argparse.Namespace) -> int:
    """Run `senergy db recover`: write a new database file with the readable rows of a damaged file.

    Print how many rows are missing. Return the exit code.
    """
    with ProgressLine("recovering", "rows") as line:
        result = recovery.recover(args.damaged, args.new, line.report)
    if args.json:
        emit_json({"damaged": str(args.damaged), "new": str(args.new), **dataclasses.asdict(result)})
        return EXIT_OK
    lines = [f"{'TABLE':<20} {'ROWS':>12} {'MISSING':>12} {'UNREADABLE':>12} {'INVALID':>12}"]
    for name, table in result.tables.items():
        missing = "" if table.missing is None else table.missing
        lines.append(f"{name:<20} {table.rows:>12} {missing:>12} {table.unreadable:>12} {table.invalid:>12}")
    emit([*lines, "", f"{args.new}: written and checked"])
    if result.sums_reset:
        note("the sums of senergy report are damaged: senergyctld computes them again from the periods")
    return EXIT_OK
