"""Checks of all nodes for `senergy doctor --cluster`.

All functions are pure. If several nodes have the same result, they share one line of the report.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from slurm_energy.doctor.cluster_findings import ClusterFindings
from slurm_energy.doctor.delivery_checks import counted
from slurm_energy.doctor.node_checks import NODE_CHECKS, NodeResult
from slurm_energy.doctor.verdict import CheckState

_ORDER: Final = (CheckState.FAILED, CheckState.DEGRADED, CheckState.ABSENT, CheckState.OK)


@dataclass(frozen=True, slots=True)
class GroupCheck:
    """Result of a check of a group of nodes, or of the cluster.

    Attributes:
        name: name of the check.
        state: state of the check.
        finding: value or fault that the check found.
        nodes: names of the nodes, sorted; an empty value means that the check is about the cluster.
        cost: effect of the fault; empty if there is no fault.
        fix: remedy; empty if there is nothing to do.
    """

    name: str
    state: CheckState
    finding: str
    nodes: tuple[str, ...] = ()
    cost: str = ""
    fix: str = ""


def cluster_checks(findings: ClusterFindings) -> list[GroupCheck]:
    """Return the results of all checks of `senergy doctor --cluster`, in the order of the report."""
    checks = [_controller(findings), _slurmctld(findings)]
    for name, check in NODE_CHECKS.items():
        results = ((node.name, check(findings, node)) for node in findings.nodes)
        checks += _grouped(name, ((node, result) for node, result in results if result is not None))
    return checks


def is_cluster_healthy(checks: Iterable[GroupCheck]) -> bool:
    """Return whether all checks of the cluster are free of faults (degraded or failed)."""
    return not any(check.state in (CheckState.DEGRADED, CheckState.FAILED) for check in checks)


def _controller(findings: ClusterFindings) -> GroupCheck:
    what = f"{findings.url}, version {findings.version}"
    if findings.client_version == findings.version:
        return GroupCheck("controller", CheckState.OK, what)
    cost = "the older of the two does not know all fields of the newer"
    what += f", this command is {findings.client_version}"
    return GroupCheck(
        "controller", CheckState.DEGRADED, what, (), cost, "install the same version on all hosts"
    )


def _slurmctld(findings: ClusterFindings) -> GroupCheck:
    if findings.slurm_error:
        cost = "nodes without an agent are not known"
        fix = "scontrol ping"
        return GroupCheck("slurmctld", CheckState.FAILED, findings.slurm_error, (), cost, fix)
    in_slurm = [node for node in findings.nodes if node.slurm_state]
    expected = sum(node.is_expected for node in in_slurm)
    return GroupCheck(
        "slurmctld", CheckState.OK, f"{counted(len(in_slurm), 'node')}, {expected} expected to be up"
    )


def _grouped(name: str, results: Iterable[tuple[str, NodeResult]]) -> list[GroupCheck]:
    """Return one check per distinct result of the nodes, sorted with the faults first.

    Nodes with the same result are combined in one check.
    """
    groups: dict[tuple[CheckState, str, str, str], list[tuple[str, float | None]]] = {}
    for node, result in results:
        key = (result.state, result.finding, result.cost, result.fix)
        groups.setdefault(key, []).append((node, result.value))
    checks = []
    for (state, finding, cost, fix), members in groups.items():
        values = [value for _, value in members if value is not None]
        text = finding.replace("{}", _range(values), 1) if values else finding
        checks.append(GroupCheck(name, state, text, tuple(node for node, _ in members), cost, fix))
    return sorted(checks, key=lambda check: (_ORDER.index(check.state), -len(check.nodes)))


def _range(values: Sequence[float]) -> str:
    low, high = (_number(min(values)), _number(max(values)))
    return low if low == high else f"{low} to {high}"


def _number(value: float) -> str:
    value = round(value, 3) or 0.0  # no -0
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"
