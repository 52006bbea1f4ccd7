"""Conversion of emissions and amounts of money to text.

Numbers are rounded to a few digits. The text of an unknown value is empty.
"""

from __future__ import annotations

import math

from slurm_energy.quantities import JOULES_PER_KWH


def grams_text(grams: float | None) -> str:
    """Return emissions with unit: `0 g`, `420 mg`, `12.3 g`, `1.24 kg`, `3.40 t`; empty if unknown."""
    if grams is None:
        return ""
    magnitude = abs(grams)
    if magnitude == 0:
        return "0 g"
    if magnitude < 1:
        return f"{grams * 1e3:.3g} mg"
    for limit, divisor, unit in ((999.5, 1.0, "g"), (999.5e3, 1e3, "kg")):
        if magnitude < limit:
            return f"{_three_digits(grams / divisor)} {unit}"
    return f"{_three_digits(grams / 1e6)} t"


def cost_text(amount: float | None, currency: str) -> str:
    """Return an amount of money with its currency: `1.17 EUR`, `0.0042 EUR`; empty if unknown.

    Amounts below 0.01 have two significant digits, so that the cost of a short job is not rounded to 0.
    """
    if amount is None:
        return ""
    if amount == 0 or abs(amount) >= 0.00995:
        return f"{amount:.2f} {currency}"
    text = f"{amount:.2g}"
    return f"{float(text):.10f}".rstrip("0") + f" {currency}" if "e" in text else f"{text} {currency}"


def resource_text(resource: str, amount: float | None, unit: str) -> str:
    """Return an amount of a quota as text: `500 kWh`, `12.5 kg CO2e`, `80.00 EUR`; empty if unknown.

    Args:
        resource: `energy` in joules, `carbon` in grams, or `cost`.
        amount: amount of the resource.
        unit: currency of a cost.
    """
    if amount is None:
        return ""
    if resource == "energy":
        kilowatt_hours = amount / JOULES_PER_KWH
        return f"{kilowatt_hours:.0f} kWh" if kilowatt_hours >= 1000 else f"{kilowatt_hours:.4g} kWh"
    return f"{grams_text(amount)} CO2e" if resource == "carbon" else cost_text(amount, unit)


def percent_text(percent: float | None) -> str:
    """Return the used percentage of a quota as text; empty if unknown.

    The percentage is rounded down, so that 100 % means that the whole quota is used.
    """
    return "" if percent is None else f"{math.floor(percent * 10.0 + 1e-6) / 10.0:.10g} %"


def _three_digits(value: float) -> str:
    magnitude = abs(value)
    return f"{value:.2f}" if magnitude < 9.995 else f"{value:.1f}" if magnitude < 99.95 else f"{value:.0f}"
