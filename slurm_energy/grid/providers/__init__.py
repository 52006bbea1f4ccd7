"""Formats of the providers of carbon intensities and prices: requests, and parsing of responses. No I/O."""

from __future__ import annotations

from typing import Final

from slurm_energy.grid.providers.base import GridProvider
from slurm_energy.grid.providers.electricity_maps import ElectricityMaps
from slurm_energy.grid.providers.entsoe import EntsoeCarbon, EntsoePrice
from slurm_energy.grid.providers.rte import RteEco2mix
from slurm_energy.grid.providers.uk_carbon_intensity import UkCarbonIntensity
from slurm_energy.grid.providers.watttime import WattTime
from slurm_energy.grid.units import GridQuantity

_ALL: Final[tuple[GridProvider, ...]] = (
    ElectricityMaps(),
    EntsoeCarbon(),
    EntsoePrice(),
    RteEco2mix(),
    UkCarbonIntensity(),
    WattTime(),
)
PROVIDERS: Final = {(provider.quantity, provider.name): provider for provider in _ALL}
"""All providers by quantity and the name in the configuration."""


def provider_of(quantity: GridQuantity, name: str) -> GridProvider | None:
    """Return the provider of a quantity by name; None for a local source, from which nothing is fetched."""
    return PROVIDERS.get((quantity, name))
