"""Result of one ranking of the queue by senergyctld.

It contains the order of the jobs and all data from which the order was computed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from slurm_energy.priority.prediction import QueuePredictions
from slurm_energy.priority.quota_levels import QuotaUse
from slurm_energy.priority.rank_correlation import RankCorrelation, rank_correlation
from slurm_energy.priority.scheduling_tables import ShapeTable, startable_rows
from slurm_energy.priority.usage import Association
from slurm_energy.scheduling import Options, Queue, Ranking, Users
from slurm_energy.scheduling.queue import Bools, Floats, Ints
from slurm_energy.slurm.queue.columns import PENDING, QueueColumns
from slurm_energy.slurm.queue.squeue_source import group_job_ids


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Immutable result of a cycle: n jobs in the queue, r of them ranked, u associations.

    Attributes:
        computed: time of the cycle, Unix seconds.
        duration_s: seconds that the cycle took.
        policy: name of the policy that ranked the jobs.
        options: the site's settings for the policy.
        queue: the queue as it was read.
        predicted: predictions of all jobs in their original request. The figures of the leader of a
            heterogeneous job include all components.
        leader: for each job, the queue row whose place it shares (`scheduling_tables.leader_rows`), shape
            (n,).
        rows: rows of the queue that were ranked, shape (r,).
        scheduled: input of `scheduling`, with the jobs in the queue rows `rows`.
        shapes: alternatives in `scheduled`, with GPU types and sources of predictions.
        ranking: output of `scheduling`, in which jobs over a level of a quota are in tiers behind all other
            jobs.
        quotas: the quota that limits a ranked job, by index into `rows`. Jobs without a limiting quota are
            left out.
        order: indices into `rows` in the ranked order, the job that starts first comes first, shape (r,).
        place: place in the queue, 1 for the first to start; 0 means not ranked. Shape (n,).
        site_factors: site factors that senergyctld assigns, shape (n,); 0 means that it assigns none.
        withdrawn_rows: queue rows to which senergyctld no longer assigns a site factor although an earlier
            one is still set in Slurm; portable mode only.
        new_rows: queue rows that have a site factor and had no site factor in the previous cycle. In the
            first cycle, they are the rows whose site factor in Slurm differs.
        associations: account and user by row of `scheduled.users`.
        association: row of `associations` by job, shape (n,).
        users: energy and GPU seconds of each association, including running jobs.
        shares: normalised fair shares, NaN if unknown, shape (u,).
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
    quotas: Mapping[int, QuotaUse]
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
        """Number of pending jobs in the queue."""
        return int(np.sum(self.queue.state == PENDING))

    @property
    def default_site_factor(self) -> int:
        """Site factor (priority term) for jobs that are not ranked yet.

        It is the site factor in the middle of the queue, or 0 if the queue is empty.
        """
        if len(self.order) == 0:
            return 0
        return int(self.site_factors[self.rows[self.order[len(self.order) // 2]]])

    def site_factor_changes(self, new_only: bool = False) -> dict[int, int]:
        """Return the new site factors of the jobs whose factor in Slurm must change, by job id.

        The changes are sorted by importance, which is the maximum of the old and the new factor. A job that
        must leave the head of the queue is therefore as important as a job that must move there. If only the
        first changes are made, the head of the queue is already in the right order.

        The keys are the ids by which scontrol addresses jobs. An array or a heterogeneous job has one id,
        which applies to all its records.

        Args:
            new_only: whether to include only jobs that are new since the last cycle and are not held.
        """
        at = np.concatenate([self._rows_by_place(), self.withdrawn_rows])
        at = at[self.site_factors[at] != self.queue.site_factor[at]]
        if new_only:
            at = at[np.isin(at, self.new_rows) & ~self.queue.held[at]]
        at = at[np.argsort(-np.maximum(self.site_factors, self.queue.site_factor)[at], kind="stable")]
        return dict(zip(scontrol_ids(self.queue, at), self.site_factors[at].tolist(), strict=True))

    def site_factor_table(self) -> tuple[Ints, Ints]:
        """Return two columns: the ids and the site factors of all pending jobs.

        slurmctld adds the site factor to the priority of a job. The site factor of jobs that are not ranked
        is 0.
        """
        at = np.flatnonzero(self.queue.state == PENDING)
        return self.queue.job_id[at], self.site_factors[at]

    def startable(self) -> Bools:
        """Return whether the job of each queue row is pending and waits only for resources or its turn."""
        return startable_rows(self.queue, self.computed)

    def correlation_with_slurm(self) -> RankCorrelation:
        """Return the correlation between senergyctld's order of the queue and Slurm's own order.

        Only jobs that could start are compared.
        """
        at = self._rows_by_place()
        at = at[self.startable()[at] & (self.leader[at] == at)]
        slurm_factors = np.lexsort((self.queue.job_id[at], -self.queue.priority[at]))
        place = np.empty(len(at), np.int64)
        place[slurm_factors] = np.arange(len(at))
        return rank_correlation(place)

    def _rows_by_place(self) -> Ints:
        """Return the row numbers of the ranked jobs in the queue, with the first-ranked job first."""
        at = np.flatnonzero(self.place > 0)
        rows: Ints = at[np.argsort(self.place[at], kind="stable")]
        return rows


def scontrol_ids(queue: QueueColumns, rows: Ints) -> list[int]:
    """Return the job ids that scontrol needs, one for each of the given rows of the queue.

    For a job array or a heterogeneous job, this is the id of the whole array or job.
    """
    ids: list[int] = group_job_ids(queue.job_id, queue.array_job_id, queue.het_job_id)[rows].tolist()
    return ids
