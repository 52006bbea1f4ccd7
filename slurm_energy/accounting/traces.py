"""The check that a delivered power trace is what docs/architecture.md says, before it is kept as it came.

Packing and unpacking for use is in `reports/trace.py`.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Mapping
from typing import Any, Final

from slurm_energy.errors import UsageError
from slurm_energy.quantities import is_number

MAX_COLUMNS: Final = 64
MAX_VALUES: Final = 20_000_000  # per column; more than reports read
_VALUE_BYTES: Final = 4
_PIECE_BYTES: Final = 1 << 20


def end_of(trace: Any) -> float:
    """Check a trace and return the Unix second at which its last interval ends.

    Raises:
        UsageError: names what is not as the contract says.
    """
    if not isinstance(trace, Mapping) or set(trace) != {"start", "interval_s", "columns"}:
        raise UsageError("power trace: needs exactly start, interval_s and columns")
    start, interval_s = _number(trace, "start"), _number(trace, "interval_s")
    if start < 0 or not 0 < interval_s <= 86400:
        raise UsageError("power trace: start or interval_s out of range")
    columns = trace["columns"]
    if not isinstance(columns, Mapping) or len(columns) > MAX_COLUMNS:
        raise UsageError(f"power trace: columns are not an object of at most {MAX_COLUMNS}")
    lengths = {_column_length(str(name), text) for name, text in columns.items()}
    if len(lengths) > 1:
        raise UsageError("power trace: columns of different lengths")
    return start + max(lengths, default=0) * interval_s


def _number(trace: Mapping[str, Any], key: str) -> float:
    value = trace[key]
    if not is_number(value):
        raise UsageError(f"power trace: {key} is not a number")
    return float(value)


def _column_length(name: str, text: Any) -> int:
    """Return the number of values of a column, unpacking it piece by piece and keeping none."""
    if not isinstance(text, str) or len(name) > 64:
        raise UsageError("power trace: a column is not text")
    unpacker, size = zlib.decompressobj(), 0
    try:
        packed = base64.b64decode(text, validate=True)
        while packed and not unpacker.eof and size <= MAX_VALUES * _VALUE_BYTES:
            size += len(unpacker.decompress(packed, _PIECE_BYTES))
            packed = unpacker.unconsumed_tail
    except (binascii.Error, zlib.error, ValueError) as error:
        raise UsageError(f"power trace: column '{name[:20]}': {error}") from None
    if not unpacker.eof or size % _VALUE_BYTES:
        raise UsageError(f"power trace: column '{name[:20]}' is cut off or longer than {MAX_VALUES} values")
    return size // _VALUE_BYTES
