"""Units of carbon intensities and prices.

The module contains the accepted spellings of units, and the factors that convert values to internal units.
The internal unit of carbon intensity is grams of CO2 equivalents per kWh. The internal unit of prices is
units of the currency per kWh.
"""

from __future__ import annotations

import math
import re
from enum import StrEnum
from typing import Final

GRAMS_PER_POUND: Final = 453.59237
MAX_GRAMS_PER_KWH: Final = 10_000.0
"""Maximum plausible carbon intensity. Electricity from coal alone emits about 1,000 g/kWh."""
MAX_PRICE_PER_KWH: Final = 1e6
"""Maximum plausible price, large enough for every currency."""
CURRENCY: Final = re.compile(r"[A-Z]{3}")


class GridQuantity(StrEnum):
    """Quantity of the electricity grid that a time series contains: carbon intensity or price."""

    CARBON = "carbon"
    PRICE = "price"


_CARBON_UNITS: Final = {
    "g/kwh": 1.0,
    "gco2/kwh": 1.0,
    "gco2e/kwh": 1.0,
    "gco2eq/kwh": 1.0,
    "kg/mwh": 1.0,
    "kg/kwh": 1000.0,
    "t/mwh": 1000.0,
    "lb/mwh": GRAMS_PER_POUND / 1000.0,
    "lbs_co2/mwh": GRAMS_PER_POUND / 1000.0,
}


def carbon_unit_factor(unit: str) -> float:
    """Return the factor that converts a carbon intensity in the given unit to grams per kWh.

    Args:
        unit: unit such as `g/kWh`, `gCO2eq/kWh`, `kg/MWh` or `lb/MWh`; `_per_` may replace the slash.

    Raises:
        ValueError: the text is not a unit of carbon intensity.
    """
    factor = _CARBON_UNITS.get(_folded(unit))
    if factor is None:
        raise ValueError(f"'{unit}' is not a unit of carbon intensity such as g/kWh, kg/MWh or lb/MWh")
    return factor


def price_unit_factor(unit: str, currency: str) -> float:
    """Return the factor that converts a price in the given unit to the price per kWh.

    Args:
        unit: unit such as `EUR/kWh`, `EUR/MWh` or `ct/kWh`; `_per_` may replace the slash.
        currency: currency of the price, three capital letters.

    Raises:
        ValueError: the text is not a unit of price in this currency.
    """
    money, _, energy = _folded(unit).partition("/")
    scale = {"kwh": 1.0, "mwh": 1e-3}.get(energy)
    if scale is None or money not in (currency.lower(), "ct", "cent"):
        raise ValueError(f"'{unit}' is not a unit of price such as {currency}/kWh, {currency}/MWh or ct/kWh")
    return scale if money == currency.lower() else scale / 100.0


def check_value(quantity: GridQuantity, value: float) -> str | None:
    """Check a value of a carbon intensity or price for plausibility.

    Carbon intensities must not be negative; prices may be. Return the reason why the value is implausible;
    None for a plausible value.
    """
    if not math.isfinite(value):
        return "must be a finite number"
    if quantity is GridQuantity.CARBON and not 0 <= value <= MAX_GRAMS_PER_KWH:
        return f"must be a carbon intensity from 0 to {MAX_GRAMS_PER_KWH:g} g/kWh"
    if quantity is GridQuantity.PRICE and abs(value) > MAX_PRICE_PER_KWH:
        return f"must be a price of at most {MAX_PRICE_PER_KWH:g} per kWh"
    return None


def _folded(unit: str) -> str:
    return unit.strip().lower().replace("_per_", "/").replace(" ", "")
