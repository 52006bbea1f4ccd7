"""The rule of power saving: nodes to power down or up now, with reason and expected saving.

The nodes of a pool are interchangeable. Idle nodes have ranks from 0: the node of rank k is used only when
more than k additional nodes are needed. The forecast states the probability of this event over time. From
this probability, the module computes the expected idle gap of each rank, and the saving by powering the node
down.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import IntEnum, StrEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray

from slurm_energy.power_saving.demand_forecast import DAY_S, DemandForecast, DemandHistory, Floats, Ints
from slurm_energy.power_saving.node_energy import NodeEnergy

Bools = NDArray[np.bool_]

_MIN_HISTORY_S: Final = DAY_S


class NodeActivity(IntEnum):
    """State of a node as power saving sees it, such as busy, idle or off."""

    BUSY = 0
    IDLE = 1
    OFF = 2
    BOOTING = 3
    STOPPING = 4
    UNAVAILABLE = 5


class KeepReason(StrEnum):
    """Reason why an idle node stays on."""

    EXPECTED_DEMAND = "jobs are expected to need it before powering down pays"
    NO_SAVING = "the expected saving does not cover shutdown and boot"
    RESERVE = "it belongs to the warm reserve"
    MIN_IDLE = "it has not been idle long enough"
    MIN_ON = "it has not been on long enough"
    PROTECTED = "it is excluded, drained or reserved"
    CYCLE_LIMIT = "the limit of changes per cycle is reached"


@dataclass(frozen=True, slots=True)
class PowerSavingRules:
    """Parameters of the rule that decides which nodes are powered down or up.

    Attributes:
        risk: maximum probability that a node that is powered down is needed before the break-even time.
        wake_probability: a node is powered up ahead of demand if the probability that it is needed within the
            boot time plus one cycle is at least this value. The value must be above `risk`. With 1, nodes are
            powered up only for the warm reserve.
        min_saving: minimum expected saving, as a multiple of the energy of one shutdown and one boot.
        min_idle_s: seconds for which a node must have been idle before it is powered down.
        min_on_s: seconds for which a node must have been on before it is powered down.
        cycle_s: seconds between two decisions.
        max_down, max_up: maximum number of nodes that are powered down and up in one cycle.
    """

    risk: float = 0.05
    wake_probability: float = 0.15
    min_saving: float = 0.5
    min_idle_s: float = 60.0
    min_on_s: float = 300.0
    cycle_s: float = 60.0
    max_down: int = 16
    max_up: int = 16


@dataclass(frozen=True, slots=True)
class PoolNodes:
    """The n nodes of one pool, for power saving. Jobs can use any of these nodes interchangeably.

    Attributes:
        activity: `NodeActivity` of each node, shape (n,).
        protected: mask of the nodes that power saving never changes, shape (n,). They are nodes that are
            drained, reserved or failed, nodes of an excluded partition, and nodes that the site excludes.
        idle_s: seconds for which the node has been idle, shape (n,).
        on_s: seconds for which the node has been on, shape (n,).
        free_share: the free parts of busy nodes, added up, as a number of whole nodes. New jobs can use
            these parts.
    """

    activity: Ints
    protected: Bools
    idle_s: Floats
    on_s: Floats
    free_share: float = 0.0


@dataclass(frozen=True, slots=True)
class PoolPlan:
    """Decision which nodes of one pool to power down or up.

    A pool is a set of interchangeable nodes. A node is named by its index in the columns of `PoolNodes`.

    Attributes:
        down: nodes to power down now, in order of preference.
        down_saving_joules: expected saving by each node in `down`.
        up: nodes to power up now.
        up_probability: probability that each node in `up` is needed soon; 1 for nodes of the warm reserve
            (idle nodes that always stay on).
        kept: for each reason to keep idle nodes on, the number of nodes kept for this reason.
    """

    down: list[int] = field(default_factory=list)
    down_saving_joules: list[float] = field(default_factory=list)
    up: list[int] = field(default_factory=list)
    up_probability: list[float] = field(default_factory=list)
    kept: dict[KeepReason, int] = field(default_factory=dict)

    @property
    def saving_joules(self) -> float:
        """Expected saving in joules of all nodes of the pool that this plan powers down."""
        return float(sum(self.down_saving_joules))


def forecast_points(energy: NodeEnergy, rules: PowerSavingRules) -> tuple[float, float]:
    """Return two look-ahead times in seconds: one for powering nodes up, and one for powering nodes down.

    The first time is the boot time plus one cycle. A node is powered up if it will probably be needed within
    the first time. The second time is the break-even time, which is the shortest idle gap in which powering
    down saves energy. A node is powered down if it will probably not be needed within the second time.

    The second time is never less than the first time. Otherwise the same forecast could cause a node to be
    powered down and then up again. If powering down never saves energy, both times are equal.

    The forecast must state its values at both times.
    """
    up_s = energy.boot_s + rules.cycle_s
    break_even_s = energy.break_even_s
    return up_s, max(up_s, break_even_s if np.isfinite(break_even_s) else up_s)


def rules_without_history(
    rules: PowerSavingRules, energy: NodeEnergy, history: DemandHistory
) -> PowerSavingRules:
    """Return the rules for powering down idle nodes, made stricter if the history is short.

    If less than a day of history is known, a node must be idle for the break-even time before it is powered
    down. With this rule, the energy is at most twice that of a decision that knows the future.
    """
    if history.covered_s >= _MIN_HISTORY_S:
        return rules
    return replace(rules, min_idle_s=max(rules.min_idle_s, energy.break_even_s))


def plan_pool(
    nodes: PoolNodes,
    energy: NodeEnergy,
    forecast: DemandForecast,
    known: Floats,
    rules: PowerSavingRules,
    *,
    reserve: int = 0,
    max_down: int | None = None,
    max_up: int | None = None,
) -> PoolPlan:
    """Decide which nodes of a pool to power down or up now.

    Args:
        nodes: activity and idle times of the nodes in the pool.
        energy: power of a node in each power state, and duration of each change of the state.
        forecast: demand of jobs that have not arrived yet. The ends of its time bins must include the two
            times that `forecast_points` returns.
        known: maximum change of the demand in each time bin by starts and ends of known jobs; the result
            of `known_change`.
        rules: parameters of the rule.
        reserve: number of idle nodes that stay on (warm reserve), in addition to the nodes that known
            jobs need now.
        max_down: number of nodes that may still be powered down in this cycle; None means the limit of
            `rules`.
        max_up: number of nodes that may still be powered up in this cycle; None means the limit of
            `rules`.
    """
    is_warm = _is(nodes, NodeActivity.IDLE) | _is(nodes, NodeActivity.BOOTING)
    warm = int(np.count_nonzero(is_warm & ~nodes.protected))
    off = np.flatnonzero(_is(nodes, NodeActivity.OFF) & ~nodes.protected)
    ranks: Floats = np.arange(warm + len(off), dtype=np.float64)
    probability = forecast.probability(known, ranks + nodes.free_share)
    up_s, down_s = forecast_points(energy, rules)
    p_up = probability[:, _bin(forecast, up_s)]
    p_down = probability[:, _bin(forecast, down_s)]
    now_needed = max(0, int(np.ceil(float(known[0]) - nodes.free_share - 1e-9)))
    saving = expected_saving_joules(energy, forecast.horizon_s, probability)
    stays = p_down > rules.risk
    unprofitable = ~(saving > 0) | (saving < rules.min_saving * energy.cycle_joules)
    kept: Bools = ranks < now_needed + reserve
    keep = _count_kept(np.asarray(stays | unprofitable | kept, np.bool_), warm)
    plan = PoolPlan()
    _choose_down(plan, nodes, rules, warm - keep, saving[keep:warm], max_down)
    _note_kept(plan, stays[:keep], kept[:keep])
    if not plan.down:
        wanted: Bools = (p_up > rules.wake_probability) & np.bool_(energy.boot_s > 0)
        wanted[: min(len(wanted), now_needed + reserve)] = True
        count = _count_kept(wanted, len(ranks)) - warm
        limit = rules.max_up if max_up is None else max_up
        for place in range(max(0, min(count, limit, len(off)))):
            rank = warm + place
            plan.up.append(int(off[place]))
            plan.up_probability.append(1.0 if rank < now_needed + reserve else float(p_up[rank]))
    return plan


def expected_saving_joules(energy: NodeEnergy, horizon_s: Floats, probability: Floats) -> Floats:
    """Return how many joules are saved if an idle node is off from now until it is needed.

    There is one value for each rank, shape (k,). The node of rank k is used only when all idle nodes of
    lower rank are in use. The forecast has a limited length. An idle gap that may last longer counts only
    with this length, so the saving is underestimated.

    Args:
        energy: power and duration of the nodes' power states.
        horizon_s: ends of the time bins of the forecast, shape (h,).
        probability: probability that the node of a rank is needed by the end of a bin, shape (k, h).
    """
    survival = 1.0 - probability
    gap_s = np.sum(np.diff(horizon_s) * (survival[:, :-1] + survival[:, 1:]) / 2, axis=1)
    saving: Floats = energy.saved_watts * gap_s - energy.cycle_joules
    return saving


def _is(nodes: PoolNodes, activity: NodeActivity) -> Bools:
    matches: Bools = nodes.activity == int(activity)
    return matches


def _bin(forecast: DemandForecast, time_s: float) -> int:
    last = len(forecast.horizon_s) - 1
    return min(last, int(np.searchsorted(forecast.horizon_s, time_s - 1e-9)))


def _count_kept(wanted: Bools, limit: int) -> int:
    """Return how many nodes of a pool should be on.

    The nodes are ranked from 0 in the order in which they will be needed. All nodes up to the last wanted
    node should be on, because they are needed before this node. The result is therefore the rank of the last
    wanted node plus 1. The result is 0 if no node is wanted.

    Args:
        wanted: for each rank, whether the node of this rank is wanted.
        limit: number of ranks that are considered, counted from rank 0.
    """
    places = np.flatnonzero(wanted[:limit])
    return int(places[-1]) + 1 if len(places) else 0


def _choose_down(
    plan: PoolPlan,
    nodes: PoolNodes,
    rules: PowerSavingRules,
    surplus: int,
    saving: Floats,
    max_down: int | None,
) -> None:
    """Choose the nodes to power down. Nodes that have been idle longest are chosen first."""
    idle = np.flatnonzero(_is(nodes, NodeActivity.IDLE))
    reasons: list[KeepReason] = []
    candidates: list[int] = []
    for row in idle[np.argsort(-nodes.idle_s[idle], kind="stable")].tolist():
        if nodes.protected[row]:
            reasons.append(KeepReason.PROTECTED)
        elif len(candidates) < surplus:
            if not nodes.idle_s[row] >= rules.min_idle_s:
                reasons.append(KeepReason.MIN_IDLE)
            elif not nodes.on_s[row] >= rules.min_on_s:
                reasons.append(KeepReason.MIN_ON)
            else:
                candidates.append(row)
    limit = max(0, rules.max_down if max_down is None else max_down)
    reasons.extend([KeepReason.CYCLE_LIMIT] * (len(candidates) - limit))
    plan.down.extend(candidates[:limit])
    # The last ranks are needed last. They belong to the nodes that are powered down first.
    plan.down_saving_joules.extend(saving[::-1][: len(plan.down)].tolist())
    for reason in reasons:
        plan.kept[reason] = plan.kept.get(reason, 0) + 1


def _note_kept(plan: PoolPlan, stays: Bools, reserved: Bools) -> None:
    for is_needed, is_reserved in zip(stays.tolist(), reserved.tolist(), strict=True):
        if is_needed:
            reason = KeepReason.EXPECTED_DEMAND
        else:
            reason = KeepReason.RESERVE if is_reserved else KeepReason.NO_SAVING
        plan.kept[reason] = plan.kept.get(reason, 0) + 1
