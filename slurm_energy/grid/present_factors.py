"""Present carbon intensity and price as plain numbers.

They are used in the line of text that a job prints about its energy when it ends.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from slurm_energy.grid.amount_text import cost_text, grams_text
from slurm_energy.grid.footprint import GridFactors, kilowatt_hours
from slurm_energy.quantities import is_number

_MAX_TEXT = 120


@dataclass(frozen=True, slots=True)
class PresentFactors:
    """Carbon intensity, price and PUE at one time.

    Attributes:
        grams_per_kwh: carbon intensity; None if unknown.
        cost_per_kwh: price in `currency`; None if unknown.
        currency: currency of the price.
        pue: power usage effectiveness; None if unknown. Calculations then use 1.
        basis: provider and zone of the carbon intensity; empty if unknown.
    """

    grams_per_kwh: float | None = None
    cost_per_kwh: float | None = None
    currency: str = ""
    pue: float | None = None
    basis: str = ""

    @classmethod
    def of(cls, factors: GridFactors, time_s: float) -> PresentFactors:
        """Return the carbon intensity, price and PUE that `factors` states for a Unix time."""
        carbon, price = factors.carbon, factors.price
        sources = () if carbon is None else carbon.sources
        return cls(
            None if carbon is None else carbon.at(time_s),
            None if price is None else price.at(time_s),
            factors.currency,
            factors.pue,
            ", ".join(source.text for source in sources)[:_MAX_TEXT],
        )

    def text(self, joules: float) -> str:
        """Return emissions and cost of energy as clauses, each after `; `; empty if both are unknown.

        Args:
            joules: energy of the computers, without the PUE.
        """
        kwh = kilowatt_hours(joules) * (1.0 if self.pue is None else self.pue)
        clauses = ""
        if self.grams_per_kwh is not None:
            pue = "" if self.pue is None else f", PUE {self.pue:g}"
            clauses += f"; {grams_text(kwh * self.grams_per_kwh)} CO2e ({self.basis}{pue})"
        if self.cost_per_kwh is not None:
            clauses += f"; {cost_text(kwh * self.cost_per_kwh, self.currency)}"
        return clauses

    def to_json(self) -> dict[str, Any]:
        """Return the present carbon intensity, price and PUE as a JSON object."""
        return {
            "grams_per_kwh": self.grams_per_kwh,
            "cost_per_kwh": self.cost_per_kwh,
            "currency": self.currency,
            "pue": self.pue,
            "basis": self.basis,
        }

    @classmethod
    def from_json(cls, data: Any) -> PresentFactors:
        """Return the factors in a response of the controller; malformed values count as unknown."""
        values = data if isinstance(data, dict) else {}

        def number(key: str) -> float | None:
            value: Any = values.get(key)
            return float(value) if is_number(value) and math.isfinite(value) else None

        currency, basis = (
            value[:_MAX_TEXT] if isinstance(value := values.get(key), str) else ""
            for key in ("currency", "basis")
        )
        return cls(number("grams_per_kwh"), number("cost_per_kwh"), currency, number("pue"), basis)
