"""Declaration of the configuration section `[quota]`."""

from __future__ import annotations

from dataclasses import dataclass

from slurm_energy.config.value_checks import between, key, time_zone


@dataclass(frozen=True, slots=True)
class QuotaConfig:
    """Section of the configuration about quotas of energy, cost and carbon.

    `senergy quota set` creates quotas. See docs/carbon-and-price.md.
    """

    hold: bool = key(
        True,
        "Hold pending jobs over the hold level of a quota by their begin time. false: they are ranked last "
        "only, if priority.mode is plugin or portable.",
    )
    interval_s: float = key(60.0, "Seconds between two computations of the use.", between(10, 3600))
    timezone: str = key(
        "",
        "Time zone in which months, quarters and years begin. Empty: the zone of senergyctld's host.",
        time_zone,
        show="Europe/Berlin",
    )
