"""Distribution of power budgets among groups of devices.

The simulator and the controller use the same function. Budgets may overlap in any way. A group keeps the
limits of all budgets that contain it.
"""

from __future__ import annotations

import numpy as np

from slurm_energy.budget.group_response import GroupLimits, group_limits, keeps_slowdown_limits
from slurm_energy.budget.lowering_order import (
    MAX_PRICE,
    MIN_PRICE,
    DistributionPolicy,
    LoweringOrder,
    lowering_order,
)
from slurm_energy.budget.power_groups import BudgetColumns, PowerGroups, PowerShares
from slurm_energy.scheduling.queue import Bools, Floats, Ints

_PRICE_STEP = 1e-12
"""Precision of prices. The shortest price interval of a segment is 1e-9."""
_MAX_STEPS = 200


def distribute(
    groups: PowerGroups,
    budgets: BudgetColumns,
    policy: DistributionPolicy,
    *,
    limits: GroupLimits | None = None,
) -> PowerShares:
    """Return the power limit of each device so that every budget is kept.

    The power of groups of devices is lowered step by step. A number (the price) measures how far the
    groups are lowered: the higher the price, the lower the limits (see `LoweringOrder`). For each budget,
    the function finds the price at which the power of its groups fits. If several budgets apply to a
    group, the highest of their prices determines its limit. The budgets with the highest prices are
    settled first. The other budgets distribute the power that remains. No group gets less than its
    minimum limit (floor), even if a budget is then exceeded.

    Args:
        groups: n groups of devices.
        budgets: b budgets.
        policy: policy that orders the reductions of power.
        limits: characteristic limits of the groups; None means that the function computes these limits.
    """
    limits = limits or group_limits(groups)
    order = lowering_order(groups, limits, policy)
    members = [np.flatnonzero(row) for row in budgets.members]
    limited = budgets.limit_watts != np.inf
    # A limit that is not a number must not count as no limit.
    left_watts = np.nan_to_num(budgets.limit_watts - budgets.fixed_watts, nan=0.0, posinf=np.inf, neginf=0.0)
    limit_watts, binding = _settle(order, budgets.members, members, np.where(limited, left_watts, np.inf))
    covered = np.zeros(groups.count, np.bool_)
    for row in np.flatnonzero(limited):
        covered[members[row]] = True
    limit_watts = np.where(covered, np.clip(limit_watts, limits.floor_watts, limits.max_watts), np.nan)
    counted_watts = np.where(covered, limit_watts, limits.needed_watts)
    committed_watts = budgets.fixed_watts + np.array(
        [float(budgets.members[b][rows] @ counted_watts[rows]) for b, rows in enumerate(members)]
    )
    excess_watts = committed_watts - budgets.limit_watts
    return PowerShares(
        limit_watts=limit_watts,
        binding=binding,
        keeps_slowdown=keeps_slowdown_limits(groups, limit_watts),
        committed_watts=committed_watts,
        shortfall_watts=np.where(excess_watts > 1e-6, excess_watts, 0.0),
    )


def _settle(
    order: LoweringOrder, counts: Ints, members: list[Ints], left_watts: Floats
) -> tuple[Floats, Ints]:
    """Return the power limit of each of n groups of devices, and the budget that causes this limit.

    The budget is given by its index in `counts`; -1 means that no budget lowers the limit.

    Args:
        order: the order in which the limits of the groups are lowered.
        counts: number of devices of each group under each budget, shape (b, n).
        members: indices of the groups under each budget.
        left_watts: power that is left for the groups under each budget, shape (b,); infinity without a
            limit.
    """
    count = len(order.top_watts)
    limit_watts = order.top_watts.copy()
    binding = np.full(count, -1, np.int64)
    is_open: Bools = np.ones(count, np.bool_)
    left_watts = left_watts.copy()
    prices = {row: np.inf for row in range(len(members)) if np.isfinite(left_watts[row])}
    changed = set(prices)
    while prices:
        for row in changed:
            rows = members[row][is_open[members[row]]]
            prices[row] = _price(order, rows, counts[row][rows], float(left_watts[row]))
            if prices[row] <= MIN_PRICE:
                del prices[row]
        settled = _settled(prices, members, is_open)
        frozen = np.zeros(count, np.bool_)
        for row in settled:
            rows = members[row][is_open[members[row]]]
            limit_watts[rows] = order.limit_watts(rows, prices.pop(row))
            binding[rows] = row
            is_open[rows] = False
            frozen[rows] = True
        changed = set()
        for row in prices:
            rows = members[row][frozen[members[row]]]
            if len(rows):
                left_watts[row] -= float(counts[row][rows] @ limit_watts[rows])
                changed.add(row)
    return limit_watts, binding


