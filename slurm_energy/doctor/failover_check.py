"""Check of `senergy doctor`: whether another controller can take over from the active controller."""

from __future__ import annotations

from collections.abc import Mapping

from slurm_energy.doctor.findings import HostFindings
from slurm_energy.doctor.verdict import CheckResult, CheckState
from slurm_energy.reports.status_text import controller_roles

_NAME = "takeover"


def failover_checks(findings: HostFindings) -> list[CheckResult]:
    """Check that a passive controller is ready to take over from the active one.

    Returns:
        A list with one result of `senergy doctor`. The list is empty if there is only one controller, if
        no controller answers, or if this host does not run slurmctld.
    """
    if not findings.slurm.is_controller:
        return []
    lease = findings.controller.get("lease") if isinstance(findings.controller, Mapping) else None
    if not isinstance(lease, Mapping):
        return []
    others = [one for one in lease.get("controllers") or [] if one["role"] != "active"]
    what = "; ".join(controller_roles(lease))
    if any(one["present"] and one["ready"] for one in others):
        return [CheckResult(_NAME, CheckState.OK, what)]
    return [
        CheckResult(
            _NAME,
            CheckState.DEGRADED,
            f"no passive controller is ready: {what}",
            "if the active controller fails, records wait in the spools of the nodes",
            "systemctl start senergyctld   (on the other host of cluster.controller_url)",
        )
    ]
