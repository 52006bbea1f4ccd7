"""Comparison of each record with the columns that find it, which SQLite's checks of pages cannot do."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, Final

from sqlalchemy import Connection, Row, select

from slurm_energy.accounting import tables
from slurm_energy.accounting.row_pages import read_pages
from slurm_energy.errors import EnergyError
from slurm_energy.records import EnergyRecord

_PAGE_ROWS: Final = 1000
_KEYS: Final = ("record_id", "cluster", "node", "job_id", "restart_count", "start", "end", "uid", "policy")


def content_problems(connection: Connection, progress: Callable[[int], None]) -> Iterator[str]:
    """Yield one line for each record that differs from its columns or cannot be read.

    Args:
        connection: connection to the database.
        progress: called with the number of records checked.
    """
    columns = tables.records.c
    query = select(*columns["id", "step", "energy_joules", "body"], *columns[_KEYS])
    for done, row in enumerate(read_pages(connection, query, [columns.id], _PAGE_ROWS), 1):
        if problem := _problem(row):
            yield f"record {row.record_id} (row {row.id}): {problem}"
        progress(done)


def _problem(row: Row[*tuple[Any, ...]]) -> str:
    try:
        record = EnergyRecord.from_json(json.loads(row.body))
    except (EnergyError, ValueError, RecursionError) as error:
        return f"its text cannot be read: {error}"
    stored = {**{name: row._mapping[name] for name in _KEYS}, "step": row.step or None}
    stored["energy_joules"] = row.energy_joules
    different = [name for name, value in stored.items() if getattr(record, name) != value]
    return f"{', '.join(different)} differ from its text" if different else ""
