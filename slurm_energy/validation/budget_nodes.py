"""The nodes of slurm.conf and their partitions, which the checks of power budgets need."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from slurm_energy.errors import UsageError
from slurm_energy.slurm.hostlist import expand_hostlist
from slurm_energy.validation.host import SlurmConf

_NODES = re.compile(r"\snodes\s*=\s*\"?([^\s\"]+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class NodesOfSlurm:
    """Nodes in slurm.conf.

    Attributes:
        names: names of all nodes; empty if they are unknown.
        partitions: nodes by partition.
    """

    names: frozenset[str]
    partitions: Mapping[str, frozenset[str]] = field(default_factory=dict)

    @classmethod
    def of(cls, slurm: SlurmConf) -> NodesOfSlurm:
        """Return the nodes of a slurm.conf. Node sets and lists that cannot be parsed are left out."""
        names = frozenset(
            name
            for line in slurm.settings.get("nodename", [])
            for name in _expanded(line.split(maxsplit=1)[0])
            if name.upper() != "DEFAULT"
        )
        partitions: dict[str, frozenset[str]] = {}
        for line in slurm.settings.get("partitionname", []):
            match = _NODES.search(line)
            text = match[1] if match else ""
            nodes = names if text.upper() == "ALL" else names.intersection(_expanded(text))
            partitions[line.split(maxsplit=1)[0]] = nodes
        return cls(names, partitions)

    def of_partition(self, name: str) -> frozenset[str]:
        """Return the nodes of a partition; empty if they are unknown."""
        return self.partitions.get(name, frozenset())


def _expanded(hostlist: str) -> list[str]:
    try:
        return expand_hostlist(hostlist)
    except UsageError:
        return []
