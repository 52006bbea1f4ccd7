"""Checks of a simulation scenario with several sites.

The checks concern combinations of keys in the sections `[site.NAME]` and `[placement]`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from slurm_energy.config.loader import TableReader
from slurm_energy.errors import UsageError
from slurm_energy.placement.choice import options_of
from slurm_energy.simulator.deferral.deferral_schema import SignalsSection
from slurm_energy.simulator.scenario_schema import PowerSection
from slurm_energy.simulator.sites.site_schema import PlacementSection, SiteSection

_OF_ONE_CLUSTER: Final = {"budget_watts": 0.0, "budget_file": "", "price_file": "", "carbon_file": ""}
"""Keys of `[power]` that have no meaning for several sites, with their defaults."""


def check_sites(
    sites: Mapping[str, SiteSection],
    placement: PlacementSection,
    kinds: Mapping[str, object],
    power: PowerSection,
    signals: SignalsSection,
    reader: TableReader,
) -> None:
    """Check the sites of a scenario.

    Args:
        sites: the sections `[site.NAME]`.
        placement: the section `[placement]`.
        kinds: the kinds of nodes by name.
        power: the section `[power]`.
        signals: the section `[signals]`.
        reader: object that reports a fault with file and line.

    Raises:
        ConfigError: a section is invalid. The message names file and line.
    """
    if not sites:
        if placement != PlacementSection():
            raise reader.fail("placement", "", "there is no site", "write tables [site.NAME]")
        return
    for name, default in _OF_ONE_CLUSTER.items():
        if getattr(power, name) != default:
            raise reader.fail("power", name, "not possible with several sites", "see [site.NAME]")
    for name in ("price_file", "carbon_file"):
        if getattr(signals, name):
            raise reader.fail("signals", name, "not possible with several sites", "see [site.NAME]")
    owner: dict[str, str] = {}
    for name, site in sites.items():
        table = f"site.{name}"
        if not name.isprintable() or not name or "." in name or "@" in name:
            raise reader.fail(table, "", "a name of a site has no dot, no @ and no control characters")
        if not site.nodes:
            raise reader.fail(table, "nodes", "is needed", f"of {', '.join(kinds)}")
        for kind in site.nodes:
            if kind not in kinds:
                raise reader.fail(table, "nodes", f"there is no [cluster.{kind}]", f"of {', '.join(kinds)}")
            if kind in owner:
                raise reader.fail(table, "nodes", f"{kind} already belongs to site {owner[kind]}")
            owner[kind] = name
        for file, constant in (("price_file", "price_per_mwh"), ("carbon_file", "carbon_g_per_kwh")):
            if getattr(site, file) and not math.isnan(getattr(site, constant)):
                raise reader.fail(table, constant, f"excludes {file}")
    if without := [kind for kind in kinds if kind not in owner]:
        raise reader.fail(f"cluster.{without[0]}", "", "belongs to no site", "name it in a [site.NAME] nodes")
    if not any(site.share for site in sites.values()):
        raise reader.fail(f"site.{next(iter(sites))}", "share", "all shares are 0", "no job has a home")
    for policy in placement.policies:
        try:
            options_of(policy, placement.weights)
        except UsageError as error:
            key = "weights" if "weight '" in str(error) else "policies"
            raise reader.fail("placement", key, str(error)) from None
    if not placement.policies:
        raise reader.fail("placement", "policies", "is empty", 'e.g. ["home", "cheapest"]')
