"""Charts that compare scheduling policies, as SVG drawings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slurm_energy.reports.figure_format import plain
from slurm_energy.reports.plots.axis import range_ticks, time_label, time_ticks
from slurm_energy.reports.plots.svg import Frame, Scale, drawing, element, line_path

_MARGINS = (58, 14, 12, 44)


@dataclass(frozen=True, slots=True)
class Point:
    """A scheduling policy in a chart of two quantities.

    Attributes:
        name: name of the policy.
        color: name of a CSS variable without dashes.
        x, y: values of the two quantities.
        x_deviation, y_deviation: standard deviations of `x` and `y`, drawn as error bars.
        text: both values in words, for the tooltip.
    """

    name: str
    color: str
    x: float
    y: float
    x_deviation: float
    y_deviation: float
    text: str


@dataclass(frozen=True, slots=True)
class Distribution:
    """Values of one scheduling policy, for a chart of cumulative distributions.

    Attributes:
        name: name of the policy.
        color: name of a CSS variable without dashes.
        values: values in ascending order.
    """

    name: str
    color: str
    values: Sequence[float]


@dataclass(frozen=True, slots=True)
class ChartSpan:
    """The bar of one job in a schedule chart.

    Attributes:
        row: row from the top, from 0.
        start_s, end_s: start and end of the job in seconds.
        color: name of a CSS variable without dashes.
        text: text of the tooltip.
    """

    row: int
    start_s: float
    end_s: float
    color: str
    text: str


def scatter_chart(
    points: Sequence[Point], title: str, axes: tuple[str, str], size: tuple[int, int] = (480, 280)
) -> str:
    """Draw one point per scheduling policy. The axes cover the range of the points and need not include 0.

    Args:
        points: at least one point.
        title: title for screen readers.
        axes: names of the x and y axis, with units.
        size: width and height in pixels.
    """
    x_ticks = range_ticks(*_extent([(p.x, p.x_deviation) for p in points]), 5)
    y_ticks = range_ticks(*_extent([(p.y, p.y_deviation) for p in points]), 5)
    frame = Frame(*size, *_MARGINS)
    x = Scale(x_ticks[0], x_ticks[-1], frame.left, frame.x1)
    y = Scale(y_ticks[0], y_ticks[-1], frame.y1, frame.top)
    shapes = frame.axes(x, x_ticks, lambda v: plain(v, 4), y, y_ticks, lambda v: plain(v, 4))
    shapes += _axis_names(frame, axes)
    for point in points:
        color, px, py = f"var(--{point.color})", x(point.x), y(point.y)
        dx, dy = point.x_deviation, point.y_deviation
        for x1, x2, y1, y2 in (
            (x(point.x - dx), x(point.x + dx), py, py),
            (px, px, y(point.y - dy), y(point.y + dy)),
        ):
            shapes.append(element("line", x1=x1, x2=x2, y1=y1, y2=y2, stroke=color))
        tip = element("title", text=f"{point.name}: {point.text}")
        shapes.append(element("circle", tip, cx=px, cy=py, r=5, fill=color, class_="bar"))
    return drawing(size, title, *shapes, class_="plot")


def distribution_chart(series: Sequence[Distribution], title: str, size: tuple[int, int] = (480, 280)) -> str:
    """Draw the cumulative distribution of durations as one line per scheduling policy.

    Args:
        series: for each scheduling policy, the durations in seconds.
        title: title for screen readers.
        size: width and height in pixels.
    """
    max_s = (
        max((distribution.values[-1] for distribution in series if len(distribution.values)), default=1.0)
        or 1.0
    )
    frame = Frame(*size, *_MARGINS)
    x, y = Scale(0, max_s, frame.left, frame.x1), Scale(0, 1, frame.y1, frame.top)
    shapes = frame.axes(
        x,
        time_ticks(max_s, max(4, size[0] // 130)),
        lambda seconds: time_label(seconds, max_s),
        y,
        [0.0, 0.25, 0.5, 0.75, 1.0],
        lambda share: f"{100 * share:.0f} %",
    )
    shapes += _axis_names(frame, ("from submission to end", "share of the completed jobs"))
    for distribution in series:
        xs, ys = [x(0)], [y(0)]
        for number, value in enumerate(distribution.values):
            xs += [x(value), x(value)]
            ys += [ys[-1], y((number + 1) / len(distribution.values))]
        line = line_path(xs, ys)
        tip = element("title", text=distribution.name)
        shapes.append(element("path", tip, d=line, stroke=f"var(--{distribution.color})", class_="line"))
    return drawing(size, title, *shapes, class_="plot")


def schedule_chart(spans: Sequence[ChartSpan], title: str, size: tuple[int, int] = (480, 280)) -> str:
    """Draw each job as a bar from the start to the end of the job. Each job has its own row.

    Args:
        spans: bars of the jobs.
        title: title for screen readers.
        size: width and height in pixels.
    """
    max_s = max((span.end_s for span in spans), default=1.0) or 1.0
    rows = max((span.row for span in spans), default=0) + 1
    frame = Frame(*size, *_MARGINS)
    x, y = Scale(0, max_s, frame.left, frame.x1), Scale(0, rows, frame.top, frame.y1)
    shapes = frame.axes(
        x,
        time_ticks(max_s, max(4, size[0] // 130)),
        lambda seconds: time_label(seconds, max_s),
        y,
        [0, rows],
        lambda row: plain(row, 0),
    )
    shapes += _axis_names(frame, ("time", "jobs in the order of their start"))
    height = max(0.6, 0.85 * (y(1) - y(0)))
    for span in spans:
        left, right = x(span.start_s), x(span.end_s)
        tip = element("title", text=span.text)
        shapes.append(
            element(
                "rect",
                tip,
                x=left,
                y=y(span.row),
                width=max(0.5, right - left),
                height=height,
                fill=f"var(--{span.color})",
                class_="bar",
            )
        )
    return drawing(size, title, *shapes, class_="plot")


def _extent(values: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the range of values with their error bars.

    Args:
        values: pairs of a value and its standard deviation.

    Returns:
        Minimum of value minus deviation, and maximum of value plus deviation.
    """
    return min(v - d for v, d in values), max(v + d for v, d in values)


def _axis_names(frame: Frame, names: tuple[str, str]) -> list[str]:
    """Draw the names of the axes: the x axis below the plot, the y axis rotated, at the left of the plot."""
    middle = (frame.top + frame.y1) / 2
    return [
        element("text", text=names[0], x=frame.x1, y=frame.height - 6, class_="label", text_anchor="end"),
        element(
            "text",
            text=names[1],
            x=12,
            y=middle,
            class_="label",
            text_anchor="middle",
            transform=f"rotate(-90 12 {middle:.1f})",
        ),
    ]
