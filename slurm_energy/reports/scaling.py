"""Figures as text with decimal prefixes, for columns (sacct's way) and for sentences (with a unit)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from slurm_energy.errors import UsageError
from slurm_energy.quantities import format_scaled, shown

PREFIXES = ("", "K", "M", "G", "T", "P")


@dataclass(frozen=True, slots=True)
class Units:
    """How columns scale their figures.

    Attributes:
        prefix: one of K, M, G, T, P to use for all; empty picks one per figure.
        convert: False prints plain numbers; `prefix` takes precedence, as in sacct.
    """

    prefix: str = ""
    convert: bool = True

    @classmethod
    def parse(cls, units: str | None, noconvert: bool) -> Units:
        """Read --units and --noconvert.

        Raises:
            UsageError: the unit is not one of K, M, G, T, P.
        """
        if units is not None and units not in PREFIXES[1:]:
            raise UsageError(f"--units: '{shown(units)}' is not a unit", todo="use one of K, M, G, T, P")
        return cls(units or "", not noconvert)

    def text(self, value: float | None) -> str:
        """Write a figure for a column; empty for None.

        Two decimals and a prefix; none are shown for a whole number, as sacct does.
        """
        if value is None:
            return ""
        if not self.prefix and not self.convert:
            return plain(value)
        index = PREFIXES.index(self.prefix) if self.prefix else _index(value)
        scaled = value / 1000.0**index
        number = f"{scaled:.0f}" if scaled == int(scaled) else f"{scaled:.2f}"
        return number + PREFIXES[index]


def plain(value: float | None, decimals: int = 3) -> str:
    """Write a number without prefix and without trailing zeros; empty for None."""
    if value is None:
        return ""
    text = f"{value:.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _index(value: float) -> int:
    magnitude, index = abs(value), 0
    while round(magnitude, 2) >= 1000 and index < len(PREFIXES) - 1:
        magnitude /= 1000
        index += 1
    return index


def with_unit(value: float | None, unit: str, unknown: str = "unknown") -> str:
    """Write a figure for a sentence, three significant digits: `1.24 kJ`, `98.5 W`, `2.10 MJ·s`.

    Args:
        value: in `unit`.
        unit: SI unit that takes a prefix.
        unknown: text for None.
    """
    if value is None:
        return unknown
    magnitude, index = abs(value), 0
    while float(f"{magnitude:.3g}") >= 1000 and index < len(PREFIXES) - 1:
        magnitude /= 1000
        index += 1
    decimals = 0 if magnitude >= 100 or magnitude == 0 else 1 if float(f"{magnitude:.3g}") >= 10 else 2
    sign = "-" if value < 0 else ""
    return f"{sign}{magnitude:.{decimals}f} {PREFIXES[index].replace('K', 'k')}{unit}"


def figure(value: float | None) -> str:
    """Write a number of any size in at most 10 characters; empty for None.

    Factors around 1 keep four digits after the point, large figures get a decimal prefix.
    """
    if value is None:
        return ""
    size = abs(value)
    if size == 0 or not math.isfinite(size):
        return f"{value:g}"
    if size < 0.001:
        return f"{value:.2e}"
    return f"{value:.4f}" if size < 10 else f"{value:.2f}" if size < 1000 else format_scaled(value)


def percent(part: float | None, whole: float | None, decimals: int = 1) -> str:
    """Write a share in percent; empty when it is not known."""
    if part is None or not whole:
        return ""
    return f"{100 * part / whole:.{decimals}f} %"
