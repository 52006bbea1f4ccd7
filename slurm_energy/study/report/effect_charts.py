"""Charts of a study's report, as SVG.

One chart shows the effect on each KPI with its interval. The other one shows the value of a KPI on each day
of the baseline and the deployment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any, Final

from slurm_energy.reports.plots.axis import range_ticks
from slurm_energy.reports.plots.svg import Frame, Scale, drawing, element
from slurm_energy.study.goals.indicators import KPIS, Direction

GROUP_COLORS: Final = {"baseline": "v0", "control": "v2", "treated": "v4"}
"""Name of the CSS variable of the colour of each group of days."""
_ROW, _MAX_SHARE = 30, 0.5


def effects_chart(effects: Mapping[str, Mapping[str, Any]], size_x: int = 720) -> str:
    """Draw the effect on each KPI as a point with its interval, as SVG.

    Intervals are cut at 50 %, so that a wide interval does not hide the other KPIs.

    Args:
        effects: for each KPI, an estimate with the keys `change`, `low`, `high`, `excludes_zero` and
            `is_relative`.
        size_x: width in pixels.
    """
    shown = {name: one for name, one in effects.items() if one["is_relative"]}
    bounds = [
        max(-_MAX_SHARE, min(_MAX_SHARE, one[key])) for one in shown.values() for key in ("low", "high")
    ]
    ticks = range_ticks(min([*bounds, -0.01]), max([*bounds, 0.01]), 6)
    frame = Frame(size_x, 48 + _ROW * max(1, len(shown)), 170, 20, 8, 40)
    x = Scale(ticks[0], ticks[-1], frame.left, frame.x1)
    shapes = []
    for tick in ticks:
        is_zero = abs(tick) < 1e-12
        line = element(
            "line",
            x1=x(tick),
            x2=x(tick),
            y1=frame.top,
            y2=frame.y1,
            class_="base" if is_zero else "grid-line",
        )
        label = element(
            "text", text=f"{tick:+.0%}", x=x(tick), y=frame.y1 + 18, class_="tick", text_anchor="middle"
        )
        shapes += [line, label]
    for row, (name, one) in enumerate(shown.items()):
        shapes += _interval(name, one, x, frame, frame.top + _ROW * (row + 0.5))
    return drawing((frame.width, frame.height), "Effects with intervals", *shapes, class_="plot")


def days_chart(days: Sequence[Mapping[str, Any]], name: str, size: tuple[int, int] = (720, 260)) -> str:
    """Draw the value of a KPI on each day as SVG. The colour shows `baseline`, `control` or `treated`.

    A value is drawn relative to the expected value if the expected value is known.

    Args:
        days: rows with `date`, `group`, `value` and `expected` (None means unknown).
        name: title of the KPI.
        size: width and height in pixels.
    """
    values = [_relative(row) for row in days]
    frame = Frame(*size, 58, 14, 12, 30)
    ticks = range_ticks(min(values, default=0.0), max(values, default=1.0), 5)
    first = date.fromisoformat(days[0]["date"]).toordinal() if days else 0
    numbers = [date.fromisoformat(row["date"]).toordinal() - first for row in days]
    x = Scale(0, max([*numbers, 1]), frame.left + 6, frame.x1 - 6)
    y = Scale(ticks[0], ticks[-1], frame.y1, frame.top)
    weeks = [float(number) for number in range(0, max([*numbers, 1]) + 1, 7)]
    shapes = frame.axes(x, weeks, lambda number: f"day {number:.0f}", y, ticks, lambda value: f"{value:.3g}")
    for row, number, value in zip(days, numbers, values, strict=True):
        tip = element("title", text=f"{row['date']}, {row['group']}: {value:.4g}")
        fill = f"var(--{GROUP_COLORS[row['group']]})"
        shapes.append(element("circle", tip, cx=x(number), cy=y(value), r=4.5, fill=fill, class_="bar"))
    return drawing(size, f"{name} by day", *shapes, class_="plot")


def _relative(row: Mapping[str, Any]) -> float:
    value = float(row["value"])
    return value if row["expected"] is None else value / float(row["expected"])


def _interval(name: str, one: Mapping[str, Any], x: Scale, frame: Frame, y: float) -> list[str]:
    kpi = KPIS[name]
    low, high, change = (max(x.low, min(x.high, one[key])) for key in ("low", "high", "change"))
    improves = (one["change"] < 0) == (kpi.better is Direction.LOWER)
    color = f"var(--{'other' if not one['excludes_zero'] else 'dram' if improves else 'bad'})"
    text = f"{kpi.title}: {one['change']:+.1%} ({one['low']:+.1%} to {one['high']:+.1%})"
    return [
        element("text", text=kpi.title, x=frame.left - 10, y=y + 4, class_="tick", text_anchor="end"),
        element("line", x1=x(low), x2=x(high), y1=y, y2=y, stroke=color, stroke_width=3),
        element("circle", element("title", text=text), cx=x(change), cy=y, r=5, fill=color, class_="bar"),
    ]
