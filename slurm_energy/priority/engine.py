"""One cycle of the queue engine: columns in, an order with its reasons and numbers for Slurm out.

No file, command, database or clock: queue, time and consumption are given, the snapshot is returned.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from slurm_energy.config import Config
from slurm_energy.priority import site_factors
from slurm_energy.priority.aged_starts import AgedStarts
from slurm_energy.priority.guard import Mispredictions, PredictionGuard
from slurm_energy.priority.interventions import InterventionState
from slurm_energy.priority.prediction import HistoryPredictor, Predicted, Predictor
from slurm_energy.priority.rank_correlation import RankCorrelation, agreement
from slurm_energy.priority.scheduling_tables import (
    RequestedShapeProvider,
    ShapeProvider,
    Shapes,
    free_to_start,
    job_table,
    leaders,
    ranked_rows,
    with_components,
)
from slurm_energy.priority.usage import Association, Usage, shares_of, users_table, weight
from slurm_energy.scheduling import Options, Policy, Queue, Ranking, Users, check_weights, load_file, policy
from slurm_energy.scheduling.queue import Bools, Floats, Ints
from slurm_energy.slurm.fair_share import ShareTree
from slurm_energy.slurm.queue.columns import PENDING, RUNNING, QueueColumns
from slurm_energy.slurm.queue.squeue_source import group_job_ids


@dataclass(slots=True)
class Kept:
    """What lives from cycle to cycle, and over a reload.

    Attributes:
        usage: of users and accounts.
        told: shares as an administrator gave them out; empty: not known.
        seen: without these, normalised shares as the queue showed them last.
        numbers: site factors of the last cycle by job id; None before the first.
        taken: site factors that slurmctld has taken one by one, by job id.
        acted: what was changed about jobs beside their place.
        mispredictions: what was predicted of jobs that have started.
        aged_starts: jobs that started after the bound on waiting.
    """

    usage: Usage
    told: ShareTree = field(default_factory=ShareTree)
    seen: dict[Association, float] = field(default_factory=dict)
    numbers: dict[int, int] | None = None
    taken: dict[int, int] = field(default_factory=dict)
    acted: InterventionState = field(default_factory=InterventionState)
    mispredictions: Mispredictions = field(default_factory=Mispredictions)
    aged_starts: AgedStarts = field(default_factory=AgedStarts)

    def shares(self) -> Mapping[Association, float]:
        """Return normalised shares by association, those that are known."""
        return {who: share.norm for who, share in self.told.users.items()} or self.seen


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
    took_s: float
    policy: str
    options: Options
    queue: QueueColumns
    predicted: Predicted
    leader: Ints
    rows: Ints
    scheduled: Queue
    shapes: Shapes
    ranking: Ranking
    order: Ints
    place: Ints
    numbers: Ints
    withdrawn: Ints
    new: Ints
    associations: list[Association]
    association: Ints
    users: Users
    shares: Floats

    @property
    def pending(self) -> int:
        """Number of pending jobs."""
        return int(np.sum(self.queue.state == PENDING))

    @property
    def default_number(self) -> int:
        """Site factor for a job that nobody has ranked yet: of the middle of the queue; 0: no queue."""
        if len(self.order) == 0:
            return 0
        return int(self.numbers[self.rows[self.order[len(self.order) // 2]]])

    def changes(self, new_only: bool = False) -> dict[int, int]:
        """Return the new site factors where Slurm has other ones, those that matter most first.

        A job that has to leave the head of the queue matters as much as one that comes to it: however many
        are changed, what stands above the rest is as it should be.

        By the numbers that Slurm takes: of arrays and heterogeneous jobs their own, which goes for all their
        records.

        Args:
            new_only: only of jobs that came since the last cycle and are not held.
        """
        at = np.concatenate([self._by_place(), self.withdrawn])
        at = at[self.numbers[at] != self.queue.site_factor[at]]
        if new_only:
            at = at[np.isin(at, self.new) & ~self.queue.held[at]]
        at = at[np.argsort(-np.maximum(self.numbers, self.queue.site_factor)[at], kind="stable")]
        return dict(zip(_addresses(self.queue, at), self.numbers[at].tolist(), strict=True))

    def numbered(self) -> tuple[Ints, Ints]:
        """Return ids and site factors of all pending jobs; those that are not ranked have 0."""
        at = np.flatnonzero(self.queue.state == PENDING)
        return self.queue.job_id[at], self.numbers[at]

    def free(self) -> Bools:
        """Return which rows wait for nothing but resources and their turn."""
        return free_to_start(self.queue, self.computed)

    def against_slurm(self) -> RankCorrelation:
        """Compare the order with Slurm's own, among jobs that are free to start."""
        at = self._by_place()
        at = at[self.free()[at] & (self.leader[at] == at)]
        slurms = np.lexsort((self.queue.job_id[at], -self.queue.priority[at]))
        place = np.empty(len(at), np.int64)
        place[slurms] = np.arange(len(at))
        return agreement(place)

    def _by_place(self) -> Ints:
        """Return the rows that have a number, first to start first."""
        at = np.flatnonzero(self.place > 0)
        rows: Ints = at[np.argsort(self.place[at], kind="stable")]
        return rows


