"""Writer of SVG drawings: elements, scales and paths.

Colours are CSS classes or variables, never values, so that one drawing suits light and dark pages. This
module escapes all text.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

Attribute = str | float | None


def element(name: str, *children: str, text: str = "", **attributes: Attribute) -> str:
    """Return an SVG element as markup.

    Args:
        name: tag name of the element, such as `rect`.
        children: markup of child elements.
        text: character data, which is escaped here.
        attributes: attributes by name; an attribute with the value None is omitted. In names, a trailing `_`
            is dropped (`class_`), and other `_` become `-`.
    """
    words = [name]
    for key, value in attributes.items():
        if value is not None:
            rendered = number(value) if isinstance(value, (int, float)) else escape(value, {'"': "&quot;"})
            words.append(f'{key.rstrip("_").replace("_", "-")}="{rendered}"')
    content = escape(text) + "".join(children)
    return f"<{' '.join(words)}>{content}</{name}>" if content else f"<{' '.join(words)}/>"


def number(value: float) -> str:
    """Return a coordinate as text with at most two decimals."""
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text in ("-0", "") else text


@dataclass(frozen=True, slots=True)
class Scale:
    """A linear map from data values to pixel coordinates.

    Attributes:
        low, high: data values at the two ends.
        at_low, at_high: pixel coordinates of these two values.
    """

    low: float
    high: float
    at_low: float
    at_high: float

    def __call__(self, value: float) -> float:
        """Convert a data value to a pixel coordinate in a chart."""
        span = self.high - self.low
        share = (value - self.low) / span if span else 0.0
        return self.at_low + share * (self.at_high - self.at_low)


def line_path(xs: Sequence[float], ys: Sequence[float]) -> str:
    """Return SVG path data of a line through the points. The line is interrupted where y is NaN."""
    return " ".join("M" + " L".join(_point(*p) for p in run) for run in _runs(xs, ys))


def band_path(xs: Sequence[float], lower: Sequence[float], upper: Sequence[float]) -> str:
    """Return SVG path data of the area between two lines.

    The area is interrupted where `upper` is NaN.
    """
    parts = []
    floor = dict(zip(xs, lower, strict=True))
    for run in _runs(xs, upper):
        lower_edge = [(x, floor[x]) for x, _ in reversed(run)]
        parts.append("M" + " L".join(_point(*p) for p in (*run, *lower_edge)) + " Z")
    return " ".join(parts)


def bar_path(x: float, y: float, width: float, height: float, radius: float = 3) -> str:
    """Return SVG path data of a horizontal bar.

    The bar starts at `x` and is rounded at its far end.
    """
    r = max(0.0, min(radius, width, height / 2))
    return (
        f"M{number(x)} {number(y)} h{number(width - r)} q{number(r)} 0 {number(r)} {number(r)} "
        f"v{number(height - 2 * r)} q0 {number(r)} {number(-r)} {number(r)} h{number(r - width)} Z"
    )


def _point(x: float, y: float) -> str:
    return f"{number(x)} {number(y)}"


def _runs(xs: Sequence[float], ys: Sequence[float]) -> Iterator[list[tuple[float, float]]]:
    run: list[tuple[float, float]] = []
    for x, y in zip(xs, ys, strict=True):
        if math.isnan(y):
            if run:
                yield run
            run = []
        else:
            run.append((x, y))
    if run:
        yield run


def drawing(size: tuple[float, float], title: str, *children: str, class_: str, **attributes: str) -> str:
    """Return a complete SVG drawing, which scales with its container.

    Args:
        size: width and height in pixels.
        title: title for screen readers.
        children: markup of the elements.
        class_: CSS class of the drawing.
        attributes: further attributes of the `svg` element.
    """
    return element(
        "svg",
        *children,
        text="",
        viewBox=f"0 0 {number(size[0])} {number(size[1])}",
        role="img",
        aria_label=title,
        class_=class_,
        **attributes,
    )


@dataclass(frozen=True, slots=True)
class Frame:
    """Geometry of a chart in pixels: size of the drawing, and margins around the plot area."""

    width: float
    height: float
    left: float
    right: float
    top: float
    bottom: float

    @property
    def x1(self) -> float:
        """Right edge of the plot area."""
        return self.width - self.right

    @property
    def y1(self) -> float:
        """Lower edge of the plot area."""
        return self.height - self.bottom

    def axes(
        self,
        x: Scale,
        x_ticks: Sequence[float],
        x_text: Callable[[float], str],
        y: Scale,
        y_ticks: Sequence[float],
        y_text: Callable[[float], str],
    ) -> list[str]:
        """Return grid lines, base line and labels of both axes as markup.

        Args:
            x: scale of the x axis.
            x_ticks: data values of the ticks on the x axis.
            x_text: function that returns the label of a tick on the x axis.
            y: scale of the y axis.
            y_ticks: data values of the ticks on the y axis.
            y_text: function that returns the label of a tick on the y axis.
        """
        elements = [
            element("line", x1=self.left, x2=self.x1, y1=y(t), y2=y(t), class_="grid-line" if t else "base")
            for t in y_ticks
        ]
        elements += [
            element("text", text=y_text(t), x=self.left - 8, y=y(t) + 4, class_="tick", text_anchor="end")
            for t in y_ticks
        ]
        for tick in x_ticks:
            tick_x = x(tick)
            near_end = tick_x > self.x1 - 24
            elements.append(element("line", x1=tick_x, x2=tick_x, y1=self.y1, y2=self.y1 + 4, class_="base"))
            anchor = "start" if tick == 0 else "end" if near_end else "middle"
            elements.append(
                element(
                    "text", text=x_text(tick), x=tick_x, y=self.y1 + 18, class_="tick", text_anchor=anchor
                )
            )
        return elements
