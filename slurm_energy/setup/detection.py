"""Values of energy.toml that follow from slurm.conf and the hardware of this host."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slurm_energy.setup.configuration import CONTROLLER_PORT, DetectedValues, controller_url
from slurm_energy.setup.site import SlurmSite


def detected_values(site: SlurmSite, given: Mapping[tuple[str, str], Any]) -> DetectedValues:
    """Return the values of energy.toml for a host. The file is suitable for every host of the cluster.

    Args:
        site: the cluster.
        given: values that the administrator chose; they take precedence.
    """
    urls = [controller_url(one.address) for one in site.controllers]
    values: dict[tuple[str, str], Any] = {("cluster", "name"): site.cluster_name}
    if urls:
        values["cluster", "controller_url"] = urls[0]
    values["controller", "listen"] = f"0.0.0.0:{CONTROLLER_PORT}"
    if site.slurm_user not in ("root", "slurm"):
        values["cluster", "controller_users"] = ["root", "slurm", site.slurm_user]
    values |= given
    hints: dict[tuple[str, str], Any] = {}
    if len(urls) > 1:
        hints["cluster", "controller_url"] = urls
    return DetectedValues(values, hints, [f"Slurm: {site.conf}", *hardware_notes()])


def hardware_notes(root: Path = Path("/")) -> list[str]:
    """Return what was seen of the hardware, one line each."""
    return []