def _addresses(queue: QueueColumns, rows: Ints) -> list[int]:
    """Return the numbers by which scontrol takes what these rows belong to."""
    found: list[int] = group_job_ids(queue.job_id, queue.array_job_id, queue.het_job_id)[rows].tolist()
    return found


class Engine:
    """Ranks queues by one configuration.

    Args:
        config: policy, weights and bounds.
        kept: shared with the engine before and after a reload.
        history: answers from measured runs.
        shaper: finds the shapes of jobs; None: as asked.
        guard: the same one that the shaper's predictor has; None: without bounds from history.

    Raises:
        NotFoundError: the policy is not known.
        UsageError: the site's own policies cannot be loaded, or a weight is unknown.
    """

    def __init__(
        self,
        config: Config,
        kept: Kept,
        history: HistoryPredictor | None = None,
        shaper: ShapeProvider | None = None,
        guard: PredictionGuard | None = None,
    ) -> None:
        settings = config.priority
        if settings.policy_file is not None:
            load_file(settings.policy_file)
        self.policy: Policy = policy(settings.policy)
        check_weights(settings.weights)
        self.options = Options(
            settings.age_weight,
            settings.wait_bound_s,
            dict(settings.weights),
            aged_jobs_per_user=settings.aged_jobs_per_user,
        )
        self._guard = guard or PredictionGuard(kept.mispredictions, None)
        self.predictor = Predictor(config, history, self._guard)
        self._settings, self._kept = settings, kept
        self._shaper = shaper or RequestedShapeProvider()

    def cycle(self, queue: QueueColumns, now_s: float) -> Snapshot:
        """Rank a queue.

        Args:
            queue: pending and running jobs.
            now_s: Unix seconds.
        """
        began = time.perf_counter()
        queue = queue.only(~self._kept.usage.ended(queue, now_s))
        mispredictions = self._kept.mispredictions
        mispredictions.see_running(queue, now_s)
        self._guard.now_s = now_s
        by_itself = self.predictor.predict(queue)
        mispredictions.see_ranking(queue, by_itself.before_factor_s)
        association = self._associations(queue)
        users, shares = self._users(queue, by_itself, association, now_s)
        leader = leaders(queue)
        predicted = with_components(queue, leader, by_itself)
        rows = ranked_rows(queue, leader, self._settings.partitions)
        shapes = self._shaper.shapes(queue, rows, predicted)
        aged_starts = self._kept.aged_starts.by_user(queue, now_s, self.options.wait_bound_s)
        table = job_table(queue, rows, association[rows], now_s, aged_starts)
        scheduled = Queue(now_s, table, shapes.table, users)
        ranking = self.policy.rank(scheduled, self.options)
        order = ranking.order(table.job_id)
        place, numbers, new = self._places(queue, rows, leader, order)
        return Snapshot(
            computed=now_s,
            took_s=time.perf_counter() - began,
            policy=self.policy.name,
            options=self.options,
            queue=queue,
            predicted=predicted,
            leader=leader,
            rows=rows,
            scheduled=scheduled,
            shapes=shapes,
            ranking=ranking,
            order=order,
            place=place,
            numbers=numbers,
            withdrawn=self._withdrawn(queue, numbers),
            new=new,
            associations=self._kept.usage.associations(),
            association=association,
            users=users,
            shares=shares,
        )

    def _associations(self, queue: QueueColumns) -> Ints:
        """Return each job's association, and remember the shares that the queue tells."""
        pairs = list(zip(queue.account, queue.user, strict=True))
        found = self._kept.usage.places(pairs)
        told = np.flatnonzero(~np.isnan(queue.shares_norm))
        first = told[np.unique(found[told], return_index=True)[1]]
        self._kept.seen |= {pairs[row]: float(queue.shares_norm[row]) for row in first.tolist()}
        return found

    def _users(
        self, queue: QueueColumns, predicted: Predicted, association: Ints, now_s: float
    ) -> tuple[Users, Floats]:
        """Return what associations had, running jobs by their predicted watts, and their shares."""
        usage, known = self._kept.usage, self._kept.shares()
        usage.places(known)
        joules, gpu_seconds = usage.at(now_s)
        at = np.flatnonzero((queue.state == RUNNING) & ~np.isnan(queue.start_s))
        start = np.minimum(queue.start_s[at], now_s)
        counted = (now_s - start) * weight(start, np.full(len(at), now_s), now_s, usage.half_life_s)
        np.add.at(joules, association[at], predicted.power_watts[at] * counted)
        np.add.at(gpu_seconds, association[at], queue.gpus[at] * counted)
        shares = shares_of(usage.associations(), known)
        return users_table(joules, gpu_seconds, shares), shares

    def _places(self, queue: QueueColumns, rows: Ints, leader: Ints, order: Ints) -> tuple[Ints, Ints, Ints]:
        """Return places and site factors of all jobs, and which are new; keep what the order allows."""
        place, numbers = np.zeros(queue.count, np.int64), np.zeros(queue.count, np.int64)
        ordered = rows[order]
        old = self._old_numbers(queue, ordered)
        place[ordered] = np.arange(1, len(ordered) + 1)
        if self._settings.mode == "portable":
            settled = site_factors.settled(old)
            ordered, old = ordered[settled], old[settled]
        numbers[ordered] = site_factors.kept(old)
        place, numbers = place[leader], numbers[leader]
        ranked = np.flatnonzero(numbers)
        before = self._kept.numbers
        now = dict(zip(queue.job_id[ranked].tolist(), numbers[ranked].tolist(), strict=True))
        self._kept.numbers = now
        if before is None:
            new = ranked[queue.site_factor[ranked] != numbers[ranked]]
        else:
            new = np.flatnonzero(np.isin(queue.job_id, list(now.keys() - before.keys())))
        return place, numbers, new

    def _withdrawn(self, queue: QueueColumns, numbers: Ints) -> Ints:
        """Return rows that were ranked once: they would go before all in a partition that is not ranked."""
        taken = self._kept.taken if self._settings.mode == "portable" else {}
        at: Ints = np.flatnonzero((queue.state == PENDING) & ~queue.fixed & (numbers == 0) & bool(taken))
        return at[np.array([taken.get(job, 0) != 0 for job in _addresses(queue, at)], np.bool_)]

    def _old_numbers(self, queue: QueueColumns, ordered: Ints) -> Ints:
        """Return the numbers that jobs have: as Slurm shows them where it was told job by job, else ours."""
        slurms = queue.site_factor[ordered]
        known = self._kept.numbers
        if self._settings.mode == "portable" or not known:
            return slurms
        return np.array([known.get(job, 0) for job in queue.job_id[ordered].tolist()], np.int64)
