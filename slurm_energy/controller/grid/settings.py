"""Settings of the sources of carbon intensities and prices.

The settings of both quantities have the same form.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from slurm_energy.accounting.grid_values import SeriesKey
from slurm_energy.config import Config
from slurm_energy.grid.providers import provider_of
from slurm_energy.grid.providers.base import GridProvider
from slurm_energy.grid.units import GridQuantity

_DAY_S = 86400.0


@dataclass(frozen=True, slots=True)
class GridSettings:
    """Settings of a source of carbon intensities or prices.

    Attributes:
        quantity: carbon intensity or price.
        cluster: Slurm's ClusterName.
        provider_name: name of the source in the configuration.
        zone: zone in the provider's notation; an empty value means that no zone is configured, and the
            provider has no default zone.
        other_zones: further zones whose values are fetched.
        unit: unit of the values, `g/kWh` or a currency per kWh.
        constant: configured constant value per kWh; None means that no constant is configured.
        file: path of a CSV file with values over time.
        max_age_s: time for which a value of the file applies if no newer value follows; None means twice the
            usual step between values.
        base_url: base URL of the provider without a slash at the end.
        user: user name for providers with a login.
        token_file: path of a file with a token or password; None means that the provider needs no token.
        refresh_s: seconds between two queries.
        backfill_s: age in seconds up to which missing past values are fetched.
    """

    quantity: GridQuantity
    cluster: str
    provider_name: str
    zone: str
    other_zones: tuple[str, ...]
    unit: str
    constant: float | None
    file: Path | None
    max_age_s: float | None
    base_url: str
    user: str
    token_file: Path | None
    refresh_s: float
    backfill_s: float

    @property
    def provider(self) -> GridProvider | None:
        """The provider from which values are fetched; None means that the source is a constant or a file."""
        return provider_of(self.quantity, self.provider_name)

    def key(self, zone: str = "") -> SeriesKey:
        """Return the key under which a series of carbon intensity or price is stored in the database.

        The default of `zone` is the zone of the site.
        """
        return SeriesKey(self.cluster, self.quantity, self.provider_name, zone or self.zone, self.unit)


def carbon_settings(config: Config) -> GridSettings:
    """Return the settings of the carbon intensity."""
    table = config.carbon
    provider = provider_of(GridQuantity.CARBON, table.provider)
    return GridSettings(
        quantity=GridQuantity.CARBON,
        cluster=config.cluster.name,
        provider_name=table.provider,
        zone=table.zone or (provider.default_zone if provider else ""),
        other_zones=tuple(table.other_zones),
        unit="g/kWh",
        constant=table.g_per_kwh,
        file=table.file,
        max_age_s=table.max_age_s,
        base_url=_base_url(table.url, provider),
        user=table.user,
        token_file=table.token_file,
        refresh_s=table.refresh_s,
        backfill_s=table.backfill_days * _DAY_S,
    )


def price_settings(config: Config) -> GridSettings:
    """Return the settings by which the electricity price is obtained, such as provider and zone."""
    table = config.price
    provider = provider_of(GridQuantity.PRICE, table.provider)
    return GridSettings(
        quantity=GridQuantity.PRICE,
        cluster=config.cluster.name,
        provider_name=table.provider,
        zone=table.zone or (provider.default_zone if provider else ""),
        other_zones=(),
        unit=f"{table.currency}/kWh",
        constant=table.per_kwh,
        file=table.file,
        max_age_s=table.max_age_s,
        base_url=_base_url(table.url, provider),
        user="",
        token_file=table.token_file,
        refresh_s=table.refresh_s,
        backfill_s=table.backfill_days * _DAY_S,
    )


def _base_url(configured: str, provider: GridProvider | None) -> str:
    return (configured or (provider.default_url if provider else "")).rstrip("/")
