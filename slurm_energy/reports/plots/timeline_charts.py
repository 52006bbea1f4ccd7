"""Two kinds of drawings for the timeline page of a job.

The first drawing has one row per process, which shows the phases of the process over time. The second
drawing shows a signal over time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final

from slurm_energy.diagnosis.signals import SIGNALS, ObservedSeries
from slurm_energy.diagnosis.timeline.overview import Overview, OverviewRow
from slurm_energy.diagnosis.timeline.window import TimeWindow
from slurm_energy.reports.figure_format import percent, with_unit
from slurm_energy.reports.plots.axis import time_label, time_ticks, value_ticks
from slurm_energy.reports.plots.signal_columns import columns_of, range_columns
from slurm_energy.reports.plots.svg import Frame, Scale, band_path, drawing, element, line_path, number
from slurm_energy.safe_text import escape_controls

PHASE_COLORS: Final = {
    "data": "v4",
    "copy": "v7",
    "forward": "v2",
    "backward": "v5",
    "optimizer": "v3",
    "communication": "v1",
    "checkpoint": "v6",
    "evaluation": "v0",
    "other": "other",
    "step": "line",
}
"""CSS variable of each category of `overview.CATEGORIES`."""
_WIDTH, _LEFT, _RIGHT = 1040, 150, 14
_ROW, _GAP, _TOP, _BOTTOM = 15, 5, 20, 28
_LEVELS: Final = 15
"""Number of steps for drawn shares. Rounding to 1/15 merges neighbouring columns into one rectangle."""
MAX_ROWS_CHARACTERS: Final = 3_500_000
"""Maximum length of the SVG text of all rows. A longer drawing is made again with fewer columns."""
_SIGNAL_SIZE: Final = (400, 150)
_SIGNAL_COLUMNS: Final = 120
_MAX_LINES: Final = 8
_MAX_NAME: Final = 20
_LINE_COLORS: Final = ("v2", "v4", "v3", "v1", "v5", "v6", "v7", "v0")


def process_rows(overview: Overview, marks: Sequence[tuple[int, float]]) -> str:
    """Draw the overview of a timeline: one row per process.

    A row is divided into columns of equal time. Each column stacks the phases of the process by their share
    of the time.

    Args:
        overview: time by phase and column.
        marks: number and Unix time of each finding.
    """
    rows = [row for row in overview.rows if row.nanoseconds]
    window = overview.window
    height = _TOP + len(rows) * (_ROW + _GAP) + _BOTTOM
    duration_s = window.to_s - window.from_s
    frame = Frame(_WIDTH, height, _LEFT, _RIGHT, _TOP, _BOTTOM)
    x, y = Scale(0, duration_s, frame.left, frame.x1), Scale(0, 1, frame.y1, frame.top)
    axes = frame.axes(
        x, time_ticks(duration_s, 7), lambda seconds: time_label(seconds, duration_s), y, (), str
    )
    shares = [overview.shares(row) for row in rows]
    shapes: list[str] = []
    for merged in (1, 2, 4, 8, 16, 32):
        shapes = [_row(row, _merged(shares[index], merged), index, frame) for index, row in enumerate(rows)]
        if sum(map(len, shapes)) <= MAX_ROWS_CHARACTERS:
            break
    for mark, at_s in marks:
        shapes += _mark(mark, x(min(max(at_s - window.from_s, 0.0), duration_s)), frame)
    return drawing((_WIDTH, height), "Time of each process by phase", *axes, *shapes, class_="rows")


def _merged(shares: dict[str, list[float]], count: int) -> dict[str, list[float]]:
    """Average each group of `count` neighbouring columns of a chart into one column."""
    return {
        name: [math.fsum(values[index : index + count]) / count for index in range(0, len(values), count)]
        for name, values in shares.items()
    }


def _row(row: OverviewRow, shares: dict[str, list[float]], index: int, frame: Frame) -> str:
    columns = len(next(iter(shares.values())))
    top = frame.top + index * (_ROW + _GAP)
    paths = [
        element("path", d=path, fill=f"var(--{PHASE_COLORS[name]})")
        for name, path in _stacked_paths(shares, columns)
        if path
    ]
    totals = [
        f"{name} {percent(math.fsum(values), columns)}" for name, values in shares.items() if any(values)
    ]
    scale = f"translate({number(frame.left)} {number(top)}) scale({(frame.x1 - frame.left) / columns:.5f} 1)"
    base = element("rect", x=0, y=0, width=columns, height=_ROW, fill="var(--faint)")
    full_name = escape_controls(row.name)
    name = full_name if len(full_name) <= _MAX_NAME else full_name[: _MAX_NAME - 3] + "..."
    label = element("text", text=name, x=frame.left - 8, y=top + 12, class_="label", text_anchor="end")
    tip = element("title", text=f"{full_name}: {', '.join(totals) or 'no events'}")
    return element("g", tip, label, element("g", base, *paths, transform=scale))


def _stacked_paths(shares: dict[str, list[float]], columns: int) -> Iterator[tuple[str, str]]:
    """Yield the SVG path data of a stacked chart, one path per phase.

    In each column of the chart, a phase is drawn as a rectangle. Equal rectangles of a phase in neighbouring
    columns are drawn as one.
    """
    floors = [0] * columns
    exact = [0.0] * columns
    for name, values in shares.items():
        parts: list[str] = []
        start, last = 0, (0, 0)
        for index in range(columns + 1):
            box = (0, 0)
            if index < columns:
                exact[index] += values[index]
                roof = round(exact[index] * _LEVELS)
                box = (floors[index], roof)
                floors[index] = roof
            if box != last or index == columns:
                if last[1] > last[0]:
                    width, height = index - start, last[1] - last[0]
                    parts.append(f"M{start} {_ROW - last[1]}h{width}v{height}h{-width}z")
                start, last = index, box
        yield name, "".join(parts)


def _mark(mark: int, x: float, frame: Frame) -> tuple[str, str]:
    return (
        element("line", x1=x, x2=x, y1=frame.top - 4, y2=frame.y1, class_="cap"),
        element("text", text=str(mark), x=x, y=frame.top - 7, class_="caption", text_anchor="middle"),
    )


def signal_chart(name: str, series: Sequence[ObservedSeries], window: TimeWindow) -> str:
    """Draw a signal over time: one line per series, or the range and mean if there are many series."""
    columns = [columns_of(one, window, _SIGNAL_COLUMNS) for one in series]
    top = max((value for column in columns for value in column if not math.isnan(value)), default=0.0)
    signal = SIGNALS.get(name)
    unit = signal.unit if signal else ""
    y_ticks = value_ticks(top if top > 0 else 1.0, 3)
    duration_s = window.to_s - window.from_s
    frame = Frame(*_SIGNAL_SIZE, 74, 14, 10, 28)
    x, y = Scale(0, duration_s, frame.left, frame.x1), Scale(0, y_ticks[-1], frame.y1, frame.top)
    axes = frame.axes(
        x,
        time_ticks(duration_s, 4),
        lambda seconds: time_label(seconds, duration_s),
        y,
        y_ticks,
        lambda value: _value_text(value, unit),
    )
    width = duration_s / _SIGNAL_COLUMNS
    xs = [x((index + 0.5) * width) for index in range(_SIGNAL_COLUMNS)]
    if len(columns) <= _MAX_LINES:
        shapes = [_line(xs, column, y, _LINE_COLORS[index]) for index, column in enumerate(columns)]
    else:
        low, mean, high = ([y(value) for value in values] for values in range_columns(columns))
        shapes = [element("path", d=band_path(xs, low, high), fill="var(--v2)", opacity=0.25)]
        shapes.append(element("path", d=line_path(xs, mean), stroke="var(--v2)", class_="line"))
    return drawing(_SIGNAL_SIZE, f"{name} over time", *axes, *shapes, class_="plot")


def signal_legend(series: Sequence[ObservedSeries]) -> list[tuple[str, str]]:
    """Return the legend of a signal's chart: a name and a CSS variable of the color for each line."""
    if len(series) > _MAX_LINES:
        return [(f"{len(series)} parts: minimum, mean, maximum", "v2")]
    return [
        (escape_controls(" ".join(text for text in (one.node, one.part) if text)), color)
        for one, color in zip(series, _LINE_COLORS, strict=False)
    ]


def _line(xs: Sequence[float], values: Sequence[float], y: Scale, color: str) -> str:
    return element("path", d=line_path(xs, [y(v) for v in values]), stroke=f"var(--{color})", class_="line")


def _value_text(value: float, unit: str) -> str:
    return f"{value:g} {unit}" if unit in ("%", "degC", "MHz", "cores") else with_unit(value, unit)
