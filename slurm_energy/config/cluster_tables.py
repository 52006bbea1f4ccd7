"""Configuration sections for the choice among clusters: `[placement]` and `[clusters.NAME]`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from slurm_energy.config.addresses import ControllerUrls, url_faults
from slurm_energy.config.value_checks import at_least_one_user, between, key, one_of, socket_path

PLACEMENT_POLICIES: Final = (
    *("home", "cheapest", "cleanest", "least-energy", "fastest", "follow-the-sun"),
    "weighted",
)
PLACEMENT_TERMS: Final = ("cost", "energy", "carbon", "time", "sun")
MAX_CLUSTERS: Final = 64


def _weights(value: dict[str, float]) -> str | None:
    unknown = [name for name in value if name not in PLACEMENT_TERMS]
    return f"knows {', '.join(PLACEMENT_TERMS)}" if unknown else None


@dataclass(frozen=True, slots=True)
class PlacementConfig:
    """Section `[placement]`: how `senergy where` chooses among the clusters in `[clusters.NAME]`.

    See docs/clusters.md.
    """

    policy: str = key(
        "cheapest", "Default of `senergy where --policy`.", one_of(*PLACEMENT_POLICIES), show="cleanest"
    )
    weights: dict[str, float] = key(
        {},
        "Weights of the policy `weighted`: cost per unit of the currency, energy per kWh, carbon per kg, "
        "time per hour until the end, sun per mean sine of its elevation. The lowest sum is best.",
        _weights,
        show={"cost": 1.0, "carbon": 0.1, "time": 0.5},
    )
    max_delay_s: float = key(
        3600.0,
        "A job moves only to a cluster where it is predicted to end at most this much later than at home.",
        between(0, 1e9),
    )
    min_saving_percent: float = key(
        5.0, "Least saving for which a job leaves its home, in percent of the score there.", between(0, 100)
    )
    confidence: float = key(
        1.0,
        "Least saving in standard deviations of the forecast; 0: uncertainty has no effect.",
        between(0, 100),
    )
    refresh_s: float = key(
        30.0, "Seconds between two requests for the state of each other cluster.", between(1, 3600)
    )


@dataclass(frozen=True, slots=True)
class OtherCluster:
    """A row of the configuration table of clusters to which jobs can be sent.

    Most rows describe another cluster. There may also be a row for this cluster itself, which gives only its
    network and position.
    """

    controller_url: ControllerUrls | None = key(
        None,
        "URL of its senergyctld, or a list. Not for this cluster itself.",
        url_faults,
        show="http://ctl.west:6828",
    )
    munge_socket: Path | None = key(
        None,
        "Socket of a munged with the key of that cluster. Default: cluster.munge_socket, if both clusters "
        "have the same key.",
        socket_path(""),
        show="/run/munge-west/munge.socket.2",
    )
    controller_users: list[str] = key(
        ["root", "slurm"], "Users, or their uids, as which its senergyctld may run.", at_least_one_user
    )
    bandwidth_mbit_per_s: float = key(
        1000.0, "Bandwidth between this cluster and the others.", between(1e-3, 1e9)
    )
    transfer_kwh_per_gb: float = key(
        0.0, "Electricity of the network per GB that the cluster sends or receives.", between(0, 1000)
    )
    latitude: float | None = key(
        None, "Latitude in degrees, for the policy follow-the-sun.", between(-90, 90), show=52.5
    )
    longitude: float | None = key(None, "Longitude in degrees, east positive.", between(-180, 180), show=13.4)
