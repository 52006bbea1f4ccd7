"""The commands `senergy db check` and `senergy db upgrade`, which check and upgrade the database."""

from __future__ import annotations

import argparse
from itertools import islice
from pathlib import Path
from typing import Any, Final

from sqlalchemy import func, select

from slurm_energy.accounting.backends import backend_of
from slurm_energy.accounting.backups import backup, integrity, restore
from slurm_energy.accounting.backups.content_check import content_problems
from slurm_energy.accounting.engine import Database, explained
from slurm_energy.accounting.schema import migrations, tables
from slurm_energy.accounting.writer_lock import writer_lock
from slurm_energy.cli.db_location import opened, refuse_own_file
from slurm_energy.cli.output import emit, emit_json, note
from slurm_energy.cli.progress_line import ProgressLine
from slurm_energy.errors import EXIT_OK, UnavailableError
from slurm_energy.reports.figure_format import with_unit
from slurm_energy.reports.time_spec import format_time

_MAX_PROBLEMS: Final = 20


def run(args: argparse.Namespace) -> int:
    """Check or upgrade the database and return the exit code."""
    if args.action == "upgrade":
        return _upgrade(args)
    if args.backup:
        return _check_backup(args, args.backup)
    with opened(args, read_only=True) as database:
        integrity.verify(database.location)
        figures = _figures(database)
        if args.content:
            figures["records_checked"] = _check_content(database)
    if args.json:
        emit_json(figures)
    else:
        emit(_lines(figures))
    return EXIT_OK


def _figures(database: Database) -> dict[str, Any]:
    ends = tables.records.c.end
    with explained(database), database.connect() as connection:
        version = _require_tables(database.name, migrations.schema_version(connection, database.name))
        rows = backup.count_rows(connection, backup.stored_columns(connection))
        oldest, newest = connection.execute(select(func.min(ends), func.max(ends))).one()
        return {
            "database": database.name,
            "store": connection.dialect.name,
            "schema": version,
            "schema_of_release": migrations.SCHEMA_VERSION,
            "size_bytes": backend_of(connection).size_bytes(connection),
            "oldest_record_unix_s": oldest,
            "newest_record_unix_s": newest,
            "rows": rows,
        }


def _require_tables(name: str, version: int) -> int:
    """Return the schema version of a database.

    An error is raised if the database has no tables.
    """
    if version == 0:
        todo = "restore a backup if it had contents; otherwise senergyctld creates its tables"
        raise UnavailableError(f"database {name}", "has no tables", todo)
    return version


def _lines(figures: dict[str, Any]) -> list[str]:
    current, ours = figures["schema"], figures["schema_of_release"]
    schema = f"{current}" if current == ours else f"{current} (this release: {ours}; run senergy db upgrade)"
    times = [format_time(figures[f"{name}_record_unix_s"]) for name in ("oldest", "newest")]
    lines = [
        f"database  {figures['database']}",
        f"store     {figures['store']}, schema {schema}, {with_unit(figures['size_bytes'], 'B')}",
        f"records   {times[0]} to {times[1]}" if figures["newest_record_unix_s"] else "records   none",
        "",
        f"{'TABLE':<20} {'ROWS':>12}",
        *(f"{name:<20} {count:>12}" for name, count in figures["rows"].items()),
    ]
    if "records_checked" in figures:
        lines += ["", f"{figures['records_checked']} records agree with their columns"]
    return [*lines, "", "ok"]


def _check_content(database: Database) -> int:
    checked = 0

    def progress(done: int) -> None:
        nonlocal checked
        checked = done
        bar.report(done)

    with ProgressLine("checking", "records") as bar, explained(database), database.connect() as connection:
        problems = list(islice(content_problems(connection, progress), _MAX_PROBLEMS))
    if problems:
        for problem in problems[1:]:
            note(problem)
        raise integrity.DamagedDatabaseError(
            f"database {database.name}", f"damaged: {problems[0]}", "restore a backup, see docs/accounting.md"
        )
    return checked


def _check_backup(args: argparse.Namespace, path: Path) -> int:
    with ProgressLine("reading", "tables") as bar:
        rows = restore.read_backup(path, bar.report)
    if args.json:
        emit_json({"backup": str(path), "rows": rows})
    else:
        emit([f"backup {path}: {sum(rows.values())} rows, {rows.get('records', 0)} of them records: ok"])
    return EXIT_OK


def _upgrade(args: argparse.Namespace) -> int:
    with opened(args) as database, writer_lock(database):
        refuse_own_file(database, args.backup)
        with explained(database), database.connect() as connection:
            version = migrations.schema_version(connection, database.name)
        _require_tables(database.name, version)
        wanted = not args.dry_run and version < migrations.SCHEMA_VERSION
        if wanted:
            _save(args, database)
            migrations.prepare(database.location)
    result = {"database": database.name, "schema_before": version, "schema": migrations.SCHEMA_VERSION}
    if args.json:
        emit_json({**result, "upgraded": wanted})
    elif version == migrations.SCHEMA_VERSION:
        emit([f"database {database.name}: has schema {version} already"])
    else:
        verb = "upgraded" if wanted else "would be upgraded"
        emit([f"database {database.name}: {verb} from schema {version} to {migrations.SCHEMA_VERSION}"])
    return EXIT_OK


def _save(args: argparse.Namespace, database: Database) -> None:
    if args.backup is None:
        note("no backup is written: earlier releases cannot read the upgraded database (use --backup FILE)")
        return
    with ProgressLine("saving", "rows") as bar:
        backup.write_portable(database, args.backup, bar.report)
