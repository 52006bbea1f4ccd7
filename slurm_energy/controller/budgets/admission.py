"""Admission of jobs under power budgets: Slurm licenses of pending jobs, and reservations of licenses.

A job needs one license for each watt that its start adds to the idle power of its nodes. Slurm's scheduler
starts a job only if enough licenses are free. This module corrects the number of licenses that jobs request.
The module also reserves licenses, so that the number of free licenses equals the headroom of the budget. The
headroom is the power that new jobs may add. If the site has no licenses, the module holds jobs by their begin
time.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from slurm_energy.budget.job_licenses import (
    MIN_SHARE,
    kept_caps,
    kept_watts,
    license_changes,
    requested_watts,
)
from slurm_energy.budget.power_table import (
    NodePowerRange,
    PartitionPower,
)
from slurm_energy.config import Config
from slurm_energy.controller.budgets.cluster_headroom import cluster_headroom
from slurm_energy.controller.budgets.facts import ScopeKind
from slurm_energy.controller.budgets.feasible_licenses import feasible_licenses
from slurm_energy.controller.budgets.job_coverage import covering_budgets
from slurm_energy.controller.budgets.licenses import (
    JOB_SCOPES,
    BudgetHeadroom,
    budget_reservations,
    held_or_requested,
    license_demands,
    license_lines,
    license_of,
    retained_licenses,
    running_watts,
    uncounted_watts,
    waiting_sentences,
)
from slurm_energy.controller.budgets.partition_hardware import PartitionHardware
from slurm_energy.controller.budgets.pending_power import PendingPower, ProgramKey, pending_power
from slurm_energy.controller.budgets.start_holds import StartHolds
from slurm_energy.controller.deferral.begin_times import BeginTimes
from slurm_energy.controller.tuning.history_cache import HistoryCache
from slurm_energy.errors import EnergyError
from slurm_energy.log_once import RepeatedFailureLog
from slurm_energy.oracle.history.queue_forecast import predict_power_quantile
from slurm_energy.priority.prediction import QueuePredictor
from slurm_energy.scheduling.queue import Floats, Ints
from slurm_energy.slurm.command import CommandRunner
from slurm_energy.slurm.licenses import (
    BUDGET_PREFIX,
    LicenseReservation,
    LicenseReservations,
    read_license_pools,
)
from slurm_energy.slurm.queue.columns import PENDING, QueueColumns
from slurm_energy.slurm.queue.job_update import JobUpdater
from slurm_energy.slurm.queue.running_jobs import read_running_jobs
from slurm_energy.slurm.queue.squeue_source import SqueueSource
from slurm_energy.tuning.response_curve import ResponseCurve


@dataclass(frozen=True, slots=True)
class AdmissionReport:
    """Result of one update of licenses and reservations.

    Attributes:
        watts: number of licenses (one per watt) that each running job holds, by job id.
        waiting: a sentence with the reason for each pending job that does not fit under a budget, by job id.
        problems: failures and missing prerequisites, one line of text each.
        corrected: number of jobs whose number of requested licenses was changed.
        offers: power that Slurm should be able to give to pending jobs, by name of the budget. Slurm may give
            this power from the next update on. Budgets without a license are left out.
    """

    watts: Mapping[int, int] = field(default_factory=dict)
    waiting: Mapping[int, str] = field(default_factory=dict)
    problems: Sequence[str] = ()
    corrected: int = 0
    offers: Mapping[str, float] = field(default_factory=dict)


class BudgetAdmission:
    """Admission of jobs under power budgets: which pending jobs Slurm may start.

    The methods wait for Slurm's commands. Therefore call them in a thread.

    Args:
        config: configuration; `configure` replaces it.
        history: predictions from measured runs; None means that there is no history.
        failures: log of failures.
        run: function that runs Slurm's commands.
        begin_times: begin times of pending jobs, shared with the other parts of senergyctld that delay jobs;
            None means that no other part delays jobs.
        max_share: maximum fraction of the elapsed time during which queries to Slurm may run. An update that
            would exceed this fraction does nothing.

    Attributes:
        programs: programs of queued jobs. The next update can use the response curves of these programs.
    """

    def __init__(
        self,
        config: Config,
        history: HistoryCache | None,
        failures: RepeatedFailureLog,
        run: CommandRunner | None = None,
        begin_times: BeginTimes | None = None,
        max_share: float = 0.05,
    ) -> None:
        self._history, self._failures = history, failures
        self._run = run or CommandRunner()
        settings = config.priority
        self._max_share = max_share
        self._updater = JobUpdater(settings.updates_per_s, max(1.0, config.budget.period_s))
        self._source = SqueueSource(self._run)
        self._reservations = LicenseReservations(BUDGET_PREFIX, self._run)
        self._holds = StartHolds(self._updater, begin_times)
        self._hardware = PartitionHardware(self._run)
        self._targets: dict[int, int] = {}
        self._lines: tuple[str, ...] = ()
        self._is_clean = False
        self._headroom: dict[str, float] = {}
        self._report = AdmissionReport()
        self._curves: Mapping[ProgramKey, ResponseCurve] = {}
        self.programs: frozenset[ProgramKey] = frozenset()
        self.configure(config)

    def configure(self, config: Config) -> None:
        """Use a new configuration for the admission of jobs, from the next update on."""
        self._config = config
        self._predictor = QueuePredictor(config)
        self._next_read_s = -math.inf

    def policy_lines(self) -> Sequence[str]:
        """Return the lines of the policy file with which the job_submit module computes jobs' licenses.

        The licenses of a job stand for its power in watts. The lines change after `update`; the caller then
        writes the policy file again.
        """
        return self._lines

    def update(
        self,
        now_unix_s: float,
        budgets: Sequence[BudgetHeadroom],
        counted_jobs: Collection[int],
        nodes: Mapping[str, NodePowerRange],
        curves: Mapping[ProgramKey, ResponseCurve] | None = None,
    ) -> AdmissionReport:
        """Let as many pending jobs start as the power budgets permit, by licenses and reservations.

        Call this method once per control period. If slurmctld is slow, most calls change nothing and return
        the last report at once. A call always does its work if the free power (headroom) of a budget has
        fallen.

        Args:
            now_unix_s: the time now in Unix seconds.
            budgets: budgets in force after the last decision; an empty value means that no budget applies.
            counted_jobs: ids of the jobs whose power is already subtracted in the headrooms. The licenses of
                other running jobs are subtracted from the headrooms.
            nodes: power range of each node that has reported, by node name.
            curves: known response curves of the programs of queued jobs (attribute `programs`); None means to
                use the curves of the last call.
        """
        settings = self._config.budget
        self._curves = self._curves if curves is None else curves
        mode = settings.admission if settings.mode == "enforce" and budgets else "off"
        began_s = time.monotonic()
        headroom = {budget.name: budget.headroom_watts for budget in budgets}
        fell = any(watts < self._headroom.get(name, math.inf) for name, watts in headroom.items())
        if began_s < self._next_read_s and budgets and not fell:
            return self._report
        self._headroom = headroom
        try:
            report = self._update(mode, now_unix_s, budgets, counted_jobs, nodes)
        except EnergyError as error:
            report = AdmissionReport(problems=(str(error),))
        for problem in report.problems[:1]:
            self._failures.report("budget admission", problem)
        if not report.problems:
            self._failures.clear("budget admission")
        self._report = report
        ended_s = time.monotonic()
        self._next_read_s = ended_s + min((ended_s - began_s) / self._max_share - settings.period_s, 60.0)
        return report

    def _update(
        self,
        mode: str,
        now_unix_s: float,
        budgets: Sequence[BudgetHeadroom],
        counted_jobs: Collection[int],
        nodes: Mapping[str, NodePowerRange],
    ) -> AdmissionReport:
        if mode == "off":
            self._release(now_unix_s)
            return AdmissionReport()
        self._is_clean = False
        powers = self._hardware.powers(nodes)
        queue = self._source.read()
        floor_percent = max((budget.floor_percent for budget in budgets), default=0.0)
        power, predicted, least = self._wanted(queue, powers, floor_percent)
        highest = int(np.max(power.levels[queue.state == PENDING], initial=0))
        budgets = [budget.at_level(highest) for budget in budgets]
        # A job without a predicted power keeps its licenses, to which nothing can be added.
        power = replace(power, levels=np.where(predicted, power.levels, highest))
        if mode == "hold":
            return self._hold(queue, power, now_unix_s, budgets, counted_jobs)
        return self._license(queue, power, predicted, least, powers, now_unix_s, budgets, counted_jobs)

    def close(self) -> None:
        """Stop running Slurm commands at the end of senergyctld.

        The reservations in Slurm stay, so that Slurm keeps to the last known power budget.
        """
        self._run.stop()
        self._updater.stop()

    def _release(self, now_unix_s: float) -> None:
        """Remove all reservations and holds, once, when the admission of jobs has ended."""
        if not self._is_clean:
            self._lines = ()
            self._reservations.apply({}, now_unix_s)
            self._holds.release_all(now_unix_s)
            self._targets.clear()
            self._is_clean = True

    def _wanted(
        self, queue: QueueColumns, powers: Mapping[str, PartitionPower], floor_percent: float
    ) -> tuple[PendingPower, list[bool], Floats]:
        """Return three values per pending job, from which its power licenses are computed.

        The first value is the power that the job would add to its budgets. The second value states whether
        this power is predicted from measured runs. The third value is the minimum power: the job does not
        start if less power is available.
        """
        node_caps, gpu_caps, limits = self._predictor.requested_limits(queue)
        caps = kept_caps(queue, powers, node_caps, gpu_caps)
        watts = self._predictor.predict_power_quantile(queue, self._quantiles(), *caps)
        full = requested_watts(queue, powers, watts, *caps)
        predicted = (~np.isnan(watts)).tolist()
        power = pending_power(queue, full, predicted, powers, limits, floor_percent, self._curves)
        self.programs = power.programs
        floors = np.where(predicted, power.floor_watts, 0.0)
        return power, predicted, np.maximum(MIN_SHARE * full, floors)

    def _quantiles(self) -> Callable[[Mapping[str, Sequence[Any]]], tuple[Floats, Ints]]:
        history, quantile = self._history, self._config.budget.quantile

        def ask(columns: Mapping[str, Sequence[Any]]) -> tuple[Floats, Ints]:
            if history is None:
                count = len(columns["user"])
                return np.full(count, np.nan), np.full(count, -1)
            return history.run(lambda known: predict_power_quantile(known, columns, quantile))

        return ask

    def _license(
        self,
        queue: QueueColumns,
        power: PendingPower,
        predicted: Sequence[bool],
        least: Floats,
        powers: Mapping[str, PartitionPower],
        now_unix_s: float,
        budgets: Sequence[BudgetHeadroom],
        counted_jobs: Collection[int],
    ) -> AdmissionReport:
        name = self._config.budget.license
        pools = read_license_pools(self._run)
        if name not in pools:
            advice = f"write Licenses={name}:N with the nameplate power in watts into slurm.conf"
            return AdmissionReport(problems=(f"Slurm has no license '{name}': {advice}",))
        scoped = {
            license_name: budget
            for budget in budgets
            if budget.scope.kind in JOB_SCOPES and (license_name := license_of(name, budget.name)) in pools
        }
        self._lines = tuple(license_lines(self._config, pools[name], scoped, powers))
        cluster = cluster_headroom(budgets)
        wanted = kept_watts(queue, power.watts, predicted, name, pools[name].total)
        least = np.maximum(least, np.where(predicted, 0.0, MIN_SHARE * wanted))
        scopes_of = covering_budgets(queue, scoped)

        def names_of(row: int) -> tuple[str, ...]:
            return (name, *scopes_of(row))

        by_license = {name: cluster} | scoped
        held = running_watts(queue, wanted, self._targets)
        wanted = feasible_licenses(queue, wanted, least, by_license, names_of, held, powers)
        retained = retained_licenses(queue, power.levels, by_license, names_of)
        changes = license_changes(
            *(queue, wanted, retained, names_of, [name, *scoped], self._targets, pools[name].total)
        )
        result = self._updater.set_licenses(
            {change.job_id: change.licenses for change in changes},
            {change.job_id: change.name for change in changes},
        )
        problems = [f"licenses of job {job}: {why}" for job, why in list(result.refused.items())[:3]]
        # While licenses are reserved, backfill plans no start for a job that lacks them (22.05 to 26.05).
        licensed = [one for one in by_license.values() if one is not None]
        running = running_watts(queue, wanted, self._targets)
        counts = held_or_requested(queue, wanted + retained, running)
        delayed, more = self._holds.apply(
            queue, counts, now_unix_s, licensed, set(counted_jobs), only_delaying=True
        )
        # Pools before jobs: a job that starts between the two queries is then subtracted, not missed.
        pools = read_license_pools(self._run) if changes else pools
        jobs = read_running_jobs(self._run)
        reservations: dict[str, LicenseReservation] = {}
        demands = license_demands(*(queue, counts, power, list(by_license), names_of, now_unix_s))
        offers: dict[str, float] = {}
        cluster_names = [one.name for one in budgets if one.scope.kind is ScopeKind.CLUSTER]
        for license_name, budget in by_license.items():
            if budget is not None and license_name in pools:
                demand = demands[license_name]
                names = cluster_names if budget is cluster else [budget.name]
                offers |= dict.fromkeys(names, demand.offered_watts(budget))
                ready_watts = demand.offered_watts(budget, budget.free_watts)
                uncounted = uncounted_watts(jobs, license_name, set(counted_jobs))
                held_watts = pools[license_name].used - uncounted
                steps = budget.reachable_steps(demand.watts, demand.reachable_watts, held_watts)
                headroom = min(
                    budget.headroom_watts, self._holds.max_headroom_watts.get(budget.name, math.inf)
                )
                budget = replace(budget, headroom_watts=headroom, steps=steps)
                reservations |= budget_reservations(
                    *(license_name, pools[license_name], budget, uncounted, now_unix_s),
                    min(ready_watts, budget.promised_watts),
                )
        self._reservations.apply(reservations, now_unix_s)
        waiting = waiting_sentences(queue, wanted, power.levels, by_license, names_of) | delayed
        return AdmissionReport(running, waiting, (*problems, *more), len(result.done), offers)

    def _hold(
        self,
        queue: QueueColumns,
        power: PendingPower,
        now_unix_s: float,
        budgets: Sequence[BudgetHeadroom],
        counted_jobs: Collection[int],
    ) -> AdmissionReport:
        by_name = {budget.name: budget for budget in budgets}
        names_of = covering_budgets(queue, by_name)
        wanted = power.watts + retained_licenses(queue, power.levels, by_name, names_of)
        waiting, problems = self._holds.apply(
            queue, wanted, now_unix_s, budgets, set(counted_jobs), only_delaying=False
        )
        running = np.flatnonzero(queue.state != PENDING).tolist()
        return AdmissionReport(
            {int(queue.job_id[row]): int(power.watts[row]) for row in running}, waiting, problems
        )
