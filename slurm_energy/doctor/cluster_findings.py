"""Findings of `senergy doctor --cluster` on all nodes, as plain data.

The findings come from the response of senergyctld.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from slurm_energy.errors import NotFoundError
from slurm_energy.quantities import is_number
from slurm_energy.slurm.hostlist import fold_hostlist


@dataclass(frozen=True, slots=True)
class NodeFindings:
    """Findings on one node.

    Attributes:
        name: Slurm's name of the node.
        slurm_state: state in Slurm; an empty value means that Slurm does not know the node, or does not
            answer.
        is_expected: whether Slurm expects the node to be up.
        is_busy: whether Slurm runs jobs on the node.
        partition: a partition that contains the node, preferably the default partition.
        slurmd: release of the node's slurmd; an empty value means unknown.
        age_s: seconds since the last live report; None means that there is no live report.
        cluster: cluster name in the live report if this name differs from that of the controller's cluster;
            otherwise empty.
        clock_offset_s: the node's clock minus the controller's clock, in seconds; None means unknown.
        facts: facts about the node in the live report, see `protocol.node_states`; an empty value means not
            received yet.
        counts: numbers in the live report by name, such as `running_jobs` and `failed_reports`.
        refusal: why senergyctld refuses the live reports of the node; an empty value means that the reports
            are accepted.
    """

    name: str
    slurm_state: str = ""
    is_expected: bool = False
    is_busy: bool = False
    partition: str = ""
    slurmd: str = ""
    age_s: float | None = None
    cluster: str = ""
    clock_offset_s: float | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    counts: Mapping[str, float] = field(default_factory=dict)
    refusal: str = ""

    @property
    def is_up(self) -> bool:
        """Whether the agent reports and has sent its facts."""
        return self.age_s is not None and bool(self.facts)


@dataclass(frozen=True, slots=True)
class ClusterFindings:
    """Findings of the controller about all nodes.

    Attributes:
        url: address of the controller.
        cluster: name of the cluster.
        version: release of senergyctld.
        schema: newest schema of records that senergyctld reads.
        client_version: release of this command.
        report_interval_s: minimum interval of live reports that senergyctld requests.
        uptime_s: seconds since senergyctld started; None means unknown.
        slurm_error: why Slurm does not answer; an empty value means that Slurm answers.
        config: digests of the controller's configuration, see `config.section_digests`.
        is_complete: whether the caller sees all findings. Otherwise only reports and releases are known.
        nodes: the nodes, sorted by name.
    """

    url: str
    cluster: str
    version: str
    schema: int
    client_version: str
    report_interval_s: float = 0.0
    uptime_s: float | None = None
    slurm_error: str = ""
    config: Mapping[str, str] = field(default_factory=dict)
    is_complete: bool = True
    nodes: Sequence[NodeFindings] = ()

    @property
    def awaited(self) -> list[NodeFindings]:
        """Nodes that Slurm expects to be up and whose agent has not reported yet."""
        return [node for node in self.nodes if node.is_expected and not node.is_up]


def read_response(
    answer: Mapping[str, Any], url: str, client_version: str, only: Collection[str] = ()
) -> ClusterFindings:
    """Return the findings about the nodes in a response to `GET /v1/nodes`.

    Unknown keys are ignored.

    Args:
        answer: response of senergyctld as parsed JSON.
        url: address of the controller.
        client_version: release of this command.
        only: names of the nodes to select; an empty value means all nodes.

    Raises:
        NotFoundError: a selected node neither exists in Slurm nor reports.
    """
    facts = [item for item in answer.get("facts") or [] if isinstance(item, dict)]
    nodes = [_node(item, facts) for item in answer.get("nodes") or [] if isinstance(item, dict)]
    error = str(answer.get("slurm_error") or "")
    if only:
        selected = set(only)
        missing = selected.difference(node.name for node in nodes)
        if missing:
            why = f"and Slurm does not answer: {error}" if error else "and not in Slurm"
            raise NotFoundError(f"node {fold_hostlist(missing)}", f"not reported, {why}")
        nodes = [node for node in nodes if node.name in selected]
    return ClusterFindings(
        url=url,
        cluster=str(answer.get("cluster") or ""),
        version=str(answer.get("version") or ""),
        schema=int(answer.get("schema") or 0),
        client_version=client_version,
        report_interval_s=float(answer.get("report_interval_s") or 0.0),
        uptime_s=uptime_s if is_number(uptime_s := answer.get("uptime_s")) else None,
        slurm_error=error,
        config=answer.get("config") or {},
        is_complete=answer.get("scope") == "all",
        nodes=nodes,
    )


def _node(item: Mapping[str, Any], facts: Sequence[Mapping[str, Any]]) -> NodeFindings:
    number = item.get("facts")
    return NodeFindings(
        name=str(item.get("node")),
        slurm_state=str(item.get("slurm_state") or ""),
        is_expected=item.get("is_expected") is True,
        is_busy=item.get("is_busy") is True,
        partition=str(item.get("partition") or ""),
        slurmd=str(item.get("slurmd") or ""),
        age_s=item.get("age_s"),
        cluster=str(item.get("cluster") or ""),
        clock_offset_s=item.get("clock_offset_s"),
        facts=facts[number] if isinstance(number, int) and number < len(facts) else {},
        counts=item.get("counts") or {},
        refusal=str(item.get("refusal") or ""),
    )
