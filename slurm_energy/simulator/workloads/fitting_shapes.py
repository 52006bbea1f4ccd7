"""Removal of the shapes of simulated jobs that are larger than the cluster.

A shape is one way to run a job, with a number of units such as GPUs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from slurm_energy.simulator.cluster import NodeKind
from slurm_energy.simulator.workloads.workload import SHAPE_COLUMNS, Workload


def keep_fitting_shapes(work: Workload, kinds: Sequence[NodeKind]) -> Workload:
    """Return the workload without the shapes that the cluster can never provide.

    A shape is one way to run a job: a kind of nodes and a number of units (GPUs, cores or nodes) of this
    kind. A shape is removed if it needs more units than all nodes of its kind have together.

    The removal is necessary because a policy such as `kairos` lets jobs wait for an efficient shape. Under
    such a policy, a job would wait for ever for a shape that the cluster cannot provide. If none of a job's
    shapes fits, the job keeps all its shapes. The simulation then reports the job as larger than the
    cluster.

    Args:
        work: workload with the jobs.
        kinds: the kinds of nodes of the cluster.
    """
    total = np.array([kind.nodes * kind.units for kind in kinds], np.int64)
    fits = work.units <= total[work.hardware]
    counts = np.diff(work.first)
    if np.all(fits) or np.all(counts == 1):
        return work
    runs = np.add.reduceat(fits, work.first[:-1]) > 0
    kept = fits | np.repeat(~runs, counts)
    first = np.concatenate([[0], np.cumsum(np.add.reduceat(kept.astype(np.int64), work.first[:-1]))])
    columns = {name: getattr(work, name)[kept] for name in SHAPE_COLUMNS}
    return replace(work, first=first.astype(np.int64), **columns)
