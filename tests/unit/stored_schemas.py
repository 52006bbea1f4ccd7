"""Databases with older schemas, as earlier releases have written them; see `write_schema`."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

SCHEMAS = Path(__file__).parent / "schemas"
VERSIONS = sorted(int(path.stem) for path in SCHEMAS.glob("*.sql"))


def load_schema(version, path):
    """Create the SQLite file `path` with the tables and rows that an earlier release has written."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.executescript((SCHEMAS / f"{version}.sql").read_text())
        connection.execute("PRAGMA journal_mode = WAL")


def rows_of(path):
    """Return the content of a SQLite file: for each table, a list of rows.

    A row maps the name of a column to its value. The table `schema_version` is left out.
    """
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.row_factory = sqlite3.Row
        names = [
            name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        ]
        return {
            name: [dict(row) for row in connection.execute(f'SELECT * FROM "{name}"')]
            for name in names
            if name != "schema_version"
        }
