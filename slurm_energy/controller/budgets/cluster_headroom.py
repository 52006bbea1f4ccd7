"""Common headroom of all budgets of the whole cluster. These budgets share one license in Slurm."""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from dataclasses import replace

from slurm_energy.controller.budgets.facts import ScopeKind
from slurm_energy.controller.budgets.licenses import BudgetHeadroom


def cluster_headroom(budgets: Sequence[BudgetHeadroom]) -> BudgetHeadroom | None:
    """Return one budget that represents all budgets of the whole cluster; None if there is no such budget.

    These budgets count the same nodes. The result is the budget with the least headroom. Its future limits
    are lowered where another of these budgets leaves less headroom.

    Args:
        budgets: all budgets in force.
    """
    covering = [budget for budget in budgets if budget.scope.kind is ScopeKind.CLUSTER]
    if len(covering) < 2:
        return next(iter(covering), None)
    tightest = min(covering, key=lambda budget: budget.headroom_watts)
    times = sorted({unix_s for budget in covering for unix_s, _ in budget.steps})
    steps = [
        (unix_s, min(_limit_at(budget, unix_s) + _surplus_watts(budget, tightest) for budget in covering))
        for unix_s in times
    ]
    return replace(tightest, steps=steps)


def _limit_at(budget: BudgetHeadroom, unix_s: float) -> float:
    count = bisect.bisect_right(budget.steps, unix_s, key=lambda step: step[0])
    return budget.steps[count - 1][1] if count else budget.limit_watts


def _surplus_watts(budget: BudgetHeadroom, tightest: BudgetHeadroom) -> float:
    """Return the power that the tightest budget counts minus the power that another budget counts.

    Both budgets count the same nodes. The difference follows from `constant_watts` and from the margins. If
    a budget has no limit now, the difference of the margins is unknown and is left out.
    """
    counted = [one.limit_watts - one.headroom_watts for one in (tightest, budget)]
    if all(math.isfinite(watts) for watts in counted):
        return counted[0] - counted[1]
    return tightest.idle_watts - budget.idle_watts
