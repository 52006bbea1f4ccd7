"""Mixed GPU shapes: a job divides its work among nodes with different GPU types.

`gpu:a100+h100:2` means 2 GPUs per node on nodes of either type. The predictions assume a program that
balances its work, such as `training.balanced`. In this program every node gets work in proportion to its
speed, so that all nodes end at the same time. Pure functions.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Final

import numpy as np

from slurm_energy.policies.shapes import GpuShape
from slurm_energy.priority.prediction import QueuePredictions
from slurm_energy.scheduling.queue import Floats, Ints

MIN_NODES: Final = 2
"""Minimum number of nodes of a job that can have nodes of several types."""
_SEPARATOR: Final = "+"
_WEAKEST: Final = frozenset({"source", "level", "misprediction"})


def kinds_of(gpu_kind: str, known: Collection[str]) -> tuple[str, ...]:
    """Return the GPU types that a shape names: several types if the shape is mixed, else one type.

    A shape such as `a100+h100` names two types. Slurm also permits `+` inside the name of one type. If
    `known` contains the whole name, the name is therefore not split.

    Args:
        gpu_kind: type of a shape, `a100` or `a100+h100`.
        known: GPU types of all nodes.
    """
    parts = tuple(dict.fromkeys(gpu_kind.split(_SEPARATOR)))
    return (gpu_kind,) if gpu_kind in known or len(parts) < 2 or not all(parts) else parts


@dataclass(frozen=True, slots=True)
class BalancedSplit:
    """Division of a job's work among GPU types. The nodes of all types finish at the same time.

    Attributes:
        time_s: predicted run time in seconds.
        power_watts: predicted mean watts of the whole job.
        work_shares: fraction of the work by GPU type; the fractions add up to 1.
    """

    time_s: float
    power_watts: float
    work_shares: dict[str, float]

    @property
    def energy_joules(self) -> float:
        """Predicted energy in joules."""
        return self.time_s * self.power_watts


def balanced_split(
    node_shares: Mapping[str, float], time_s: Mapping[str, float], power_watts: Mapping[str, float]
) -> BalancedSplit:
    """Divide a job among nodes of several GPU types, so that all nodes end at the same time.

    The model has no fixed costs. A job whose nodes are all of type k takes the time T_k. A fraction f_k of
    the nodes therefore completes f_k / T_k of the job per second. All nodes compute until the end, so the
    power is the mean of the types' powers, weighted by nodes. `training.shares.divide` uses the same model
    with measured costs.

    Args:
        node_shares: fraction of the job's nodes by GPU type; the fractions add up to 1.
        time_s: run time of the whole job if it runs on nodes of one type only, above 0.
        power_watts: watts of the whole job if it runs on nodes of one type only.
    """
    rates = {kind: share / time_s[kind] for kind, share in node_shares.items()}
    rate = sum(rates.values())
    watts = sum(share * power_watts[kind] for kind, share in node_shares.items())
    return BalancedSplit(1.0 / rate, watts, {kind: value / rate for kind, value in rates.items()})


@dataclass(frozen=True, slots=True)
class ComponentRows:
    """Table of offered shapes, in which a shape with several GPU types is split by GPU type.

    A shape is a set of resources on which a job may run. Each row has one GPU type.

    Attributes:
        origin: index of the offered shape of each row; the rows of one shape are adjacent.
        gpu_kind: GPU type by row.
        node_share: by row, the fraction of the job's nodes with this GPU type; 1 for shapes of one type.
    """

    origin: Ints
    gpu_kind: list[str]
    node_share: Floats


def component_rows(shapes: Sequence[GpuShape], node_shares: Sequence[Mapping[str, float]]) -> ComponentRows:
    """Return the rows for which predictions are needed.

    A GPU shape is a number and kind of GPUs with which a job can run. A mixed shape has GPUs of several
    types and needs one row per type. Any other shape needs one row.

    Args:
        shapes: the GPU shapes that jobs offer.
        node_shares: for each shape, the fraction of the job's nodes by GPU type. A shape that is not mixed
            has one type.
    """
    rows = [
        (index, kind, share) for index in range(len(shapes)) for kind, share in node_shares[index].items()
    ]
    return ComponentRows(
        np.array([row[0] for row in rows], np.int64),
        [row[1] for row in rows],
        np.array([row[2] for row in rows], np.float64),
    )


def combined(
    predicted: QueuePredictions, rows: ComponentRows
) -> tuple[QueuePredictions, dict[int, BalancedSplit]]:
    """Combine predictions for single GPU types into one prediction for each offered shape.

    A shape is a set of GPUs on which a job can run. A mixed shape has several GPU types. In `predicted`,
    each GPU type of a mixed shape has its own row (component row). If the predictions of the GPU types have
    different sources, the combined prediction gets the least certain source. Its number of runs is the
    minimum over the GPU types.

    The function also returns how each mixed shape divides the work among its GPU types, by index of the
    shape.

    Args:
        predicted: predictions of the component rows.
        rows: the component rows, one per GPU type of a mixed shape.
    """
    first = np.flatnonzero(np.diff(rows.origin, prepend=-1))
    ends = np.append(first, len(rows.origin))[1:]
    columns = {one.name: getattr(predicted, one.name)[first].copy() for one in fields(QueuePredictions)}
    splits: dict[int, BalancedSplit] = {}
    for index, (start, end) in enumerate(zip(first.tolist(), ends.tolist(), strict=True)):
        if end - start < MIN_NODES:
            continue
        own = range(start, end)
        shares = {rows.gpu_kind[row]: float(rows.node_share[row]) for row in own}
        split = _split(predicted, rows, own, shares, "time_s")
        splits[index] = split
        columns["power_watts"][index] = split.power_watts
        columns["time_s"][index] = split.time_s
        columns["source_time_s"][index] = _split(predicted, rows, own, shares, "source_time_s").time_s
        columns["lower_bound_s"][index] = predicted.lower_bound_s[start:end].min()
        columns["runs"][index] = predicted.runs[start:end].min()
        for name in _WEAKEST:
            columns[name][index] = getattr(predicted, name)[start:end].max()
        if (predicted.level[start:end] < 0).any():
            columns["level"][index] = -1
    return QueuePredictions(**columns), splits


def _split(
    predicted: QueuePredictions,
    rows: ComponentRows,
    own: Sequence[int],
    shares: Mapping[str, float],
    column: str,
) -> BalancedSplit:
    times = {rows.gpu_kind[row]: float(getattr(predicted, column)[row]) for row in own}
    watts = {rows.gpu_kind[row]: float(predicted.power_watts[row]) for row in own}
    return balanced_split(shares, times, watts)
