"""Price of power, by which power is divided between pending and running jobs.

The work of a job is its run time without power limits, times its number of nodes. The price of power is the
work that a job does per second and per watt. A pending job offers the price at its most efficient power: its
highest speed per watt above idle power. A running job gives up the part of its power that yields less work
per watt than the offered price. A pending job that starts with this power increases the throughput of the
cluster.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from slurm_energy.budget.group_response import GroupLimits, group_limits, time_ratios
from slurm_energy.budget.lowering_order import limit_grid, throughput_slopes
from slurm_energy.budget.power_groups import NO_JOB, BudgetColumns, PowerGroups
from slurm_energy.scheduling.queue import Floats, Ints

PRICES: Final[Floats] = np.geomspace(1e-6, 1.0, 49)
"""Prices in node-seconds of work per joule at which power is compared, in ascending order."""
MIN_GAIN: Final = 0.1
"""Minimum increase of the throughput by the start of a job, as a share of the job's speed without limits."""


@dataclass(frozen=True, slots=True)
class EconomicPower:
    """Power at which pending jobs yield the most work per watt, as columns of shape (n,).

    Each of the n rows is a group of devices of a job.

    Attributes:
        limit_watts: limit of each device at this power (economic limit).
        added_watts: power of all devices of the group at this limit, above idle.
        level: work per joule that the group's job does at this power, as an index in the list `PRICES`.
            This work per joule is called the price of the power.
    """

    limit_watts: Floats
    added_watts: Floats
    level: Ints


def economic_power(
    pending: PowerGroups, idle_watts: Floats, *, limits: GroupLimits | None = None
) -> EconomicPower:
    """Return the power at which each pending job yields the most work per watt above idle.

    Args:
        pending: groups of devices of pending jobs, with predicted power and response to limits.
        idle_watts: power of one idle device, shape (n,).
        limits: for each group, the highest and the lowest power limit, the limit that its job needs, and the
            limit that keeps the job's slowdown limit. None means that they are computed.
    """
    at_prices = limits_at_prices(pending, limits or group_limits(pending))
    added = pending.devices[:, None] * np.maximum(0.0, at_prices - idle_watts[:, None])
    job_id = np.where(pending.job_id == NO_JOB, -1 - np.arange(pending.count), pending.job_id)
    _, job = np.unique(job_id, return_inverse=True)
    count = int(np.max(job, initial=-1)) + 1
    job_watts, log_times = np.zeros((count, len(PRICES))), np.zeros((count, len(PRICES)))
    weight = np.zeros(count)
    np.add.at(job_watts, job, added)
    np.add.at(log_times, job, np.log(time_ratios(pending, at_prices)))
    np.maximum.at(weight, job, pending.weight)
    yields = weight[:, None] * (np.exp(-log_times) - MIN_GAIN) / np.maximum(job_watts, 1e-9)
    best = np.argmax(yields, axis=1)
    rows, columns = np.arange(pending.count), best[job]
    return EconomicPower(
        limit_watts=at_prices[rows, columns],
        added_watts=added[rows, columns],
        level=price_levels(yields[np.arange(count), best])[job],
    )


def price_levels(prices: Floats) -> Ints:
    """Return the level of each of the given prices of power.

    A price of power is work per joule. The level is the index of the highest price in `PRICES` that does not
    exceed the given price. If all prices in `PRICES` exceed the given price, the level is 0.
    """
    levels: Ints = np.maximum(0, np.searchsorted(PRICES, prices, side="right") - 1).astype(np.int64)
    return levels


def limits_at_prices(groups: PowerGroups, limits: GroupLimits) -> Floats:
    """Return the power limit per device of each group of devices at each price of power.

    The prices are those in `PRICES`. A price is a work rate per watt. Above the returned limit, additional
    power would yield less work per watt than the price. The limit respects the job's slowdown limit and
    minimum limit (floor). The shape is (n, number of prices).

    Args:
        groups: n groups of devices.
        limits: for each group, the highest and the lowest power limit, the limit that its job needs, and the
            limit that keeps the job's slowdown limit.
    """
    grid, tier = limit_grid(groups, limits)
    slope = throughput_slopes(groups, grid, tier)
    columns = len(PRICES) + 1
    cell = np.searchsorted(PRICES, slope, side="right") + columns * np.arange(groups.count)[:, None]
    width = np.where(tier == 0, grid[:, :-1] - grid[:, 1:], 0.0)
    given_up = np.bincount(cell.ravel(), weights=width.ravel(), minlength=columns * groups.count)
    given_up = np.cumsum(given_up.reshape(groups.count, columns), axis=1)[:, :-1]
    kept: Floats = limits.needed_watts[:, None] - given_up
    return kept


def headroom_at_prices(
    groups: PowerGroups, budgets: BudgetColumns, *, limits: GroupLimits | None = None
) -> Floats:
    """Return the power that new jobs may add under each budget at each price in `PRICES`.

    A price is the work per joule that an additional watt must yield. At a higher price, running jobs keep
    less power, so that more remains for new jobs. The result has the shape (b, number of prices). It is
    negative if the remaining power of the running jobs exceeds the limit.

    Args:
        groups: groups of devices of running jobs, and of devices without jobs.
        budgets: budgets in force.
        limits: for each group, the highest and the lowest power limit, the limit that its job needs, and
            the limit that keeps the job's slowdown limit. None means that they are computed.
    """
    counted_watts = limits_at_prices(groups, limits or group_limits(groups))
    used_watts: Floats = budgets.members.astype(np.float64) @ counted_watts
    free: Floats = (budgets.limit_watts - budgets.fixed_watts)[:, None] - used_watts
    return free
