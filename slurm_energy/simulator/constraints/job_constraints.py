"""Constraints of the cluster that apply to each job: nodes, memory, licenses and limits."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from slurm_energy.scheduling.queue import Bools, Floats, Ints
from slurm_energy.simulator.cluster import NodeKind
from slurm_energy.simulator.constraints.constraints import (
    Constraints,
    JobLimits,
    NodeReservation,
    Partition,
    Qos,
)
from slurm_energy.simulator.workloads.workload import Workload

T = TypeVar("T", Partition, Qos)


def needs_constraints(work: Workload, kinds: Sequence[NodeKind], constraints: Constraints | None) -> bool:
    """Return whether memory or another constraint can change the schedule of a workload."""
    memory = any(math.isfinite(kind.memory_gib) for kind in kinds)
    return constraints is not None or (memory and bool(np.any(work.unit_memory_gib > 0)))


def with_default_limits(work: Workload, constraints: Constraints) -> Workload:
    """Return the workload with time limits for all jobs whose partition or QOS has a default limit."""
    partition_s = [
        math.inf if one is None else min(one.default_time_s, one.limits.max_time_s)
        for one in _requested(work.partitions, constraints.partitions)
    ]
    qos_s = [
        math.inf if one is None else one.limits.max_time_s
        for one in _requested(work.qos_names, constraints.qos)
    ]
    # A request of -1 (none) selects the last element.
    default_s = np.minimum(
        np.array([*partition_s, math.inf])[work.partition], np.array([*qos_s, math.inf])[work.qos]
    )
    limited = np.isnan(work.time_limit_s) & np.isfinite(default_s)
    if not np.any(limited):
        return work
    return replace(work, time_limit_s=np.where(limited, default_s, work.time_limit_s))


class JobConstraints:
    """Constraints that apply to each job of a workload.

    Units are what jobs allocate on a node: GPUs, cores or whole nodes.

    Args:
        work: workload with all jobs.
        kinds: kinds of nodes.
        constraints: constraints of the cluster.

    Attributes:
        reservations: the reservations, each with a mask of its nodes. A mask is an array of shape
            (nodes,).
        total_licenses: number of licenses of the cluster by kind of license, array of shape (l,).
        memory_gib: memory in GiB by node, array of shape (nodes,); infinity means unlimited.
        total_units: number of units by node, array of shape (nodes,).
    """

    def __init__(self, work: Workload, kinds: Sequence[NodeKind], constraints: Constraints) -> None:
        self._work = work
        self._constraints = constraints
        self._kind_of: Ints = np.repeat(np.arange(len(kinds)), [kind.nodes for kind in kinds])
        self.total_units: Ints = np.array([kind.units for kind in kinds], np.int64)[self._kind_of]
        self.memory_gib: Floats = np.array([kind.memory_gib for kind in kinds], np.float64)[self._kind_of]
        self._partition = [*_numbers(work.partitions, constraints.partitions), -1]
        self._qos = [*_numbers(work.qos_names, constraints.qos), -1]
        self._reservation = [*_numbers(work.reservations, constraints.reservations), -1]
        self.reservations: list[tuple[NodeReservation, Bools]] = [
            (one, self._mask(one.nodes)) for one in constraints.reservations
        ]
        self.total_licenses: Floats = np.array([count for _, count in constraints.licenses], np.float64)
        rows = {name: row for row, name in enumerate(work.license_names)}
        self._license_columns = [rows.get(name, -1) for name, _ in constraints.licenses]
        self._holds_licenses = any(column >= 0 for column in self._license_columns)
        self._nodes: dict[tuple[int, int, int], Ints] = {}
        self._limits: dict[tuple[int, int], list[tuple[str, JobLimits]]] = {}
        self._no_licenses: Floats = np.zeros(len(constraints.licenses))
        self._no_licenses.setflags(write=False)
        self._unit_memory_gib: list[float] = np.where(
            work.unit_memory_gib > 0, work.unit_memory_gib, 0.0
        ).tolist()

    def partition(self, job: int) -> int:
        """Return the index of the partition whose limits apply to a job; -1 if there is none."""
        return self._partition[int(self._work.partition[job])]

    def qos(self, job: int) -> int:
        """Return the index of the QOS that limits a job; -1 if no QOS does."""
        return self._qos[int(self._work.qos[job])]

    def reservation(self, job: int) -> int:
        """Return the index of the reservation that a job requests; -1 if the job requests none."""
        return self._reservation[int(self._work.reservation[job])]

    def limits(self, job: int) -> list[tuple[str, JobLimits]]:
        """Return the limits of the job's partition and QOS, each with a name for messages."""
        partition, qos = self.partition(job), self.qos(job)
        known = self._limits.get((partition, qos))
        if known is not None:
            return known
        named = self._limits[partition, qos] = []
        if partition >= 0:
            named.append(
                (
                    f"partition {self._constraints.partitions[partition].name}",
                    self._constraints.partitions[partition].limits,
                )
            )
        if qos >= 0:
            named.append((f"QOS {self._constraints.qos[qos].name}", self._constraints.qos[qos].limits))
        return named

    def priority(self, job: int) -> tuple[int, int]:
        """Return the priority of a job's partition and the priority of the job's QOS."""
        partition, qos = self.partition(job), self.qos(job)
        return (
            self._constraints.partitions[partition].limits.priority if partition >= 0 else 0,
            self._constraints.qos[qos].limits.priority if qos >= 0 else 0,
        )

    def nodes(self, job: int, shape: int) -> Ints:
        """Return the indices of the e nodes on which a job may run with an allocation, shape (e,).

        Args:
            job: index of the job.
            shape: index of the allocation, which determines the kind of node.
        """
        key = (self.partition(job), self.reservation(job), int(self._work.hardware[shape]))
        if key not in self._nodes:
            partition, reservation, kind = key
            mask = self._kind_of == kind
            if partition >= 0:
                mask &= self._mask(self._constraints.partitions[partition].nodes)
            if reservation >= 0:
                mask &= self.reservations[reservation][1]
            self._nodes[key] = np.flatnonzero(mask)
        return self._nodes[key]

    def unit_memory_gib(self, job: int) -> float:
        """Return the memory in GiB that each unit of a job needs; 0 if the job requests none."""
        return self._unit_memory_gib[job]

    def licenses(self, job: int) -> Floats:
        """Return the number of licenses that a job holds while it runs, by kind of license, shape (l,)."""
        if not self._holds_licenses:
            return self._no_licenses
        own = self._work.licenses[job]
        return np.array([own[column] if column >= 0 else 0 for column in self._license_columns], np.float64)

    def refusal(self, job: int, shape: int) -> str:
        """Return why a job can never run in a shape, even on the empty cluster.

        A shape is a way to run the job, with a number and kind of units. The reason is empty if the job can
        run. The windows of reservations are ignored.
        """
        units, limit_s = int(self._work.units[shape]), float(self._work.time_limit_s[job])
        for name, limits in self.limits(job):
            sizes = (limits.max_units_per_job, limits.max_units, limits.max_units_per_user)
            if any(0 < size < units for size in sizes):
                return f"they are larger than {name} permits"
            if limit_s > limits.max_time_s:
                return f"their time limit is above that of {name}"
        if np.any(self.licenses(job) > self.total_licenses):
            return "they need more licenses than there are"
        nodes = self.nodes(job, shape)
        capacity, memory_gib = self.total_units[nodes], self.unit_memory_gib(job)
        if capacity.sum() < units:
            return "they are larger than the nodes that they may use"
        if memory_gib > 0:
            by_memory = np.clip(np.floor((self.memory_gib[nodes] + 1e-9) / memory_gib), 0, 2**62)
            if np.minimum(capacity, by_memory).sum() < units:
                return "they need more memory than the nodes have"
        return ""

    def notes(self, refused: Mapping[str, int]) -> list[str]:
        """Return remarks on jobs that never ran, and on requests that have no effect.

        Args:
            refused: number of refused jobs by reason.
        """
        notes = [f"{count} jobs never ran: {reason}" for reason, count in refused.items()]
        for what, table, column, numbers, names in self._request_columns():
            unbound = Counter(column[column >= 0].tolist())
            unknown = [names[row] for row in unbound if numbers[row] < 0]
            if table and unknown:
                count = sum(count for row, count in unbound.items() if numbers[row] < 0)
                notes.append(
                    f"{count} jobs request a {what} that the scenario does not define ({unknown[0]}"
                    f"{', ...' if len(unknown) > 1 else ''}); it does not bind them"
                )
        return notes

    def _request_columns(self) -> list[tuple[str, object, Ints, list[int], tuple[str, ...]]]:
        work, table = self._work, self._constraints
        return [
            ("partition", table.partitions, work.partition, self._partition, work.partitions),
            ("QOS", table.qos, work.qos, self._qos, work.qos_names),
            ("reservation", table.reservations, work.reservation, self._reservation, work.reservations),
        ]

    def _mask(self, nodes: tuple[int, ...] | None) -> Bools:
        mask = np.full(len(self._kind_of), nodes is None, np.bool_)
        if nodes:
            mask[list(nodes)] = True
        return mask


def _numbers(names: Sequence[str], known: Sequence[Partition | Qos | NodeReservation]) -> list[int]:
    rows = {one.name: row for row, one in enumerate(known)}
    return [rows.get(name, -1) for name in names]


def _requested(names: Sequence[str], known: Sequence[T]) -> list[T | None]:
    by_name = {one.name: one for one in known}
    return [by_name.get(name) for name in names]
