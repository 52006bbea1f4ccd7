"""Reading of many database rows in pages, so that no more than one page is in memory.

A database cursor would need an open transaction on PostgreSQL, and would keep a transaction open on SQLite
and MariaDB. Pages need no transaction.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, Select, and_, or_


def read_pages(
    connection: Connection, query: Select[Any], key: Sequence[ColumnElement[Any]], rows: int
) -> Iterator[Row[*tuple[Any, ...]]]:
    """Yield the rows of a query, ordered by a key.

    Args:
        connection: connection to the database.
        query: a query without ORDER BY and LIMIT.
        key: selected columns that are not NULL and whose combination is unique.
        rows: maximum number of rows of a page.
    """
    ordered = query.order_by(*key).limit(rows)
    page = connection.execute(ordered).fetchall()
    while page:
        yield from page
        if len(page) < rows:
            return
        last = [page[-1]._mapping[column] for column in key]
        page = connection.execute(ordered.where(key[0] >= last[0], _after(key, last))).fetchall()


def _after(key: Sequence[ColumnElement[Any]], last: Sequence[Any]) -> ColumnElement[bool]:
    """Return the SQL condition that a row follows the row with the key `last`."""
    first = key[0] > last[0]
    return first if len(key) == 1 else or_(first, and_(key[0] == last[0], _after(key[1:], last[1:])))