def _settled(prices: dict[int, float], members: list[Ints], is_open: Bools) -> list[int]:
    """Return the budgets whose price is final, by descending price.

    A price states how far a budget lowers the power of its devices. The price of a budget is final if it is
    at least as high as the price of every budget that shares devices with this budget.
    """
    highest = np.full(len(is_open), -np.inf)
    for row, price in prices.items():
        highest[members[row]] = np.maximum(highest[members[row]], price)
    rows = [
        row
        for row, price in prices.items()
        if price >= np.max(highest[members[row]], where=is_open[members[row]], initial=-np.inf)
    ]
    return sorted(rows, key=lambda row: (-prices[row], row))


def _price(order: LoweringOrder, rows: Ints, counts: Ints, left_watts: float) -> float:
    """Return the lowest price at which groups of devices stay within the power of a budget.

    The price, defined in `LoweringOrder`, is a number that determines how far the power limits of the groups
    are lowered.

    Args:
        order: the order in which groups are lowered.
        rows: indices of the groups under the budget.
        counts: number of devices of each of these groups under the budget.
        left_watts: power that is left for these devices.

    Returns:
        The price: `MIN_PRICE` if no limit needs to be lowered. `MAX_PRICE` if the power is
        exceeded even at the minimum limits.
    """
    top_watts = float(counts @ order.top_watts[rows])
    if top_watts <= left_watts:
        return MIN_PRICE
    width = order.width_watts[rows] * counts[:, None]
    is_real = width > 0
    width, first, last = width[is_real], order.first_price[rows][is_real], order.last_price[rows][is_real]
    needed_watts = top_watts - left_watts
    if float(width.sum()) <= needed_watts:
        return MAX_PRICE
    return _lowest_price(width, first, last, needed_watts)


def _lowest_price(width: Floats, first: Floats, last: Floats, needed_watts: float) -> float:
    """Return the price of power at which devices give up the power that a budget lacks.

    A price is a number that measures how far all power limits are lowered. A segment is power that a device
    gives up gradually as the price rises from `first` to `last`. The result is the lowest price at which the
    given-up power reaches `needed_watts`. Steps of bisection and of interpolation alternate.

    Args:
        width: power of each segment, shape (s,). The sum must exceed `needed_watts`.
        first: price from which each segment is given up, shape (s,).
        last: price at which each segment is given up completely, shape (s,).
        needed_watts: power that the segments must yield.
    """
    low, high = MIN_PRICE, MAX_PRICE
    at_low, at_high = 0.0, float(width.sum())
    for step in range(_MAX_STEPS):
        part = (needed_watts - at_low) / (at_high - at_low) if at_high > at_low else 1.0
        if high - low <= _PRICE_STEP or not len(width):
            break
        if bool(np.all((first <= low) & (last >= high))):
            return min(high, low + part * (high - low) + _PRICE_STEP)
        price = low + (0.5 if step % 2 else min(max(part, 0.01), 0.99)) * (high - low)
        # No dot product: the threads of BLAS cost more than they save here.
        taken = float((width * np.clip((price - first) / (last - first), 0.0, 1.0)).sum())
        if taken >= needed_watts:
            high, at_high = price, taken
        else:
            low, at_low = price, taken
        done = last <= low
        done_watts = float(width[done].sum())
        needed_watts, at_low, at_high = needed_watts - done_watts, at_low - done_watts, at_high - done_watts
        active = ~done & (first < high)
        width, first, last = width[active], first[active], last[active]
    return high
