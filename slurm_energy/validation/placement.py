"""Checks of the configuration sections `placement` and `clusters`.

The sections describe other clusters and the choice among clusters. The checks find wrong or missing
addresses, missing values that the chosen policy needs, and keys that have no effect.
"""

from __future__ import annotations

from collections.abc import Iterator

from slurm_energy.config.cluster_tables import MAX_CLUSTERS
from slurm_energy.config.findings import Finding
from slurm_energy.validation.check_context import CheckContext


def check(context: CheckContext) -> Iterator[Finding]:
    """Check the configuration of other clusters and of the choice among clusters; yield findings."""
    config = context.config
    own, placement = config.cluster.name, config.placement
    if len(config.clusters) > MAX_CLUSTERS:
        yield context.error("clusters", "", f"more than {MAX_CLUSTERS} clusters")
    for name, cluster in config.clusters.items():
        section = f"clusters.{name}"
        if name == own and cluster.controller_url is not None:
            why = "is set by cluster.controller_url: this table describes this cluster itself"
            yield context.error(section, "controller_url", why, "remove it")
        if name != own and cluster.controller_url is None:
            yield context.error(section, "controller_url", "is missing", "write http://HOST:PORT")
        if (cluster.latitude is None) != (cluster.longitude is None):
            key = "longitude" if cluster.longitude is None else "latitude"
            yield context.error(section, key, "is missing: latitude and longitude belong together")
    if not [name for name in config.clusters if name != own]:
        for key in ("policy", "weights", "max_delay_s", "min_saving_percent", "confidence", "refresh_s"):
            if context.is_set("placement", key):
                yield context.warning("placement", key, "has no effect: there is no other [clusters.NAME]")
                return
        return
    if placement.policy == "weighted" and not any(placement.weights.values()):
        yield context.error("placement", "weights", "is missing: 'weighted' needs it")
    if placement.policy == "follow-the-sun":
        for name in sorted({own, *config.clusters}):
            if name not in config.clusters or config.clusters[name].latitude is None:
                why = "is missing: 'follow-the-sun' needs it"
                yield context.warning(f"clusters.{name}", "latitude", why)
