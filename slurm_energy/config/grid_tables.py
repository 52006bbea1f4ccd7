"""Declaration of the configuration tables `[carbon]` and `[price]`.

The tables configure the carbon intensity and the price of electricity.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from slurm_energy.config.value_checks import between, key, one_of

CARBON_PROVIDERS: Final = (
    "yearly",
    "constant",
    "csv",
    "electricitymaps",
    "entsoe",
    "rte",
    "uk",
    "watttime",
    "off",
)
PRICE_PROVIDERS: Final = ("off", "constant", "csv", "entsoe")
LOCAL_PROVIDERS: Final = ("off", "constant", "csv", "yearly")
"""Providers without network access; all others are queried by senergyctld."""

TOKEN_PROVIDERS: Final = ("electricitymaps", "entsoe", "watttime")
"""Providers that require `token_file`."""

_ZONE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_COUNTRY: Final = re.compile(r"[A-Z]{2,3}")
_CURRENCY: Final = re.compile(r"[A-Z]{3}")
_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")


def _zone(value: str) -> str | None:
    fits = not value or _ZONE.fullmatch(value)
    return None if fits else "must be a zone of the provider: letters, digits, _ . and -, at most 64"


def _zones(value: list[str]) -> str | None:
    wrong = [zone for zone in value if not zone or _zone(zone)]
    return "must be zones of the provider: letters, digits, _ . and -, at most 64" if wrong else None


def _country(value: str) -> str | None:
    fits = not value or _COUNTRY.fullmatch(value)
    return None if fits else "must be an ISO 3166-1 code of two or three capital letters such as DE or DEU"


def _currency(value: str) -> str | None:
    return None if _CURRENCY.fullmatch(value) else "must be an ISO 4217 code of three capital letters"


def provider_url(value: str) -> str | None:
    """Check the base URL of a provider; an empty text is valid. Return None, or the fault."""
    if not value:
        return None
    try:
        parts = urlsplit(value)
        host, port = parts.hostname, parts.port
    except ValueError:
        return "must be https://HOST[:PORT][/PATH]"
    plain = value.isascii() and value.isprintable() and " " not in value
    if parts.scheme not in ("https", "http") or not host or port == 0 or not plain:
        return "must be https://HOST[:PORT][/PATH]"
    if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
        return "must not contain a password, a query or a fragment"
    if parts.scheme == "http" and host not in _LOOPBACK:
        return "must be https: without TLS others could read the token and change the values"
    return None


@dataclass(frozen=True, slots=True)
class CarbonConfig:
    """Carbon intensity of electricity, PUE and embodied emissions. See docs/carbon-and-price.md."""

    provider: str = key(
        "yearly",
        "Source of the carbon intensity. yearly: yearly mean of `country`, shipped with the package; "
        "constant: `g_per_kwh`; csv: `file`; electricitymaps, entsoe, rte, uk, watttime: queried by "
        "senergyctld; off: no emissions.",
        one_of(*CARBON_PROVIDERS),
        show="entsoe",
    )
    zone: str = key("", "Zone of the grid in the provider's notation.", _zone, show="10Y1001A1001A82H")
    other_zones: list[str] = key(
        [], "Further zones to fetch, for comparison only.", _zones, show=["10YFR-RTE------C"]
    )
    country: str = key(
        "",
        "ISO 3166-1 code. Its yearly factor is the fallback at times without a value of the provider; such "
        "figures say so. Empty: emissions are unknown at such times.",
        _country,
        show="DE",
    )
    g_per_kwh: float | None = key(
        None,
        "Carbon intensity in g CO2e/kWh for `constant`; with other providers the fallback instead of the "
        "yearly factor.",
        between(0, 10_000),
        show=45.0,
    )
    file: Path | None = key(
        None,
        "CSV file for `csv`: columns time and g/kWh (or kg/MWh, lb/MWh). Read again when it changes.",
        show="/etc/slurm/energy/carbon.csv",
    )
    url: str = key(
        "",
        "Base URL of the provider, for a proxy or mirror. Empty: its public one.",
        provider_url,
        show="https://web-api.tp.entsoe.eu/api",
    )
    user: str = key("", "User name for watttime.", show="site")
    token_file: Path | None = key(
        None,
        "File with the token (watttime: the password) in its first line, readable by senergyctld only.",
        show="/etc/slurm/energy/carbon.token",
    )
    refresh_s: float = key(900.0, "Seconds between two queries of the provider.", between(60, 86_400))
    max_age_s: float | None = key(
        None,
        "Seconds for which a value of `csv` holds if no other follows. Default: twice the usual step.",
        between(1, 3.2e8),
        show=7200.0,
    )
    backfill_days: float = key(
        1.0, "Days before now to fetch if they are missing, at most.", between(0, 3660)
    )
    keep_days: float = key(3660.0, "Days to keep values of providers.", between(1, 36_500))
    pue: float | None = key(
        None,
        "Power usage effectiveness of the site: energy of the site per energy of the computers. Emissions "
        "and cost are multiplied by it. Unset: they are those of the computers alone, and say so.",
        between(1.0, 10.0),
        show=1.25,
    )
    embodied_node_kg: float | None = key(
        None,
        "Emissions of making a node without its GPUs, in kg CO2e. Unset: no embodied share.",
        between(0, 1e6),
        show=1500.0,
    )
    embodied_gpu_kg: float = key(0.0, "Emissions of making a GPU, in kg CO2e.", between(0, 1e5), show=150.0)
    node_cpus: int | None = key(
        None,
        "CPUs of a node as Slurm counts them, so that a job has the embodied share of its CPUs. Unset: a job "
        "has that of its whole nodes.",
        between(1, 1_000_000),
        show=128,
    )
    lifetime_years: float = key(5.0, "Years over which the embodied emissions are spread.", between(0.1, 100))


@dataclass(frozen=True, slots=True)
class PriceConfig:
    """Section of the configuration about the price of electricity.

    See docs/carbon-and-price.md.
    """

    provider: str = key(
        "off",
        "Source of the price. constant: `per_kwh`; csv: `file`; entsoe: day-ahead prices, queried by "
        "senergyctld; off: no cost.",
        one_of(*PRICE_PROVIDERS),
        show="entsoe",
    )
    zone: str = key("", "Bidding zone in the provider's notation.", _zone, show="10Y1001A1001A82H")
    currency: str = key("EUR", "Currency of all prices and costs, ISO 4217.", _currency)
    per_kwh: float | None = key(
        None,
        "Price per kWh for `constant`; with other providers the fallback at times without a value.",
        between(-1e6, 1e6),
        show=0.25,
    )
    surcharge_per_kwh: float = key(
        0.0,
        "Amount per kWh that is added to prices of `csv` and `entsoe`, such as grid fees and taxes.",
        between(-1e6, 1e6),
        show=0.12,
    )
    file: Path | None = key(
        None,
        "CSV file for `csv`: columns time and EUR/kWh (or EUR/MWh, ct/kWh). Read again when it changes.",
        show="/etc/slurm/energy/price.csv",
    )
    url: str = key(
        "",
        "Base URL of the provider, for a proxy or mirror. Empty: its public one.",
        provider_url,
        show="https://web-api.tp.entsoe.eu/api",
    )
    token_file: Path | None = key(
        None,
        "File with the token in its first line, readable by senergyctld only.",
        show="/etc/slurm/energy/price.token",
    )
    refresh_s: float = key(3600.0, "Seconds between two queries of the provider.", between(60, 86_400))
    max_age_s: float | None = key(
        None,
        "Seconds for which a value of `csv` holds if no other follows. Default: twice the usual step.",
        between(1, 3.2e8),
        show=7200.0,
    )
    backfill_days: float = key(
        7.0, "Days before now to fetch if they are missing, at most.", between(0, 3660)
    )
    keep_days: float = key(3660.0, "Days to keep values of providers.", between(1, 36_500))
