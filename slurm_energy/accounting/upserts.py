"""Insertion of rows whose keys may exist already, and deletion of many rows.

The functions work on every kind of database.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from sqlalchemy import Connection, Select, Table, delete
from sqlalchemy.dialects import mysql, postgresql, sqlite

_CHUNK: Final = 500
"""Maximum number of values in a condition."""


def insert_or_replace(connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert rows. A stored row with the same primary key takes the values of the new row.

    Args:
        connection: connection to the database.
        table: the table into which the rows are inserted.
        rows: values of all columns of each row, by column name.
    """
    if not rows:
        return
    key = [column.name for column in table.primary_key]
    others = [column.name for column in table.columns if column.name not in key]
    if connection.dialect.name in ("mysql", "mariadb"):
        values = mysql.insert(table)
        connection.execute(
            values.on_duplicate_key_update({name: values.inserted[name] for name in others}), [*rows]
        )
        return
    insertion = _insertion(connection, table)
    new = {name: insertion.excluded[name] for name in others}
    connection.execute(insertion.on_conflict_do_update(index_elements=key, set_=new), [*rows])


def insert_missing(connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert rows, except those that would violate a unique constraint.

    Args:
        connection: connection to the database.
        table: the table into which the rows are inserted.
        rows: values of each row by column name.
    """
    if not rows:
        return
    if connection.dialect.name in ("mysql", "mariadb"):
        # INSERT IGNORE would also ignore values that are too long.
        unchanged = next(iter(table.primary_key)).name
        values = mysql.insert(table)
        connection.execute(values.on_duplicate_key_update({unchanged: table.c[unchanged]}), [*rows])
        return
    connection.execute(_insertion(connection, table).on_conflict_do_nothing(), [*rows])


def delete_selected(
    connection: Connection, table: Table, ids: Select[int], parameters: Mapping[str, Any] | None = None
) -> int:
    """Delete the rows of a table whose `id` a query selects. Return the number of deleted rows.

    MariaDB can neither delete from a table that a subquery reads, nor limit a subquery. The selection
    therefore runs as a separate statement, which has to be in the same transaction.

    Args:
        connection: connection to the database.
        table: a table with the column `id`.
        ids: query that selects values of `id`.
        parameters: values of the query's parameters.
    """
    selected = list(connection.execute(ids, parameters or {}).scalars())
    for first in range(0, len(selected), _CHUNK):
        connection.execute(delete(table).where(table.c.id.in_(selected[first : first + _CHUNK])))
    return len(selected)


def _insertion(connection: Connection, table: Table) -> postgresql.Insert | sqlite.Insert:
    return postgresql.insert(table) if connection.dialect.name == "postgresql" else sqlite.insert(table)
