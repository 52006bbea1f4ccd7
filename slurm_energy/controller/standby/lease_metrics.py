"""State of the lease and of a cluster's controllers, as metrics.

Prometheus and the status page show these metrics.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from slurm_energy.accounting.controller_lease import EXPIRY_S, LeaseState
from slurm_energy.openmetrics.exposition import MetricFamily


def lease_families(state: LeaseState, *, is_active: bool) -> Sequence[MetricFamily]:
    """Return the metrics of a controller in a cluster with several controllers.

    Args:
        state: state of the lease, the right to be the active controller, when the controller last read it.
        is_active: whether the controller is the active one.
    """
    active = MetricFamily("controller_active", "Whether this senergyctld is the active one.")
    active.add(float(is_active))
    token = MetricFamily("controller_lease_token", "Number of times that the lease was taken.")
    token.add(float(state.token))
    expiry = MetricFamily(
        "controller_lease_expiry_seconds", "Time until the lease expires, unless it is renewed."
    )
    expiry.add(EXPIRY_S - state.renewed_age_s if state.active else None)
    present = MetricFamily(
        "controller_present", "Whether a senergyctld of the cluster runs.", labels=("controller",)
    )
    for one in state.controllers:
        present.add(float(one.is_present), one.presence.name)
    return active, token, expiry, present


def lease_status(state: LeaseState) -> dict[str, Any]:
    """Return the entries of the status page that show which controller is active.

    The active controller holds the lease, the right to write to the database for a limited time.
    """
    return {
        "active": state.active,
        "token": state.token,
        "held_s": state.held_s,
        "expires_s": EXPIRY_S - state.renewed_age_s,
        "controllers": [
            {
                "name": one.presence.name,
                "role": "active" if one.presence.name == state.active else "passive",
                "present": one.is_present,
                "seen_s": one.seen_age_s,
                "ready": one.presence.ready,
                "beside_slurmctld": one.presence.beside_slurmctld,
                "version": one.presence.release,
                "started": one.presence.started,
            }
            for one in state.controllers
        ],
    }
