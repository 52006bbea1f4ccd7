"""Decisions of budgets in one sentence."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from slurm_energy.budget.group_response import group_limits, time_ratios
from slurm_energy.budget.lowering_order import DistributionPolicy
from slurm_energy.budget.power_groups import PowerGroups, PowerShares
from slurm_energy.scheduling.queue import Ints


def explain_job(
    rows: Ints,
    kinds: Sequence[str],
    groups: PowerGroups,
    shares: PowerShares,
    budget_names: Sequence[str],
    policy: DistributionPolicy,
) -> str:
    """Return a sentence that explains the limits of one running job.

    Args:
        rows: rows of the job's groups.
        kinds: kind of devices of each of these groups, for example `gpu` or a product name.
        groups: all groups.
        shares: the decision.
        budget_names: names of the budgets by row.
        policy: the distribution policy.
    """
    needed_watts = group_limits(groups).needed_watts
    lowered = [
        (row, kind)
        for row, kind in zip(rows.tolist(), kinds, strict=True)
        if shares.limit_watts[row] < needed_watts[row] - 0.5
    ]
    if not lowered:
        return _unlowered(rows, kinds, shares, budget_names)
    parts = [
        f"{kind} from {needed_watts[row]:.0f} W to {shares.limit_watts[row]:.0f} W per device"
        for row, kind in lowered
    ]
    names = sorted({budget_names[shares.binding[row]] for row, _ in lowered if shares.binding[row] >= 0})
    budgets = " and ".join(f"'{name}'" for name in names)
    subject = f"budget {budgets} lowers" if len(names) == 1 else f"budgets {budgets} lower"
    sentence = f"{subject} {' and '.join(parts)} ({policy.value}), {_slowdown(rows, groups, shares)}"
    lacking = max((float(shares.shortfall_watts[shares.binding[row]]) for row, _ in lowered), default=0.0)
    if lacking > 0:
        sentence += f"; it lacks {lacking:.0f} W although all its devices have their floors"
    return sentence


def explain_waiting(name: str, needed_watts: float, headroom_watts: float) -> str:
    """Return a sentence that explains why a pending job does not start.

    Args:
        name: name of the budget.
        needed_watts: power that the job's start adds.
        headroom_watts: power that jobs may add under the budget.
    """
    left_watts = max(0.0, headroom_watts)
    return f"budget '{name}' has {left_watts:.0f} W left, the job needs {needed_watts:.0f} W"


def _unlowered(rows: Ints, kinds: Sequence[str], shares: PowerShares, budget_names: Sequence[str]) -> str:
    limited = [
        (row, kind) for row, kind in zip(rows.tolist(), kinds, strict=True) if shares.binding[row] >= 0
    ]
    if not limited:
        return "no budget limits the job"
    names = sorted({budget_names[shares.binding[row]] for row, _ in limited})
    limits = " and ".join(f"{kind} {shares.limit_watts[row]:.0f} W per device" for row, kind in limited)
    budgets = " and ".join(f"'{name}'" for name in names)
    return f"budget {budgets} leaves the job its expected power (limits: {limits})"


def _slowdown(rows: Ints, groups: PowerGroups, shares: PowerShares) -> str:
    limits = np.where(np.isnan(shares.limit_watts), np.inf, shares.limit_watts)[:, None]
    slowdown = float(np.prod(time_ratios(groups, limits)[rows, 0])) - 1
    text = f"which slows the job by about {slowdown:.0%}"
    accepted = float(groups.slowdown_limit[rows[0]])
    if np.isnan(accepted):
        return text
    if bool(np.all(shares.keeps_slowdown[rows])):
        return f"{text}, within its limit of {accepted:.0%}"
    return f"{text}, beyond its limit of {accepted:.0%} because the budget allows no more"
