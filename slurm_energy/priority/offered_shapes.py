"""Jobs that offer several shapes: rows for `scheduling`, what fits now, and which shape a job should get.

Setting it in Slurm is done elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from typing import Final

import numpy as np

from slurm_energy.errors import UsageError
from slurm_energy.policies.shapes import GpuShape, parse_shapes
from slurm_energy.priority.prediction import QueuePredictions, QueuePredictor
from slurm_energy.priority.scaling_model import harmonized, relative_by_peaks
from slurm_energy.priority.scheduling_tables import (
    RequestedShapeProvider,
    ShapeTable,
    blocked_rows,
    integer_codes,
)
from slurm_energy.priority.snapshot import Snapshot
from slurm_energy.reports.scaling import with_unit
from slurm_energy.scheduling.admission import admit
from slurm_energy.scheduling.queue import Bools, Ints, alternatives
from slurm_energy.scheduling.ranking import NORMAL, Ranking
from slurm_energy.scheduling.registry import Rank
from slurm_energy.slurm.queue.columns import QueueColumns
from slurm_energy.slurm.queue.node_resources import NodeResources

UNLIMITED_UNITS: Final = np.iinfo(np.int64).max // 4
"""Free units of what is not counted here: Slurm decides about it."""

BlockedShape = tuple[int, GpuShape]
"""A job and a shape that did not let it start although it seemed to fit."""


@dataclass(frozen=True, slots=True)
class OfferedShapeTable(ShapeTable):
    """Shapes of which some are alternatives of one job.

    Attributes:
        shape: by row; None: as the job asked.
        fits: whether what is free now is enough for it, shape (m,).
        offers: what jobs offer, by place among the ranked jobs; nothing of jobs that offer nothing.
        gpus_free: free GPUs by kind, as they were when this was made.
    """

    shape: list[GpuShape | None] = field(default_factory=list)
    fits: Bools = field(default_factory=lambda: np.zeros(0, np.bool_))
    offers: Mapping[int, tuple[GpuShape, ...]] = field(default_factory=dict)
    gpus_free: Mapping[str, int] = field(default_factory=dict)

    def text(self, row: int) -> str:
        """Return a shape as its job's owner wrote it."""
        shape = self.shape[row]
        return super(OfferedShapeTable, self).text(row) if shape is None else shape.text

    def fits_now(self, row: int) -> bool:
        """Return whether what is free is enough for a shape."""
        return bool(self.fits[row])


@dataclass(frozen=True, slots=True)
class ShapeChoice:
    """The shape that a job should have now.

    Attributes:
        job_id: the job.
        name: what means this record alone to scontrol.
        submit_s: when it was submitted; with the number it means one job only.
        partitions: those it may run in.
        shape: one of those it offers.
        offered: all of them.
        turn: it fits, and the job's turn has come.
        place: of the job among the ranked ones.
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
    """Finds the shapes of jobs that offer several; the others have one each, as they asked.

    Args:
        predictor: time and watts of each shape.
        nodes: what is free; called at most once a queue, and only if some job offers shapes. None: not known.
        doubts: shapes that count as not fitting.
        keeps: tells of a job (number, time of submission, restarts) that it keeps what it asked for. It is
            ranked by that: else it could get a place by a shape that it will never have.
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
        """Return at least one shape for each job; see `building.ShapeProvider`.

        Shapes that no node of the job's partitions has are left out. Of the others those are possible that
        fit now; if none does, all are, so that the job is ranked by its best one while it waits.
        """
        offers_by_index = {
            index: found
            for index, row in enumerate(rows.tolist())
            if (found := offered_by(queue, row)) and not self._keeps_request(queue, row)
        }
        nodes = self._nodes() if offers_by_index else None
        as_asked = RequestedShapeProvider().shapes(queue, rows, predicted)
        if nodes is None:
            return as_asked
        space = _NodeCapacity(nodes)
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
        space: _NodeCapacity,
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
        predicted = self._predicted(queue, rows, as_asked.predicted, at, gpus, kinds, shape)
        table = alternatives(
            first,
            predicted.time_s,
            predicted.power_watts,
            gpus=gpus,
            hardware=integer_codes(kinds),
            possible=fits | ~some,
        )
        return OfferedShapeTable(table, kinds, predicted, shape, fits, offers, space.gpus_free)

    def _predicted(
        self,
        queue: QueueColumns,
        rows: Ints,
        as_asked: QueuePredictions,
        at: Ints,
        gpus: Ints,
        kinds: list[str],
        shape: list[GpuShape | None],
    ) -> QueuePredictions:
        """Return the figures by row: new ones for offered shapes, those of the jobs as they asked else."""
        offered = np.array([row for row, one in enumerate(shape) if one is not None], np.int64)
        own, count, kind = rows[at[offered]], gpus[offered], [kinds[row] for row in offered.tolist()]
        time, watts = self._predictor.predict_by_model(queue, own, count, kind)
        peak_time, peak_watts = relative_by_peaks(count, kind)
        job = at[offered]
        unknown = np.isin(job, job[np.isnan(time)])
        asked = harmonized(
            self._predictor.predict(queue, own, count, kind),
            job,
            np.where(unknown, peak_time, time),
            np.where(unknown, peak_watts, watts),
            queue.time_limit_s[own],
        )
        figures = []
        for name in (one.name for one in fields(QueuePredictions)):
            column = getattr(as_asked, name)[at]
            column[offered] = getattr(asked, name)
            figures.append(column)
        return QueuePredictions(*figures)


