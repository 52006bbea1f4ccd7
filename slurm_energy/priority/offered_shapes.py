"""Jobs that can run in several GPU shapes (kinds and numbers of GPUs).

Users list the possible shapes of a job with --energy-alternatives. This module converts the shapes to the
tables that `scheduling` uses, and chooses the shape in which a job shall run.
`controller.queue.interventions` changes the jobs in Slurm accordingly.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from typing import Final

import numpy as np

from slurm_energy.errors import UsageError
from slurm_energy.policies.shapes import GpuShape, parse_shapes
from slurm_energy.priority.mixed_shapes import BalancedSplit, combined, component_rows
from slurm_energy.priority.node_capacity import JobNeed, NodeCapacity
from slurm_energy.priority.prediction import QueuePredictions, QueuePredictor
from slurm_energy.priority.scaling_model import harmonized, relative_by_peaks
from slurm_energy.priority.scheduling_tables import (
    RequestedShapeProvider,
    ShapeTable,
    blocked_rows,
    integer_codes,
)
from slurm_energy.priority.snapshot import Snapshot
from slurm_energy.reports.figure_format import with_unit
from slurm_energy.scheduling.admission import admit
from slurm_energy.scheduling.policy_guard import Rank
from slurm_energy.scheduling.queue import Bools, Ints, alternatives
from slurm_energy.scheduling.ranking import NORMAL, Ranking
from slurm_energy.slurm.queue.columns import QueueColumns
from slurm_energy.slurm.queue.node_resources import NodeResources

UNLIMITED_UNITS: Final = np.iinfo(np.int64).max // 4
"""Free units of hardware that is not tracked here; Slurm decides whether such jobs fit."""

BlockedShape = tuple[int, GpuShape]
"""Job id and a shape in which the job did not start although the shape seemed to fit."""


@dataclass(frozen=True, slots=True)
class OfferedShapeTable(ShapeTable):
    """Table of the GPU shapes with which the jobs of the queue can run.

    A GPU shape is a number and kind of GPUs. A job that offers several shapes has several rows.

    Attributes:
        shape: GPU shape by row; None means the job's original request.
        fits: whether the free resources suffice for the job in the GPU shape of the row; array of shape
            (m,).
        offers: offered GPU shapes by index among the ranked jobs. Jobs without offers have no entry.
        gpus_free: number of free GPUs when the table was made, by GPU type. For a mixed shape, which has
            GPUs of several types, the number is the sum over these types.
        splits: division of the work among the nodes of each mixed shape, by row of the table.
    """

    shape: list[GpuShape | None] = field(default_factory=list)
    fits: Bools = field(default_factory=lambda: np.zeros(0, np.bool_))
    offers: Mapping[int, tuple[GpuShape, ...]] = field(default_factory=dict)
    gpus_free: Mapping[str, int] = field(default_factory=dict)
    splits: Mapping[int, BalancedSplit] = field(default_factory=dict)

    def text(self, row: int) -> str:
        """Return the GPU request of a table row in the words of the job's owner."""
        shape = self.shape[row]
        return super(OfferedShapeTable, self).text(row) if shape is None else shape.text

    def fits_now(self, row: int) -> bool:
        """Return whether the free resources suffice for a job in one of its possible GPU shapes.

        A GPU shape is a number and kind of GPUs.

        Args:
            row: row of this table. Each row is one GPU shape of one job.
        """
        return bool(self.fits[row])


@dataclass(frozen=True, slots=True)
class ShapeChoice:
    """The GPU shape (kind and number of GPUs) that a job should have now.

    Attributes:
        job_id: Slurm's job id.
        name: job specification for scontrol that selects only this job record.
        submit_s: submission time, Unix seconds. Job id and submission time together are unique.
        partitions: partitions that the job may run in.
        shape: the chosen GPU shape.
        offered: all GPU shapes in which the job's user lets the job run.
        starts_now: whether the shape fits and no job earlier in the order needs the same resources.
        index: index of the job among the ranked jobs.
    """

    job_id: int
    name: str
    submit_s: float
    partitions: tuple[str, ...]
    shape: GpuShape
    offered: tuple[GpuShape, ...]
    starts_now: bool
    index: int


