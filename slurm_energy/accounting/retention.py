"""Deletion of old rows from the database of senergyctld.

Each category of rows is deleted by age. The deletion uses many short transactions, so that senergyctld can
store records in between.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, Table, and_, delete, func, select, true

from slurm_energy.accounting.engine import transaction
from slurm_energy.accounting.schema import tables, usage_tables
from slurm_energy.accounting.schema.observation_tables import observations
from slurm_energy.accounting.usage.usage_rollup import LAST_PERIOD

BATCH: Final = 500
MIN_AGE_S: Final = 7 * 86400.0
"""Minimum age of records and periods that can be deleted. Nodes may deliver younger ones again, which would
then count as new.
"""
DELIVERED: Final = frozenset(("records", "periods"))
"""Names of the categories whose rows nodes deliver."""


@dataclass(frozen=True, slots=True)
class Category:
    """A category of data in the database that can be deleted by age.

    Attributes:
        name: name of the category.
        loss: description of the information that users lose by the deletion.
        rows: pairs of a table whose rows are deleted and the name of its time column. The time in this
            column decides whether a row is old enough.
    """

    name: str
    loss: str
    rows: tuple[tuple[Table, str], ...]


CATEGORIES: Final = {
    category.name: category
    for category in (
        Category(
            "traces",
            "the power over time of these jobs; their energies and mean powers stay",
            ((tables.traces, "end"),),
        ),
        Category(
            "observations",
            "the sampled signals and reported steps of these jobs, and with them their diagnosis",
            ((observations, "end"),),
        ),
        Category(
            "records",
            "these jobs in acct, job and experiment, and all about them but the sums of senergy report",
            ((tables.records, "end"),),
        ),
        Category(
            "periods",
            "the energy of each job by hour, and senergy report for single nodes; its other sums stay",
            ((tables.node_periods, "end"), (tables.periods, "end")),
        ),
        Category(
            "decisions",
            "the changes that the priority engine made to these jobs",
            ((tables.decisions, "time"),),
        ),
        Category(
            "budgets",
            "the power under budgets and the changes of budgets at that time",
            ((tables.budget_samples, "time"), (tables.budget_changes, "time")),
        ),
    )
}


def count_old(
    connection: Connection, categories: Collection[str], before: float, cluster: str | None = None
) -> dict[str, int]:
    """Return the number of rows, by table, that `delete_old` would delete."""
    counts = {}
    for table, column in _tables(categories):
        query = select(func.count()).select_from(table).where(_condition(table, column, before, cluster))
        counts[table.name] = connection.execute(query).scalar_one()
    return counts


def delete_old(
    connection: Connection,
    categories: Collection[str],
    before: float,
    cluster: str | None = None,
    progress: Callable[[int], None] = lambda deleted: None,
) -> dict[str, int]:
    """Delete old rows of the database and return the number of deleted rows by table.

    A row is deleted if it belongs to one of the given categories and ended before the given time.

    Args:
        connection: connection to the database.
        categories: keys of `CATEGORIES`.
        before: the given time in Unix seconds.
        cluster: Slurm's ClusterName; None means the rows of all clusters.
        progress: function that is called with the number of rows deleted so far.
    """
    counts: dict[str, int] = {}
    total = 0
    for table, column in _tables(categories):
        counts[table.name] = 0
        while deleted := _delete_batch(connection, table, _condition(table, column, before, cluster)):
            counts[table.name] += deleted
            total += deleted
            progress(total)
    return counts


def _tables(categories: Collection[str]) -> list[tuple[Table, str]]:
    return [rows for name, category in CATEGORIES.items() if name in categories for rows in category.rows]


def _condition(table: Table, column: str, before: float, cluster: str | None) -> ColumnElement[bool]:
    old = and_(table.c[column] < before, _counted(table))
    if cluster is None:
        return old
    if table in (tables.traces, observations):
        records = tables.records.c
        return and_(old, table.c.record.in_(select(records.id).where(records.cluster == cluster)))
    return and_(old, table.c.cluster == cluster)


def _counted(table: Table) -> ColumnElement[bool]:
    """Return the SQL condition that a row of a table is already included in the sums of a report.

    The report is `senergy report`; see `usage_rollup`.
    """
    if table is tables.periods:
        return table.c.usage_group.is_not(None)
    if table is tables.node_periods:
        state = usage_tables.usage_state.c
        last = select(state.value).where(state.name == LAST_PERIOD).scalar_subquery()
        # The last row stays: SQLite would reuse its id, and a later period with this id would not be counted.
        return table.c.id < last
    return true()


def _delete_batch(connection: Connection, table: Table, condition: ColumnElement[bool]) -> int:
    key = list(table.primary_key)
    with transaction(connection):
        rows = connection.execute(select(*key).where(condition).order_by(*key).limit(BATCH)).fetchall()
        if len(key) == 1:
            connection.execute(delete(table).where(key[0].in_([row[0] for row in rows])))
        else:
            _delete_keys(connection, table, rows)
    return len(rows)


def _delete_keys(connection: Connection, table: Table, rows: Collection[Any]) -> None:
    for row in rows:
        same = [column == value for column, value in zip(table.primary_key, row, strict=True)]
        connection.execute(delete(table).where(*same))
