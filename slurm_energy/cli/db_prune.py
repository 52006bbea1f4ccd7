"""`senergy db prune`: deletion of old rows."""

from __future__ import annotations

import argparse
from datetime import datetime

from slurm_energy.accounting import retention
from slurm_energy.accounting.engine import Database, explained
from slurm_energy.accounting.schema import migrations
from slurm_energy.cli.db_location import opened
from slurm_energy.cli.output import emit, emit_json, note
from slurm_energy.cli.progress_line import ProgressLine
from slurm_energy.errors import EXIT_OK, UnavailableError, UsageError
from slurm_energy.reports.time_spec import format_time, parse_time


def run(args: argparse.Namespace) -> int:
    """Delete old rows of the database and return the exit code.

    With `--dry-run`, the command only counts the rows.
    """
    now = datetime.now()
    before = parse_time(args.before, now, "--before")
    if before > now.timestamp():
        raise UsageError(f"--before {args.before}", "is in the future")
    categories = dict.fromkeys(args.categories)
    if retention.DELIVERED & categories.keys() and before > now.timestamp() - retention.MIN_AGE_S:
        days = retention.MIN_AGE_S / 86400
        why = f"records and periods of the last {days:g} days are kept, because nodes may deliver them again"
        raise UsageError(f"--before {args.before}", why, f"use --before now-{days:g}days")
    with opened(args, read_only=args.dry_run) as database:
        _require_current_schema(database)
        with explained(database), database.connect() as connection:
            total = retention.count_old(connection, categories, before, args.cluster)
            rows = total
            if not args.dry_run:
                with ProgressLine("deleting", "rows") as bar:
                    rows = retention.delete_old(
                        *(connection, categories, before, args.cluster),
                        progress=lambda done: bar.report(done, sum(total.values())),
                    )
    if args.json:
        emit_json(
            {"database": database.name, "before_unix_s": before, "deleted": not args.dry_run, "rows": rows}
        )
        return EXIT_OK
    verb = "would be deleted" if args.dry_run else "deleted"
    emit(f"{name:<20} {count:>12} rows {verb}" for name, count in rows.items())
    if args.dry_run:
        for name in categories:
            note(f"{name} of before {format_time(before)}: users lose {retention.CATEGORIES[name].loss}")
    return EXIT_OK


def _require_current_schema(database: Database) -> None:
    with explained(database), database.connect() as connection:
        version = migrations.schema_version(connection, database.name)
    if version != migrations.SCHEMA_VERSION:
        raise UnavailableError(
            f"database {database.name}",
            f"has schema {version} instead of {migrations.SCHEMA_VERSION}",
            "run senergy db upgrade, or start senergyctld",
        )
