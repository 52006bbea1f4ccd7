"""Charts of the HTML pages as SVG drawings.

A chart of power over time also returns its values, which the page shows as tooltips.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from markupsafe import Markup

from slurm_energy.reports.plots.axis import time_label, time_ticks, value_ticks, watt_label
from slurm_energy.reports.plots.svg import Frame, Scale, band_path, bar_path, drawing, element, line_path


@dataclass(frozen=True, slots=True)
class Series:
    """One line or one stacked layer of a chart of power over time.

    Attributes:
        name: name in legend and tooltip.
        color: name of a CSS variable without dashes, e.g. `cpu` for `var(--cpu)`.
        values: watts per interval; NaN if unknown.
        interval_s: length of an interval in seconds.
    """

    name: str
    color: str
    values: Sequence[float]
    interval_s: float


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart of an HTML page.

    Attributes:
        svg: the drawing as SVG markup.
        data: values that the page's script shows as tooltips; empty means no tooltips.
    """

    svg: str
    data: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar of a bar chart.

    Attributes:
        name: name of the bar.
        color: name of a CSS variable without dashes.
        value: length of the bar in the unit of the chart. None means that the value is unknown and no bar is
            drawn.
        text: text at the end of the bar.
        change: change of the value relative to the reference bar, as text; empty if unknown.
    """

    name: str
    color: str
    value: float | None
    text: str
    change: str = ""


@dataclass(frozen=True, slots=True)
class BarGroup:
    """Bars under one heading.

    Attributes:
        name: text of the heading.
        bars: bars below the heading.
        reference: value whose bar has full length; a dotted line marks it.
    """

    name: str
    bars: Sequence[Bar]
    reference: float


def embed(chart: Chart) -> dict[str, Markup]:
    """Return a chart as markup for the template: its drawing, and the values of its tooltips.

    `<` is escaped in the values, so that no text can end the script element.
    """
    data = json.dumps(chart.data, separators=(",", ":"), ensure_ascii=True).replace("<", "\\u003c")
    return {"svg": Markup(chart.svg), "data": Markup(data)}


def power_chart(
    series: Sequence[Series],
    title: str,
    size: tuple[int, int],
    *,
    stacked: bool = False,
    cap_watts: float | None = None,
    top_watts: float | None = None,
) -> Chart:
    """Draw power against time since the start of the job.

    Args:
        series: lines, or stacked layers from the bottom up.
        title: title for screen readers.
        size: width and height of the drawing in pixels.
        stacked: whether the series are stacked as areas; otherwise they are drawn as lines.
        cap_watts: power cap, drawn as a dashed line; None if there is no cap.
        top_watts: end of the power axis, so that several charts can share one scale. With None, the series
            determine the end.
    """
    duration = max((len(s.values) * s.interval_s for s in series), default=1.0) or 1.0
    top = top_watts or max_watts(series, stacked=stacked)
    y_ticks = value_ticks(max(top, (cap_watts or 0.0) * 1.02, 1.0), 4 if size[1] > 200 else 3)
    frame = Frame(*size, 58, 14, 12, 30)
    x = Scale(0, duration, frame.left, frame.x1)
    y = Scale(0, y_ticks[-1], frame.y1, frame.top)
    shapes = _layers(series, x, y) if stacked else _lines(series, x, y)
    axes = frame.axes(
        x,
        time_ticks(duration, max(4, size[0] // 130)),
        lambda seconds: time_label(seconds, duration),
        y,
        y_ticks,
        lambda watts: watt_label(watts, y_ticks[-1]),
    )
    marks = _cap_line(cap_watts, frame, y) if cap_watts else []
    cursor = element("line", class_="cursor", x1=0, x2=0, y1=frame.top, y2=frame.y1)
    svg = drawing(size, title, *axes, *shapes, *marks, cursor, class_="plot", tabindex="0")
    return Chart(svg, _tooltip_data(series, duration, frame, stacked))


def max_watts(series: Sequence[Series], *, stacked: bool = False) -> float:
    """Return the highest power of all series.

    Args:
        series: series of one chart.
        stacked: whether the series are stacked. If so, the highest sum is returned.
    """
    if stacked:
        columns = zip(*(s.values for s in series), strict=True)
        return max((sum(v for v in column if not math.isnan(v)) for column in columns), default=0.0)
    return max((v for s in series for v in s.values if not math.isnan(v)), default=0.0)


def _interval_centres(line: Series, x: Scale) -> list[float]:
    """Return the x coordinates in pixels of the values of a series.

    Each coordinate is the centre of an interval. The first and last value are moved to the edges of the plot.
    """
    last = len(line.values) - 1
    centres = [x((i + 0.5) * line.interval_s) for i in range(len(line.values))]
    if last > 0:
        centres[0], centres[last] = x(0), x((last + 1) * line.interval_s)
    return centres


def _lines(series: Sequence[Series], x: Scale, y: Scale) -> list[str]:
    shapes = []
    for line in series:
        xs, ys = _interval_centres(line, x), [y(v) for v in line.values]
        color = f"var(--{line.color})"
        base = [y(0)] * len(ys)
        shapes.append(element("path", d=band_path(xs, base, ys), fill=color, class_="wash"))
        shapes.append(element("path", d=line_path(xs, ys), stroke=color, class_="line"))
    return shapes


def _layers(series: Sequence[Series], x: Scale, y: Scale) -> list[str]:
    shapes: list[str] = []
    if not series:
        return shapes
    floor = [0.0] * len(series[0].values)
    for layer in series:
        roof = [f + (0.0 if math.isnan(v) else v) for f, v in zip(floor, layer.values, strict=True)]
        xs = _interval_centres(layer, x)
        lower, upper = [y(v) for v in floor], [y(v) for v in roof]
        color = f"var(--{layer.color})"
        shapes.append(element("path", d=band_path(xs, lower, upper), fill=color, class_="layer"))
        shapes.append(element("path", d=line_path(xs, upper), stroke=color, class_="rim"))
        floor = roof
    return shapes


def _cap_line(cap_watts: float, frame: Frame, y: Scale) -> list[str]:
    cap_y = y(cap_watts)
    return [
        element("line", x1=frame.left, x2=frame.x1, y1=cap_y, y2=cap_y, class_="cap"),
        element("text", text="cap", x=frame.x1 - 4, y=cap_y - 5, class_="caption", text_anchor="end"),
    ]


def _tooltip_data(series: Sequence[Series], duration_s: float, frame: Frame, stacked: bool) -> dict[str, Any]:
    return {
        "duration": duration_s,
        "left": frame.left,
        "right": frame.x1,
        "width": frame.width,
        "stacked": stacked,
        "series": [
            {
                "name": line.name,
                "color": line.color,
                "interval": line.interval_s,
                "values": [None if math.isnan(v) else round(v, 1) for v in line.values],
            }
            for line in series
        ],
    }


_ROW = 22
_HEADING = 24
_GAP = 8


def bar_chart(groups: Sequence[BarGroup], title: str, width: int = 380) -> str:
    """Draw horizontal bars in groups. Lengths are relative to the reference value of the group.

    Args:
        groups: headings with their bars.
        title: title for screen readers.
        width: pixels at natural size.
    """
    names = max((len(bar.name) for group in groups for bar in group.bars), default=0)
    left = min(136.0, 14 + 6.8 * names)
    right = 118.0
    max_ratio = max(
        (
            bar.value / group.reference
            for group in groups
            for bar in group.bars
            if bar.value and group.reference
        ),
        default=1.0,
    )
    scale = Scale(0, max(1.0, max_ratio), left, width - right)
    shapes: list[str] = []
    y = 0.0
    for group in groups:
        shapes += _bar_group(group, scale, y)
        y += _HEADING + _ROW * len(group.bars) + _GAP
    return drawing((width, max(y - _GAP, 1)), title, *shapes, class_="bars")


def _bar_group(group: BarGroup, scale: Scale, y: float) -> list[str]:
    shapes = [element("text", text=group.name, x=0, y=y + 15, class_="heading")]
    y += _HEADING
    mark = scale(1.0)
    foot = y + _ROW * len(group.bars)
    for row, bar in enumerate(group.bars):
        bar_y = y + row * _ROW
        shapes.append(
            element(
                "text", text=bar.name, x=scale.at_low - 8, y=bar_y + 14, class_="label", text_anchor="end"
            )
        )
        end = scale.at_low
        if bar.value is not None and group.reference:
            end = scale(bar.value / group.reference)
            path = bar_path(scale.at_low, bar_y + 3, max(1.0, end - scale.at_low), 15)
            tip = element("title", text=f"{group.name}, {bar.name}: {bar.text} {bar.change}".strip())
            shapes.append(element("path", tip, d=path, fill=f"var(--{bar.color})", class_="bar"))
        shapes.append(_bar_text(bar, max(end, mark) + 7, bar_y + 15))
    if len(group.bars) > 1:
        shapes.append(element("line", x1=mark, x2=mark, y1=y, y2=foot, class_="mark"))
    return shapes


def _bar_text(bar: Bar, x: float, y: float) -> str:
    change = element("tspan", text=bar.change, dx=5, class_="change") if bar.change else ""
    return element("text", change, text=bar.text, x=x, y=y, class_="value")


def share_chart(parts: Sequence[Bar], title: str, size: tuple[int, int] = (1040, 26)) -> str:
    """Draw one bar that is divided into segments in proportion to the values of the parts.

    Thin gaps separate the segments. Return an empty string if no part has a value.
    """
    drawable = [part for part in parts if part.value]
    if not drawable:
        return ""
    total = math.fsum(part.value or 0.0 for part in drawable)
    shapes: list[str] = []
    x = 0.0
    for part in drawable:
        full = (part.value or 0.0) / total * size[0]
        tip = element("title", text=f"{part.name}: {part.text}")
        shapes.append(
            element(
                "rect",
                tip,
                x=x,
                y=0,
                width=max(1.0, full - (2 if part is not drawable[-1] else 0)),
                height=size[1],
                rx=3,
                fill=f"var(--{part.color})",
            )
        )
        x += full
    return drawing(size, title, *shapes, class_="share", preserveAspectRatio="none")
