"""Check that the columns of each stored record agree with the record's JSON text.

SQLite's own check of pages cannot find differences between columns and the JSON text.
"""

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
    """Yield one line for each record that cannot be read or whose columns differ from its JSON text.

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
    """Return how the columns of a row of `records` differ from the record's JSON text; empty if equal.

    Args:
        row: values of the row by column name.
    """
    try:
        record = EnergyRecord.from_json(json.loads(row["body"]))
        values = {name: getattr(record, name) for name in _COMPARED}
    except (EnergyError, ValueError, RecursionError, OverflowError) as error:
        return f"its text cannot be read: {error}"
    values["step"] = record.step or ""
    different = [name for name, value in values.items() if row[name] != value]
    return f"{', '.join(different)} differ from its text" if different else ""
