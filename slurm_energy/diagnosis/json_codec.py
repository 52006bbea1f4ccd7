"""Conversion of node observations and steps from and to JSON.

The input comes from users' processes and may be malicious. Therefore the size of every text, list and column
is limited, and unknown keys are ignored. docs/reference/protocol.md specifies the form.
"""

from __future__ import annotations

import base64
import binascii
import math
import sys
import zlib
from array import array
from collections.abc import Callable, Mapping
from dataclasses import astuple
from typing import Any, Final, TypeVar

from slurm_energy.diagnosis.observation import NodeObservation
from slurm_energy.diagnosis.signals import MAX_POINTS, ObservedSeries
from slurm_energy.diagnosis.steps import (
    MAX_BIN,
    MIN_BIN,
    Hint,
    PhaseStatistics,
    RankSteps,
    StepIntervals,
    StepOutlier,
)
from slurm_energy.errors import UsageError
from slurm_energy.quantities import is_number, shown
from slurm_energy.records import is_name

MAX_SERIES: Final = 4096
"""Maximum number of series of a node."""
MAX_RANKS: Final = 1024
"""Maximum number of processes of a node."""
MAX_PHASES: Final = 32
MAX_OUTLIERS: Final = 64
MAX_HINTS: Final = 32
MAX_NAME, MAX_TEXT = 64, 256
_MAX_NUMBER = 1e18
_MAX_COUNT = 2**53
_MAX_FLOAT32 = 3.4028234663852886e38
_VALUE_BYTES = 4
_T = TypeVar("_T")


def node_to_json(observation: NodeObservation) -> dict[str, Any]:
    """Return the observation of a job on one node as a JSON object.

    The observation contains the sampled signals and the reported steps.
    """
    return {
        "node": observation.node,
        "series": [_series_to_json(series) for series in observation.series],
        "ranks": [rank_to_json(rank) for rank in observation.ranks],
    }


def node_from_json(data: Any) -> NodeObservation:
    """Build the observed data of one node (signals and reported steps) from a JSON object.

    Raises:
        UsageError: a value is missing, malformed or exceeds a limit.
    """
    node = _name(_object(data, "observation"), "node")
    series = _items(data, "series", MAX_SERIES, lambda item: _series_from_json(item, node))
    ranks = _items(data, "ranks", MAX_RANKS, lambda item: rank_from_json(item, node))
    if len({(item.name, item.part) for item in series}) < len(series):
        raise UsageError("observation: a series is listed twice")
    return NodeObservation(node, series, ranks)


def rank_to_json(steps: RankSteps) -> dict[str, Any]:
    """Return the steps of a process as a JSON object, without the node."""
    data: dict[str, Any] = {
        "rank": steps.rank,
        "gpu": steps.gpu,
        "pid": steps.pid,
        "phases": {name: _phase_to_json(phase) for name, phase in steps.phases.items()},
        "samples": steps.samples,
        "outlier_count": steps.outlier_count,
        "outlier_excess_s": steps.outlier_excess_s,
        "outliers": [list(astuple(outlier)) for outlier in steps.outliers],
        "hints": dict(steps.hints),
    }
    if steps.intervals is not None:
        data["intervals"] = {
            "start_s": steps.intervals.start_s,
            "interval_s": steps.intervals.interval_s,
            "steps": encode_values(steps.intervals.steps),
            "step_seconds": encode_values(steps.intervals.step_seconds),
            "data_seconds": encode_values(steps.intervals.data_seconds),
        }
    return data


def rank_from_json(data: Any, node: str) -> RankSteps:
    """Build the steps of a process from a JSON object.

    Args:
        data: the object as received.
        node: node of the process. The sender of the object cannot choose this name.

    Raises:
        UsageError: a value is missing, malformed or exceeds a limit.
    """
    _object(data, "steps")
    phases = _object(data.get("phases", {}), "phases", MAX_PHASES)
    hints = _object(data.get("hints", {}), "hints", MAX_HINTS)
    pid = _count(data, "pid")
    if pid is None:
        raise UsageError("observation: pid is missing")
    return RankSteps(
        node,
        _count(data, "rank"),
        _count(data, "gpu"),
        pid,
        {_checked_name(name): _phase_from_json(phase) for name, phase in phases.items()},
        None if data.get("samples") is None else _number(data, "samples"),
        _count(data, "outlier_count") or 0,
        _number(data, "outlier_excess_s", 0.0),
        _items(data, "outliers", MAX_OUTLIERS, _outlier),
        None if data.get("intervals") is None else _intervals(_object(data["intervals"], "intervals")),
        {_checked_name(name): _hint(value) for name, value in hints.items()},
    )


def encode_values(values: array[float]) -> str:
    """Return values as compressed 32-bit floats in base64. NaN stands for an unknown value."""
    column = array("f", (_to_float32(value) for value in values))
    if sys.byteorder == "big":
        column.byteswap()
    return base64.b64encode(zlib.compress(column.tobytes())).decode("ascii")


def decode_values(text: Any) -> array[float]:
    """Return the values in a text from `encode_values`; infinite values become NaN.

    Raises:
        UsageError: the text is malformed or has more than `MAX_POINTS` values.
    """
    limit = MAX_POINTS * _VALUE_BYTES
    if not isinstance(text, str) or len(text) > 2 * limit:
        raise UsageError("observation: a column is not text, or too long")
    inflater = zlib.decompressobj()
    try:
        raw = inflater.decompress(base64.b64decode(text, validate=True), limit + 1)
    except (binascii.Error, zlib.error, ValueError) as error:
        raise UsageError("observation: a column cannot be read", str(error)[:100]) from None
    if len(raw) > limit or len(raw) % _VALUE_BYTES or not inflater.eof:
        raise UsageError("observation: a column is cut off or too long")
    column = array("f")
    column.frombytes(raw)
    if sys.byteorder == "big":
        column.byteswap()
    return array("d", (value if math.isfinite(value) else math.nan for value in column))


