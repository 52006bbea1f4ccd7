"""Check of `senergy doctor`: whether Slurm can carry out the decisions about power saving."""

from __future__ import annotations

from collections.abc import Mapping

from slurm_energy.doctor.findings import HostFindings
from slurm_energy.doctor.verdict import CheckResult, CheckState

_NAME = "power saving"


def power_saving_checks(findings: HostFindings) -> list[CheckResult]:
    """Return a check of power saving on the controller's host.

    The result is empty if power saving is off or no controller answers.
    """
    state = findings.controller.get("power_saving") if isinstance(findings.controller, Mapping) else None
    if not findings.slurm.is_controller or not isinstance(state, Mapping) or state.get("mode") == "off":
        return []
    mode = f"mode {state.get('mode')}"
    problems = [*filter(None, [state.get("error")]), *(state.get("problems") or ())]
    if problems:
        text = "; ".join(str(problem) for problem in problems)
        return [
            CheckResult(
                _NAME,
                CheckState.DEGRADED,
                f"{mode}; {text}",
                "no node is powered down or up",
                "docs/power-saving.md lists the lines of slurm.conf",
            )
        ]
    warnings = [str(warning) for warning in state.get("warnings") or ()]
    if warnings:
        return [
            CheckResult(
                _NAME,
                CheckState.DEGRADED,
                f"{mode}; {'; '.join(warnings)}",
                "jobs wait longer for a boot, or nodes go down without forecast",
                "docs/power-saving.md lists the lines of slurm.conf; restart slurmctld",
            )
        ]
    return [CheckResult(_NAME, CheckState.OK, mode)]
