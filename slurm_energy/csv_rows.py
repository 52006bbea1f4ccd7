"""Check for CSV rows with more fields than the header."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from slurm_energy.errors import UsageError

TOO_LONG: Final = "has more fields than the header"
DECIMAL_POINT: Final = "write numbers with a decimal point, not a decimal comma"


def is_too_long(row: Mapping[Any, Any]) -> bool:
    """Return whether a row of `csv.DictReader` has non-empty fields beyond the last column.

    A number with a decimal comma and without quotes, such as 0,25, is two fields. All later values of its row
    are then in the wrong column.
    """
    return any(field.strip() for field in row.get(None) or ())


def refuse_too_long(row: Mapping[Any, Any], location: str) -> None:
    """Raise an error if a row of `csv.DictReader` has non-empty fields beyond the last column.

    Args:
        row: values by column.
        location: file and line, for the error.

    Raises:
        UsageError: the row is too long.
    """
    if is_too_long(row):
        raise UsageError(location, TOO_LONG, DECIMAL_POINT)
