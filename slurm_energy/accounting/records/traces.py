"""Power traces in the database: validation of a delivered trace, and deletion of old traces.

A valid trace is stored as delivered; docs/reference/protocol.md specifies its format. `reports/trace.py`
packs and unpacks traces.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, Table, delete, select

from slurm_energy.accounting.engine import transaction
from slurm_energy.errors import UsageError
from slurm_energy.quantities import is_number

BATCH: Final = 500  # a short transaction: deliveries wait for the writing thread
MAX_COLUMNS: Final = 1024  # a node has at most 1000 GPUs
MAX_EXTRA_KEYS: Final = 16
_VALUE_BYTES: Final = 4
_PIECE_BYTES: Final = 1 << 20
_SPARE_S: Final = 3600.0
"""Maximum seconds by which a trace may be longer than its record, because the last interval may be long."""
_SPARE_VALUES: Final = 100


class TraceError(UsageError):
    """A stored power trace is not in the specified format.

    Attributes:
        values: number of values that were decompressed before the error was detected.
    """

    def __init__(self, what: str, values: int = 0) -> None:
        super().__init__(what)
        self.values = values


class TraceExtent(NamedTuple):
    """The end and size of a power trace.

    Attributes:
        end: end of the trace's last interval, Unix seconds.
        values: number of values in all columns together.
    """

    end: float
    values: int


def check_trace(trace: Any, elapsed_s: float, max_values: int) -> TraceExtent:
    """Validate a power trace and return its end and size. Unknown keys are ignored.

    Decompression stops at the maximum size for a trace of this duration, so that a few compressed bytes
    cannot fill the memory.

    Args:
        trace: the trace as delivered.
        elapsed_s: duration of the trace's record in seconds.
        max_values: maximum number of values in all columns together.

    Raises:
        UsageError: the trace is invalid; the message names the fault. The error is a TraceError if columns of
            the trace were already read.
    """
    if not isinstance(trace, Mapping) or not {"start", "interval_s", "columns"} <= set(trace):
        raise UsageError("power trace: needs start, interval_s and columns")
    if len(trace) > 3 + MAX_EXTRA_KEYS:
        raise UsageError(f"power trace: more than {MAX_EXTRA_KEYS} unknown keys")
    start, interval_s = _number(trace, "start"), _number(trace, "interval_s")
    if start < 0 or not 1e-3 <= interval_s <= 86400:
        raise UsageError("power trace: start or interval_s out of range")
    columns = trace["columns"]
    if not isinstance(columns, Mapping) or len(columns) > MAX_COLUMNS:
        raise UsageError(f"power trace: columns are not an object of at most {MAX_COLUMNS}")
    longest = int((elapsed_s + _SPARE_S) / interval_s) + _SPARE_VALUES
    length: int | None = None
    for number, (name, text) in enumerate(columns.items()):
        allowed = min(longest, max_values) if length is None else length
        unpacked = number * (length or 0)
        column_length = _column_length(str(name), text, allowed, unpacked)
        if length not in (None, column_length):
            raise TraceError("power trace: columns of different lengths", unpacked + column_length)
        length = column_length
        if column_length * len(columns) > max_values:
            raise TraceError(f"power trace: more than {max_values} values", unpacked + column_length)
    return TraceExtent(start + (length or 0) * interval_s, (length or 0) * len(columns))


def _number(trace: Mapping[str, Any], key: str) -> float:
    value = trace[key]
    if not is_number(value):
        raise UsageError(f"power trace: {key} is not a number")
    return float(value)


def _column_length(name: str, text: Any, max_length: int, unpacked: int) -> int:
    """Return the number of values in a column of a trace.

    The column is decompressed in pieces, which are discarded.

    Args:
        name: name of the column.
        text: the column as delivered (compressed and base64-encoded).
        max_length: maximum number of values.
        unpacked: number of values in the columns already decompressed, for the error.

    Raises:
        TraceError: the column is invalid.
    """
    if not isinstance(text, str) or len(name) > 64:
        raise TraceError("power trace: a column is not text", unpacked)
    unpacker, size = zlib.decompressobj(), 0
    problem = ""
    try:
        packed = base64.b64decode(text, validate=True)
        while packed and not unpacker.eof and size <= max_length * _VALUE_BYTES:
            size += len(unpacker.decompress(packed, _PIECE_BYTES))
            packed = unpacker.unconsumed_tail
    except (binascii.Error, zlib.error, ValueError) as error:
        problem = f": {error}"
    if not problem and size > max_length * _VALUE_BYTES:
        problem = f" is longer than {max_length} values"
    elif not problem and (not unpacker.eof or size % _VALUE_BYTES):
        problem = " is cut off"
    if problem:
        raise TraceError(f"power trace: column '{name[:20]}'{problem}", unpacked + size // _VALUE_BYTES)
    return size // _VALUE_BYTES


def drop_old_attachments(connection: Connection, table: Table, before: float) -> int:
    """Delete at most `BATCH` traces or observations that ended before `before` (Unix seconds).

    The records stay. In a SQLite file, new rows reuse the freed space; only `VACUUM` returns the space to the
    file system.

    Args:
        connection: connection of the writing thread.
        table: table of traces or of observations.
        before: Unix seconds.

    Returns:
        The number of deleted rows.
    """
    with transaction(connection):
        old = select(table.c.record).where(table.c.end < before).order_by(table.c.end).limit(BATCH)
        rows = connection.execute(old).scalars().all()
        if rows:
            connection.execute(delete(table).where(table.c.record.in_(rows)))
    return len(rows)
