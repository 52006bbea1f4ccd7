"""Checks of records and periods that a node has not delivered to the controller yet.

All functions are pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slurm_energy.doctor.findings import HostFindings
from slurm_energy.doctor.verdict import CheckResult, CheckState

_FULL_SPOOL = 0.8


def counted(count: int, what: str) -> str:
    """Return a number with its noun as text, such as `1 record` or `2 records`."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def spool_check(findings: HostFindings, answer: Mapping[str, Any]) -> CheckResult:
    """Check the spool of a node, which holds records until they are delivered.

    Return the result of the check. It covers the waiting records and the space for them.

    Args:
        findings: findings on the host.
        answer: the agent's response to `status`.
    """
    count = answer.get("spooled", 0)
    what = f"{counted(count, 'record')} wait for the controller"
    if findings.state_free_mb is not None:
        what += f", {findings.state_free_mb:.0f} MB free"
        if findings.state_free_mb < findings.spool_limit_mb * (1 - _FULL_SPOOL):
            cost = "power traces, then records, are lost once the disk is full"
            return CheckResult("spool", CheckState.DEGRADED, what, cost, "free space under agent.state_dir")
    return CheckResult("spool", CheckState.OK, what)


def undelivered_checks(answer: Mapping[str, Any]) -> list[CheckResult]:
    """Return check results about the records that the controller has not accepted.

    A deferred record is sent again later; a rejected record is not. The list is empty if there are no such
    records.

    Args:
        answer: the agent's response to `status`.
    """
    checks = []
    if deferred := answer.get("deferred"):
        cost = "they stay on this node until the controller accepts them"
        what = f"{counted(deferred, 'record')} of a newer release, or ahead of the controller's clock"
        checks.append(CheckResult("retried records", CheckState.DEGRADED, what, cost, "upgrade senergyctld"))
    if rejected := answer.get("rejected"):
        what = f"the controller rejected {counted(rejected, 'record')}"
        if dropped := answer.get("rejected_dropped"):
            what += f", {dropped} more were dropped for lack of space"
        cost = "these are in no report; they are kept while there is space for them"
        fix = "senergy spool   (lists the reasons); then: senergy spool resend"
        checks.append(CheckResult("rejected records", CheckState.DEGRADED, what, cost, fix))
    periods = answer.get("periods")
    if rejected := periods.get("rejected") if isinstance(periods, dict) else 0:
        what = f"the controller rejected {counted(rejected, 'period')} of the node's energy"
        fix = "senergy spool   (lists the reasons); then: senergy spool resend"
        checks.append(
            CheckResult("rejected periods", CheckState.DEGRADED, what, "reports lack this energy", fix)
        )
    return checks
