"""Free resources of the cluster over time, for the starts of deferred jobs. It needs numpy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from slurm_energy.deferral import Capacity
from slurm_energy.scheduling.queue import Bools, Floats, Ints
from slurm_energy.signals import SignalColumns
from slurm_energy.slurm.queue.columns import PENDING, RUNNING, QueueColumns
from slurm_energy.slurm.queue.node_resources import NodeResources

_CPUS: Final = ""
_ANY_GPU: Final = "*"
_OVERDUE_SHARE: Final = 0.1
"""Remaining time of a job that has exceeded its prediction, as a share of the time for which it has run."""


def requested_units(queue: QueueColumns) -> tuple[Ints, Floats]:
    """Return kind of hardware and number of units of each job: GPUs, or CPUs of a job without GPUs.

    Kind 0 are CPUs, kind 1 GPUs of any type; named types follow in alphabetical order.
    """
    names = kind_names(queue)
    codes = {name: code for code, name in enumerate(names)}
    kinds = np.array(
        [
            codes[_CPUS] if gpus == 0 else codes[kind or _ANY_GPU]
            for gpus, kind in zip(queue.gpus.tolist(), queue.gpu_kind, strict=True)
        ],
        np.int64,
    )
    units: Floats = np.where(queue.gpus > 0, queue.gpus, queue.cpus).astype(np.float64)
    return kinds, units


def kind_names(queue: QueueColumns) -> list[str]:
    """Return the names of the kinds of hardware in the order of their numbers."""
    return [_CPUS, _ANY_GPU, *sorted({kind for kind in queue.gpu_kind if kind})]


def free_capacity(
    queue: QueueColumns,
    units: Floats,
    kinds: Ints,
    is_planned: Bools,
    time_s: Floats,
    nodes: Sequence[NodeResources],
    signals: SignalColumns,
    now_s: float,
) -> Capacity | None:
    """Return what running jobs and jobs that are not deferred leave free in each slot.

    Partitions, memory and licenses are not considered: Slurm decides what starts.

    Args:
        queue: all jobs.
        units: number of units of each job.
        kinds: kind of hardware of each job.
        is_planned: mask of the jobs that are deferrable.
        time_s: predicted run time of each job.
        nodes: nodes of the cluster; empty: unknown.
        signals: the slots.
        now_s: Unix seconds.

    Returns:
        The capacity; None: the nodes are unknown.
    """
    if not nodes or not signals.slots:
        return None
    names = kind_names(queue)
    total = np.array([_total(nodes, name) for name in names], np.float64)
    free = np.repeat(total[:, None], signals.slots, axis=1)
    starts_s = signals.slot_start_s
    is_running = queue.state == RUNNING
    begin_s = np.where(is_running, queue.start_s, now_s)
    end_s = begin_s + time_s
    overdue = is_running & (end_s <= now_s)
    end_s = np.where(overdue, now_s + _OVERDUE_SHARE * (now_s - begin_s), end_s)
    waits = (queue.state == PENDING) & ~queue.held & ~queue.dependent & ~is_planned
    for row in np.flatnonzero(is_running | waits).tolist():
        free[kinds[row], starts_s < end_s[row]] -= units[row]
    return Capacity(signals.start_s, signals.step_s, np.maximum(free, 0.0))


def _total(nodes: Sequence[NodeResources], name: str) -> float:
    usable = [node for node in nodes if node.usable or node.is_off]
    if name == _CPUS:
        return float(sum(node.cpus for node in usable))
    if name == _ANY_GPU:
        return float(sum(sum(node.gpus.values()) for node in usable))
    return float(sum(node.gpus.get(name, 0) for node in usable))
