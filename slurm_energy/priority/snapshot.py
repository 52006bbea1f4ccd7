"""The result of one ranking cycle: the order of the queue and everything that it was computed from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slurm_energy.priority.prediction import QueuePredictions
from slurm_energy.priority.rank_correlation import RankCorrelation, rank_correlation
from slurm_energy.priority.scheduling_tables import ShapeTable, startable_rows
from slurm_energy.priority.usage import Association
from slurm_energy.scheduling import Options, Queue, Ranking, Users
from slurm_energy.scheduling.queue import Bools, Floats, Ints
from slurm_energy.slurm.queue.columns import PENDING, QueueColumns
from slurm_energy.slurm.queue.squeue_source import group_job_ids


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The outcome of a cycle; never changed. n jobs in the queue, r of them ranked, u associations.

    Attributes:
        computed: Unix seconds.
        took_s: how long the cycle took.
        policy: how jobs were ranked.
        options: with which numbers of the site.
        queue: what was read.
        predicted: of all jobs as they asked; components are counted with their heterogeneous job's leader.
        leader: row whose place each job shares, see `building.leaders`; shape (n,).
        rows: rows of the queue that were ranked, shape (r,).
        scheduled: what `scheduling` was given; its jobs are `rows`.
        shapes: the alternatives that it was given, with kinds and sources.
        ranking: what it answered.
        order: places in `rows`, first to start first, shape (r,).
        place: 1 for the first to start; 0: not ranked. Shape (n,).
        numbers: site factors; 0: none of ours. Shape (n,).
        withdrawn: rows that have no number any more and one of ours in Slurm, which was set job by job.
        new: rows that have a number and had none in the cycle before; in the first, those that have
            another one in Slurm.
        associations: account and user by row of `scheduled.users`.
        association: row of `associations` by job, shape (n,).
        users: energy and GPU seconds of associations, running jobs included.
        shares: normalised, NaN where not known, shape (u,).
    """

    computed: float
    duration_s: float
    policy: str
    options: Options
    queue: QueueColumns
    predicted: QueuePredictions
    leader: Ints
    rows: Ints
    scheduled: Queue
    shapes: ShapeTable
    ranking: Ranking
    order: Ints
    place: Ints
    site_factors: Ints
    withdrawn_rows: Ints
    new_rows: Ints
    associations: list[Association]
    association: Ints
    users: Users
    shares: Floats

    @property
    def pending(self) -> int:
        """Number of pending jobs."""
        return int(np.sum(self.queue.state == PENDING))

    @property
    def default_site_factor(self) -> int:
        """Site factor for a job that nobody has ranked yet: of the middle of the queue; 0: no queue."""
        if len(self.order) == 0:
            return 0
        return int(self.site_factors[self.rows[self.order[len(self.order) // 2]]])

    def site_factor_changes(self, new_only: bool = False) -> dict[int, int]:
        """Return the new site factors where Slurm has other ones, those that matter most first.

        A job that has to leave the head of the queue matters as much as one that comes to it: however many
        are changed, what stands above the rest is as it should be.

        By the numbers that Slurm takes: of arrays and heterogeneous jobs their own, which goes for all their
        records.

        Args:
            new_only: only of jobs that came since the last cycle and are not held.
        """
        at = np.concatenate([self._rows_by_place(), self.withdrawn_rows])
        at = at[self.site_factors[at] != self.queue.site_factor[at]]
        if new_only:
            at = at[np.isin(at, self.new_rows) & ~self.queue.held[at]]
        at = at[np.argsort(-np.maximum(self.site_factors, self.queue.site_factor)[at], kind="stable")]
        return dict(zip(scontrol_ids(self.queue, at), self.site_factors[at].tolist(), strict=True))

    def site_factor_table(self) -> tuple[Ints, Ints]:
        """Return ids and site factors of all pending jobs; those that are not ranked have 0."""
        at = np.flatnonzero(self.queue.state == PENDING)
        return self.queue.job_id[at], self.site_factors[at]

    def startable(self) -> Bools:
        """Return which rows wait for nothing but resources and their turn."""
        return startable_rows(self.queue, self.computed)

    def correlation_with_slurm(self) -> RankCorrelation:
        """Compare the order with Slurm's own, among jobs that are free to start."""
        at = self._rows_by_place()
        at = at[self.startable()[at] & (self.leader[at] == at)]
        slurm_factors = np.lexsort((self.queue.job_id[at], -self.queue.priority[at]))
        place = np.empty(len(at), np.int64)
        place[slurm_factors] = np.arange(len(at))
        return rank_correlation(place)

    def _rows_by_place(self) -> Ints:
        """Return the rows that have a number, first to start first."""
        at = np.flatnonzero(self.place > 0)
        rows: Ints = at[np.argsort(self.place[at], kind="stable")]
        return rows


def scontrol_ids(queue: QueueColumns, rows: Ints) -> list[int]:
    """Return the numbers by which scontrol takes what these rows belong to."""
    found: list[int] = group_job_ids(queue.job_id, queue.array_job_id, queue.het_job_id)[rows].tolist()
    return found
