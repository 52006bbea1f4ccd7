"""Formatting of numbers with decimal prefixes and units, for table columns and for sentences."""

from __future__ import annotations

import math
from dataclasses import dataclass

from slurm_energy.errors import UsageError
from slurm_energy.quantities import shown

PREFIXES = ("", "K", "M", "G", "T", "P")


@dataclass(frozen=True, slots=True)
class DisplayUnits:
    """Decimal prefixes of the numbers in table columns.

    Attributes:
        prefix: one of K, M, G, T, P for all numbers; an empty value means that each number gets the prefix
            that suits it.
        convert: if False, plain numbers in the base unit are written unless `prefix` is set, as in sacct.
    """

    prefix: str = ""
    convert: bool = True

    @classmethod
    def parse(cls, units: str | None, noconvert: bool) -> DisplayUnits:
        """Return the display units that the options --units and --noconvert select.

        Raises:
            UsageError: the unit is not one of K, M, G, T, P.
        """
        if units is not None and units not in PREFIXES[1:]:
            raise UsageError(f"--units: '{shown(units)}' is not a unit", todo="use one of K, M, G, T, P")
        return cls(units or "", not noconvert)

    @property
    def fixed(self) -> bool:
        """Whether all figures of a column have the same unit, so that the unit is shown in the header."""
        return bool(self.prefix) or not self.convert

    def name(self, unit: str) -> str:
        """Return the name of a unit with the prefix that the whole column uses.

        For example, the result is `kJ` for the unit `J` and the prefix k.
        """
        return si_prefix(self.prefix) + unit

    def text(self, value: float | None, unit: str) -> str:
        """Return a number as text for a column; empty for None.

        If the user has chosen one prefix for all numbers of the column (`fixed`), the text is a plain
        number. Otherwise the text is the number with two decimals (none for an integer, as in sacct), a
        prefix and the unit.
        """
        if value is None:
            return ""
        if self.fixed:
            return plain(value / 1000.0 ** PREFIXES.index(self.prefix), 6 if self.prefix else 3)
        index = _index(value)
        scaled = value / 1000.0**index
        number = f"{scaled:.0f}" if scaled == int(scaled) else f"{scaled:.2f}"
        return number + si_prefix(PREFIXES[index]) + unit


def si_prefix(prefix: str) -> str:
    """Return the SI spelling of a prefix. K, as in sacct, becomes k."""
    return "k" if prefix == "K" else prefix


def plain(value: float | None, decimals: int = 3) -> str:
    """Return a number as text without prefix and trailing zeros; empty for None."""
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


def with_unit(value: float | None, unit: str) -> str:
    """Return a number with three significant digits and unit for a sentence: `1.24 kJ`, `2.10 MJ·s`.

    Args:
        value: number in `unit`; None gives the text `unknown`.
        unit: SI unit that can have a decimal prefix.
    """
    if value is None:
        return "unknown"
    magnitude, index = abs(value), 0
    while float(f"{magnitude:.3g}") >= 1000 and index < len(PREFIXES) - 1:
        magnitude /= 1000
        index += 1
    decimals = 0 if magnitude >= 100 or magnitude == 0 else 1 if float(f"{magnitude:.3g}") >= 10 else 2
    sign = "-" if value < 0 else ""
    return f"{sign}{magnitude:.{decimals}f} {si_prefix(PREFIXES[index])}{unit}"


def figure(value: float | None) -> str:
    """Return a number, which may have any size, as text of at most 10 characters; empty for None.

    Numbers around 1 have four decimals. Very small and very large numbers are in scientific notation, not
    with a decimal prefix, because the whole column has one unit.
    """
    if value is None:
        return ""
    size = abs(value)
    if size == 0 or not math.isfinite(size):
        return f"{value:g}"
    if size < 0.001 or size >= 1e6:
        return f"{value:.{3 if 1e-99 < size < 1e99 else 2}e}"
    return f"{value:.4f}" if size < 10 else f"{value:.2f}" if size < 1000 else f"{value:.0f}"


def percent(part: float | None, whole: float | None, decimals: int = 1) -> str:
    """Return `part` as a percentage of `whole`, as text; empty if one value is unknown."""
    if part is None or not whole:
        return ""
    return f"{100 * part / whole:.{decimals}f} %"
