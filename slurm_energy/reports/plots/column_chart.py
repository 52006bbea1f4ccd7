"""Chart of stacked columns over intervals of time, as SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from slurm_energy.reports.figure_format import plain
from slurm_energy.reports.plots.axis import value_ticks
from slurm_energy.reports.plots.svg import Scale, drawing, element

_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 14, 12, 30
_CHARACTER_PIXELS = 6.2


@dataclass(frozen=True, slots=True)
class ColumnLayer:
    """One layer of a chart of stacked columns. Every column of the chart contains one part of the layer.

    Attributes:
        name: name of the layer in tooltips.
        color: name of a colour variable in page.css.
        values: one value per column; None means unknown, drawn as nothing.
        texts: the values as text, for tooltips.
    """

    name: str
    color: str
    values: Sequence[float | None]
    texts: Sequence[str]


def column_chart(
    layers: Sequence[ColumnLayer],
    labels: Sequence[str],
    title: str,
    unit: str,
    size: tuple[int, int] = (1040, 240),
) -> str:
    """Draw one column per label, with the layers stacked from the bottom up.

    Args:
        layers: layers of the columns. Each layer has one value per label.
        labels: text below each column. Some of the texts are left out if they do not fit side by side.
        title: title for screen readers.
        unit: unit of the values, at the axis.
        size: width and height in pixels.
    """
    count = len(labels)
    sums = [math.fsum(layer.values[i] or 0.0 for layer in layers) for i in range(count)]
    ticks = value_ticks(max([*sums, 0.0]) or 1.0, 4)
    y = Scale(0.0, ticks[-1], size[1] - _BOTTOM, _TOP)
    step = (size[0] - _LEFT - _RIGHT) / max(1, count)
    shapes = [_tick(value, y, size[0], unit if value == ticks[-1] else "") for value in ticks]
    label_pixels = _CHARACTER_PIXELS * max(map(len, labels), default=0) + 20
    every = max(1, math.ceil(label_pixels / step))
    for i, label in enumerate(labels):
        x, bottom = _LEFT + i * step, 0.0
        for layer in layers:
            value = layer.values[i]
            if value:
                top, base = y(bottom + value), y(bottom)
                tip = element("title", text=f"{label}, {layer.name}: {layer.texts[i]}")
                width = max(1.0, step - min(4.0, step / 4))
                color = f"var(--{layer.color})"
                shapes.append(
                    element("rect", tip, x=x, y=top, width=width, height=max(0.5, base - top), fill=color)
                )
                bottom += value
        if i % every == 0:
            place = {"x": x, "y": size[1] - 10.0}
            shapes.append(element("text", text=label, class_="tick", **place))
    return drawing(size, title, *shapes, class_="plot")


def _tick(value: float, y: Scale, width: int, unit: str) -> str:
    text = f"{plain(value, 6)} {unit}".rstrip()
    place = y(value)
    line = element("line", class_="grid-line", x1=_LEFT, x2=width - _RIGHT, y1=place, y2=place)
    label = element("text", text=text, class_="tick", x=_LEFT - 6, y=place + 4, text_anchor="end")
    return line + label
