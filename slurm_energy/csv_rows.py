"""Check for CSV rows with more fields than the header."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from slurm_energy.errors import UsageError


def refuse_too_long(row: Mapping[Any, Any], location: str) -> None:
    """Raise an error if a row of `csv.DictReader` has non-empty fields beyond the last column.

    Args:
        row: values by column.
        location: file and line, for the error.

    Raises:
        UsageError: the row is too long.
    """
    refuse_fields(row.get(None) or (), location)


def refuse_fields(fields: Iterable[str], location: str) -> None:
    """Raise an error if one of the fields of a row beyond the last column is not empty.

    A number with a decimal comma and without quotes, such as 0,25, is two fields. All later values of its row
    are then in the wrong column.

    Args:
        fields: fields of the row beyond the last column.
        location: file and line, for the error.

    Raises:
        UsageError: a field is not empty.
    """
    if any(field.strip() for field in fields):
        todo = "write numbers with a decimal point, not a decimal comma"
        raise UsageError(location, "has more fields than the header", todo)
