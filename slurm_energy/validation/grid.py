"""Checks of the sections `carbon` and `price`.

Each provider must have the keys that it needs, and every key must have an effect.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from slurm_energy.config import Config
from slurm_energy.config.findings import Finding
from slurm_energy.config.grid_tables import LOCAL_PROVIDERS, TOKEN_PROVIDERS, CarbonConfig, PriceConfig
from slurm_energy.errors import ConfigError, UsageError
from slurm_energy.grid.csv_series import read_csv
from slurm_energy.grid.units import GridQuantity
from slurm_energy.grid.yearly_factors import yearly_factor
from slurm_energy.trusted_files import read_trusted
from slurm_energy.validation.check_context import CheckContext, DaemonRole

_NETWORK_KEYS: Final = ("url", "token_file", "refresh_s", "backfill_days")
_ZONES_REQUIRED: Final = ("electricitymaps", "entsoe", "watttime")


def check(context: CheckContext) -> Iterator[Finding]:
    """Check the sections of the configuration for carbon intensity and electricity price.

    The function yields a finding for each fault of these sections.
    """
    config = context.config
    yield from _check_section(context, "carbon", config.carbon)
    yield from _check_section(context, "price", config.price)
    yield from _check_carbon(context, config)


def _check_section(
    context: CheckContext, section: str, table: CarbonConfig | PriceConfig
) -> Iterator[Finding]:
    provider = table.provider
    if provider in _ZONES_REQUIRED and not table.zone and not context.is_set(section, "zone"):
        yield context.error(section, "zone", f"is missing: '{provider}' needs it", f"see {_DOCS}")
    if provider in TOKEN_PROVIDERS and table.token_file is None and not _invalid(context, section, table):
        yield context.error(section, "token_file", f"is missing: '{provider}' needs it", f"see {_DOCS}")
    if provider in LOCAL_PROVIDERS:
        for key in _NETWORK_KEYS:
            if context.is_set(section, key):
                yield context.warning(section, key, f"has no effect: the provider is '{provider}'")
    elif provider not in TOKEN_PROVIDERS and context.is_set(section, "token_file"):
        yield context.warning(section, "token_file", f"has no effect: '{provider}' needs no token")
    if provider != "csv":
        for key in ("file", "max_age_s"):
            if context.is_set(section, key):
                yield context.warning(section, key, f"has no effect: the provider is '{provider}'")
    if table.token_file is not None and provider in TOKEN_PROVIDERS:
        yield from _check_token(context, section, table.token_file)
    if provider == "csv":
        yield from _check_csv(context, section, table)
    constant = "g_per_kwh" if section == "carbon" else "per_kwh"
    if provider == "constant" and getattr(table, constant) is None and not context.is_set(section, constant):
        yield context.error(section, constant, "is missing: 'constant' needs it")


def _invalid(context: CheckContext, section: str, table: CarbonConfig | PriceConfig) -> bool:
    """Return whether the configuration sets `token_file` to an invalid value.

    The invalid value itself has already been reported.
    """
    return table.token_file is None and context.is_set(section, "token_file")


def _check_token(context: CheckContext, section: str, path: Path) -> Iterator[Finding]:
    if context.role is DaemonRole.NODE:
        return
    try:
        read_trusted(path, secret=True)
    except ConfigError as error:
        yield context.error(section, "token_file", f"{error.what}: {error.why}", error.todo)
    except OSError as error:
        why = f"{path}: {error.strerror or error}"
        if context.role is None and isinstance(error, PermissionError):
            yield context.unchecked(section, "token_file", why, "check as root")
        else:
            yield context.error(section, "token_file", why, unavailable=True)


def _check_csv(context: CheckContext, section: str, table: CarbonConfig | PriceConfig) -> Iterator[Finding]:
    if table.file is None:
        if not context.is_set(section, "file"):
            yield context.error(section, "file", "is missing: 'csv' needs it")
        return
    quantity = GridQuantity(section)
    try:
        text = read_trusted(table.file).decode("utf-8-sig")
        read_csv(text.splitlines(True), str(table.file), quantity, context.config.price.currency)
    except (UsageError, ConfigError) as error:
        yield context.error(section, "file", f"{error.what}: {error.why}".rstrip(": "), error.todo)
    except UnicodeDecodeError:
        yield context.error(section, "file", f"{table.file}: is not UTF-8 text")
    except OSError as error:
        yield context.error(section, "file", f"{table.file}: {error.strerror or error}", unavailable=True)


def _check_carbon(context: CheckContext, config: Config) -> Iterator[Finding]:
    carbon = config.carbon
    if carbon.country and yearly_factor(carbon.country) is None:
        yield context.error(
            "carbon",
            "country",
            f"'{carbon.country}' has no yearly factor",
            "list them: senergy grid factors",
        )
    if carbon.provider == "watttime" and not carbon.user and not context.is_set("carbon", "user"):
        yield context.error("carbon", "user", "is missing: 'watttime' needs it")
    if carbon.provider != "watttime" and context.is_set("carbon", "user"):
        yield context.warning("carbon", "user", f"has no effect: the provider is '{carbon.provider}'")
    if carbon.provider in LOCAL_PROVIDERS and carbon.other_zones:
        why = f"has no effect: the provider is '{carbon.provider}'"
        yield context.warning("carbon", "other_zones", why)
    if carbon.embodied_node_kg is None:
        for key in ("embodied_gpu_kg", "node_cpus", "lifetime_years"):
            if context.is_set("carbon", key):
                yield context.warning("carbon", key, "has no effect without carbon.embodied_node_kg")
    if config.price.provider not in ("csv", "entsoe") and context.is_set("price", "surcharge_per_kwh"):
        why = f"has no effect: the provider is '{config.price.provider}'"
        yield context.warning("price", "surcharge_per_kwh", why)


_DOCS: Final = "docs/carbon-and-price.md"
