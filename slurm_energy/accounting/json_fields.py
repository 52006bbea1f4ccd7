"""SQL expressions for the fields of a column with JSON text, for each kind of database."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Connection, cast, func
from sqlalchemy.dialects import postgresql


def array_length(connection: Connection, column: ColumnElement[str], key: str) -> ColumnElement[int]:
    """Return the expression for the length of the array `key`; NULL without such a key.

    Args:
        connection: connection to the database.
        column: column with the text of JSON objects.
        key: name of a field, an identifier.
    """
    match connection.dialect.name:
        case "postgresql":
            return func.json_array_length(cast(column, postgresql.JSON)[key])
        case "sqlite":
            return func.json_array_length(column, f"$.{key}")
    return func.json_length(column, f"$.{key}")


def text_value(connection: Connection, column: ColumnElement[str], key: str) -> ColumnElement[Any]:
    """Return the expression for the text `key`; NULL if the text is null or there is no such key.

    Args:
        connection: connection to the database.
        column: column with the text of JSON objects.
        key: name of a field, an identifier.
    """
    match connection.dialect.name:
        case "postgresql":
            text: ColumnElement[Any] = cast(column, postgresql.JSON)[key].astext
            return text
        case "sqlite":
            return func.json_extract(column, f"$.{key}")
    return func.json_value(column, f"$.{key}")
