"""SQL expressions that read a field of JSON text in a column, for each kind of database."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Connection, case, cast, func, or_
from sqlalchemy.dialects import postgresql


def array_length(connection: Connection, column: ColumnElement[str], key: str) -> ColumnElement[int]:
    """Return the SQL expression for the length of the array in field `key`; NULL without this field.

    Args:
        connection: connection to the database.
        column: column with the text of JSON objects.
        key: name of the field, which is an identifier.
    """
    match connection.dialect.name:
        case "postgresql":
            return func.json_array_length(_postgresql_field(column, key))
        case "sqlite":
            return func.json_array_length(column, f"$.{key}")
    return func.json_length(column, f"$.{key}")


def text_value(connection: Connection, column: ColumnElement[str], key: str) -> ColumnElement[Any]:
    """Return the SQL expression for the text in field `key` of a JSON object.

    The expression yields NULL if the field is missing or null.

    Args:
        connection: connection to the database.
        column: column with the text of JSON objects.
        key: name of the field, which is an identifier.
    """
    match connection.dialect.name:
        case "postgresql":
            text: ColumnElement[Any] = _postgresql_field(column, key).astext
            return text
        case "sqlite":
            return func.json_extract(column, f"$.{key}")
    return func.json_value(column, f"$.{key}")


def _postgresql_field(column: ColumnElement[str], key: str) -> ColumnElement[Any]:
    """Return the SQL expression for a field of JSON text on PostgreSQL.

    The expression yields NULL if the text contains the null character. PostgreSQL cannot read such a text,
    and the error would end the whole query, whichever node delivered the text.
    """
    # After an escaped backslash, u0000 is ordinary text, which users can write into records.
    texts = (column, func.replace(column, r"\\", ""))
    is_readable = or_(*(func.strpos(text, r"\u0000") == 0 for text in texts))
    field: ColumnElement[Any] = case((is_readable, cast(column, postgresql.JSON)))[key]
    return field
