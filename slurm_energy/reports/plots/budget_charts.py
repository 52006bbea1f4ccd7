"""Chart of the power under a budget over time, as an SVG drawing for HTML pages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import tzinfo
from typing import Final

from slurm_energy.reports.budgets.power_history import PowerHistory, clock_label, clock_ticks, highest
from slurm_energy.reports.plots.axis import value_ticks, watt_label
from slurm_energy.reports.plots.charts import Chart
from slurm_energy.reports.plots.svg import Frame, Scale, band_path, drawing, element, line_path

LEGEND: Final = (("limit", "text"), ("measured", "v2"), ("committed", "v4"), ("capped", "v7"))
"""Names of the lines and their CSS variables, without dashes."""
_SIZE: Final = (1040, 300)


def budget_chart(history: PowerHistory, zone: tzinfo | None = None, size: tuple[int, int] = _SIZE) -> Chart:
    """Draw the power under a budget against the time of day.

    The chart shows four lines from `history`: the limit of the budget, and the measured, the committed
    and the capped power.

    Args:
        history: power in regular intervals.
        zone: time zone of the labels; None means the local zone.
        size: width and height of the drawing in pixels.
    """
    begin, end = history.begin_unix_s, history.begin_unix_s + history.duration_s
    values = dict(zip((name for name, _ in LEGEND), _values(history), strict=True))
    top = max((highest(series) or 0.0 for series in values.values()), default=0.0)
    y_ticks = value_ticks(max(top * 1.02, 1.0))
    frame = Frame(*size, 64, 14, 12, 30)
    x, y = Scale(begin, end, frame.left, frame.x1), Scale(0, y_ticks[-1], frame.y1, frame.top)
    axes = frame.axes(
        x,
        clock_ticks(begin, end, max(4, size[0] // 130), zone),
        lambda time: clock_label(time, begin, end, zone),
        y,
        y_ticks,
        lambda watts: watt_label(watts, y_ticks[-1]),
    )
    centres = [x(begin + (i + 0.5) * history.interval_s) for i in range(len(history.limit_watts))]
    shapes = [_area(centres, values["measured"], y, "v2"), _line(centres, values["measured"], y, "v2")]
    shapes += [_line(centres, values["committed"], y, "v4"), _line(centres, values["capped"], y, "v7")]
    shapes.append(_limit_line(history, x, y))
    cursor = element("line", class_="cursor", x1=0, x2=0, y1=frame.top, y2=frame.y1)
    title = f"Power under budget {history.budget}"
    svg = drawing(size, title, *axes, *shapes, cursor, class_="plot", tabindex="0")
    return Chart(svg, _tooltips(history, values, frame))


def _values(history: PowerHistory) -> tuple[Sequence[float], ...]:
    return history.limit_watts, history.measured_watts, history.committed_watts, history.capped_watts


def _line(xs: Sequence[float], values: Sequence[float], y: Scale, color: str) -> str:
    return element("path", d=line_path(xs, [y(v) for v in values]), stroke=f"var(--{color})", class_="line")


def _area(xs: Sequence[float], values: Sequence[float], y: Scale, color: str) -> str:
    tops = [y(value) for value in values]
    return element("path", d=band_path(xs, [y(0)] * len(xs), tops), fill=f"var(--{color})", class_="wash")


def _limit_line(history: PowerHistory, x: Scale, y: Scale) -> str:
    """Draw the budget's limit over time as a stepped line, and return it as SVG markup."""
    xs: list[float] = []
    ys: list[float] = []
    for index, watts in enumerate(history.limit_watts):
        left = history.begin_unix_s + index * history.interval_s
        xs += [x(left), x(left + history.interval_s)]
        ys += [y(watts)] * 2
    return element("path", d=line_path(xs, ys), class_="limit")


def _tooltips(history: PowerHistory, values: dict[str, Sequence[float]], frame: Frame) -> dict[str, object]:
    colors = dict(LEGEND)
    return {
        "start": history.begin_unix_s,
        "duration": history.duration_s,
        "left": frame.left,
        "right": frame.x1,
        "width": frame.width,
        "stacked": False,
        "series": [
            {
                "name": name,
                "color": colors[name],
                "interval": history.interval_s,
                "values": [None if math.isnan(value) else round(value, 1) for value in series],
            }
            for name, series in values.items()
        ],
    }
