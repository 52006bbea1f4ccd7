"""One cycle of the priority engine: it ranks the queue and computes reasons and site factors.

The engine uses no file, command, database or clock. It takes the queue, the time and past usage as arguments
and returns a snapshot.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from slurm_energy.config import Config
from slurm_energy.priority.interventions import InterventionState
from slurm_energy.priority.prediction import HistoryPredictor, QueuePredictions, QueuePredictor
from slurm_energy.priority.prediction_guard import Mispredictions, PredictionGuard
from slurm_energy.priority.quota_levels import QuotaStandings
from slurm_energy.priority.quota_tiers import demoted, limiting_quotas
from slurm_energy.priority.running_usage import UnrecordedRuns
from slurm_energy.priority.scheduling_tables import (
    RequestedShapeProvider,
    ShapeProvider,
    add_components,
    job_table,
    leader_rows,
    ranked_rows,
    with_waiting_since,
)
from slurm_energy.priority.site_factors import stable_order, update_site_factors
from slurm_energy.priority.snapshot import Snapshot, scontrol_ids
from slurm_energy.priority.unit_capacity import unit_capacity
from slurm_energy.priority.usage import Association, DecayedUsage, shares_of, users_table
from slurm_energy.scheduling import Options, Policy, Queue, Users, check_weights, load_file, policy
from slurm_energy.scheduling.policy_guard import observed_calls
from slurm_energy.scheduling.queue import Floats, Ints
from slurm_energy.slurm.fair_share import ShareTree
from slurm_energy.slurm.queue.columns import PENDING, RUNNING, QueueColumns

log = logging.getLogger(__name__)


@dataclass(slots=True)
class AgedStarts:
    """Counter, by user, of recent starts of jobs that had waited longer than the bound on waiting.

    The starts are collected from the queue and kept for `wait_bound_s`. A restart of senergyctld loses the
    starts of jobs that have already ended. No Slurm command is run.
    """

    _starts: dict[tuple[int, float], int] = field(default_factory=dict)

    def by_user(self, queue: QueueColumns, now_s: float, wait_bound_s: float) -> Mapping[int, int]:
        """Return the number of recent starts of jobs that had waited longer than the bound, by uid.

        Args:
            queue: all jobs. Each task of an array counts as a job.
            now_s: Unix seconds.
            wait_bound_s: bound on waiting in seconds; also the time for which a start counts.
        """
        since = np.fmax(queue.submit_s, queue.eligible_s)
        aged = (queue.state == RUNNING) & (queue.start_s - since >= wait_bound_s)
        for row in np.flatnonzero(aged).tolist():
            self._starts[int(queue.job_id[row]), float(queue.start_s[row])] = int(queue.uid[row])
        self._starts = {start: uid for start, uid in self._starts.items() if now_s - start[1] <= wait_bound_s}
        return Counter(self._starts.values())


@dataclass(slots=True)
class EngineState:
    """State of the priority engine that is kept between cycles and across reloads of the configuration.

    Attributes:
        usage: decayed usage of users and Slurm accounts.
        configured_shares: fair shares as configured in Slurm's accounting; an empty value means unknown.
        observed_shares: normalised fair shares last seen in the queue, used while the configured shares are
            unknown.
        site_factors: site factors of the last cycle by job id; None before the first cycle.
        applied_factors: site factors that slurmctld accepted one by one (portable mode), by job id.
        interventions: assigned GPU shapes and preemptions, which later cycles need.
        mispredictions: predictions of jobs at their start, and overruns of running jobs.
        aged_starts: recent starts of jobs that had waited longer than the bound on waiting.
        unrecorded_runs: running jobs, and ended jobs whose energy record has not arrived.
        quotas: current use of the quotas of energy, cost and carbon.
        waiting_since_s: Unix seconds from which the waiting time of deferred jobs counts, by id of the job,
            array or heterogeneous job.
    """

    usage: DecayedUsage
    configured_shares: ShareTree = field(default_factory=ShareTree)
    observed_shares: dict[Association, float] = field(default_factory=dict)
    site_factors: dict[int, int] | None = None
    applied_factors: dict[int, int] = field(default_factory=dict)
    interventions: InterventionState = field(default_factory=InterventionState)
    mispredictions: Mispredictions = field(default_factory=Mispredictions)
    aged_starts: AgedStarts = field(default_factory=AgedStarts)
    unrecorded_runs: UnrecordedRuns = field(default_factory=UnrecordedRuns)
    quotas: QuotaStandings = field(default_factory=QuotaStandings)
    waiting_since_s: Mapping[int, float] = field(default_factory=dict)

    def shares(self) -> Mapping[Association, float]:
        """Return the normalised fair share of each association (user in an account).

        Associations with an unknown share are left out.
        """
        return {
            who: share.norm for who, share in self.configured_shares.users.items()
        } or self.observed_shares


class PriorityEngine:
    """Engine that ranks queues by the `priority` section of one configuration.

    Args:
        config: scheduling policy, weights and bounds.
        state: state that the engines before and after a reload share.
        history: predictions from measured runs; None means that there is no history.
        shape_provider: determines the shapes (numbers and types of GPUs) in which each job could run; None
            means that each job runs only as requested.
        guard: object that raises predictions which are too low. It must be the object that the predictor of
            `shape_provider` uses. None means that predictions have no lower bounds from history.

    Raises:
        NotFoundError: the scheduling policy is unknown.
        UsageError: the site's own policies cannot be loaded, or a weight is unknown.
    """

    def __init__(
        self,
        config: Config,
        state: EngineState,
        history: HistoryPredictor | None = None,
        shape_provider: ShapeProvider | None = None,
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
        self._guard = guard or PredictionGuard(state.mispredictions, None)
        self.predictor = QueuePredictor(config, history, self._guard)
        self._settings, self._state = settings, state
        self._reported: set[str] = set()
        self._shape_provider = shape_provider or RequestedShapeProvider()

    def cycle(self, queue: QueueColumns, now_s: float) -> Snapshot:
        """Rank a queue, and return a snapshot with the order, the reasons for it and the site factors.

        Args:
            queue: pending and running jobs.
            now_s: Unix seconds.
        """
        began_s = time.perf_counter()
        queue = queue.select_rows(~self._state.usage.finished_rows(queue, now_s))
        queue = with_waiting_since(queue, self._state.waiting_since_s)
        mispredictions = self._state.mispredictions
        mispredictions.record_starts(queue, now_s)
        self._guard.now_s = now_s
        per_record = self.predictor.predict(queue)
        mispredictions.record_predictions(queue, per_record.before_factor_s)
        association = self._associations(queue)
        users, shares = self._users(queue, per_record, now_s)
        leader = leader_rows(queue)
        predicted = add_components(queue, leader, per_record)
        rows = ranked_rows(queue, leader, self._settings.partitions)
        shapes = self._shape_provider.shapes(queue, rows, predicted)
        aged_starts = self._state.aged_starts.by_user(queue, now_s, self.options.wait_bound_s)
        table = job_table(queue, rows, association[rows], now_s, aged_starts)
        scheduled = Queue(now_s, table, shapes.table, users)
        if self.policy.looks_ahead:
            scheduled = replace(scheduled, capacity=unit_capacity(queue, shapes, predicted))
        who = [(queue.account[row], queue.user[row]) for row in rows.tolist()]
        limiting = limiting_quotas(self._state.quotas, who)
        ranking = demoted(self.policy.rank(scheduled, self.options), limiting)
        self._report_policy()
        order = ranking.order(table.job_id)
        place, site_factors, new_rows = self._places(queue, rows, leader, order)
        return Snapshot(
            computed=now_s,
            duration_s=time.perf_counter() - began_s,
            policy=self.policy.name,
            options=self.options,
            queue=queue,
            predicted=predicted,
            leader=leader,
            rows=rows,
            scheduled=scheduled,
            shapes=shapes,
            ranking=ranking,
            quotas=limiting,
            order=order,
            place=place,
            site_factors=site_factors,
            withdrawn_rows=self._withdrawn_rows(queue, site_factors),
            new_rows=new_rows,
            associations=self._state.usage.associations(),
            association=association,
            users=users,
            shares=shares,
        )

    def _report_policy(self) -> None:
        """Log faults of a site's own scheduling policy, each kind of fault only once.

        The faults are slow calls, and results that vary for the same input.
        """
        for note in observed_calls(self.policy.name).notes(self.policy.name):
            kind = note.partition(":")[0]
            if kind not in self._reported:
                self._reported.add(kind)
                log.warning("%s", note)

    def _associations(self, queue: QueueColumns) -> Ints:
        """Return, for each job of the queue, the row of its association in the table of usage.

        An association is a user in an account. The function also stores the normalised shares that the queue
        states.
        """
        pairs = list(zip(queue.account, queue.user, strict=True))
        association = self._state.usage.association_rows(pairs)
        with_shares = np.flatnonzero(~np.isnan(queue.shares_norm))
        first = with_shares[np.unique(association[with_shares], return_index=True)[1]]
        self._state.observed_shares |= {pairs[row]: float(queue.shares_norm[row]) for row in first.tolist()}
        return association

    def _users(self, queue: QueueColumns, predicted: QueuePredictions, now_s: float) -> tuple[Users, Floats]:
        """Return the table of users with their past usage, and the normalised share of each user.

        Both have one row per Slurm association (user and account). A share of NaN means unknown. A run
        without an energy record counts with its predicted power times its duration.
        """
        usage, share_by_association = self._state.usage, self._state.shares()
        usage.association_rows(share_by_association)
        unrecorded = self._state.unrecorded_runs
        unrecorded.update(queue, predicted.power_watts, now_s, usage.has_record)
        rows = usage.association_rows(unrecorded.associations())
        joules, gpu_seconds = usage.decayed(now_s)
        estimated_joules, estimated_gpu_seconds = unrecorded.decayed(now_s, usage.half_life_s)
        np.add.at(joules, rows, estimated_joules)
        np.add.at(gpu_seconds, rows, estimated_gpu_seconds)
        shares = shares_of(usage.associations(), share_by_association)
        return users_table(joules, gpu_seconds, shares), shares

    def _places(self, queue: QueueColumns, rows: Ints, leader: Ints, order: Ints) -> tuple[Ints, Ints, Ints]:
        """Return the queue position and the site factor of each job, and the rows of newly ranked jobs.

        The site factor is the part of Slurm's job priority that slurm-energy sets. A position or site factor
        of 0 marks a job that is not ranked. As few site factors as possible are changed.
        """
        place, site_factors = np.zeros(queue.count, np.int64), np.zeros(queue.count, np.int64)
        ordered = rows[order]
        old = self._current_site_factors(queue, ordered)
        place[ordered] = np.arange(1, len(ordered) + 1)
        if self._settings.mode == "portable":
            kept_order = stable_order(old)
            ordered, old = ordered[kept_order], old[kept_order]
        site_factors[ordered] = update_site_factors(old)
        place, site_factors = place[leader], site_factors[leader]
        ranked = np.flatnonzero(site_factors)
        before = self._state.site_factors
        now = dict(zip(queue.job_id[ranked].tolist(), site_factors[ranked].tolist(), strict=True))
        self._state.site_factors = now
        if before is None:
            new_rows = ranked[queue.site_factor[ranked] != site_factors[ranked]]
        else:
            new_rows = np.flatnonzero(np.isin(queue.job_id, list(now.keys() - before.keys())))
        return place, site_factors, new_rows

    def _withdrawn_rows(self, queue: QueueColumns, site_factors: Ints) -> Ints:
        """Return the queue rows of pending jobs whose site factor must be removed in Slurm.

        A site factor is the part of a job's priority that slurm-energy sets. In portable mode, senergyctld
        sets the site factors with scontrol. A site factor then remains in Slurm if senergyctld does not rank
        the job any more, for example because its partition is no longer ranked. With this old site factor,
        the job would go before all other jobs of the partition. In other modes, no row is returned.
        """
        applied_factors = self._state.applied_factors if self._settings.mode == "portable" else {}
        at: Ints = np.flatnonzero(
            (queue.state == PENDING) & ~queue.fixed & (site_factors == 0) & bool(applied_factors)
        )
        return at[np.array([applied_factors.get(job, 0) != 0 for job in scontrol_ids(queue, at)], np.bool_)]

    def _current_site_factors(self, queue: QueueColumns, ordered: Ints) -> Ints:
        """Return the current site factors of the queue rows `ordered`; 0 means that the job has none.

        The site factors are those of the last cycle. In portable mode, and before the first cycle, they are
        read from the queue, as Slurm reports them.
        """
        slurm_factors = queue.site_factor[ordered]
        previous = self._state.site_factors
        if self._settings.mode == "portable" or not previous:
            return slurm_factors
        return np.array([previous.get(job, 0) for job in queue.job_id[ordered].tolist()], np.int64)
