"""Electricity price and carbon intensity of the simulated sites of a scenario, over time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from slurm_energy.placement.sites import Site
from slurm_energy.signals import SignalColumns, SignalForecast
from slurm_energy.simulator.power.step_function import StepFunction, read_steps

if TYPE_CHECKING:
    from slurm_energy.simulator.scenario import Scenario
    from slurm_energy.simulator.sites.site_schema import SiteSection

_SLOT_S: Final = 3600.0
_SLOTS_AFTER: Final = 48
_MBIT: Final = 1e6 / 8


@dataclass(frozen=True, slots=True)
class SiteSeries:
    """Electricity price and carbon intensity of a site over the simulated time.

    The price is per MWh, the carbon intensity in g CO2e per kWh. None means unknown.
    """

    price: StepFunction | None
    carbon: StepFunction | None

    @classmethod
    def read(cls, scenario: Scenario, site: SiteSection) -> SiteSeries:
        """Read the electricity price and the carbon intensity of a simulated site over time.

        Raises:
            UsageError: a file cannot be read.
        """
        price = _steps(scenario, site.price_file, "price", site.price_per_mwh)
        return cls(price, _steps(scenario, site.carbon_file, "gco2_per_kwh", site.carbon_g_per_kwh))

    def site(self, name: str, section: SiteSection, start_unix_s: float, last_s: float) -> Site:
        """Return a site (cluster at one location) with its hourly prices and carbon intensities.

        The site is an input of the placement of jobs on sites. The hourly values extend until two days after
        `last_s`.
        """
        slots = math.ceil(last_s / _SLOT_S) + _SLOTS_AFTER
        columns: dict[str, Any] = {}
        for column, steps, factor in (
            ("price_per_kwh", self.price, 1e-3),
            ("carbon_g_per_kwh", self.carbon, 1.0),
        ):
            if steps is not None:
                columns[column] = _hourly(steps, slots, factor)
        return Site(
            name,
            SignalColumns(start_unix_s, _SLOT_S, **columns),
            section.pue,
            section.bandwidth_mbit_per_s * _MBIT,
            section.transfer_kwh_per_gb,
            section.latitude,
            section.longitude,
        )


def _steps(scenario: Scenario, file: str, column: str, constant: float) -> StepFunction | None:
    if file:
        return read_steps(scenario.beside(file), column)
    return None if math.isnan(constant) else StepFunction.constant(constant)


def _hourly(steps: StepFunction, slots: int, factor: float) -> SignalForecast:
    rows = np.searchsorted(steps.times_s, np.arange(slots) * _SLOT_S, "right") - 1
    return SignalForecast(factor * steps.values[np.maximum(0, rows)], np.zeros(slots), "known ahead")
