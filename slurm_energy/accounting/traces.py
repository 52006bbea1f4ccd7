"""Check that a delivered power trace has the form of docs/reference/protocol.md before it is stored.

Packing and unpacking for use is in `reports/trace.py`.
"""

from __future__ import annotations

import base64
import binascii
import sqlite3
import zlib
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from slurm_energy.accounting.database import transaction
from slurm_energy.errors import UsageError
from slurm_energy.quantities import is_number

BATCH: Final = 500  # a short transaction: deliveries wait for the writing thread
MAX_COLUMNS: Final = 1024  # a node has at most 1000 GPUs
MAX_EXTRA_KEYS: Final = 16
_VALUE_BYTES: Final = 4
_PIECE_BYTES: Final = 1 << 20
_SPARE_S: Final = 3600.0
"""A trace may be this much longer than its record: its last interval may be long."""
_SPARE_VALUES: Final = 100


class TraceError(UsageError):
    """A trace is not as the contract says.

    Attributes:
        values: number of values that were unpacked until that showed.
    """

    def __init__(self, what: str, values: int = 0) -> None:
        super().__init__(what)
        self.values = values


class TraceExtent(NamedTuple):
    """How far a trace goes.

    Attributes:
        end: Unix second at which its last interval ends.
        values: number of values of all columns.
    """

    end: float
    values: int


def check_trace(trace: Any, elapsed_s: float, max_values: int) -> TraceExtent:
    """Check a trace and return its extent. Keys that this release does not know are left as they are.

    Nothing is unpacked beyond what a trace of its length can hold, whatever a few packed bytes claim to be.

    Args:
        trace: as delivered.
        elapsed_s: length of its record.
        max_values: most values of all columns together.

    Raises:
        UsageError: names what is not as the contract says; a TraceError if something was unpacked.
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
        found = _column_length(str(name), text, allowed, unpacked)
        if length not in (None, found):
            raise TraceError("power trace: columns of different lengths", unpacked + found)
        length = found
        if found * len(columns) > max_values:
            raise TraceError(f"power trace: more than {max_values} values", unpacked + found)
    return TraceExtent(start + (length or 0) * interval_s, (length or 0) * len(columns))


def _number(trace: Mapping[str, Any], key: str) -> float:
    value = trace[key]
    if not is_number(value):
        raise UsageError(f"power trace: {key} is not a number")
    return float(value)


def _column_length(name: str, text: Any, max_length: int, unpacked: int) -> int:
    """Return the number of values of a column, unpacking it piece by piece and keeping none.

    Raises:
        TraceError: not such a column; `unpacked` values of others come on top of its own.
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


def drop_old_traces(connection: sqlite3.Connection, before: float) -> int:
    """Delete at most `BATCH` traces that ended before a Unix second.

    Their records stay. New traces reuse the space in the file; only `VACUUM` returns it to the file system.

    Returns:
        The number of deleted traces.
    """
    with transaction(connection):
        done = connection.execute(
            'DELETE FROM traces WHERE record IN (SELECT record FROM traces WHERE "end" < ? LIMIT ?)',
            [before, BATCH],
        )
    return done.rowcount
