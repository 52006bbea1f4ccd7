"""Emissions and cost of an amount of energy, with remarks on how they were computed.

The remarks let a reader judge the values. All functions are pure.

The emissions may include a share of the emissions from the production of the hardware. This embodied share
is the term M of the Software Carbon Intensity, SCI = (E x I) + M (source document on profiling, section
7.2).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from slurm_energy.grid.factor import EnergyPart, GridAmount, GridFactor
from slurm_energy.quantities import JOULES_PER_KWH

DEFAULT_CURRENCY: Final = "EUR"
MAX_SAMPLES: Final = 20_000
"""Maximum number of samples of a series in a response."""

SECONDS_PER_YEAR: Final = 365.25 * 86400.0
_GRAMS_PER_KG: Final = 1000.0


@dataclass(frozen=True, slots=True)
class Reservation:
    """Hardware that a job reserved, from which the job's share of the embodied emissions is computed.

    Attributes:
        node_seconds: reserved node-seconds. The job may have reserved only some of the CPUs of a node.
        gpu_seconds: reserved GPU-seconds.
        cpu_seconds: reserved CPU-seconds; None if unknown. Each node then counts as wholly reserved.
    """

    node_seconds: float
    gpu_seconds: float = 0.0
    cpu_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class EmbodiedCarbon:
    """Emissions from the manufacture of the hardware, spread evenly over its lifetime.

    Attributes:
        node_kg: kg of CO2 equivalents per node without its GPUs.
        gpu_kg: kg of CO2 equivalents per GPU.
        lifetime_years: years for which the hardware is in use.
        node_cpus: CPUs of a node as Slurm counts them. None means that a job on a node is always charged for
            the whole node.
    """

    node_kg: float
    gpu_kg: float
    lifetime_years: float
    node_cpus: int | None = None

    def grams(self, reservation: Reservation) -> float:
        """Return the embodied emissions of reserved hardware in grams.

        Embodied emissions are the emissions from the production of the hardware, of which the reservation
        gets a share by its time. They are the term M of the Software Carbon Intensity.
        """
        node_s = reservation.node_seconds
        if self.node_cpus is not None and reservation.cpu_seconds is not None:
            node_s = min(node_s, reservation.cpu_seconds / self.node_cpus)
        kilograms_s = self.node_kg * node_s + self.gpu_kg * reservation.gpu_seconds
        return kilograms_s * _GRAMS_PER_KG / (self.lifetime_years * SECONDS_PER_YEAR)


@dataclass(frozen=True, slots=True)
class Footprint:
    """Emissions and cost of energy, as computed by `GridFactors.footprint`.

    Attributes:
        energy_joules: energy of the computers; None if unknown.
        facility_joules: energy that the site uses for the computers, which is `energy_joules` multiplied by
            the PUE.
        start_s: start of the time in which the energy was used, in Unix time; None if there is no energy.
        end_s: end of the time in which the energy was used, in Unix time.
        carbon: emissions of `facility_joules` in grams; None if no carbon intensity is configured.
        cost: cost of `facility_joules` in units of the currency; None if no price is configured.
        embodied_grams: embodied emissions of the reserved hardware; None if they are not configured or not
            requested.
        factors: the factors from which the figures were computed.
    """

    energy_joules: float | None
    facility_joules: float | None
    start_s: float | None
    end_s: float | None
    carbon: GridAmount | None
    cost: GridAmount | None
    embodied_grams: float | None
    factors: GridFactors

    @property
    def pue(self) -> float | None:
        """Power usage effectiveness of the site.

        None means that the PUE is unknown. The figures then include the computers only.
        """
        return self.factors.pue

    @property
    def currency(self) -> str:
        """Currency of the cost."""
        return self.factors.currency

    @property
    def carbon_basis(self) -> str:
        """Provider, zone and time resolution of the emissions; empty if no carbon intensity is configured."""
        factor = self.factors.carbon
        return "" if factor is None or self.carbon is None else factor.basis(self.carbon)

    @property
    def cost_basis(self) -> str:
        """Provider, zone and time resolution of the cost; empty if no price is configured."""
        factor = self.factors.price
        return "" if factor is None or self.cost is None else factor.basis(self.cost)

    @property
    def grams(self) -> float | None:
        """Grams of CO2 equivalents from the energy, without embodied emissions; None if unknown."""
        return None if self.carbon is None else self.carbon.amount

    @property
    def total_grams(self) -> float | None:
        """Emissions in grams: emissions of the used energy plus embodied emissions of the hardware.

        The formula is E x I + M, with the energy E, the carbon intensity I and the embodied emissions M. The
        result is None if one of the two terms is unknown.
        """
        if self.grams is None or self.embodied_grams is None:
            return None
        return self.grams + self.embodied_grams

    @property
    def cost_amount(self) -> float | None:
        """Cost in units of the currency; None if unknown."""
        return None if self.cost is None else self.cost.amount

    @property
    def pue_text(self) -> str:
        """The PUE for people, such as `PUE 1.2` or `without PUE`."""
        return "without PUE" if self.pue is None else f"PUE {self.pue:g}"

    @property
    def basis(self) -> str:
        """One line with origin and time resolution of emissions and cost, and the PUE."""
        parts = []
        if self.carbon_basis:
            parts.append(f"CO2e: {self.carbon_basis}")
        if self.cost_basis:
            parts.append(f"cost: {self.cost_basis}")
        if not parts:
            return ""
        if self.embodied_grams is not None:
            parts.append("embodied share separate")
        return "; ".join([*parts, self.pue_text])

    def to_json(self) -> dict[str, Any]:
        """Return the footprint as a JSON object; unknown figures are null."""
        return {
            "energy_joules": self.energy_joules,
            "facility_joules": self.facility_joules,
            "start": self.start_s,
            "end": self.end_s,
            "pue": self.pue,
            "co2e_grams": self.grams,
            "co2e": _amount_json(self.carbon, self.carbon_basis),
            "embodied_co2e_grams": self.embodied_grams,
            "total_co2e_grams": self.total_grams,
            "cost": self.cost_amount,
            "currency": self.currency,
            "price": _amount_json(self.cost, self.cost_basis),
        }


@dataclass(frozen=True, slots=True)
class GridFactors:
    """Factors and PUE that convert energy to emissions and cost: the result of `GET /v1/grid`.

    Attributes:
        carbon: carbon intensity in g/kWh; None if not configured.
        price: price in units of `currency` per kWh; None if not configured.
        pue: power usage effectiveness of the site; None if unknown.
        embodied: embodied emissions of the hardware; None if not configured.
        currency: currency of the price.
    """

    carbon: GridFactor | None = None
    price: GridFactor | None = None
    pue: float | None = None
    embodied: EmbodiedCarbon | None = None
    currency: str = DEFAULT_CURRENCY

    @property
    def is_empty(self) -> bool:
        """Whether the site has configured neither carbon intensity, price, PUE nor embodied emissions."""
        return all(part is None for part in (self.carbon, self.price, self.pue, self.embodied))

    def are_constant(self, start_s: float, end_s: float) -> bool:
        """Return whether carbon intensity and price are constant from `start_s` to `end_s`.

        The footprint then depends only on the sum of the energy.
        """
        present = (factor for factor in (self.carbon, self.price) if factor is not None)
        return all(factor.is_constant_between(start_s, end_s) for factor in present)

    def footprint(self, parts: Iterable[EnergyPart], reservation: Reservation | None = None) -> Footprint:
        """Return the emissions and cost of energy. The PUE adds the energy of cooling and losses.

        Args:
            parts: energy of the computers, without the PUE.
            reservation: hardware that was reserved, for the embodied emissions; None leaves out the
                embodied emissions.
        """
        kept: Sequence[EnergyPart] = parts if isinstance(parts, (list, tuple)) else list(parts)
        energy = _total(kept)
        scale = 1.0 if self.pue is None else self.pue
        carbon = None if self.carbon is None else _scaled(self.carbon.amount(kept), scale)
        cost = None if self.price is None else _scaled(self.price.amount(kept), scale)
        embodied = None if self.embodied is None or reservation is None else self.embodied.grams(reservation)
        return Footprint(
            energy_joules=energy,
            facility_joules=None if energy is None else energy * scale,
            start_s=min((start for start, _, _ in kept), default=None),
            end_s=max((end for _, end, _ in kept), default=None),
            carbon=carbon,
            cost=cost,
            embodied_grams=embodied,
            factors=self,
        )

    def thinned(self, max_samples: int = MAX_SAMPLES) -> GridFactors:
        """Return a copy of the factors of emissions and cost with fewer samples.

        Each series has at most about `max_samples` samples. Each of these is the mean of several original
        samples.
        """
        carbon = None if self.carbon is None else self.carbon.thinned(max_samples)
        price = None if self.price is None else self.price.thinned(max_samples)
        return replace(self, carbon=carbon, price=price)

    def to_json(self) -> dict[str, Any]:
        """Return the factors as a JSON object."""
        embodied = self.embodied
        return {
            "carbon": None if self.carbon is None else self.carbon.to_json(),
            "price": None if self.price is None else self.price.to_json(),
            "pue": self.pue,
            "embodied": None
            if embodied is None
            else {
                "node_kg": embodied.node_kg,
                "gpu_kg": embodied.gpu_kg,
                "lifetime_years": embodied.lifetime_years,
                "node_cpus": embodied.node_cpus,
            },
            "currency": self.currency,
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> GridFactors:
        """Return the factors that convert energy to emissions and cost, from a JSON object.

        The method `to_json` makes such objects.

        Raises:
            ValueError, TypeError, KeyError: the object has another form.
        """
        carbon, price, embodied = value["carbon"], value["price"], value["embodied"]
        pue = value["pue"]
        return cls(
            None if carbon is None else GridFactor.from_json(carbon),
            None if price is None else GridFactor.from_json(price),
            None if pue is None else float(pue),
            None if embodied is None else _embodied_from_json(embodied),
            str(value["currency"]),
        )


def kilowatt_hours(joules: float) -> float:
    """Return joules as kWh; 3,600,000 J are 1 kWh."""
    return joules / JOULES_PER_KWH


def _embodied_from_json(value: dict[str, Any]) -> EmbodiedCarbon:
    cpus = value.get("node_cpus")
    return EmbodiedCarbon(
        float(value["node_kg"]),
        float(value["gpu_kg"]),
        float(value["lifetime_years"]),
        None if cpus is None else int(cpus),
    )


def _total(parts: Sequence[EnergyPart]) -> float | None:
    total = 0.0
    for _, _, joules in parts:
        if joules is None:
            return None
        total += joules
    return total


def _scaled(amount: GridAmount, scale: float) -> GridAmount:
    return GridAmount(
        None if amount.amount is None else amount.amount * scale,
        amount.known_amount * scale,
        amount.known_share,
        amount.fallback_share,
    )


def _amount_json(amount: GridAmount | None, basis: str) -> dict[str, Any] | None:
    if amount is None:
        return None
    return {
        "amount": amount.amount,
        "known_amount": amount.known_amount,
        "known_share": amount.known_share,
        "fallback_share": amount.fallback_share,
        "basis": basis,
    }
