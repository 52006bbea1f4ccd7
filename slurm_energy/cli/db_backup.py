"""Commands `senergy db backup` and `senergy db restore`."""

from __future__ import annotations

import argparse
from typing import Any

from slurm_energy.accounting.backups import backup, restore
from slurm_energy.cli.db_location import opened, refuse_own_file
from slurm_energy.cli.output import emit, emit_json
from slurm_energy.cli.progress_line import ProgressLine
from slurm_energy.errors import EXIT_OK, UsageError
from slurm_energy.reports.figure_format import with_unit


def run(args: argparse.Namespace) -> int:
    """Write or restore a backup and return the exit code."""
    return _restore(args) if args.action == "restore" else _backup(args)


def _backup(args: argparse.Namespace) -> int:
    with opened(args, read_only=True) as database:
        refuse_own_file(database, args.file)
        result: dict[str, Any] = {"database": database.name, "backup": str(args.file)}
        if args.copy:
            if database.path is None:
                raise UsageError("--copy", f"database {database.name} is not a SQLite file", "omit --copy")
            with ProgressLine("copying", "pages") as bar:
                backup.copy_sqlite(database.path, args.file, bar.report, replace=args.force)
        else:
            with ProgressLine("writing", "rows") as bar:
                rows = backup.write_portable(database, args.file, bar.report, replace=args.force)
            result["rows"] = rows
    size = result["size_bytes"] = args.file.stat().st_size
    if args.json:
        emit_json(result)
    else:
        emit([f"database {database.name}: saved to {args.file}, {_amount(result)}{with_unit(size, 'B')}"])
    return EXIT_OK


def _restore(args: argparse.Namespace) -> int:
    with opened(args, new=True) as database, ProgressLine("restoring", "rows") as bar:
        refuse_own_file(database, args.file)
        rows = restore.restore(args.file, database, bar.report, replace=args.force)
    result = {"database": database.name, "backup": str(args.file), "rows": rows}
    if args.json:
        emit_json(result)
    else:
        emit([f"database {database.name}: restored from {args.file}, {_amount(result)}all verified"])
    return EXIT_OK


def _amount(result: dict[str, Any]) -> str:
    rows = result.get("rows")
    return f"{sum(rows.values())} rows, {rows.get('records', 0)} of them records, " if rows else ""
