"""Power traces of jobs: decoding, summing over nodes, and averaging to the resolution of a plot.

The module uses `array` instead of numpy, because the import of numpy takes longer than a short command.
"""

from __future__ import annotations

import base64
import math
import sys
import zlib
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slurm_energy.errors import UsageError
from slurm_energy.reports.usage import component_type

MAX_POINTS = 20_000_000
SLOW_COMPONENT, SLOW_WINDOW_S = "other", 10.0
"""The node's meter lags behind the components, so the difference `other` swings when they change. Plots show
its moving average over SLOW_WINDOW_S seconds."""
COMPONENT_ORDER = ("cpu", "dram", "gpu", "other", "node")


@dataclass(frozen=True, slots=True)
class PowerTrace:
    """Mean power of a job on one node, or of several nodes together, per interval.

    Attributes:
        start: start of the first interval, Unix seconds.
        interval_s: length of an interval in seconds.
        watts: mean watts per interval by component, NaN where unknown; all columns have the same length.
    """

    start: float
    interval_s: float
    watts: dict[str, array[float]]

    @property
    def length(self) -> int:
        """Number of intervals."""
        return max((len(column) for column in self.watts.values()), default=0)

    @property
    def duration_s(self) -> float:
        """Seconds from the start of the first interval to the end of the last one."""
        return self.length * self.interval_s

    def total(self) -> array[float]:
        """Return the total power in watts: column `node` where known, or else the sum of known components."""
        parts = [column for name, column in self.watts.items() if component_type(name) != "node"]
        added = _add(parts, self.length)
        node = self.watts.get("node")
        if node is None:
            return added
        return array("d", (n if not math.isnan(n) else a for n, a in zip(node, added, strict=True)))


def decode_trace(data: Mapping[str, Any]) -> PowerTrace:
    """Return the power trace in a JSON object. docs/reference/protocol.md defines the object.

    Raises:
        UsageError: the object is malformed, or its columns differ in length or are too long.
    """
    try:
        start, interval_s = float(data["start"]), float(data["interval_s"])
        watts = {str(name): _decode_column(text) for name, text in data["columns"].items()}
    except (KeyError, TypeError, ArithmeticError, ValueError, AttributeError, zlib.error) as error:
        raise UsageError("power trace: cannot be read", str(error) or type(error).__name__) from None
    if not (interval_s > 0 and math.isfinite(start)) or len({len(c) for c in watts.values()}) > 1:
        raise UsageError("power trace: cannot be read", "bad interval, or columns of different length")
    return PowerTrace(start, interval_s, watts)


def _decode_column(text: str) -> array[float]:
    inflater = zlib.decompressobj()
    raw = inflater.decompress(base64.b64decode(text, validate=True), 4 * MAX_POINTS)
    if inflater.unconsumed_tail or len(raw) % 4:
        raise ValueError("bad column length")
    column = array("f")
    column.frombytes(raw)
    if sys.byteorder == "big":
        column.byteswap()
    return array("d", column)


def encode_trace(start: float, interval_s: float, watts: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """Return a power trace as the JSON object that `decode_trace` reads. Examples and tests use it.

    Args:
        start: start of the first interval in Unix seconds.
        interval_s: length of an interval in seconds.
        watts: mean watts per interval by component; NaN if unknown.
    """
    columns = {}
    for name, values in watts.items():
        column = array("f", values)
        if sys.byteorder == "big":
            column.byteswap()
        columns[name] = base64.b64encode(zlib.compress(column.tobytes())).decode("ascii")
    return {"start": start, "interval_s": interval_s, "columns": columns}


def smoothed(values: Sequence[float], width: float) -> array[float]:
    """Return the moving average of the known values.

    Args:
        values: the values. NaN (unknown) stays NaN.
        width: number of values to average. If there are fewer values, all of them are averaged.
    """
    sums, counts = array("d", [0.0]), array("q", [0])
    for value in values:
        is_known = not math.isnan(value)
        sums.append(sums[-1] + (value if is_known else 0.0))
        counts.append(counts[-1] + is_known)
    size = min(len(values), max(1, round(width)))
    averages = array("d")
    for index, value in enumerate(values):
        first = min(max(0, index - size // 2), len(values) - size)
        count = counts[first + size] - counts[first]
        total = sums[first + size] - sums[first]
        averages.append(math.nan if math.isnan(value) else total / count)
    return averages


def combine(traces: Sequence[PowerTrace], points: int) -> PowerTrace:
    """Return the sum of the traces of several nodes on one time axis. All GPUs are summed as `gpu`.

    The axis runs from the first start to the last end and has at most `points` intervals. Each interval of
    the axis has the time-weighted mean of the known watts in this interval. A node without known values in an
    interval contributes nothing to the interval.
    """
    start = min(trace.start for trace in traces)
    end = max(trace.start + trace.duration_s for trace in traces)
    finest = min(trace.interval_s for trace in traces)
    count = max(1, min(points, math.ceil((end - start) / finest - 1e-9)))
    step = max((end - start) / count, finest) if end > start else finest
    merged: dict[str, list[array[float]]] = {}
    for trace in traces:
        by_component: dict[str, list[array[float]]] = {}
        for name, column in trace.watts.items():
            by_component.setdefault(component_type(name), []).append(column)
        for component, columns in by_component.items():
            joined = columns[0] if len(columns) == 1 else _add(columns, trace.length)
            if component == SLOW_COMPONENT:
                joined = smoothed(joined, SLOW_WINDOW_S / trace.interval_s)
            merged.setdefault(component, []).append(
                _resample(joined, trace.start - start, trace.interval_s, step, count)
            )
    order = sorted(
        merged,
        key=lambda component: (
            COMPONENT_ORDER.index(component) if component in COMPONENT_ORDER else len(COMPONENT_ORDER)
        ),
    )
    return PowerTrace(start, step, {component: _add(merged[component], count) for component in order})


def _add(columns: Sequence[array[float]], length: int) -> array[float]:
    """Return the sum of columns, element by element. The sum is NaN only if all columns are NaN."""
    if len(columns) == 1:
        return columns[0]
    sums = array("d", [math.nan]) * length
    for index in range(length):
        values = [c[index] for c in columns if not math.isnan(c[index])]
        if values:
            sums[index] = math.fsum(values)
    return sums


def _resample(
    column: array[float], offset_s: float, interval_s: float, step: float, count: int
) -> array[float]:
    """Return the means of a column of watts over `count` intervals of `step` seconds.

    Args:
        column: values of equal length in time.
        offset_s: start of the first new interval, in seconds after the start of the column.
        interval_s: seconds per value of the column.
        step: seconds per new interval.
        count: number of new intervals.
    """
    weight, amount = [0.0] * count, [0.0] * count
    for index, watts in enumerate(column):
        if math.isnan(watts):
            continue
        begin = offset_s + index * interval_s
        finish = begin + interval_s
        slot = int(begin / step)
        while slot < count and slot * step < finish - 1e-9:
            share = min(finish, (slot + 1) * step) - max(begin, slot * step)
            if share > 0:
                weight[slot] += share
                amount[slot] += share * watts
            slot += 1
    return array("d", (a / w if w > 0 else math.nan for a, w in zip(amount, weight, strict=True)))