def _to_float32(value: float) -> float:
    return value if abs(value) <= _MAX_FLOAT32 else math.nan


def _series_to_json(series: ObservedSeries) -> dict[str, Any]:
    return {
        "name": series.name,
        "part": series.part,
        "source": series.source,
        "start_s": series.start_s,
        "interval_s": series.interval_s,
        "values": encode_values(series.values),
    }


def _series_from_json(data: Any, node: str) -> ObservedSeries:
    _object(data, "series")
    start_s, interval_s = _axis(data)
    part, source = data.get("part", ""), data.get("source", "")
    if not is_name(part, MAX_NAME) or not is_name(source, MAX_TEXT):
        raise UsageError("observation: bad part or source of a series")
    return ObservedSeries(
        _name(data, "name"), part, node, source, start_s, interval_s, decode_values(data.get("values"))
    )


def _phase_to_json(phase: PhaseStatistics) -> dict[str, Any]:
    return {
        "count": phase.count,
        "sum_s": phase.sum_s,
        "sum_squares_s2": phase.sum_squares_s2,
        "histogram": {str(number): count for number, count in phase.histogram.items()},
    }


def _phase_from_json(data: Any) -> PhaseStatistics:
    _object(data, "phase")
    bins = _object(data.get("histogram", {}), "histogram", MAX_BIN - MIN_BIN + 1)
    histogram: dict[int, int] = {}
    for name in bins:
        number = int(name) if _is_bin(name) else MAX_BIN + 1
        count = _count(bins, name)
        if number > MAX_BIN or number < MIN_BIN or not count:
            raise UsageError(f"observation: bad bin '{shown(str(name))}' of a histogram")
        histogram[number] = count
    count = sum(histogram.values())
    if _count(data, "count") != count:
        raise UsageError("observation: count of a phase differs from its histogram")
    return PhaseStatistics(count, _number(data, "sum_s"), _number(data, "sum_squares_s2"), histogram)


def _is_bin(name: Any) -> bool:
    digits = name.removeprefix("-") if isinstance(name, str) else ""
    return digits.isascii() and digits.isdigit() and len(digits) <= 3 and str(int(name)) == name


def _outlier(data: Any) -> StepOutlier:
    if not isinstance(data, list) or len(data) != 4 or not is_name(data[3], MAX_NAME):
        raise UsageError("observation: bad outlier")
    at_s, duration_s, expected_s = (_checked_number(value, "outliers") for value in data[:3])
    return StepOutlier(at_s, duration_s, expected_s, data[3])


def _intervals(data: Mapping[str, Any]) -> StepIntervals:
    start_s, interval_s = _axis(data)
    columns = [decode_values(data.get(key)) for key in ("steps", "step_seconds", "data_seconds")]
    if len({len(column) for column in columns}) > 1:
        raise UsageError("observation: columns of intervals differ in length")
    if any(not value >= 0 for column in columns for value in column):
        raise UsageError("observation: negative or unknown value in intervals")
    return StepIntervals(start_s, interval_s, *columns)


def _axis(data: Mapping[str, Any]) -> tuple[float, float]:
    start_s, interval_s = _number(data, "start_s"), _number(data, "interval_s")
    if start_s > 1e12 or not 1e-3 <= interval_s <= 1e8:
        raise UsageError("observation: start_s or interval_s out of range")
    return start_s, interval_s


def _hint(value: Any) -> Hint:
    if isinstance(value, bool) or is_name(value, MAX_NAME) or (is_number(value) and abs(value) < 1e15):
        hint: Hint = value
        return hint
    raise UsageError("observation: bad value of a hint")


def _object(data: Any, what: str, max_keys: int = 64) -> Mapping[str, Any]:
    if not isinstance(data, dict) or len(data) > max_keys:
        raise UsageError(f"observation: {what} is not a JSON object of at most {max_keys} keys")
    return data


def _items(data: Mapping[str, Any], key: str, limit: int, build: Callable[[Any], _T]) -> tuple[_T, ...]:
    items = data.get(key, [])
    if not isinstance(items, list) or len(items) > limit:
        raise UsageError(f"observation: {key} is not a list of at most {limit}")
    return tuple(build(item) for item in items)


def _name(data: Mapping[str, Any], key: str) -> str:
    name = data.get(key)
    if not is_name(name, MAX_TEXT if key == "node" else MAX_NAME) or not name:
        raise UsageError(f"observation: bad value for '{key}': '{shown(str(name))}'")
    return str(name)


def _checked_name(name: Any) -> str:
    if not is_name(name, MAX_NAME) or not name:
        raise UsageError(f"observation: bad name '{shown(str(name))}'")
    return str(name)


def _count(data: Mapping[str, Any], key: str) -> int | None:
    value = data.get(key)
    is_count = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MAX_COUNT
    if value is not None and not is_count:
        raise UsageError(f"observation: '{shown(key)}' is not a count")
    return value


def _number(data: Mapping[str, Any], key: str, default: float | None = None) -> float:
    return _checked_number(data.get(key, default), key)


def _checked_number(value: Any, key: str) -> float:
    if not is_number(value) or not 0 <= value <= _MAX_NUMBER:
        raise UsageError(f"observation: '{key}' is not a number of at least 0")
    return float(value)
