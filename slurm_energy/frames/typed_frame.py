"""Data frames whose columns are declared, each with name, type, unit and meaning."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from slurm_energy.errors import UnavailableError, install_extra


class ColumnType(StrEnum):
    """Type of a column; the value is pandas' name of the type."""

    NUMBER = "float64"
    COUNT = "Int64"
    TEXT = "string"
    TIME = "datetime64[us, UTC]"
    CHOICE = "category"


@dataclass(frozen=True, slots=True)
class FrameColumn:
    """A column of a data frame.

    Attributes:
        name: name of the column. The name of a quantity contains its unit.
        type: type of the values.
        unit: unit of the values; empty for text and counts.
        doc: meaning of the values, in one sentence.
    """

    name: str
    type: ColumnType
    unit: str = ""
    doc: str = ""


def pandas_module() -> Any:
    """Return the package pandas.

    Raises:
        UnavailableError: pandas is not installed.
    """
    try:
        import pandas
    except ImportError:
        raise UnavailableError("data frames", "pandas is not installed", install_extra("analysis")) from None
    return pandas


def typed_frame(columns: Sequence[FrameColumn], rows: Iterable[Mapping[str, Any]]) -> Any:
    """Return a data frame with exactly these columns, even if there are no rows.

    Args:
        columns: the columns in order.
        rows: one mapping per row, from column name to value. A value that is missing or None is unknown.
            Times are Unix seconds.
    """
    pandas = pandas_module()
    listed = list(rows)
    data = {}
    for column in columns:
        values = [row.get(column.name) for row in listed]
        if column.type is ColumnType.TIME:
            times = pandas.to_datetime(pandas.Series(values, dtype="float64"), unit="s", utc=True)
            data[column.name] = times.astype(ColumnType.TIME.value)
        else:
            data[column.name] = pandas.Series(values, dtype=column.type.value)
    frame = pandas.DataFrame(data)
    frame.attrs["units"] = {column.name: column.unit for column in columns if column.unit}
    return frame
