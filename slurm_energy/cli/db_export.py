"""`senergy db export`: tables of the database as CSV, JSON lines or Parquet."""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import math
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import IO, Any, Final, TextIO

from slurm_energy.accounting.backups.backup_file import temporary_name
from slurm_energy.accounting.backups.export import EXPORTS, ExportColumn, ExportPeriod
from slurm_energy.accounting.engine import explained
from slurm_energy.cli.db_location import opened, refuse_own_file
from slurm_energy.cli.output import emit, emit_json
from slurm_energy.cli.progress_line import ProgressLine
from slurm_energy.errors import EXIT_OK, EnergyError, UnavailableError, UsageError, install_extra
from slurm_energy.reports.time_spec import parse_time
from slurm_energy.safe_text import encodable, escape_controls, escape_csv

_GROUP_ROWS: Final = 50_000
_SUFFIXES: Final = {
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
    ".pq": "parquet",
}


def run(args: argparse.Namespace) -> int:
    """Execute `senergy db export`: export one table. Return the exit code."""
    table = EXPORTS[args.table]
    if args.columns:
        emit(f"{column.name:<24} {column.kind}" for column in table.columns)
        return EXIT_OK
    form = args.format or (_SUFFIXES.get(args.out.suffix, "csv") if args.out else "csv")
    if form == "parquet" and args.out is None:
        raise UsageError("--format parquet", "needs a file", "name one with -o FILE")
    if args.json and args.out is None:
        raise UsageError("--json", "needs a file for the rows", "name one with -o FILE")
    if args.out and args.out.exists() and not args.force:
        raise EnergyError(str(args.out), "exists already", "name another file, or use --force")
    period = _period(args)
    count = 0

    def counted(rows: Iterable[Sequence[Any]]) -> Iterator[Sequence[Any]]:
        nonlocal count
        for row in rows:
            yield row
            count += 1
            bar.report(count)

    with (
        opened(args, read_only=True) as database,
        explained(database),
        database.connect() as connection,
        ProgressLine("exporting", "rows") as bar,
    ):
        refuse_own_file(database, args.out)
        rows = counted(table.read(connection, period))
        if args.out is None:
            _print(form, table.columns, rows)
        else:
            _write_file(args.out, form, table.columns, rows)
    if args.json:
        emit_json({"database": database.name, "table": args.table, "file": str(args.out), "rows": count})
    elif args.out:
        emit([f"database {database.name}: {count} rows of {args.table} written to {args.out}"])
    return EXIT_OK


def _period(args: argparse.Namespace) -> ExportPeriod:
    now = datetime.now()
    since, until = (
        parse_time(text, now, option) if text else None
        for text, option in ((args.since, "--since"), (args.until, "--until"))
    )
    if since is not None and until is not None and since >= until:
        raise UsageError(f"--since {args.since}", f"is not before --until {args.until}")
    return ExportPeriod(since, until, args.cluster)


def _print(form: str, columns: Sequence[ExportColumn], rows: Iterator[Sequence[Any]]) -> None:
    try:
        _write_text(sys.stdout, form, columns, rows)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise EnergyError("standard output", error.strerror or str(error)) from None


def _write_file(
    path: Path, form: str, columns: Sequence[ExportColumn], rows: Iterator[Sequence[Any]]
) -> None:
    """Write a file under a temporary name, and rename it when it is complete."""
    temporary = temporary_name(path)
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        if form == "parquet":
            with os.fdopen(descriptor, "wb") as file:
                _write_parquet(file, columns, rows)
        else:
            with os.fdopen(descriptor, "w", encoding="utf-8", newline="") as text:
                _write_text(text, form, columns, rows)
        temporary.replace(path)
    except OSError as error:
        raise EnergyError(str(path), error.strerror or str(error), "name a writable file") from None
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def _write_text(
    file: TextIO, form: str, columns: Sequence[ExportColumn], rows: Iterator[Sequence[Any]]
) -> None:
    names = [column.name for column in columns]
    if form == "jsonl":
        for row in rows:
            values = {name: _finite(value) for name, value in zip(names, row, strict=True)}
            file.write(json.dumps(values, allow_nan=False) + "\n")
        return
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(names)
    for row in rows:
        writer.writerow([_cell(value, file.encoding) for value in row])


def _cell(value: Any, encoding: str | None) -> Any:
    """Return a value for a CSV file that neither controls a terminal nor is executed by a spreadsheet.

    Characters of text that the encoding cannot represent become `?`.
    """
    if not isinstance(value, str):
        return value
    return encodable(escape_csv(escape_controls(value)), encoding)


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _write_parquet(file: IO[bytes], columns: Sequence[ExportColumn], rows: Iterator[Sequence[Any]]) -> None:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise UnavailableError(
            "--format parquet", "pyarrow is not installed", install_extra("parquet")
        ) from None
    kinds = {"text": pyarrow.string(), "integer": pyarrow.int64(), "number": pyarrow.float64()}
    schema = pyarrow.schema([(column.name, kinds[column.kind]) for column in columns])
    with parquet.ParquetWriter(file, schema, compression="zstd") as writer:
        while group := list(islice(rows, _GROUP_ROWS)):
            arrays = [
                pyarrow.array(values, kind.type)
                for values, kind in zip(zip(*group, strict=True), schema, strict=True)
            ]
            writer.write_table(pyarrow.Table.from_arrays(arrays, schema=schema))
