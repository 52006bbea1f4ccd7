"""Comparison of each record with the columns that find it, which SQLite's checks of pages cannot do."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from sqlalchemy import Connection, select

from slurm_energy.accounting.records.row_pages import read_pages
from slurm_energy.accounting.schema import tables
from slurm_energy.errors import EnergyError
from slurm_energy.records import EnergyRecord

_PAGE_ROWS: Final = 1000
_COMPARED: Final = (
    *("record_id", "cluster", "node", "job_id", "restart_count", "step", "start", "end", "uid", "policy"),
    "energy_joules",
)


def content_problems(connection: Connection, progress: Callable[[int], None]) -> Iterator[str]:
    """Yield one line for each record that differs from its columns or cannot be read.

    Args:
        connection: connection to the database.
        progress: called with the number of records checked.
    """
    columns = tables.records.c
    query = select(columns.id, columns.body, *columns[_COMPARED])
    for done, row in enumerate(read_pages(connection, query, [columns.id], _PAGE_ROWS), 1):
        if problem := record_problem(dict(row._mapping)):
            yield f"record {row.record_id} (row {row.id}): {problem}"
        progress(done)


def record_problem(row: Mapping[str, Any]) -> str:
    """Return how a row of `records` differs from the record in it; empty: it does not.

    Args:
        row: values by the name of the column.
    """
    try:
        record = EnergyRecord.from_json(json.loads(row["body"]))
        values = {name: getattr(record, name) for name in _COMPARED}
    except (EnergyError, ValueError, RecursionError, OverflowError) as error:
        return f"its text cannot be read: {error}"
    values["step"] = record.step or ""
    different = [name for name, value in values.items() if row[name] != value]
    return f"{', '.join(different)} differ from its text" if different else ""
