"""Total and free GPUs and CPUs of the nodes, and whether a job fits into them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from slurm_energy.policies.shapes import GpuShape
from slurm_energy.priority.mixed_shapes import MIN_NODES, kinds_of
from slurm_energy.scheduling.queue import Bools, Ints
from slurm_energy.slurm.queue.node_resources import NodeResources


@dataclass(frozen=True, slots=True)
class JobNeed:
    """Resources that a job requires besides GPUs."""

    partitions: tuple[str, ...]
    nodes: int
    cpus_per_node: int


class NodeCapacity:
    """Total and free resources of the nodes, to check whether a job fits.

    The results of the checks are cached. Users can submit many jobs that all differ, so a check must also be
    fast without the cache. The resources are therefore arrays over the nodes.
    """

    def __init__(self, nodes: Sequence[NodeResources]) -> None:
        self._nodes = nodes
        usable = [node.usable for node in nodes]
        self._usable = np.array(usable, np.bool_)
        self._cpus = np.array([node.cpus for node in nodes], np.int64)
        self._cpus_free = np.where(usable, [node.cpus_free for node in nodes], -1)
        self.gpus_free: dict[str, int] = {}
        for node in nodes:
            for gpu_kind, count in node.gpus_free.items() if node.usable else ():
                self.gpus_free[gpu_kind] = self.gpus_free.get(gpu_kind, 0) + count
        self.can_ever_fit = lru_cache(maxsize=4096)(self._can_ever_fit)
        self.fits = lru_cache(maxsize=4096)(self._fits)
        self._gpus_of_kind = lru_cache(maxsize=256)(self._count)
        self._kinds = frozenset(kind for node in nodes for kind in node.gpus)
        self._nodes_in = lru_cache(maxsize=256)(self._in_partition)

    def kinds(self, shape: GpuShape) -> tuple[str, ...]:
        """Return the GPU types of a shape (a job's number and type of GPUs).

        A mixed shape has several types, any other shape has one type.
        """
        return kinds_of(shape.gpu_kind, self._kinds)

    def free_of(self, gpu_kind: str) -> int:
        """Return the number of free GPUs of a type.

        `gpu_kind` may also name several types, for example `a100+h100`. The result is then the sum over these
        types.
        """
        return sum(self.gpus_free.get(kind, 0) for kind in kinds_of(gpu_kind, self._kinds))

    def node_shares(self, need: JobNeed, shape: GpuShape) -> dict[str, float]:
        """Return the expected fraction of a job's nodes by GPU type.

        Slurm chooses the nodes. The expected fractions are those among the free suitable nodes, or among all
        suitable nodes if too few are free. A GPU type without suitable nodes is left out.
        """
        kinds = self.kinds(shape)
        if len(kinds) == 1:
            return {shape.gpu_kind: 1.0}
        in_partition = np.logical_or.reduce([self._nodes_in(name) for name in need.partitions])
        counts: dict[str, int] = {}
        for is_free in (True, False):
            cpus = self._cpus_free if is_free else self._cpus
            able = in_partition & (cpus >= need.cpus_per_node) & (self._usable | (not is_free))
            gpus = {kind: self._gpus_of_kind(kind)[int(is_free)] for kind in kinds}
            counts = {kind: int(np.count_nonzero(able & (gpus[kind] >= shape.gpus))) for kind in kinds}
            if sum(counts.values()) >= need.nodes:
                break
        total = sum(counts.values())
        return {kind: count / total for kind, count in counts.items() if count}

    def _count(self, gpu_kind: str) -> tuple[Ints, Ints]:
        """Return the total and the free GPUs of a type on each node, as two arrays over the nodes.

        The name `gpu_kind` may stand for several types. If a node has GPUs of several of these types, each
        number is the largest number over the types.
        """
        kinds = kinds_of(gpu_kind, self._kinds)
        total = [max(node.gpus.get(kind, 0) for kind in kinds) for node in self._nodes]
        free = [max(node.gpus_free.get(kind, 0) for kind in kinds) for node in self._nodes]
        return np.array(total, np.int64), np.array(free, np.int64)

    def _in_partition(self, name: str) -> Bools:
        return np.array([name in node.partitions for node in self._nodes], np.bool_)

    def _enough_nodes(self, able: Bools, need: JobNeed) -> bool:
        """Return whether a single partition of the job has enough of the nodes marked in `able`.

        Several partitions cannot be combined, because a job runs in one partition.
        """
        return any(np.count_nonzero(able & self._nodes_in(name)) >= need.nodes for name in need.partitions)

    def _can_ever_fit(self, need: JobNeed, shape: GpuShape) -> bool:
        """Return whether a partition has enough nodes, free or busy, for a job in a GPU shape.

        A GPU shape is a number and a type of GPUs per node. A mixed shape allows GPUs of several
        types. One node has GPUs of one type, so a job on one node cannot have a mixed shape.
        """
        if len(self.kinds(shape)) > 1 and need.nodes < MIN_NODES:
            return False
        gpus, _ = self._gpus_of_kind(shape.gpu_kind)
        return self._enough_nodes((gpus >= shape.gpus) & (self._cpus >= need.cpus_per_node), need)

    def _fits(self, need: JobNeed, shape: GpuShape) -> bool:
        """Return whether a job could start now with a given type and number of GPUs per node.

        Free GPUs, free CPUs and the number of nodes are checked.
        """
        _, free = self._gpus_of_kind(shape.gpu_kind)
        able = (free >= shape.gpus) & (self._cpus_free >= need.cpus_per_node)
        return self._enough_nodes(able & self._usable, need)
