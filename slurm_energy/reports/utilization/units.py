"""Units of `senergy report`, and the text of energies, times and percentages in these units.

The option -t selects the units.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from slurm_energy.errors import UsageError
from slurm_energy.quantities import shown
from slurm_energy.spelling import suggestion_or_list


class EnergyUnit(StrEnum):
    """A unit of energy."""

    JOULE = "J"
    KILOJOULE = "kJ"
    MEGAJOULE = "MJ"
    WATT_HOUR = "Wh"
    KILOWATT_HOUR = "kWh"
    MEGAWATT_HOUR = "MWh"

    @property
    def microjoules(self) -> int:
        """Microjoules in one unit."""
        return _MICROJOULES[self]


_MICROJOULES: Final = {
    EnergyUnit.JOULE: 10**6,
    EnergyUnit.KILOJOULE: 10**9,
    EnergyUnit.MEGAJOULE: 10**12,
    EnergyUnit.WATT_HOUR: 36 * 10**8,
    EnergyUnit.KILOWATT_HOUR: 36 * 10**11,
    EnergyUnit.MEGAWATT_HOUR: 36 * 10**14,
}


class TimeUnit(StrEnum):
    """A unit of CPU and GPU time."""

    SECONDS = "Seconds"
    MINUTES = "Minutes"
    HOURS = "Hours"

    @property
    def seconds(self) -> int:
        """Seconds in one unit."""
        return {TimeUnit.SECONDS: 1, TimeUnit.MINUTES: 60, TimeUnit.HOURS: 3600}[self]


class PercentMode(StrEnum):
    """Whether values are printed as amounts, as percentages of the total, or as both.

    Attributes:
        NONE: `12`
        ONLY: `3.45%`
        BOTH: `12(3.45%)`
    """

    NONE = "none"
    ONLY = "only"
    BOTH = "both"


# Name, minimum length of its abbreviation, unit and mode, in the order in which sreport compares them.
_TIME_FORMATS: Final = (
    ("SecPer", 6, TimeUnit.SECONDS, PercentMode.BOTH),
    ("MinPer", 6, TimeUnit.MINUTES, PercentMode.BOTH),
    ("HourPer", 6, TimeUnit.HOURS, PercentMode.BOTH),
    ("Seconds", 1, TimeUnit.SECONDS, PercentMode.NONE),
    ("Minutes", 1, TimeUnit.MINUTES, PercentMode.NONE),
    ("Hours", 1, TimeUnit.HOURS, PercentMode.NONE),
    ("Percent", 1, TimeUnit.MINUTES, PercentMode.ONLY),
)
# sreport prints joules with -t Seconds, and with -t Hours joules / 3600, which are Wh.
_ENERGY_OF_TIME: Final = {
    TimeUnit.SECONDS: EnergyUnit.JOULE,
    TimeUnit.MINUTES: EnergyUnit.KILOWATT_HOUR,
    TimeUnit.HOURS: EnergyUnit.WATT_HOUR,
}
_DECIMALS: Final = {EnergyUnit.JOULE: (0, 0), EnergyUnit.KILOJOULE: (3, 3), EnergyUnit.WATT_HOUR: (3, 3)}
_EXACT_DECIMALS: Final = {
    EnergyUnit.JOULE: 6,
    EnergyUnit.KILOJOULE: 9,
    EnergyUnit.MEGAJOULE: 12,
    EnergyUnit.WATT_HOUR: 9,
    EnergyUnit.KILOWATT_HOUR: 12,
    EnergyUnit.MEGAWATT_HOUR: 15,
}
_FINE_BELOW: Final = 100
_WHOLE_FROM: Final = 100_000


@dataclass(frozen=True, slots=True)
class ReportUnits:
    """The units of a report.

    Attributes:
        time: unit in which CPU and GPU times are printed.
        energy: unit in which energies are printed.
        percent: whether amounts, percentages or both are printed.
    """

    time: TimeUnit = TimeUnit.MINUTES
    energy: EnergyUnit = EnergyUnit.KILOWATT_HOUR
    percent: PercentMode = PercentMode.NONE

    @classmethod
    def parse(cls, text: str) -> ReportUnits:
        """Return the units of a value of -t: a time format of sreport, a unit of energy, or both.

        A time format without a unit of energy also sets that unit: `Seconds` sets J, `Hours` Wh, and the
        others kWh.

        Raises:
            UsageError: a word is neither a time format nor a unit of energy, or two words set the same unit.
        """
        energy: EnergyUnit | None = None
        time: tuple[TimeUnit, PercentMode] | None = None
        for word in (part.strip() for part in text.split(",")):
            unit = _energy_unit(word)
            if unit is not None and energy is None:
                energy = unit
            elif unit is None and time is None:
                time = _time_format(word)
            else:
                raise UsageError(
                    f"-t: '{shown(text)}' names two units of {'time' if unit is None else 'energy'}",
                    todo="write one time format, one unit of energy, or both: -t Hours,kWh",
                )
        time_unit, percent = time or (TimeUnit.MINUTES, PercentMode.NONE)
        return cls(time_unit, energy or _ENERGY_OF_TIME[time_unit], percent)


def _energy_unit(word: str) -> EnergyUnit | None:
    return next((unit for unit in EnergyUnit if unit.lower() == word.lower()), None)


def _time_format(word: str) -> tuple[TimeUnit, PercentMode]:
    for name, min_length, unit, percent in _TIME_FORMATS:
        if len(word) >= min_length and name.lower().startswith(word.lower()):
            return unit, percent
    names = [name for name, *_ in _TIME_FORMATS] + [*EnergyUnit]
    raise UsageError(f"-t: '{shown(word)}' is not a unit", todo=suggestion_or_list(word, names))


def scaled_text(value: int, divisor: int, decimals: int) -> str:
    """Return `value / divisor` with a given number of decimals.

    The result is rounded half to even in integer arithmetic.
    """
    scaled, rest = divmod(abs(value) * 10**decimals, divisor)
    if 2 * rest > divisor or (2 * rest == divisor and scaled % 2):
        scaled += 1
    digits = str(scaled).rjust(decimals + 1, "0")
    sign = "-" if value < 0 and scaled else ""
    return sign + (f"{digits[:-decimals]}.{digits[-decimals:]}" if decimals else digits)


def exact_energy(microjoules: int, unit: EnergyUnit) -> str:
    """Return an energy as text for programs, without trailing zeros.

    The text is exact in the units J, kJ and MJ.
    """
    text = scaled_text(microjoules, unit.microjoules, _EXACT_DECIMALS[unit])
    return text.rstrip("0").rstrip(".")


def energy_decimals(values: Iterable[int], unit: EnergyUnit) -> int:
    """Return with how many decimals a column of energies is shown.

    The number depends on the largest value, so that the column stays narrow. Joules are always whole
    numbers.

    Args:
        values: the energies in microjoules.
        unit: unit of the column.
    """
    highest = max((abs(value) for value in values), default=0) / unit.microjoules
    fine, middle = _DECIMALS.get(unit, (6, 3))
    return fine if highest < _FINE_BELOW else middle if highest < _WHOLE_FROM else 0


def percent_text(value: float, total: float) -> str:
    """Return `value` in percent of `total` as sreport prints it. A total of 0 counts as 1."""
    return f"{100 * value / (total or 1):.2f}%"
