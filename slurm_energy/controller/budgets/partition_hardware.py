"""Cache of the nodes and partitions of the cluster.

The admission of jobs computes the power of partitions from this cache.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from slurm_energy.budget.power_table import NodePowerRange, PartitionNode, PartitionPower, partition_powers
from slurm_energy.slurm.command import Runner
from slurm_energy.slurm.queue.node_resources import read_nodes

HARDWARE_INTERVAL_S: Final = 600.0
"""Age after which nodes and partitions are read again."""
_WATTS_STEP: Final = 5.0  # the table in the policy file changes by whole steps only
_PARTITION: Final = re.compile(r"(?:^| )(PartitionName|Default|OverSubscribe|Exclusive)=([^ ]*)")
_WHOLE_NODES: Final = frozenset({"NODE", "TOPO"})  # values of Exclusive, from Slurm 26.05 on


class PartitionHardware:
    """Power that jobs can add in each partition.

    The power is computed from the nodes of the partition in Slurm, and from the power ranges that these
    nodes report.

    Args:
        run: runs Slurm's commands.
    """

    def __init__(self, run: Runner) -> None:
        self._run = run
        self._read_at_s = -math.inf
        self._nodes: dict[str, PartitionNode] = {}
        self._exclusive: frozenset[str] = frozenset()
        self._default = ""
        self._ranges: dict[str, NodePowerRange] = {}
        self._powers: dict[str, PartitionPower] | None = None

    def powers(self, ranges: Mapping[str, NodePowerRange]) -> Mapping[str, PartitionPower]:
        """Return the power that jobs can add in each partition.

        A node that no longer reports, for example while it is powered down, keeps its last range.

        Args:
            ranges: reported power range by node.
        """
        now_s = time.monotonic()
        if now_s - self._read_at_s > HARDWARE_INTERVAL_S:
            self._nodes = {
                node.name: PartitionNode(node.partitions, node.cpus, node.gpus)
                for node in read_nodes(self._run)
            }
            self._exclusive, self._default = _read_partitions(self._run)
            self._read_at_s, self._powers = now_s, None
        rounded = self._ranges | {name: _rounded(one) for name, one in ranges.items()}
        if self._powers is None or rounded != self._ranges:
            nodes = [
                PartitionNode(node.partitions, node.cpus, node.gpus, rounded.get(name))
                for name, node in self._nodes.items()
            ]
            self._powers = partition_powers(nodes, self._exclusive, self._default)
            self._ranges = rounded
        return self._powers


def _rounded(power: NodePowerRange) -> NodePowerRange:
    return replace(
        power,
        package_watts=_rounded_up(power.package_watts),
        gpu_watts=_rounded_up(power.gpu_watts),
        package_idle_watts=math.floor(power.package_idle_watts / _WATTS_STEP) * _WATTS_STEP,
        gpu_idle_watts=math.floor(power.gpu_idle_watts / _WATTS_STEP) * _WATTS_STEP,
        # The minimum limit of a device rises while its present jobs draw more than its lowest limit.
        package_min_watts=None if power.package_min_watts is None else _rounded_up(power.package_min_watts),
        gpu_min_watts=None if power.gpu_min_watts is None else _rounded_up(power.gpu_min_watts),
    )


def _rounded_up(watts: float) -> float:
    return math.ceil(watts / _WATTS_STEP) * _WATTS_STEP


def _read_partitions(run: Runner) -> tuple[frozenset[str], str]:
    """Return the partitions that give each job whole nodes, and the default partition.

    Slurm up to 25.11 marks such a partition with `OverSubscribe=EXCLUSIVE`. Slurm 26.05 marks it with
    `Exclusive=NODE` or `Exclusive=TOPO`.
    """
    lines = run(["scontrol", "--oneliner", "show", "partition"]).splitlines()
    values = [dict(_PARTITION.findall(line)) for line in lines]
    named = [one for one in values if one.get("PartitionName")]
    exclusive = frozenset(
        one["PartitionName"]
        for one in named
        if one.get("OverSubscribe") == "EXCLUSIVE" or one.get("Exclusive") in _WHOLE_NODES
    )
    return exclusive, next((one["PartitionName"] for one in named if one.get("Default") == "YES"), "")
