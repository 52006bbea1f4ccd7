"""Slurm licenses that represent power under budgets: licenses of jobs, and licenses withheld from all jobs.

The functions turn a decision about the budgets into numbers of licenses. They do no I/O.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from slurm_energy.budget.job_licenses import feasible_watts
from slurm_energy.budget.license_plan import withheld_power
from slurm_energy.budget.power_table import PartitionPower, table_lines
from slurm_energy.config import Config
from slurm_energy.controller.budgets.facts import BudgetScope, ScopeKind
from slurm_energy.scheduling.queue import Floats, Ints
from slurm_energy.slurm.licenses import BUDGET_PREFIX, LicensePool, LicenseReservation, split_licenses
from slurm_energy.slurm.queue.columns import PENDING, QueueColumns
from slurm_energy.slurm.queue.running_jobs import AllocatedJob

JOB_SCOPES: Final = (ScopeKind.PARTITION, ScopeKind.ACCOUNT, ScopeKind.USER, ScopeKind.QOS)
"""Kinds of budgets that have a separate license. The cluster's budget has the configured license."""
_NAME: Final = re.compile(r"[^\s,=|]{1,200}")


@dataclass(frozen=True, slots=True)
class BudgetHeadroom:
    """State of one budget after a decision, as the admission of jobs needs it.

    Attributes:
        name: name in the configuration.
        scope: the nodes or jobs under the budget.
        limit_watts: limit now.
        headroom_watts: power above idle that new jobs may add now. A negative value means that the budget is
            above its limit. Infinity means that the budget has no limit.
        steps: changes of the limit in the next 24 h, in ascending order: (Unix time in seconds, limit in
            watts from then on).
        floor_percent: lowest power limit that running jobs may get, as a position in a device's range of
            power limits: 0 is the device's minimum limit, 100 its maximum.
    """

    name: str
    scope: BudgetScope
    limit_watts: float
    headroom_watts: float
    steps: Sequence[tuple[float, float]] = ()
    floor_percent: float = 0.0

    def covers(self, user: str, account: str, partition: str, qos: str) -> bool:
        """Return whether the budget counts a job with these names.

        For a budget of nodes the result is False, because the nodes of a pending job are not known.
        """
        names = {
            ScopeKind.PARTITION: partition.split(","),
            ScopeKind.ACCOUNT: [account],
            ScopeKind.USER: [user],
            ScopeKind.QOS: [qos],
        }
        is_named = not self.scope.names.isdisjoint(names.get(self.scope.kind, ()))
        return self.scope.kind is ScopeKind.CLUSTER or is_named


def license_of(license_name: str, budget_name: str) -> str:
    """Return the name of the Slurm license for a budget other than the cluster's budget."""
    return f"{license_name}_{re.sub(r'[^A-Za-z0-9_]', '_', budget_name)}"


def license_lines(
    config: Config,
    pool: LicensePool,
    scoped: Mapping[str, BudgetHeadroom],
    powers: Mapping[str, PartitionPower],
) -> list[str]:
    """Return those lines of the policy file that are about licenses; see docs/reference/protocol.md."""
    users = " ".join(str(uid) for uid in sorted({0, os.geteuid()}))
    lines = [f"license {config.budget.license} {pool.total}", f"license-users {users}"]
    lines += [
        f"license-scope {license_name} {one.scope.kind} {name}"
        for license_name, one in scoped.items()
        for name in sorted(one.scope.names)
        if _NAME.fullmatch(name)
    ]
    return [*lines, f"license-delay {math.ceil(3 * config.budget.period_s)}", *table_lines(powers)]


