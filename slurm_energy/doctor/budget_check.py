"""Check of `senergy doctor`: whether a power budget can limit the devices of this host."""

from __future__ import annotations

from collections.abc import Mapping

from slurm_energy.doctor.findings import HostFindings
from slurm_energy.doctor.verdict import CheckResult, CheckState

_NAME = "power budget"


def budget_checks(findings: HostFindings) -> list[CheckResult]:
    """Return a list with the result of the check whether the node can keep power budgets.

    The list is empty if the configuration has no power budgets.
    """
    if findings.budget_mode == "off":
        return []
    mode = f"mode {findings.budget_mode}"
    if findings.budget_mode == "enforce" and _is_safe(findings):
        return [
            CheckResult(
                _NAME,
                CheckState.DEGRADED,
                f"{mode}; the controller has not decided in time: safe limits are in force",
                "jobs may run slower than the budget requires",
                "is senergyctld running, and its budget.mode the same?   senergy status; senergy budget show",
            )
        ]
    has_limit = _limits_by_device(findings)
    unlimited = [name for name, is_limited in has_limit.items() if not is_limited]
    if not findings.counters and not any(has_limit.values()):
        return [
            CheckResult(
                _NAME,
                CheckState.ABSENT,
                f"{mode}; without a power limit and without a counter: {', '.join(unlimited)}",
                "a budget cannot lower this node, and counts it at budget.node_reserve_watts only",
                "set budget.node_reserve_watts of this node to its maximum power, if it is not set",
            )
        ]
    if unlimited:
        return [
            CheckResult(
                _NAME,
                CheckState.ABSENT,
                f"{mode}; without a power limit: {', '.join(unlimited)}",
                "a budget counts these devices at their maximum power, and cannot lower it",
            )
        ]
    return [CheckResult(_NAME, CheckState.OK, f"{mode}; every processor and GPU has a power limit")]


def _is_safe(findings: HostFindings) -> bool:
    budget = findings.agent.get("budget") if isinstance(findings.agent, Mapping) else None
    return isinstance(budget, Mapping) and budget.get("is_safe") is True


def _limits_by_device(findings: HostFindings) -> dict[str, bool]:
    """Return whether a power limit can be set, by the name of each processor and GPU."""
    hardware, knobs = findings.hardware, {knob.key for knob in findings.knobs}
    packages = {package.name: bool(package.limit_domains) for package in hardware.packages}
    gpus = {
        f"gpu{gpu.index}": f"{gpu.interface}.power_limit[gpu{gpu.index}]" in knobs for gpu in hardware.gpus
    }
    return (packages or {"the processors": False}) | gpus
