"""SVG charts of a study for the steps before the deployment.

The charts show the weekly pattern of a KPI, the replay error of the twin (the simulated site), and measured
and simulated power.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from slurm_energy.reports.plots.axis import range_ticks
from slurm_energy.reports.plots.svg import Frame, Scale, drawing, element, line_path
from slurm_energy.study.goals.indicators import KPIS
from slurm_energy.study.modelling.replay import replay_title

WEEKDAYS: Final = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
REPLAY_COLORS: Final = {"measured": "v0", "simulated": "v4"}
"""Name of the CSS variable of the colour of each line of `power_chart`."""
_BAR_SHARE, _ROW, _MAX_ERROR = 0.6, 26, 0.5


def week_chart(kpi: str, estimate: Mapping[str, Any], size: tuple[int, int] = (720, 240)) -> str:
    """Draw a key performance indicator (KPI) by weekday as an SVG chart.

    The chart shows the mean of each weekday, and the mean over the week with its confidence interval.

    Args:
        kpi: name of the KPI.
        estimate: `mean`, `low`, `high` and `weekdays` of the baseline (None means unknown).
        size: width and height in pixels.
    """
    frame = Frame(*size, 76, 14, 12, 30)
    means = [(day, value) for day, value in enumerate(estimate["weekdays"]) if value is not None]
    bounds = [value for key in ("mean", "low", "high") if (value := estimate[key]) is not None]
    ticks = range_ticks(0.0, max([*bounds, *(value for _, value in means)], default=1.0), 5)
    x, y = Scale(-0.5, 6.5, frame.left, frame.x1), Scale(ticks[0], ticks[-1], frame.y1, frame.top)
    shapes = frame.axes(x, [], str, y, ticks, lambda value: f"{value:,.4g}")
    half = _BAR_SHARE / 2
    for day, value in means:
        tip = element("title", text=f"{WEEKDAYS[day]}: {value:.4g}")
        width = x(day + half) - x(day - half)
        top = y(value)
        shapes += [
            element(
                "rect",
                tip,
                x=x(day - half),
                y=top,
                width=width,
                height=frame.y1 - top,
                fill="var(--v2)",
                class_="bar",
            ),
            element(
                "text", text=WEEKDAYS[day], x=x(day), y=frame.y1 + 18, class_="tick", text_anchor="middle"
            ),
        ]
    for key, dash in (("mean", None), ("low", "4 4"), ("high", "4 4")):
        if (value := estimate[key]) is not None:
            shapes.append(
                element(
                    "line",
                    x1=frame.left,
                    x2=frame.x1,
                    y1=y(value),
                    y2=y(value),
                    stroke="var(--v4)",
                    stroke_width=2 if dash is None else 1,
                    stroke_dasharray=dash,
                )
            )
    return drawing(size, f"{KPIS[kpi].title} by weekday", *shapes, class_="plot")


def replay_chart(errors: Sequence[Mapping[str, Any]], size_x: int = 720) -> str:
    """Draw the error of the twin (the simulated site) for each KPI as a bar, as SVG.

    The permitted range of the error is drawn too.

    Args:
        errors: dicts with `kpi`, `error` (None means unknown), `bound` (None means that there is no bound)
            and `exceeds`. Bars end at 50 %.
        size_x: width in pixels.
    """
    known = [one for one in errors if one["error"] is not None]
    ends = [abs(one[key]) for one in known for key in ("error", "bound") if one[key] is not None]
    limit = min(_MAX_ERROR, max([*ends, 0.01]))
    ticks = range_ticks(-limit, limit, 6)
    frame = Frame(size_x, 44 + _ROW * max(1, len(known)), 190, 30, 6, 38)
    x = Scale(ticks[0], ticks[-1], frame.left, frame.x1)
    shapes = []
    for tick in ticks:
        style = "base" if abs(tick) < 1e-12 else "grid-line"
        shapes += [
            element("line", x1=x(tick), x2=x(tick), y1=frame.top, y2=frame.y1, class_=style),
            element(
                "text", text=f"{tick:+.0%}", x=x(tick), y=frame.y1 + 18, class_="tick", text_anchor="middle"
            ),
        ]
    for row, one in enumerate(known):
        shapes += _error_bar(one, x, frame, frame.top + _ROW * (row + 0.5))
    return drawing((frame.width, frame.height), "Error of the replay by KPI", *shapes, class_="plot")


def _error_bar(one: Mapping[str, Any], x: Scale, frame: Frame, y: float) -> list[str]:
    """Return SVG elements for one error: label, permitted range and bar."""
    name, _ = replay_title(one["kpi"])
    error = max(x.low, min(x.high, one["error"]))
    tip = element("title", text=f"{name}: {one['error']:+.1%}")
    color = "var(--bad)" if one["exceeds"] else "var(--v2)"
    left, width = min(x(0), x(error)), max(1.5, abs(x(error) - x(0)))
    shapes = [element("text", text=name, x=frame.left - 10, y=y + 4, class_="tick", text_anchor="end")]
    if one["bound"] is not None:
        ends = [max(x.low, min(x.high, sign * one["bound"])) for sign in (-1, 1)]
        shapes += [
            element("line", x1=x(end), x2=x(end), y1=y - 9, y2=y + 9, stroke="var(--v4)", stroke_width=2)
            for end in ends
        ]
    bar = element("rect", tip, x=left, y=y - 6, width=width, height=12, fill=color, class_="bar")
    return [*shapes, bar]


def power_chart(hours: Sequence[Mapping[str, Any]], size: tuple[int, int] = (720, 260)) -> str:
    """Draw measured and simulated power by hour as lines, as SVG.

    Args:
        hours: rows with `start_s`, `measured_watts` and `simulated_watts` (None means unknown).
        size: width and height in pixels.
    """
    frame = Frame(*size, 66, 14, 12, 30)
    days = [(row["start_s"] - hours[0]["start_s"]) / 86400 for row in hours]
    lines = {
        name: [float("nan") if row[f"{name}_watts"] is None else row[f"{name}_watts"] / 1000 for row in hours]
        for name in REPLAY_COLORS
    }
    known = [value for values in lines.values() for value in values if value == value]
    ticks = range_ticks(0.0, max([*known, 0.1]), 5)
    x = Scale(0, max([*days, 1]), frame.left, frame.x1)
    y = Scale(ticks[0], ticks[-1], frame.y1, frame.top)
    numbers = [float(day) for day in range(int(max([*days, 1])) + 1)]
    shapes = frame.axes(
        x, numbers, lambda day: f"day {day:.0f}", y, ticks, lambda kilowatts: f"{kilowatts:.3g} kW"
    )
    for name, values in lines.items():
        path = line_path([x(day) for day in days], [y(value) for value in values])
        color = f"var(--{REPLAY_COLORS[name]})"
        shapes.append(
            element("path", element("title", text=name), d=path, fill="none", stroke=color, stroke_width=1.8)
        )
    return drawing(size, "Power by hour, measured and simulated", *shapes, class_="plot")
