"""Table of the maximum power that a job can add above idle, by partition.

The maximum is computed from the devices of the nodes. senergyctld publishes the table in the policy file,
where the job_submit module reads it. The job_submit module calculates in the same way as
`PartitionPower.job_watts`. The module only calculates; it has no side effects.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

ANY_PARTITION: Final = "*"
"""Name of the row for partitions without a row of their own."""
CPU_WATTS: Final = 7.5
"""Power of one CPU above idle where no node has reported (two sockets of 240 W with 32 cores each)."""
GPU_WATTS: Final = 700.0
"""Power of one GPU above idle where no node has reported."""
_TURBO_FACTOR: Final = 2.0  # one core of a package draws more than its share, because it clocks higher
_NAME: Final = re.compile(r"[^\s,=|]{1,200}")


@dataclass(frozen=True, slots=True)
class NodePowerRange:
    """Maximum power that jobs can add above idle on one node.

    Attributes:
        package_watts: maximum minus idle power of all packages together, including memory.
        gpu_watts: maximum minus idle power of one GPU; 0 without GPUs.
        package_idle_watts: idle power of all packages together, including memory.
        gpu_idle_watts: idle power of one GPU.
        package_min_watts: sum of the minimum power limits of all packages; None means that packages have no
            power limit.
        gpu_min_watts: minimum power limit of one GPU; None means that GPUs have no power limit.
        package_model, gpu_model: kind of hardware of the packages and of the GPUs, as in response curves; an
            empty value means unknown.
    """

    package_watts: float
    gpu_watts: float = 0.0
    package_idle_watts: float = 0.0
    gpu_idle_watts: float = 0.0
    package_min_watts: float | None = None
    gpu_min_watts: float | None = None
    package_model: str = ""
    gpu_model: str = ""


@dataclass(frozen=True, slots=True)
class PartitionNode:
    """A node in Slurm's configuration with its power range.

    Attributes:
        partitions: partitions to which the node belongs.
        cpus: number of CPUs.
        gpus: number of GPUs by Slurm's GRES type. The type is empty for GPUs without a type.
        power: power range; None means that the node has not reported.
    """

    partitions: frozenset[str]
    cpus: int
    gpus: Mapping[str, int] = field(default_factory=dict)
    power: NodePowerRange | None = None


@dataclass(frozen=True, slots=True)
class PartitionPower:
    """Maximum power that jobs can add above idle on the nodes of one partition.

    Attributes:
        cpu_watts: maximum power above idle per CPU.
        node_watts: maximum power above idle of all packages of one node.
        cpus: minimum number of CPUs of a node. It converts a number of CPUs to a number of nodes.
        gpu_watts: maximum power above idle of one GPU of any kind.
        gpus: maximum number of GPUs of a node.
        gpu_kinds: maximum power above idle of one GPU, by Slurm's GRES type.
        idle_cpu_watts, idle_gpu_watts: idle power per CPU and per GPU, the minimum over all nodes.
        is_exclusive: whether each job gets whole nodes.
        is_default: whether the partition is the default of jobs that name no partition.
        node_min_watts: lowest power limit of a node: the sum of the minimum power limits of its packages.
            The value is the maximum over the nodes. It is None if no node has reported, or if any node has
            reported that its packages have no power limits.
        gpu_min_watts: minimum power limit of a GPU. The value is the maximum over the nodes. It is None if
            no node has reported, or if any node has reported that its GPUs have no power limits.
        package_model, gpu_model: kind of all packages and of all GPUs; an empty value means that there are
            several kinds, or the kind is unknown.
    """

    cpu_watts: float
    node_watts: float
    cpus: int
    gpu_watts: float = 0.0
    gpus: int = 0
    gpu_kinds: Mapping[str, float] = field(default_factory=dict)
    idle_cpu_watts: float = 0.0
    idle_gpu_watts: float = 0.0
    is_exclusive: bool = False
    is_default: bool = False
    node_min_watts: float | None = None
    gpu_min_watts: float | None = None
    package_model: str = ""
    gpu_model: str = ""

    def job_watts(
        self,
        nodes: int,
        cpus: int,
        gpus: int,
        gpu_kind: str = "",
        *,
        exclusive: bool,
        gpu_cap_watts: float = math.inf,
    ) -> float:
        """Return the maximum power in watts that a job can add to the idle power of its nodes.

        Args:
            nodes: number of nodes; the minimum number if the job requests none.
            cpus: number of CPUs on all nodes together.
            gpus: number of GPUs on all nodes together.
            gpu_kind: Slurm's GRES type of the GPUs; empty if the job names none.
            exclusive: whether the job requests whole nodes.
            gpu_cap_watts: cap on the power of each GPU of the job.
        """
        each_gpu = min(self.gpu_kinds.get(gpu_kind, self.gpu_watts), gpu_cap_watts)
        if exclusive or self.is_exclusive:
            nodes = self.node_count(nodes, cpus)
            any_gpu = min(self.gpu_watts, gpu_cap_watts)
            return nodes * self.node_watts + max(nodes * self.gpus * any_gpu, gpus * each_gpu)
        return max(cpus, nodes) * self.cpu_watts + gpus * each_gpu

    def kept_caps(self, node_cap: float, gpu_cap: float, *, gpus: float) -> tuple[float, float]:
        """Return the power caps of a job, per node and per GPU, as far as the devices can keep them.

        A device draws up to its minimum power limit under any lower cap. A device without a power limit may
        draw its full power under any cap, in addition to the cap that the other devices keep. Infinity means
        that there is no cap.

        Args:
            node_cap: requested cap per node in watts.
            gpu_cap: requested cap per GPU in watts.
            gpus: number of GPUs of the job on all nodes; infinity means all GPUs of its nodes.
        """
        min_node_cap = unlimited = 0.0
        on_node = self.gpus if self.is_exclusive else min(gpus, self.gpus)
        parts = (1, self.node_min_watts, self.node_watts), (on_node, self.gpu_min_watts, self.gpu_watts)
        for count, min_watts, max_watts in parts:
            if min_watts is None:
                unlimited += count * max_watts
            else:
                min_node_cap += count * min_watts
        min_gpu_cap = math.inf if self.gpu_min_watts is None else self.gpu_min_watts
        return max(node_cap, min_node_cap) + unlimited, max(gpu_cap, min_gpu_cap)

    def node_count(self, nodes: int, cpus: int) -> int:
        """Return the minimum number of nodes that a job needs."""
        return max(nodes, math.ceil(cpus / max(self.cpus, 1)), 1)

    def idle_watts(self, cpus: int, gpus: int) -> float:
        """Return the idle power of a job's CPUs and GPUs, which is part of the job's measured power."""
        return cpus * self.idle_cpu_watts + gpus * self.idle_gpu_watts


def powers_of_partitions(partitions: str, powers: Mapping[str, PartitionPower]) -> list[PartitionPower]:
    """Return the power of each partition in which a job may start.

    Args:
        partitions: names of the partitions, separated by commas.
        powers: power of each partition, including the key `ANY_PARTITION`.
    """
    return [powers.get(name, powers[ANY_PARTITION]) for name in partitions.split(",")]


def partition_powers(
    nodes: Iterable[PartitionNode], exclusive: Iterable[str] = (), default: str = ""
) -> dict[str, PartitionPower]:
    """Return the power that jobs can add in each partition.

    The key `ANY_PARTITION` applies to all partitions without an entry. A node that has not reported is
    assumed to equal the largest reported node of its partition, or of the cluster if no node of the
    partition has reported.

    Args:
        nodes: nodes of the cluster.
        exclusive: partitions in which each job gets whole nodes.
        default: Slurm's default partition; empty if the cluster has no default partition.
    """
    every = list(nodes)
    whole = _power(every, None)
    members: dict[str, list[PartitionNode]] = {}
    for node in every:
        for partition in node.partitions:
            members.setdefault(partition, []).append(node)
    powers = {ANY_PARTITION: whole}
    only_whole = frozenset(exclusive)
    for name in sorted(members):
        flags = {"is_exclusive": name in only_whole, "is_default": name == default}
        powers[name] = _power(members[name], whole, **flags)
    return powers


def _power(
    nodes: Sequence[PartitionNode],
    fallback: PartitionPower | None,
    *,
    is_exclusive: bool = False,
    is_default: bool = False,
) -> PartitionPower:
    cpus = [max(node.cpus, 1) for node in nodes] or [1]
    known = [(max(node.cpus, 1), node) for node in nodes if node.power is not None]
    cpu_watts = fallback.cpu_watts if fallback else CPU_WATTS
    gpu_watts = fallback.gpu_watts if fallback else GPU_WATTS
    node_watts = max(cpus) * cpu_watts
    idle_cpu = idle_gpu = 0.0
    reported = [(node, node.power) for node in nodes if node.power is not None]
    kinds: dict[str, float] = {}
    if known:
        powers = [(count, node, node.power) for count, node in known if node.power is not None]
        share = max(power.package_watts / count for count, _, power in powers)
        node_watts = max(*(power.package_watts for _, _, power in powers), share * max(cpus))
        cpu_watts = min(share * _TURBO_FACTOR, node_watts)
        idle_cpu = min(power.package_idle_watts / count for count, _, power in powers)
        with_gpus = [(node, power) for _, node, power in powers if sum(node.gpus.values()) > 0]
        gpu_watts = max((power.gpu_watts for _, power in with_gpus), default=gpu_watts)
        idle_gpu = min((power.gpu_idle_watts for _, power in with_gpus), default=0.0)
        for node, power in with_gpus:
            if len(node.gpus) == 1:
                kind = next(iter(node.gpus))
                kinds[kind] = max(kinds.get(kind, 0.0), power.gpu_watts)
    return PartitionPower(
        cpu_watts,
        node_watts,
        min(cpus),
        gpu_watts,
        max((sum(node.gpus.values()) for node in nodes), default=0),
        {kind: watts for kind, watts in kinds.items() if kind},
        idle_cpu,
        idle_gpu,
        is_exclusive=is_exclusive,
        is_default=is_default,
        node_min_watts=_highest([power.package_min_watts for _, power in reported]),
        gpu_min_watts=_highest([power.gpu_min_watts for node, power in reported if node.gpus]),
        package_model=_only({power.package_model for _, power in reported}),
        gpu_model=_only({power.gpu_model for node, power in reported if node.gpus}),
    )


def _highest(values: Sequence[float | None]) -> float | None:
    """Return the highest value; None if there is no value or one value is unknown."""
    numbers = [value for value in values if value is not None]
    return max(numbers) if numbers and len(numbers) == len(values) else None


def _only(names: set[str]) -> str:
    return names.pop() if len(names) == 1 else ""


def table_lines(powers: Mapping[str, PartitionPower]) -> list[str]:
    """Return the lines of the policy file that state the power of partitions.

    The lines are described in docs/reference/protocol.md.
    """
    lines = []
    for name, power in powers.items():
        if not _NAME.fullmatch(name):
            continue
        words = [
            f"license-power {name}",
            f"cpu={power.cpu_watts:.3f}",
            f"node={power.node_watts:.3f}",
            f"cpus={power.cpus}",
            f"gpu={power.gpu_watts:.3f}",
            f"gpus={power.gpus}",
        ]
        words += [f"nodemin={power.node_min_watts:.3f}"] if power.node_min_watts is not None else []
        words += [f"gpumin={power.gpu_min_watts:.3f}"] if power.gpu_min_watts is not None else []
        words += ["exclusive"] * power.is_exclusive + ["default"] * power.is_default
        lines.append(" ".join(words))
        lines += [
            f"license-gpu {name} {kind} {watts:.3f}"
            for kind, watts in sorted(power.gpu_kinds.items())
            if _NAME.fullmatch(kind)
        ]
    return lines