def feasible_licenses(
    queue: QueueColumns,
    wanted: Ints,
    least_watts: Floats,
    cluster: BudgetHeadroom | None,
    held: Mapping[int, int],
) -> Ints:
    """Return the number of licenses of each job.

    A pending job that needs more power than the budget can ever free gets a reduced number.

    `feasible_watts` computes the reduced number.

    Args:
        queue: the jobs.
        wanted: power that each job adds, shape (n,).
        least_watts: power below which a job does not start, shape (n,).
        cluster: budget of the cluster; None means that the cluster has no budget.
        held: number of licenses of each running job, by job id.
    """
    if cluster is None or not math.isfinite(cluster.headroom_watts):
        return wanted
    rise = max([0.0, *(watts - cluster.limit_watts for _, watts in cluster.steps)])
    max_watts = max(0.0, cluster.headroom_watts) + sum(held.values()) + rise
    result = wanted.copy()
    for row in np.flatnonzero((queue.state == PENDING) & (wanted > max_watts)).tolist():
        slowdown = "ENERGY_SLOWDOWN" in queue.flags[row]
        result[row] = feasible_watts(int(wanted[row]), max_watts, slowdown, float(least_watts[row]))
    return result


def running_watts(queue: QueueColumns, wanted: Ints, targets: Mapping[int, int]) -> dict[int, int]:
    """Return the licenses that each running job should hold, by job id."""
    rows = np.flatnonzero(queue.state != PENDING).tolist()
    pairs = [(int(queue.job_id[row]), int(wanted[row])) for row in rows]
    return {job: targets.get(job, watts) for job, watts in pairs}


def held_or_requested(queue: QueueColumns, wanted: Ints, held: Mapping[int, int]) -> Ints:
    """Return the number of licenses of each job.

    For a running job, it is the number of licenses that the job holds. For a pending job, it is the number
    that the job needs.
    """
    pairs = zip(queue.job_id.tolist(), wanted.tolist(), strict=True)
    return np.array([held.get(job, watts) for job, watts in pairs], np.int64)


def uncounted_watts(jobs: Mapping[int, AllocatedJob], license_name: str, counted: Collection[int]) -> int:
    """Return how many licenses are held by jobs whose power the headroom does not count yet."""
    new = [job.licenses for job_id, job in jobs.items() if job_id not in counted]
    return sum(split_licenses(text, [license_name])[1].get(license_name) or 0 for text in new)


def budget_reservations(
    license_name: str, pool: LicensePool, budget: BudgetHeadroom, uncounted: int, now_unix_s: float
) -> dict[str, LicenseReservation]:
    """Return the reservations of one license, by name of the reservation.

    Args:
        license_name: name of the license in Slurm.
        pool: total number of this license, and the number in use.
        budget: the budget that the license stands for.
        uncounted: licenses of running jobs whose power the headroom does not count yet.
        now_unix_s: the time now.
    """
    headroom = budget.headroom_watts - uncounted
    base, *steps = withheld_power(
        pool.total, pool.used, headroom, budget.limit_watts, budget.steps, now_unix_s
    )
    names = {f"{BUDGET_PREFIX}_{license_name}": base}
    names |= {f"{BUDGET_PREFIX}_{license_name}_{one.end_unix_s or 'last'}": one for one in steps}
    return {
        name: LicenseReservation(one.start_unix_s, one.end_unix_s, license_name, one.watts)
        for name, one in names.items()
    }


def waiting_sentences(
    queue: QueueColumns,
    wanted: Ints,
    budgets: Mapping[str, BudgetHeadroom | None],
    names_of: Callable[[int], Sequence[str]],
) -> dict[int, str]:
    """Return a sentence for each job that waits in Slurm because licenses are missing, by job id."""
    waiting: dict[int, str] = {}
    for row, reason in enumerate(queue.reason):
        if queue.state[row] != PENDING or reason != "Licenses":
            continue
        watts = int(wanted[row])
        short = [one for name in names_of(row) if (one := budgets.get(name)) is not None]
        budget = min(short, key=lambda one: one.headroom_watts, default=None)
        if budget is not None and watts > budget.headroom_watts:
            waiting[int(queue.job_id[row])] = waiting_sentence(watts, budget)
    return waiting


def waiting_sentence(watts: int, budget: BudgetHeadroom) -> str:
    """Return one sentence that says why a job waits under a budget."""
    free = max(0.0, budget.headroom_watts)
    return f"waits for power: it adds {watts} W, and {free:.0f} W are free under budget '{budget.name}'"
