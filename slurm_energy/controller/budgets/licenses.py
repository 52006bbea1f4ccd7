"""Slurm licenses that represent power under budgets: licenses of jobs, and licenses withheld from all jobs.

The functions turn a decision about the budgets into numbers of licenses. The functions do no I/O.
"""

from __future__ import annotations

import dataclasses
import math
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from slurm_energy.budget.admission import offered_watts
from slurm_energy.budget.license_plan import withheld_power
from slurm_energy.budget.power_table import PartitionPower, table_lines
from slurm_energy.config import Config
from slurm_energy.controller.budgets.facts import BudgetScope, ScopeKind
from slurm_energy.controller.budgets.pending_power import PendingPower
from slurm_energy.scheduling.queue import Floats, Ints
from slurm_energy.slurm.licenses import (
    BUDGET_PREFIX,
    MIN_RESERVED,
    LicensePool,
    LicenseReservation,
    split_licenses,
)
from slurm_energy.slurm.queue.columns import PENDING, QueueColumns
from slurm_energy.slurm.queue.running_jobs import AllocatedJob

JOB_SCOPES: Final = (ScopeKind.PARTITION, ScopeKind.ACCOUNT, ScopeKind.USER, ScopeKind.QOS)
"""Kinds of budgets that have a separate license. The cluster's budget has the configured license."""
_READY_REASONS: Final = frozenset({"Licenses", "None", ""})
"""Slurm's reasons of jobs that wait for licenses, and of jobs that Slurm has not considered yet."""
_NEW_JOB_RATIO: Final = 0.5
"""Power of a new job at its lowest limits, divided by its licenses. It is at most this much for most jobs."""
_NAME: Final = re.compile(r"[^\s,=|]{1,200}")