@dataclass(frozen=True, slots=True)
class _JobNeed:
    """What a job needs beside its GPUs."""

    partitions: tuple[str, ...]
    nodes: int
    cpus_per_node: int


def _need(queue: QueueColumns, row: int) -> _JobNeed:
    nodes = max(1, int(queue.nodes[row]))
    cpus = -(-int(queue.cpus[row]) // nodes)
    return _JobNeed(tuple(queue.partition[row].split(",")), nodes, cpus)


class _NodeCapacity:
    """What nodes have and what is free of them, asked by jobs; the same question is answered once.

    In columns, for users can make every job's question another one.
    """

    def __init__(self, nodes: Sequence[NodeResources]) -> None:
        self._nodes = nodes
        usable = [node.usable for node in nodes]
        self._usable = np.array(usable, np.bool_)
        self._cpus = np.array([node.cpus for node in nodes], np.int64)
        self._cpus_free = np.where(usable, [node.cpus_free for node in nodes], -1)
        self.gpus_free: dict[str, int] = {}
        for node in nodes:
            for kind, count in node.gpus_free.items() if node.usable else ():
                self.gpus_free[kind] = self.gpus_free.get(kind, 0) + count
        self.can_ever_fit = lru_cache(maxsize=4096)(self._can_ever_fit)
        self.fits = lru_cache(maxsize=4096)(self._fits)
        self._gpus_of_kind = lru_cache(maxsize=256)(self._count)
        self._nodes_in = lru_cache(maxsize=256)(self._in_partition)

    def _count(self, kind: str) -> tuple[Ints, Ints]:
        """Return the GPUs of a kind and the free ones, by node."""
        there = [node.gpus.get(kind, 0) for node in self._nodes]
        free = [node.gpus_free.get(kind, 0) for node in self._nodes]
        return np.array(there, np.int64), np.array(free, np.int64)

    def _in_partition(self, name: str) -> Bools:
        return np.array([name in node.partitions for node in self._nodes], np.bool_)

    def _enough_nodes(self, able: Bools, need: _JobNeed) -> bool:
        """Return whether some partition has so many of these nodes: a job runs in one of its partitions."""
        return any(np.count_nonzero(able & self._nodes_in(name)) >= need.nodes for name in need.partitions)

    def _can_ever_fit(self, need: _JobNeed, shape: GpuShape) -> bool:
        """Return whether the partition has such nodes at all."""
        gpus, _ = self._gpus_of_kind(shape.gpu_kind)
        return self._enough_nodes((gpus >= shape.gpus) & (self._cpus >= need.cpus_per_node), need)

    def _fits(self, need: _JobNeed, shape: GpuShape) -> bool:
        """Return whether enough is free now."""
        _, free = self._gpus_of_kind(shape.gpu_kind)
        able = (free >= shape.gpus) & (self._cpus_free >= need.cpus_per_node)
        return self._enough_nodes(able & self._usable, need)


def offered_by(queue: QueueColumns, row: int) -> tuple[GpuShape, ...]:
    """Return the shapes that a job offers; none for what is not a good list.

    Records of several array tasks and components of heterogeneous jobs keep what they asked for: one
    change would concern others too. So do jobs that Slurm cannot run for another reason.
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
    """Return the shape for each job that offers several: those whose turn has come, then the others.

    First to start first. If its turn has come, that of the policy among those that fit. Its turn: going
    through the queue in order, with what is free now, it would start. Else that of the policy among all:
    once this one becomes free Slurm may start the job at once, before anybody has looked again.

    Args:
        snapshot: the ranked queue.
        rank: the policy.
    """
    shapes = snapshot.shapes
    if not isinstance(shapes, OfferedShapeTable) or not shapes.offers:
        return []
    all_possible = replace(shapes.table, possible=np.ones_like(shapes.table.possible))
    best = rank(replace(snapshot.scheduled, alternatives=all_possible), snapshot.options).choice
    started = _startable_indices(snapshot, shapes)
    found = []
    for index in snapshot.order.tolist():
        if index in shapes.offers:
            now = int(snapshot.ranking.choice[index])
            starts_now = index in started and bool(shapes.fits[now])
            row = now if starts_now else int(best[index])
            if row >= 0:
                found.append(_choice(snapshot, shapes, index, row, starts_now))
    return sorted(found, key=lambda choice: not choice.starts_now)


def _startable_indices(snapshot: Snapshot, shapes: OfferedShapeTable) -> set[int]:
    """Return which ranked jobs would start now, in order and with what is free, by place among them.

    Jobs that something else holds back take nothing; one that offers shapes may be free in another of them.
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
    for kind, number in zip(shapes.gpu_kind, shapes.table.hardware.tolist(), strict=True):
        units[number] = shapes.gpus_free.get(kind, 0) if kind else UNLIMITED_UNITS
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
        name=queue.name_of(at),
        submit_s=float(queue.submit_s[at]),
        partitions=tuple(queue.partition[at].split(",")),
        shape=shape,
        offered=shapes.offers[index],
        starts_now=starts_now,
        index=index,
    )


def choice_reason(snapshot: Snapshot, choice: ShapeChoice) -> str:
    """Return one line: why a job gets a shape."""
    shapes, table = snapshot.shapes, snapshot.shapes.table
    words = []
    for row in range(int(table.first[choice.index]), int(table.first[choice.index + 1])):
        free = "" if shapes.fits_now(row) else ", does not fit now"
        words.append(f"{shapes.text(row)} {with_unit(float(table.edp[row]), 'J s')}{free}")
    verb = "takes" if choice.starts_now else "waits for"
    return f"{snapshot.policy} {verb} it; predicted EDP: {'; '.join(words)}"
