"""Declaration of the scenario sections `[site.NAME]` and `[placement]` as plain data.

A scenario with these sections simulates several clusters (sites).
"""

from __future__ import annotations

from dataclasses import dataclass

from slurm_energy.config.value_checks import between, key
from slurm_energy.placement.choice import POLICIES, TERMS, WEIGHTED

_not_negative = between(0, 1e15)
_factor = between(1e-6, 1e6)


@dataclass(frozen=True, slots=True)
class SiteSection:
    """Section `[site.NAME]` of a simulation scenario with several sites.

    A site is a separate cluster with its own nodes, electricity grid and network.
    """

    nodes: list[str] = key([], "Kinds of nodes, [cluster.NAME], that belong to this site.")
    share: float = key(1.0, "Share of the jobs whose home it is, relative to the other sites.", _not_negative)
    price_file: str = key("", "CSV with columns time_s, price (per MWh); relative to the scenario's folder.")
    price_per_mwh: float = key(float("nan"), "Price at all times, instead of price_file.")
    carbon_file: str = key("", "CSV with columns time_s, gco2_per_kwh.")
    carbon_g_per_kwh: float = key(float("nan"), "Carbon intensity at all times, instead of carbon_file.")
    pue: float = key(1.0, "Energy of the site per energy of its computers.", between(1, 10))
    bandwidth_mbit_per_s: float = key(10_000.0, "Bandwidth to the other sites.", between(1e-3, 1e9))
    transfer_kwh_per_gb: float = key(
        0.0, "Electricity of the network per GB that the site sends or receives.", _not_negative
    )
    latitude: float = key(float("nan"), "Latitude in degrees, for follow-the-sun.", between(-90, 90))
    longitude: float = key(float("nan"), "Longitude in degrees, east positive.", between(-180, 180))
    speed: float = key(
        1.0, "Speed of its units relative to those of the file; for workloads without models.", _factor
    )
    power: float = key(
        1.0, "Power of its units relative to those of the file; for workloads without models.", _factor
    )


@dataclass(frozen=True, slots=True)
class PlacementSection:
    """Settings for the placement of jobs among sites, from the table `[placement]` of a scenario."""

    policies: list[str] = key(["home"], f"Policies to compare: {', '.join([*POLICIES, WEIGHTED])}.")
    weights: dict[str, float] = key({}, f"Weights of the policy `{WEIGHTED}`: {', '.join(TERMS)}.")
    max_delay_hours: float = key(
        1.0, "A job moves only if it ends at most this much later than at home.", _not_negative
    )
    min_saving_percent: float = key(
        5.0, "Least saving for which a job leaves its home, of the score there.", between(0, 100)
    )
    confidence: float = key(1.0, "Least saving in standard deviations of the forecast.", _not_negative)
    known_hours: float = key(
        24.0,
        "Hours for which price and carbon intensity are known ahead; later ones count with their mean.",
        between(0.01, 1e6),
    )
    data_gb: float = key(
        0.0,
        "Mean size of a job's data in GB; sizes are drawn from an exponential distribution.",
        _not_negative,
    )
    start_unix_s: float = key(0.0, "Unix time of the start, for follow-the-sun.", _not_negative)