@dataclass(frozen=True, slots=True)
class BudgetHeadroom:
    """State of one budget after a decision, as the admission of jobs needs it.

    The price level of a job measures how much work the job does per watt.

    Attributes:
        name: name in the configuration.
        scope: the nodes or jobs under the budget.
        limit_watts: limit now.
        headroom_watts: power that new jobs may now add to the idle power of nodes. A negative value means
            that the budget is above its limit. Infinity means that the budget has no limit.
        steps: changes of the limit in the next 24 h, in ascending order: (Unix time in seconds, limit in
            watts from then on).
        floor_percent: lowest power limit that running jobs may get, as a position in a device's range of
            power limits: 0 is the device's minimum limit, 100 its maximum.
        retained_watts: part of `headroom_watts` that is reserved for running jobs, so that a new job
            cannot use it. The list has one value for each price level that a new job may have. It is
            empty if no power is reserved.
        idle_watts: power under the budget without any job.
        running_idle_watts: idle power of the running jobs that `idle_watts` does not contain, because the
            budget counts only jobs.
        promised_watts: power that is kept free for starting jobs; infinity means that all power that the
            starting jobs can draw is kept free.
        reachable_headroom_watts: power that is free if all running jobs have their lowest limits.
        lowest_limit_watts: lowest limit of the budget that would be kept if the devices of all running jobs
            had their lowest power limits; infinity means unknown.
        free_watts: power that is free at the limits in force.
    """

    name: str
    scope: BudgetScope
    limit_watts: float
    headroom_watts: float
    steps: Sequence[tuple[float, float]] = ()
    floor_percent: float = 0.0
    retained_watts: Sequence[float] = ()
    idle_watts: float = 0.0
    running_idle_watts: float = 0.0
    promised_watts: float = math.inf
    reachable_headroom_watts: float = math.inf
    lowest_limit_watts: float = math.inf
    free_watts: float = math.inf

    @property
    def unused_watts(self) -> float:
        """Part of the headroom (power left under the budget) that no running job needs."""
        return self.headroom_watts - self.retained_from(0)

    def covers(self, user: str, account: str, partition: str, qos: str) -> bool:
        """Return whether the budget covers a pending job of this user, account, partition and QOS.

        A budget that limits certain nodes never covers a pending job, because the nodes of the job are not
        known yet. A budget covers a job that may start in several partitions or QOS if it covers one of them.
        From 24.11 on, Slurm shows a requested QOS as the user wrote it, although it ignores the case. The
        names in the scope are in lower case.
        """
        names = {
            ScopeKind.PARTITION: partition.split(","),
            ScopeKind.ACCOUNT: [account],
            ScopeKind.USER: [user],
            ScopeKind.QOS: qos.lower().split(","),
        }
        is_named = not self.scope.names.isdisjoint(names.get(self.scope.kind, ()))
        return self.scope.kind is ScopeKind.CLUSTER or is_named

    def retained_from(self, level: int) -> float:
        """Return the power that running jobs need, so that a new job of a given level may not use it.

        The power is in watts. It is a part of the headroom (the free power of the budget).

        Args:
            level: level of the new job from a scale of how much work a job yields per watt.
        """
        return self.retained_watts[level] if self.retained_watts else 0.0

    def at_level(self, level: int) -> BudgetHeadroom:
        """Return a copy of this state for jobs up to a given price level.

        The price level of a job measures its work per watt. The headroom is the power that new jobs may add.
        A part of it is reserved for running jobs. The size of this part depends on the price level of the new
        job. In the copy, the part that is reserved against jobs of `level` has been subtracted from the
        headroom. The copy must be used only if no job has a higher price level. Licenses are counted relative
        to the headroom of the copy, so that their numbers stay small in a large cluster.
        """
        kept = self.retained_from(level)
        if not math.isfinite(kept):
            return self
        others = tuple(max(0.0, watts - kept) for watts in self.retained_watts)
        return dataclasses.replace(self, headroom_watts=self.headroom_watts - kept, retained_watts=others)

    def reachable_steps(
        self, demand_watts: Floats, reachable_watts: Floats, held_watts: float = 0.0
    ) -> list[tuple[float, float]]:
        """Return the future changes of a budget's limit, as times and watts for Slurm's licenses.

        Each waiting job requests licenses for its full power. After a fall of the limit, senergyctld can
        lower the power limits of devices. A job may therefore start before the fall if its power at its
        lowest power limits fits under the later limit of the budget. Slurm would not start this job, because
        the job's licenses exceed the later limit. The later limit is therefore returned with a higher value,
        so that the licenses of all such jobs fit.

        Args:
            demand_watts: licenses that each waiting job requests, shape (m,).
            reachable_watts: power that each waiting job may draw at its lowest limits, shape (m,).
            held_watts: licenses of the running jobs under the budget.
        """
        ratio = float(np.max(reachable_watts / np.maximum(demand_watts, 1.0), initial=_NEW_JOB_RATIO))
        steps = []
        for unix_s, watts in self.steps:
            fall = self.limit_watts - watts
            if math.isfinite(fall) and fall > 0 and math.isfinite(self.reachable_headroom_watts):
                room = max(0.0, self.reachable_headroom_watts - fall)
                raised = room / ratio - (self.headroom_watts - fall)
                watts += max(0.0, min(raised, fall))
            elif math.isinf(self.limit_watts) and math.isfinite(self.lowest_limit_watts):
                room = max(0.0, watts - self.lowest_limit_watts)
                raised = self.idle_watts + held_watts + room / ratio
                watts = max(watts - self.running_idle_watts, raised)
            steps.append((unix_s, watts))
        return steps


def license_of(license_name: str, budget_name: str) -> str:
    """Return the name of the Slurm license for a budget other than the cluster's budget."""
    return f"{license_name}_{re.sub(r'[^A-Za-z0-9_]', '_', budget_name)}"


def license_lines(
    config: Config,
    pool: LicensePool,
    scoped: Mapping[str, BudgetHeadroom],
    powers: Mapping[str, PartitionPower],
) -> list[str]:
    """Return the lines of the policy file about licenses, by which Slurm counts the power of jobs.

    docs/reference/protocol.md describes the lines.
    """
    users = " ".join(str(uid) for uid in sorted({0, os.geteuid()}))
    lines = [f"license {config.budget.license} {pool.total}", f"license-users {users}"]
    lines += [
        f"license-scope {license_name} {one.scope.kind} {name}"
        for license_name, one in scoped.items()
        for name in sorted(one.scope.names)
        if _NAME.fullmatch(name)
    ]
    return [*lines, f"license-delay {math.ceil(3 * config.budget.period_s)}", *table_lines(powers)]