class OfferedShapeProvider:
    """Provider of the GPU shapes in which each job of the queue may run.

    A shape is a type and number of GPUs. Users may allow several shapes for a job. A job for which the user
    allows no further shapes has one shape, its request.

    Args:
        predictor: predicts time and watts of each shape.
        nodes: function that returns the nodes with their free resources, or None if they are unknown. The
            function is called at most once per queue, and only if a job has several shapes.
        blocked_shapes: (job id, shape) pairs that count as not fitting.
        keeps_request: function of (job id, submission time, restart count) that returns whether the job must
            keep its original request. A job that must keep its request is ranked by this request. Its other
            shapes must not give it a better place in the queue, because it will never have them.
    """

    def __init__(
        self,
        predictor: QueuePredictor,
        nodes: Callable[[], Sequence[NodeResources] | None],
        blocked_shapes: Collection[BlockedShape] = (),
        keeps_request: Callable[[int, float, int], bool] = lambda job_id, submit_s, restarts: False,
    ) -> None:
        self._predictor, self._nodes, self._blocked_shapes, self._keeps_request_of = (
            predictor,
            nodes,
            blocked_shapes,
            keeps_request,
        )

    def shapes(self, queue: QueueColumns, rows: Ints, predicted: QueuePredictions) -> ShapeTable:
        """Return a table with at least one GPU shape for each job; see `scheduling_tables.ShapeProvider`.

        A GPU shape is a number and kind of GPUs with which the job can run. The table omits shapes that no
        node in the job's partitions can ever provide. Of the remaining shapes, those that fit into the free
        resources now are marked possible. If no shape of a job fits now, all its shapes are marked possible,
        because a waiting job is ranked by its best shape.
        """
        offers_by_index = {
            index: shapes_of_job
            for index, row in enumerate(rows.tolist())
            if (shapes_of_job := offered_by(queue, row)) and not self._keeps_request(queue, row)
        }
        nodes = self._nodes() if offers_by_index else None
        as_asked = RequestedShapeProvider().shapes(queue, rows, predicted)
        if nodes is None:
            return as_asked
        space = NodeCapacity(nodes)
        offers: dict[int, tuple[GpuShape, ...]] = {}
        for index, shapes in offers_by_index.items():
            need = _need(queue, int(rows[index]))
            if can_ever_fit := tuple(shape for shape in shapes if space.can_ever_fit(need, shape)):
                offers[index] = can_ever_fit
        return self._expanded(queue, rows, as_asked, offers, space)

    def _keeps_request(self, queue: QueueColumns, row: int) -> bool:
        return self._keeps_request_of(
            int(queue.job_id[row]), float(queue.submit_s[row]), int(queue.restart_count[row])
        )

    def _expanded(
        self,
        queue: QueueColumns,
        rows: Ints,
        as_asked: ShapeTable,
        offers: Mapping[int, tuple[GpuShape, ...]],
        space: NodeCapacity,
    ) -> ShapeTable:
        counts = np.ones(len(rows), np.int64)
        for index, shapes in offers.items():
            counts[index] = len(shapes)
        first = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        at = np.repeat(np.arange(len(rows)), counts)
        gpus, kinds = as_asked.table.gpus[at], [as_asked.gpu_kind[index] for index in at.tolist()]
        shape: list[GpuShape | None] = [None] * len(at)
        fits = np.ones(len(at), np.bool_)
        for index, shapes in offers.items():
            row, need = int(rows[index]), _need(queue, int(rows[index]))
            job_id = int(queue.job_id[row])
            for number, one in enumerate(shapes, int(first[index])):
                shape[number], kinds[number] = one, one.gpu_kind
                gpus[number] = one.gpus * need.nodes
                fits[number] = (job_id, one) not in self._blocked_shapes and space.fits(need, one)
        some = np.repeat(np.logical_or.reduceat(fits, first[:-1]), counts) if len(at) else fits
        predicted, splits = self._predicted(queue, rows, as_asked.predicted, at, gpus, shape, space)
        table = alternatives(
            first,
            predicted.time_s,
            predicted.power_watts,
            gpus=gpus,
            hardware=integer_codes(kinds),
            possible=fits | ~some,
        )
        free = space.gpus_free | {kind: space.free_of(kind) for kind in kinds if "+" in kind}
        return OfferedShapeTable(table, kinds, predicted, shape, fits, offers, free, splits)

    def _predicted(
        self,
        queue: QueueColumns,
        rows: Ints,
        as_asked: QueuePredictions,
        at: Ints,
        gpus: Ints,
        shape: list[GpuShape | None],
        space: NodeCapacity,
    ) -> tuple[QueuePredictions, dict[int, BalancedSplit]]:
        """Predict run time and power for each row of a table of shapes.

        A shape is a possible set of resources of a job. The table has m rows. A row with a GPU shape that
        the job's owner offers gets a new prediction. Any other row keeps the prediction of the original
        request. A mixed shape has several GPU types. It is predicted for each GPU type alone, and the
        predictions are then combined. For each row with a mixed shape, the result also contains the division
        of the work among the GPU types.

        Args:
            queue: all jobs.
            rows: queue rows of the ranked jobs.
            as_asked: predictions of the ranked jobs in their original request, one row per job.
            at: index of each table row's job among the ranked jobs, shape (m,).
            gpus: number of GPUs by table row, shape (m,).
            shape: offered GPU shape by table row; None means the original request.
            space: resources of the nodes.
        """
        offered = np.array([row for row, one in enumerate(shape) if one is not None], np.int64)
        shapes = [one for one in shape if one is not None]
        shares = [
            space.node_shares(_need(queue, int(rows[at[row]])), one)
            for row, one in zip(offered.tolist(), shapes, strict=True)
        ]
        parts = component_rows(shapes, shares)
        table_row, gpu_kind = offered[parts.origin], parts.gpu_kind
        own, count = rows[at[table_row]], gpus[table_row]
        time, watts = self._predictor.predict_by_model(queue, own, count, gpu_kind)
        peak_time, peak_watts = relative_by_peaks(count, gpu_kind)
        job = at[table_row]
        unknown = np.isin(job, job[np.isnan(time)])
        figures_of_offers = harmonized(
            self._predictor.predict(queue, own, count, gpu_kind),
            job,
            np.where(unknown, peak_time, time),
            np.where(unknown, peak_watts, watts),
            queue.time_limit_s[own],
        )
        figures_of_offers, splits = combined(figures_of_offers, parts)
        figures = []
        for name in (one.name for one in fields(QueuePredictions)):
            column = getattr(as_asked, name)[at]
            column[offered] = getattr(figures_of_offers, name)
            figures.append(column)
        return QueuePredictions(*figures), {int(offered[index]): split for index, split in splits.items()}


