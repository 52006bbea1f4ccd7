"""Present and past values of carbon intensity, price, PUE and embodied emissions.

The values come from configuration, files and database.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from slurm_energy.accounting import grid_values
from slurm_energy.config import Config
from slurm_energy.controller.changed_files import ChangedFiles
from slurm_energy.controller.grid.settings import GridSettings, carbon_settings, price_settings
from slurm_energy.controller.records.store import Store
from slurm_energy.grid.csv_series import read_csv
from slurm_energy.grid.factor import GridFactor
from slurm_energy.grid.footprint import EmbodiedCarbon, GridFactors
from slurm_energy.grid.series import GridSeries, Sample, SeriesSource
from slurm_energy.grid.yearly_factors import yearly_factor

CHUNK_S: Final = 90 * 86400.0
"""Longest window whose values are returned as stored; those of longer ones are hourly means."""
_HOUR_S: Final = 3600.0
MARGIN_S: Final = 7200.0
"""Time before and after a window whose values are included, for jobs that begin or end just outside."""


class GridFactorSource:
    """Source of the factors that turn energy into emissions and cost.

    Args:
        config: returns the configuration.
        store: the database.
    """

    def __init__(self, config: Callable[[], Config], store: Store) -> None:
        self._config, self._store = config, store
        self._files: ChangedFiles[list[Sample]] = ChangedFiles()

    async def factors(self, start_s: float, end_s: float, zone: str = "") -> GridFactors:
        """Return carbon intensity and price, with which emissions and cost of energy are computed.

        Args:
            start_s: start of the time range, in Unix seconds.
            end_s: end of the time range, in Unix seconds.
            zone: another configured zone for the carbon intensity; an empty value means the site's zone.

        Raises:
            UnavailableError: the database or a CSV file cannot be read.
        """
        config = self._config()
        carbon, price = config.carbon, config.price
        embodied = None
        if carbon.embodied_node_kg is not None:
            figures = (carbon.embodied_node_kg, carbon.embodied_gpu_kg, carbon.lifetime_years)
            embodied = EmbodiedCarbon(*figures, carbon.node_cpus)
        window = (start_s - MARGIN_S, end_s + MARGIN_S)
        return GridFactors(
            await self._carbon(config, zone, window),
            await self._price(config, window),
            carbon.pue,
            embodied,
            price.currency,
        )

    async def signals(self, start_s: float, end_s: float) -> dict[str, GridSeries]:
        """Return the series of carbon intensity and price between two times in Unix seconds.

        The result contains no fallback values. Its keys are names from `signals.SignalName`.

        Raises:
            UnavailableError: the database or a CSV file cannot be read.
        """
        config, window = self._config(), (start_s, end_s)
        factors = {
            "carbon_g_per_kwh": await self._carbon(config, "", window),
            "price_per_kwh": await self._price(config, window),
        }
        return {
            name: one.series for name, one in factors.items() if one is not None and one.series is not None
        }

    async def _carbon(self, config: Config, zone: str, window: tuple[float, float]) -> GridFactor | None:
        settings = carbon_settings(config)
        if settings.provider_name == "off":
            return None
        constant = _constant(settings.constant)
        factor = yearly_factor(config.carbon.country) if config.carbon.country else None
        yearly = factor.series if factor else None
        if settings.provider_name in ("constant", "yearly"):
            first, second = (constant, yearly) if settings.provider_name == "constant" else (yearly, constant)
            return None if (chosen := first or second) is None else GridFactor(chosen)
        series = await self._series(settings, zone, window)
        if zone and zone != settings.zone:
            return GridFactor(series)  # the fallback is that of the site's country
        return GridFactor(series, constant or yearly)

    async def _price(self, config: Config, window: tuple[float, float]) -> GridFactor | None:
        settings = price_settings(config)
        if settings.provider_name == "off":
            return None
        constant = _constant(settings.constant)
        if settings.provider_name == "constant":
            return GridFactor(constant)
        series = await self._series(settings, "", window)
        if surcharge := config.price.surcharge_per_kwh:
            series = _with_surcharge(series, surcharge, settings.unit)
        return GridFactor(series, constant)

    async def _series(self, settings: GridSettings, zone: str, window: tuple[float, float]) -> GridSeries:
        if settings.file is not None and settings.provider is None:
            from_file = await asyncio.to_thread(self._file_samples, settings, settings.file)
            source = SeriesSource("csv", settings.zone, settings.file.name)
            inside = [one for one in from_file if one[0] < window[1] and one[1] > window[0]]
            return GridSeries(source, inside)
        assert settings.provider is not None
        key = settings.key(zone)
        source = SeriesSource(key.provider, key.zone, settings.provider.detail)
        start_s, end_s = (edge // _HOUR_S * _HOUR_S for edge in (window[0], window[1] + _HOUR_S))
        if end_s - start_s <= CHUNK_S:
            return GridSeries(source, await self._store.read(grid_values.read_samples, key, start_s, end_s))
        samples: list[Sample] = []
        while start_s < end_s:
            until_s = min(end_s, start_s + CHUNK_S)
            part = await self._store.read(grid_values.read_samples, key, start_s, until_s)
            samples += await asyncio.to_thread(_hourly, source, part, start_s, until_s)
            start_s = until_s
        return GridSeries(source, samples)

    def _file_samples(self, settings: GridSettings, path: Path) -> list[Sample]:
        """Return the samples of a CSV file. The file is read again when it has changed.

        Raises:
            UnavailableError: the file cannot be read, and was never read before.
        """
        currency = settings.unit.partition("/")[0]

        def parse(lines: Sequence[str]) -> list[Sample]:
            return read_csv(lines, str(path), settings.quantity, currency, settings.max_age_s)

        identity = (path, settings.unit, settings.max_age_s)
        return self._files.read(identity, path, f"{settings.quantity} file", parse)


def _hourly(source: SeriesSource, part: list[Sample], start_s: float, end_s: float) -> Sequence[Sample]:
    """Return the samples of a series between two times, with at most about one value per hour.

    If there are more values, they are replaced by hourly means.
    """
    clipped = [(max(start, start_s), min(end, end_s), value) for start, end, value in part]
    return GridSeries(source, clipped).thinned(int((end_s - start_s) / _HOUR_S) + 1).samples


def _constant(value: float | None) -> GridSeries | None:
    if value is None:
        return None
    return GridSeries.constant(SeriesSource("constant", "", "configured"), value)


def _with_surcharge(series: GridSeries, surcharge: float, unit: str) -> GridSeries:
    source = series.source
    detail = f"{source.detail}, plus {surcharge:g} {unit}".removeprefix(", ")
    samples = [(start, end, value + surcharge) for start, end, value in series.samples]
    return GridSeries(SeriesSource(source.provider, source.zone, detail), samples, series.resolution_s)
