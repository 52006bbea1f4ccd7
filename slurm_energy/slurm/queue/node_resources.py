"""Free CPUs and GPUs of each node, read with one scontrol command.

The free resources are used to choose GPUs for pending jobs and to choose the jobs to preempt.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from slurm_energy.slurm.command import Runner, run_command

_FIELD: Final = re.compile(
    r"(?:^| )(NodeName|CPUAlloc|CPUEfctv|CPUTot|Gres|GresUsed|State|Partitions)=([^ ]*)"
)
_FREE_TEXT: Final = re.compile(r"(?:^| )(?:Reason|Comment|Extra)=")
# `gpu:a100:4(S:0-1)`, `gpu:a100:2(IDX:0-1)`, `gpu:4`; an index list may hold commas.
_GPUS: Final = re.compile(r"(?:^|,)gpu(?::(?P<kind>[^:,()]+))??:(?P<count>\d{1,6})(?=[(,]|$)")
# Node states, also in combination, in which jobs may start on free resources.
_USABLE: Final = frozenset({"IDLE", "MIXED", "ALLOCATED", "COMPLETING", "CLOUD", "DYNAMIC_NORM", "PLANNED"})


@dataclass(frozen=True, slots=True)
class NodeResources:
    """The resources of one node as slurmctld sees them.

    Attributes:
        name: NodeName.
        partitions: partitions to which the node belongs.
        usable: the node is up, and jobs may start on the free resources of the node.
        cpus, cpus_free: number of all CPUs, and of free CPUs.
        gpus, gpus_free: number of all GPUs and of free GPUs, by Slurm's GRES type. The type is empty if
            gres.conf names none.
        is_off: Slurm has powered the node down.
        is_booting: Slurm is powering the node up.
    """

    name: str
    partitions: frozenset[str] = frozenset()
    usable: bool = True
    cpus: int = 0
    cpus_free: int = 0
    gpus: Mapping[str, int] = field(default_factory=dict)
    gpus_free: Mapping[str, int] = field(default_factory=dict)
    is_off: bool = False
    is_booting: bool = False

    def in_any(self, partitions: Iterable[str]) -> bool:
        """Return whether the node is in one of these partitions."""
        return not self.partitions.isdisjoint(partitions)


def read_nodes(run: Runner = run_command) -> list[NodeResources]:
    """Return the resources of all nodes, read from slurmctld with one command.

    Raises:
        UnavailableError: slurmctld does not answer.
    """
    return parse_nodes(run(["scontrol", "--details", "--oneliner", "show", "node"]))


def parse_nodes(text: str) -> list[NodeResources]:
    """Parse the output of `scontrol -d -o show node`; lines that describe no node are skipped.

    The fields Reason, Comment and Extra at the end of an output line contain free text and are cut off. A
    line break in free text can forge a second output line for a node. If a node has two lines, both are
    ignored and the node counts as unusable.
    """
    parsed = [_node(dict(reversed(_FIELD.findall(_FREE_TEXT.split(line)[0])))) for line in text.split("\n")]
    nodes = [node for node in parsed if node is not None]
    times = Counter(node.name for node in nodes)
    first = {node.name: node for node in reversed(nodes)}
    return [
        node if times[name] == 1 else NodeResources(name, usable=False)
        for name, node in reversed(first.items())
    ]


def _node(values: Mapping[str, str]) -> NodeResources | None:
    if not values.get("NodeName"):
        return None
    state = values.get("State", "").upper()
    words = re.split(r"[+]", state.rstrip("*~#!%$@^-"))
    # A symbol after the state means not responding, powered or powering down, in maintenance or reserved.
    usable = set(words) <= _USABLE and (not state or state[-1].isalpha())
    gpus, used = _gpus(values.get("Gres", "")), _gpus(values.get("GresUsed", ""))
    cpus = _count(values.get("CPUEfctv") or values.get("CPUTot", ""))
    return NodeResources(
        name=values["NodeName"],
        partitions=frozenset(values.get("Partitions", "").split(",")) - {""},
        usable=usable,
        cpus=cpus,
        cpus_free=max(0, cpus - _count(values.get("CPUAlloc", ""))),
        is_off="POWERED_DOWN" in words or state.endswith("~"),
        is_booting="POWERING_UP" in words or state.endswith("#"),
        gpus=gpus,
        gpus_free={kind: max(0, count - used.get(kind, 0)) for kind, count in gpus.items()},
    )


def _gpus(text: str) -> dict[str, int]:
    counts: dict[str, int] = {}
    for match in _GPUS.finditer(re.sub(r"\([^)]*\)", "", text)):
        kind = match["kind"] or ""
        counts[kind] = counts.get(kind, 0) + int(match["count"])
    return counts


def _count(text: str) -> int:
    return int(text) if text.isdecimal() and len(text) <= 9 else 0