def _need(queue: QueueColumns, row: int) -> JobNeed:
    nodes = max(1, int(queue.nodes[row]))
    cpus = -(-int(queue.cpus[row]) // nodes)
    return JobNeed(tuple(queue.partition[row].split(",")), nodes, cpus)


def offered_by(queue: QueueColumns, row: int) -> tuple[GpuShape, ...]:
    """Return the GPU shapes (types and numbers of GPUs) on which a job in the queue can run.

    The user lists these shapes. The result is empty if the list is missing or invalid. It is also empty for
    a record of several array tasks and for a component of a heterogeneous job, because a change of the
    request would also affect the other tasks or components. It is also empty for a job that Slurm cannot run
    for reasons other than resources.
    """
    text = queue.flags[row].get("ENERGY_ALTERNATIVES")
    if not text or queue.reason[row] == "BadConstraints" or queue.tasks[row] > 1 or queue.het_job_id[row]:
        return ()
    return _parsed(text)


@lru_cache(maxsize=4096)
def _parsed(text: str) -> tuple[GpuShape, ...]:
    try:
        return parse_shapes(text)
    except UsageError:
        return ()


def choose_shapes(snapshot: Snapshot, rank: Rank) -> list[ShapeChoice]:
    """Choose a shape (number and type of GPUs) for each job that can run in several shapes.

    The queue is processed in order with the resources that are free now. A job that can start in this way
    starts now. For such a job, the scheduling policy chooses among the shapes that fit now. For any other
    job, the policy chooses among all shapes of the job, because Slurm may start the job as soon as the
    chosen shape is free, before the next cycle. In the result, jobs that start now come first, in queue
    order.

    Args:
        snapshot: the ranked queue.
        rank: the ranking function of the scheduling policy.
    """
    shapes = snapshot.shapes
    if not isinstance(shapes, OfferedShapeTable) or not shapes.offers:
        return []
    all_possible = replace(shapes.table, possible=np.ones_like(shapes.table.possible))
    best = rank(replace(snapshot.scheduled, alternatives=all_possible), snapshot.options).choice
    started = _startable_indices(snapshot, shapes)
    chosen = []
    for index in snapshot.order.tolist():
        if index in shapes.offers:
            now = int(snapshot.ranking.choice[index])
            starts_now = index in started and bool(shapes.fits[now])
            row = now if starts_now else int(best[index])
            if row >= 0:
                chosen.append(_choice(snapshot, shapes, index, row, starts_now))
    return sorted(chosen, key=lambda choice: not choice.starts_now)


def _startable_indices(snapshot: Snapshot, shapes: OfferedShapeTable) -> set[int]:
    """Return the indices of the ranked jobs that would start if the queue were processed in order.

    A job that waits for something other than resources does not start and takes no free resources. A job may
    offer several shapes (numbers and kinds of GPUs). Such a job is in the result even if it can start only
    in a shape other than its present shape.
    """
    back = blocked_rows(snapshot.queue)[snapshot.rows]
    back[list(shapes.offers)] = False
    free = snapshot.startable()[snapshot.rows] & ~back
    ranking = Ranking(
        tier=np.where(free, snapshot.ranking.tier, NORMAL),
        score=np.where(free, snapshot.ranking.score, np.inf),
        choice=np.where(free, snapshot.ranking.choice, -1),
    )
    count = int(shapes.table.hardware.max(initial=0)) + 1
    units = np.full(count, UNLIMITED_UNITS)
    for gpu_kind, number in zip(shapes.gpu_kind, shapes.table.hardware.tolist(), strict=True):
        units[number] = shapes.gpus_free.get(gpu_kind, 0) if gpu_kind else UNLIMITED_UNITS
    job_id = snapshot.queue.job_id[snapshot.rows]
    return set(admit(ranking, job_id, shapes.table, units, np.zeros(len(shapes.gpu_kind))))


def _choice(
    snapshot: Snapshot, shapes: OfferedShapeTable, index: int, row: int, starts_now: bool
) -> ShapeChoice:
    queue, at = snapshot.queue, int(snapshot.rows[index])
    shape = shapes.shape[row]
    assert shape is not None
    return ShapeChoice(
        job_id=int(queue.job_id[at]),
        name=queue.scontrol_name(at),
        submit_s=float(queue.submit_s[at]),
        partitions=tuple(queue.partition[at].split(",")),
        shape=shape,
        offered=shapes.offers[index],
        starts_now=starts_now,
        index=index,
    )


def choice_reason(snapshot: Snapshot, choice: ShapeChoice) -> str:
    """Return one line that explains why a job gets the chosen GPU shape."""
    shapes, table = snapshot.shapes, snapshot.shapes.table
    splits = shapes.splits if isinstance(shapes, OfferedShapeTable) else {}
    words = []
    for row in range(int(table.first[choice.index]), int(table.first[choice.index + 1])):
        free = "" if shapes.fits_now(row) else ", does not fit now"
        split = splits.get(row)
        words.append(
            f"{shapes.text(row)} {with_unit(float(table.edp[row]), 'J s')}{_split_text(split)}{free}"
        )
    verb = "takes" if choice.starts_now else "waits for"
    return f"{snapshot.policy} {verb} it; predicted EDP: {'; '.join(words)}"


def _split_text(split: BalancedSplit | None) -> str:
    """Describe a mixed GPU shape: its predicted time and energy, and the work of each GPU type.

    A mixed shape has nodes of several GPU types. The text is in brackets. It is empty for a shape that is
    not mixed.
    """
    if split is None:
        return ""
    shares = ", ".join(f"{kind} {100 * share:.0f} %" for kind, share in split.work_shares.items())
    return f" (balanced {split.time_s:.0f} s, {with_unit(split.energy_joules, 'J')}: {shares})"
