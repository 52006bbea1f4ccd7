"""Creation of the tuning search for a job on several nodes.

The search covers only those operating points that all nodes of the job can apply.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

from slurm_energy.policies.operating_point import UNTUNED, OperatingPoint
from slurm_energy.tuning.candidates import CpuHardware, GpuHardware
from slurm_energy.tuning.group.coordinator import GroupSearch
from slurm_energy.tuning.group.messages import NodeOffer
from slurm_energy.tuning.objective import Objective
from slurm_energy.tuning.progress_window import ProgressWindow

PINNED = "pinned"


class ConstantSearch:
    """A search that requests the same operating point (set of hardware settings) for the whole job.

    Args:
        point: operating point that the search requests.
        source: origin of the point, for the key `chosen_source` of the job record; None for the untuned
            point of a job that cannot be tuned.
    """

    phase = "hold"

    def __init__(self, point: OperatingPoint, source: str | None = None) -> None:
        self.requested, self._source = point, source

    def observe(self, window: ProgressWindow) -> None:
        """Ignore the measurement window, because this search never changes the operating point."""

    def summary(self) -> dict[str, Any]:
        """Return the result in the form of the job record's key `tuning`."""
        return {"chosen": self.requested.to_json(), "chosen_source": self._source, "progress": "none"}


def create_joint_search(
    offers: Mapping[str, NodeOffer], refused: frozenset[str], objective: Objective, max_probes: int
) -> GroupSearch:
    """Return the search for the best operating point of a job on several nodes.

    An operating point is a set of hardware settings. A job stays untuned if its nodes have no operating
    point in common, or if numpy is not installed.

    Args:
        offers: for each node, the operating points that the node can have.
        refused: names of the fields of `OperatingPoint` that have no effect on at least one node.
        objective: objective of the job.
        max_probes: maximum number of points that the search tries in each phase of the job.
    """
    pinned = {offer.start for offer in offers.values() if offer.pinned}
    if len(pinned) == 1 and (point := pinned.pop()) is not None:
        return ConstantSearch(point, PINNED)
    points = common_points([offer.candidates for offer in offers.values()], refused)
    gpu = common_gpu([offer.gpu for offer in offers.values()])
    cpu = common_cpu([offer.cpu for offer in offers.values()])
    if not points or (gpu is None and cpu is None):
        return ConstantSearch(UNTUNED)
    try:
        from slurm_energy.tuning import priors
        from slurm_energy.tuning.search import SearchOptions, TuningSearch
    except ImportError:  # numpy belongs to an extra
        return ConstantSearch(UNTUNED)
    starts = {offer.start for offer in offers.values()}
    start = starts.pop() if len(starts) == 1 else None
    prior = priors.PhysicalPrior(gpu, cpu)
    return TuningSearch(points, objective, prior, SearchOptions(max_probes=max_probes, start=start))


def common_points(
    candidates: Collection[tuple[OperatingPoint, ...]], refused: frozenset[str] = frozenset()
) -> tuple[OperatingPoint, ...]:
    """Return the operating points that all nodes of a job can have.

    The result has the order of the first node's points.

    Args:
        candidates: points of each node.
        refused: names of fields of `OperatingPoint` that a point must not set.
    """
    first, *others = candidates
    shared = set(first).intersection(*others)
    return tuple(point for point in first if point in shared and not refused & point.to_json().keys())


def common_gpu(gpus: Collection[GpuHardware | None]) -> GpuHardware | None:
    """Return hardware that stands for all GPUs of a job on several nodes; None if a node has no GPU.

    The result has the range of power limits and clocks that all nodes have in common.
    """
    known = [gpu for gpu in gpus if gpu is not None]
    if len(known) < len(gpus):
        return None
    clocks = [gpu.max_clock_mhz for gpu in known if gpu.max_clock_mhz is not None]
    return GpuHardware(
        count=sum(gpu.count for gpu in known),
        default_limit_watts=min(gpu.default_limit_watts for gpu in known),
        min_limit_watts=max(gpu.min_limit_watts for gpu in known),
        max_clock_mhz=min(clocks) if len(clocks) == len(known) else None,
    )


def common_cpu(cpus: Collection[CpuHardware | None]) -> CpuHardware | None:
    """Return one description for the processors of all nodes of the job.

    The frequency range of the result is common to all nodes. The result is None if the processors
    of any node are not tunable.
    """
    known = [cpu for cpu in cpus if cpu is not None]
    if len(known) < len(cpus):
        return None
    has_one_table = len({cpu.table_mhz for cpu in known}) == 1
    return dataclasses.replace(
        known[0],
        packages=sum(cpu.packages for cpu in known),
        max_mhz=min(cpu.max_mhz for cpu in known),
        min_mhz=max(cpu.min_mhz for cpu in known),
        table_mhz=known[0].table_mhz if has_one_table else (),
    )
