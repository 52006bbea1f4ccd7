"""Report of `senergy doctor --cluster`, which checks all nodes.

The report is printed as text on a terminal, as JSON, or as single lines for monitoring.
"""

from __future__ import annotations

import functools
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any, Final

from slurm_energy.doctor.cluster_checks import GroupCheck, is_cluster_healthy
from slurm_energy.doctor.cluster_findings import ClusterFindings
from slurm_energy.doctor.delivery_checks import counted
from slurm_energy.doctor.verdict import CheckState
from slurm_energy.slurm.hostlist import fold_hostlist

_MAX_HOSTLIST: Final = 40
_WIDTH: Final = 80
_FAULTS: Final = (CheckState.DEGRADED, CheckState.FAILED)


def document(findings: ClusterFindings, checks: Iterable[GroupCheck]) -> dict[str, Any]:
    """Return the report as a dict for JSON. Host lists are not shortened."""
    listed = list(checks)
    return {
        "cluster": findings.cluster,
        "controller": {"url": findings.url, "version": findings.version},
        "healthy": is_cluster_healthy(listed),
        "complete": findings.is_complete,
        "nodes": len(findings.nodes),
        "reporting": sum(node.is_up for node in findings.nodes),
        "awaited": fold_hostlist(node.name for node in findings.awaited),
        "checks": [
            {
                "name": check.name,
                "state": check.state,
                "finding": check.finding,
                "nodes": _folded(check.nodes),
                "node_count": len(check.nodes),
                "cost": check.cost,
                "fix": check.fix,
            }
            for check in listed
        ],
    }


def lines(findings: ClusterFindings, checks: Sequence[GroupCheck]) -> list[str]:
    """Return the lines of the report for a terminal."""
    up = sum(node.is_up for node in findings.nodes)
    reporting = f"{counted(up, 'agent')} {'reports' if up == 1 else 'report'}"
    text = [f"cluster {findings.cluster}: {counted(len(findings.nodes), 'node')}, {reporting}", ""]
    width = max(len(check.name) for check in checks)
    before = ""
    for check in checks:
        name = check.name if check.name != before else ""
        before = check.name
        indent = " " * (12 + width)
        text += _wrapped(f"{check.state:<9} {name:<{width}}  {_where(check)}{check.finding}", indent)
        for label, part in _advice(check):
            text += _wrapped(f"{indent}{label} {part}", f"{indent}{' ' * len(label)} ")
    if not findings.is_complete:
        text.append("note      only operators see all checks (controller.operators)")
    faults = list(dict.fromkeys(check.name for check in checks if check.state in _FAULTS))
    verdict = f"degraded: {', '.join(faults)}" if faults else "healthy"
    return [*text, "", f"cluster {findings.cluster} is {verdict}"]


def faults(checks: Iterable[GroupCheck]) -> list[str]:
    """Return one line per check that is degraded or failed."""
    bad = [check for check in checks if check.state in _FAULTS]
    return [f"{check.state}: {check.name}: {_where(check)}{check.finding}" for check in bad]


def _wrapped(line: str, indent: str) -> list[str]:
    return textwrap.wrap(
        line, _WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


@functools.lru_cache(maxsize=64)  # most checks have the same nodes, and folding 10,000 takes a quarter second
def _folded(nodes: tuple[str, ...]) -> str:
    return fold_hostlist(nodes)


def _where(check: GroupCheck) -> str:
    """Return the text that names the nodes of a check, to be printed before the finding.

    The text contains the host list, or the beginning of a long host list, and the number of nodes. It is
    empty if the check is about the whole cluster.
    """
    if not check.nodes:
        return ""
    folded = _folded(check.nodes)
    if len(folded) > _MAX_HOSTLIST:
        folded = f"{folded[: _MAX_HOSTLIST - 3]}..."
    count = f" ({len(check.nodes)})" if len(check.nodes) > 1 else ""
    return f"{folded}{count}: "


def _advice(check: GroupCheck) -> list[tuple[str, str]]:
    return [(label, part) for label, part in (("costs:", check.cost), ("fix:  ", check.fix)) if part]