def running_watts(queue: QueueColumns, wanted: Ints, targets: Mapping[int, int]) -> dict[int, int]:
    """Return the watts that each running job should hold as Slurm licenses, by job id."""
    rows = np.flatnonzero(queue.state != PENDING).tolist()
    pairs = [(int(queue.job_id[row]), int(wanted[row])) for row in rows]
    return {job: targets.get(job, watts) for job, watts in pairs}


def held_or_requested(queue: QueueColumns, wanted: Ints, held: Mapping[int, int]) -> Ints:
    """Return the number of licenses of each job. Under power budgets, one license is one watt.

    For a running job, the number is that of the licenses that the job holds. For a pending job, it is the
    number that the job needs.
    """
    pairs = zip(queue.job_id.tolist(), wanted.tolist(), strict=True)
    return np.array([held.get(job, watts) for job, watts in pairs], np.int64)


def uncounted_watts(jobs: Mapping[int, AllocatedJob], license_name: str, counted: Collection[int]) -> int:
    """Return the watts of the running jobs that the last budget decision did not count.

    Slurm represents one watt as one license. The free power (headroom) of the budgets does not yet take
    these jobs into account.
    """
    new = [job.licenses for job_id, job in jobs.items() if job_id not in counted]
    return sum(split_licenses(text, [license_name])[1].get(license_name) or 0 for text in new)


def budget_reservations(
    license_name: str,
    pool: LicensePool,
    budget: BudgetHeadroom,
    uncounted: int,
    now_unix_s: float,
    offered: float = math.inf,
) -> dict[str, LicenseReservation]:
    """Return the Slurm reservations that withhold licenses of one budget from jobs.

    One license stands for one watt. The reservations are returned by name. They leave only those licenses
    free that correspond to the power that new jobs may take.

    Args:
        license_name: name of the license in Slurm.
        pool: total number of this license, and the number in use.
        budget: the budget that the license stands for.
        uncounted: licenses of running jobs whose power the headroom does not count yet.
        now_unix_s: the time now.
        offered: power that new jobs may take now; this power may be less than the headroom.
    """
    headroom = budget.headroom_watts - uncounted
    base, *steps = withheld_power(
        *(pool.total, pool.used, headroom, budget.limit_watts, budget.steps, now_unix_s),
        offered_watts=offered - uncounted,
        idle_watts=budget.idle_watts,
    )
    names = {f"{BUDGET_PREFIX}_{license_name}": base}
    names |= {f"{BUDGET_PREFIX}_{license_name}_{one.end_unix_s or 'last'}": one for one in steps}
    # The reservation without an end withholds MIN_RESERVED licenses at least. Slurm refuses to withhold more
    # licenses than exist.
    excess = max(0, MIN_RESERVED - base.watts)
    return {
        name: LicenseReservation(
            one.start_unix_s, one.end_unix_s, license_name, one.watts - (0 if one is base else excess)
        )
        for name, one in names.items()
    }


@dataclass(frozen=True, slots=True)
class LicenseDemand:
    """Licenses that waiting jobs request under one budget. One license is one watt.

    Each column has one value for each of the m jobs.

    Attributes:
        watts: number of licenses of each job, shape (m,).
        start_watts: power that must be free for the start of each job, shape (m,).
        reachable_watts: power that each job may draw at its lowest limits, shape (m,).
    """

    watts: Floats
    start_watts: Floats
    reachable_watts: Floats

    def offered_watts(self, budget: BudgetHeadroom, free_watts: float = math.inf) -> float:
        """Return the power that Slurm should make available to the waiting jobs.

        Args:
            budget: the budget.
            free_watts: power that is free. A job whose start needs more power cannot start yet.
        """
        ready = self.watts[self.start_watts <= free_watts].tolist()
        return offered_watts(budget.headroom_watts, min(budget.unused_watts, max(0.0, free_watts)), ready)


