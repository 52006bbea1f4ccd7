"""Plots and bars for a terminal.

The plots use block characters, or ASCII on terminals that lack block characters.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from slurm_energy.reports.plots.axis import time_label, time_ticks, value_ticks, watt_label


@dataclass(frozen=True, slots=True)
class Glyphs:
    """Characters for drawing plots.

    Attributes:
        levels: levels in ascending order, from an empty to a full cell. They are used for the top cell of an
            area and for sparklines.
        tick, base, corner, line: characters of the axes and the reference line.
    """

    levels: str
    tick: str
    base: str
    corner: str
    line: str
    bar_full: str
    bar_empty: str
    arrow: str
    product: str


BLOCKS = Glyphs(" ▁▂▃▄▅▆▇█", "┤", "─", "┼", "╌", "█", "░", "→", "·")
ASCII = Glyphs(" .:-=+*%#", "|", "-", "+", "~", "#", ".", "->", "*")


def glyphs_for(encoding: str | None) -> Glyphs:
    """Return the characters for plots on a terminal: block characters, or ASCII.

    ASCII is returned if `encoding` cannot write all block characters.
    """
    try:
        (BLOCKS.levels + "┤─┼╌█░→·").encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return ASCII
    return BLOCKS


def area_plot(
    watts: Sequence[float],
    duration_s: float,
    glyphs: Glyphs,
    height: int = 8,
    reference: tuple[float, str] | None = None,
    margin: int = 0,
) -> list[str]:
    """Draw power over time as a filled area with both axes, and return the lines.

    Args:
        watts: one mean power per column of characters; NaN leaves the column empty.
        duration_s: seconds covered by all columns.
        glyphs: characters to draw with.
        height: rows of the area.
        reference: power and label of a dashed line, e.g. the power cap; None means no line.
        margin: minimum width of the labels at the left, in characters.
    """
    known_values = [value for value in watts if not math.isnan(value)]
    top = max([*known_values, reference[0] if reference else 0.0, 1e-9])
    ticks = value_ticks(top, 4)
    top = ticks[-1]
    labels = {round(height * tick / top): watt_label(tick, top) for tick in ticks}
    margin = max(margin, *(len(label) for label in labels.values()))
    marked = math.ceil(reference[0] / top * height - 1e-9) if reference else -1
    lines = []
    for row in range(height, 0, -1):
        line = reference[1] if reference and row == marked else None
        cells = _row(watts, top, height, row, glyphs, line)
        lines.append(f"{labels.get(row, ''):>{margin}} {glyphs.tick}{cells}".rstrip())
    lines.append(f"{labels[0]:>{margin}} {glyphs.corner}{glyphs.base * len(watts)}")
    lines.append(" " * (margin + 2) + _time_axis(len(watts), duration_s))
    return lines


def _row(watts: Sequence[float], top: float, height: int, row: int, glyphs: Glyphs, line: str | None) -> str:
    steps = len(glyphs.levels) - 1
    cells = []
    for value in watts:
        level = 0 if math.isnan(value) else round((value / top * height - (row - 1)) * steps)
        empty = glyphs.levels[0] if line is None else glyphs.line
        cells.append(empty if level <= 0 else glyphs.levels[min(level, steps)])
    return "".join(cells) + (f" {line}" if line else "")


def _time_axis(width: int, duration_s: float) -> str:
    """Return the line of time labels below a text chart.

    Each label begins in the column of its time. A label that would touch the previous label is left out.
    """
    text = ""
    for tick in time_ticks(duration_s, max(2, width // 12)):
        column = round(width * tick / duration_s) if duration_s > 0 else 0
        label = time_label(tick, duration_s)
        if (not text or column > len(text)) and column + len(label) <= width + 8:
            text = text.ljust(column) + label
    return text


def sparkline(watts: Sequence[float], top: float, glyphs: Glyphs) -> str:
    """Return a power series as one line of characters.

    The levels of the characters are from 0 to `top` watts. A blank means that the power is unknown.
    """
    steps = len(glyphs.levels) - 1
    return "".join(
        " "
        if math.isnan(value) or top <= 0
        else glyphs.levels[max(1, min(steps, round(value / top * steps)))]
        for value in watts
    )


def share_bar(share: float | None, width: int, glyphs: Glyphs) -> str:
    """Return a bar of `width` characters filled to `share` (0 to 1); empty if the share is None."""
    filled = 0 if share is None else max(0, min(width, round(share * width)))
    if share is not None and share > 0:
        filled = max(1, filled)
    return glyphs.bar_full * filled + glyphs.bar_empty * (width - filled)
