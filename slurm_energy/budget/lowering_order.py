"""Order in which a distribution policy lowers the power limits of groups of devices.

A price is a number that states how far all groups are lowered: the higher the price, the lower the limits.
The range of a group's limit is divided into segments. Each segment has an interval of prices. While the
price rises through this interval, the limit of the group falls through the segment. If one price applies to
all groups, the groups have the limits that the policy considers fair or best. The prices of all policies
have three tiers:

- -1 to 0: the limit falls to the expected power of the device, which takes no power
  from the job;
- 0 to 1: the limit falls further to the lowest limit that keeps the job's slowdown limit;
- 1 to 2: the limit falls further to the floor, the minimum limit that a budget may set.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from slurm_energy.budget.group_response import GroupLimits, time_ratios
from slurm_energy.budget.power_groups import PowerGroups
from slurm_energy.scheduling.queue import Bools, Floats, Ints

MIN_PRICE, MAX_PRICE = -1.0, 2.0
_TIE = 5e-3
"""Width of the price interval of a segment at a constant marginal price. Groups with nearly equal prices
share a reduction, and small changes of predictions do not move all power from one group to another."""


class DistributionPolicy(StrEnum):
    """Policy by which the power of a budget is distributed among devices.

    Attributes:
        EQUAL: each device has the same limit in watts.
        PROPORTIONAL: each device has the same fraction of its expected power.
        LEAST_EDP: the energy-delay product of the cluster is minimized by maximizing the throughput,
            weighted by nodes.
        DEADLINE_FIRST: the devices of jobs without deadlines get lower limits first. The devices of the
            jobs that are closest to missing their deadlines get lower limits last.
    """

    EQUAL = "equal"
    PROPORTIONAL = "proportional"
    LEAST_EDP = "least-edp"
    DEADLINE_FIRST = "deadline-first"


@dataclass(frozen=True, slots=True)
class LoweringOrder:
    """Prices at which a distribution policy lowers the power limits of n groups of devices.

    A price is a number that measures how far all groups are lowered. The range of limits of each group is
    divided into s segments. While the price rises through the interval of a segment, the limit of the group
    falls through this segment.

    Attributes:
        top_watts: limit per device at the lowest price, shape (n,).
        width_watts: width of each segment in watts per device, shape (n, s).
        first_price, last_price: start and end of the interval of prices of each segment, shape (n, s).
    """

    top_watts: Floats
    width_watts: Floats
    first_price: Floats
    last_price: Floats

    def limit_watts(self, rows: Ints, price: float) -> Floats:
        """Return the power limit per device of the given groups, shape (len(rows),).

        The limit depends on a price, a number that states how far the power of all groups is lowered.
        """
        first, last = self.first_price[rows], self.last_price[rows]
        taken = np.clip((price - first) / (last - first), 0.0, 1.0)
        limits: Floats = self.top_watts[rows] - (self.width_watts[rows] * taken).sum(axis=1)
        return limits


def lowering_order(groups: PowerGroups, limits: GroupLimits, policy: DistributionPolicy) -> LoweringOrder:
    """Return the order in which a distribution policy takes power from groups of devices.

    The order applies when a power budget requires lower power limits.

    Args:
        groups: n groups of devices.
        limits: result of `group_limits` for these groups. It contains four power limits for each group:
            the highest, the lowest, the one that the job needs for full speed, and the lowest one that
            does not slow the job down more than it accepts.
        policy: policy by which the budget is distributed.
    """
    grid, tier = limit_grid(groups, limits)
    width = grid[:, :-1] - grid[:, 1:]
    if policy is DistributionPolicy.EQUAL:
        first, last = _linear_prices(
            grid, np.full(groups.count, float(np.max(limits.max_watts, initial=1.0)))
        )
    elif policy is DistributionPolicy.PROPORTIONAL:
        first, last = _linear_prices(grid, limits.needed_watts)
    else:
        first, last = _edp_prices(groups, grid, tier)
        if policy is DistributionPolicy.DEADLINE_FIRST:
            first, last = _after_deadlines(groups.deadline_s, first, last)
    spare_first, spare_last = _spare_prices(grid, limits)
    first = np.where(tier < 0, spare_first, tier + first)
    last = np.where(tier < 0, spare_last, tier + last)
    return LoweringOrder(limits.max_watts, width, first, np.maximum(last, first + 1e-9))


def limit_grid(groups: PowerGroups, limits: GroupLimits) -> tuple[Floats, Ints]:
    """Divide the range of power limits of each group of devices into segments.

    The segments are used to lower the limits of all groups step by step. Each segment has a tier, which
    determines how early the power of the segment is taken from the group. Power of tier -1 is taken
    first, power of tier 1 last.

    - Tier -1 is the range of limits above the expected power of a device.
    - Tier 0 is the range between the other two tiers.
    - Tier 1 is the range of limits that would break the job's slowdown limit.

    Args:
        groups: n groups of devices.
        limits: characteristic limits of these groups from `group_limits`.

    Returns:
        The limits in descending order, shape (n, s + 1), and the tier of each segment between two limits,
        shape (n, s).
    """
    columns = (limits.max_watts, limits.needed_watts, limits.slowdown_watts, limits.floor_watts)
    levels = np.clip(groups.level_watts, limits.floor_watts[:, None], limits.needed_watts[:, None])
    grid: Floats = -np.sort(-np.concatenate([levels, np.stack(columns, axis=1)], axis=1), axis=1)
    middle = (grid[:, :-1] + grid[:, 1:]) / 2
    tier: Ints = np.where(middle > limits.needed_watts[:, None], -1, 0)
    tier[middle < limits.slowdown_watts[:, None]] = 1
    return grid, tier


def throughput_slopes(groups: PowerGroups, grid: Floats, tier: Ints) -> Floats:
    """Return the throughput that is lost per watt if the power limits of device groups are lowered.

    A segment is the range between two successive limits of a group in `grid`. The result has one value
    per group and segment, shape (n, s). The unit of throughput is one node at full speed.

    Successive segments form a tier. Within a tier, the values do not decrease from one segment to the
    next, that is, towards lower limits.

    Args:
        groups: n groups of devices.
        grid: possible limits of each group in descending order, shape (n, s + 1).
        tier: tier of each segment, shape (n, s).
    """
    cost = groups.weight[:, None] * (1 - 1 / time_ratios(groups, grid))
    slopes: Floats = _convex_slopes(grid, cost, tier) / np.maximum(1, groups.devices)[:, None]
    return slopes


def _spare_prices(grid: Floats, limits: GroupLimits) -> tuple[Floats, Floats]:
    """Return the prices at which devices give up the power that they do not need.

    A price is a number that measures how far the limits of all groups of devices are lowered. Each group
    has spare power, which is its maximum minus the power that it needs. While the price rises from -1 to
    0, all groups give up the same fraction of their spare power.

    `grid` contains power limits of each group in descending order. Two successive limits bound a segment.
    The result consists of two arrays, the price at the start and at the end of each segment.
    """
    spare = np.maximum(limits.max_watts - limits.needed_watts, 1e-9)[:, None]
    price = -1 + np.clip((limits.max_watts[:, None] - grid) / spare, 0.0, 1.0)
    return price[:, :-1], price[:, 1:]


def _linear_prices(grid: Floats, reference_watts: Floats) -> tuple[Floats, Floats]:
    """Return the prices at both ends of each segment of the power limits of device groups.

    A price states how far all groups are lowered: the higher the price, the lower the limits. Here the price
    is 1 minus the limit divided by a reference power, but at least 0.

    Args:
        grid: power limits of each group in descending order.
        reference_watts: reference power of each group.
    """
    price = 1 - np.clip(grid / np.maximum(reference_watts, 1e-9)[:, None], 0.0, 1.0)
    return price[:, :-1], price[:, 1:]


def _edp_prices(groups: PowerGroups, grid: Floats, tier: Ints) -> tuple[Floats, Floats]:
    """Return the order in which the policy `least-edp` lowers power limits, as prices from 0 to 1.

    A price rises with the loss of throughput per watt. Limits with a low price are lowered first, so limits
    that cost little throughput are lowered first.

    The aim is the lowest energy-delay product of the cluster per unit of work. While a budget limits jobs,
    the jobs use the whole budget. The energy-delay product of the cluster is then the budget divided by the
    square of the throughput. It is lowest where the throughput is highest. The sum of the jobs' energy-delay
    products is not used, because it grows without bound for the slowest job.
    """
    slope = throughput_slopes(groups, grid, tier)
    width = grid[:, :-1] - grid[:, 1:]
    counted = np.abs(slope[(width > 0) & (tier >= 0) & (groups.weight[:, None] > 0)])
    scale = float(np.median(counted)) if len(counted) else 1.0
    relative = slope / max(scale, 1e-12)
    price = 0.5 + 0.5 * relative / (1 + np.abs(relative))
    joined = (tier[:, 1:] == tier[:, :-1]) & (width[:, 1:] > 0) & (width[:, :-1] > 0)
    between = np.where(joined, (price[:, 1:] + price[:, :-1]) / 2, np.nan)
    first, last = price.copy(), price.copy()
    first[:, 1:] = np.where(joined, between, price[:, 1:])
    last[:, :-1] = np.where(joined, between, price[:, :-1])
    taken = (grid[:, :1] - grid) / np.maximum(grid[:, :1] - grid[:, -1:], 1e-9)
    scale_01 = 1 - _TIE
    return first * scale_01 + _TIE * taken[:, :-1], last * scale_01 + _TIE * taken[:, 1:]


def _convex_slopes(grid: Floats, cost: Floats, tier: Ints) -> Floats:
    """Return the slopes of a convex lower bound of the cost of lowering power limits.

    The cost rises as the power limits of a group of devices fall. The lower bound is the largest convex
    function that is nowhere above the cost. It is computed separately for each tier (run of segments of
    the range of limits). The slope of segment j is the maximum over i <= j of the minimum over l > j of
    the slope between the grid points i and l, both in the tier of segment j.

    Args:
        grid: limits in descending order, shape (n, s + 1).
        cost: cost at these limits, shape (n, s + 1).
        tier: tier of each segment, shape (n, s).

    Returns:
        Cost per watt of each segment, not decreasing within a tier, shape (n, s).
    """
    slopes = np.full(tier.shape, -np.inf)
    for start in range(tier.shape[1]):
        watts = grid[:, start, None] - grid[:, start + 1 :]
        valid: Bools = (tier[:, start:] == tier[:, start, None]) & (watts > 1e-9)
        rise = np.divide(
            cost[:, start + 1 :] - cost[:, start, None], watts, out=np.full(watts.shape, np.inf), where=valid
        )
        lowest = np.minimum.accumulate(rise[:, ::-1], axis=1)[:, ::-1]
        same = (tier[:, start:] == tier[:, start, None]) & np.isfinite(lowest)
        slopes[:, start:] = np.maximum(slopes[:, start:], np.where(same, lowest, -np.inf))
    return np.where(np.isfinite(slopes), slopes, 0.0)


def _after_deadlines(deadline_s: Floats, first: Floats, last: Floats) -> tuple[Floats, Floats]:
    """Return changed prices, so that groups of devices are lowered in the order of their deadlines.

    A budget lowers the power limits of all groups by one common price, which rises from low to high. The
    price interval of a segment of a group's power range states when this segment is taken away. In the
    result, groups with the latest deadline are lowered first. Groups with the same deadline are lowered
    in the order of their given prices.

    Args:
        deadline_s: deadline of each group.
        first: given price at the start of each segment.
        last: given price at the end of each segment.
    """
    _, rank = np.unique(-deadline_s, return_inverse=True)
    ranks = float(np.max(rank, initial=0) + 1)
    return (rank[:, None] + first) / ranks, (rank[:, None] + last) / ranks