def license_demands(
    queue: QueueColumns,
    counts: Ints,
    power: PendingPower,
    names: Sequence[str],
    names_of: Callable[[int], Sequence[str]],
    now_unix_s: float,
) -> dict[str, LicenseDemand]:
    """Return how many power licenses the waiting jobs request, by name of the license.

    A license of a power budget stands for one watt. A waiting job is included only if it lacks nothing but
    licenses, or if Slurm has not considered it yet. Jobs that wait for nodes are left out. If they were
    included, power would be kept free for them although they cannot start.

    Args:
        queue: the jobs.
        counts: licenses that each job requests, shape (n,).
        power: power of the jobs.
        names: names of the licenses.
        names_of: function that returns the names of the licenses of the job in a row of the queue.
        now_unix_s: the time now.
    """
    waits = (queue.state == PENDING) & ~queue.held
    waits &= ~queue.dependent | (queue.eligible_s <= now_unix_s)
    waits &= np.array([reason in _READY_REASONS for reason in queue.reason], np.bool_)
    rows: dict[str, list[int]] = {name: [] for name in names}
    for row in np.flatnonzero(waits).tolist():
        for name in names_of(row):
            rows[name].append(row)
    return {
        name: LicenseDemand(
            counts[of_name].astype(np.float64), power.start_watts[of_name], power.reachable_watts[of_name]
        )
        for name, of_name in rows.items()
    }


def waiting_sentences(
    queue: QueueColumns,
    wanted: Ints,
    levels: Ints,
    budgets: Mapping[str, BudgetHeadroom | None],
    names_of: Callable[[int], Sequence[str]],
) -> dict[int, str]:
    """Explain for each job why it waits in Slurm for a license.

    A license represents the power of a budget. A job gets a sentence only if the budget has too little
    power for the job. The result maps job ids to sentences.

    Args:
        queue: the jobs.
        wanted: power in watts that each job adds, shape (n,).
        levels: price level of each job, shape (n,). The price level measures the work that the job does
            per watt.
        budgets: budgets by license.
        names_of: function that takes the index of a job in the queue and returns the names of the job's
            licenses.
    """
    waiting: dict[int, str] = {}
    for row, reason in enumerate(queue.reason):
        if queue.state[row] != PENDING or reason != "Licenses":
            continue
        watts, level = int(wanted[row]), int(levels[row])
        short = [one for name in names_of(row) if (one := budgets.get(name)) is not None]
        budget = min(short, key=lambda one: one.headroom_watts - one.retained_from(level), default=None)
        if budget is not None and watts > budget.headroom_watts - budget.retained_from(level):
            waiting[int(queue.job_id[row])] = waiting_sentence(watts, budget, level)
    return waiting


def waiting_sentence(watts: int, budget: BudgetHeadroom, level: int) -> str:
    """Return the sentence that tells a user why a job waits for power under a budget.

    A part of the budget's free power may be reserved for running jobs. The size of this part depends on
    how much work the waiting job does per watt.

    Args:
        watts: power that the job adds.
        budget: state of the budget.
        level: index that measures the work per watt of the waiting job.
    """
    free, kept = max(0.0, budget.headroom_watts), budget.retained_from(level)
    text = f"waits for power: it adds {watts} W, and {max(0.0, free - kept):.0f} W are free"
    more = f"; running jobs do more work with {min(free, kept):.0f} W" if min(free, kept) >= 1.0 else ""
    return f"{text} under budget '{budget.name}'{more}"


def retained_licenses(
    queue: QueueColumns,
    levels: Ints,
    budgets: Mapping[str, BudgetHeadroom | None],
    names_of: Callable[[int], Sequence[str]],
) -> Ints:
    """Return how many licenses each pending job must leave to running jobs, shape (n,).

    Under a power budget, one license is one watt. For a job under several budgets, the largest number of
    any budget is returned. The number is 0 for running jobs.
    """
    kept = np.zeros(queue.count, np.int64)
    for row in np.flatnonzero(queue.state == PENDING).tolist():
        covering = [one for name in names_of(row) if (one := budgets.get(name)) is not None]
        watts = max((one.retained_from(int(levels[row])) for one in covering), default=0.0)
        kept[row] = math.ceil(watts) if math.isfinite(watts) else 0
    return kept
