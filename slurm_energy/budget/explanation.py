"""Explanations of budget decisions, one sentence per job."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from slurm_energy.budget.group_response import group_limits, time_ratios
from slurm_energy.budget.lowering_order import DistributionPolicy
from slurm_energy.budget.power_groups import PowerGroups, PowerShares
from slurm_energy.scheduling.queue import Ints

_MIN_LOWERED_WATTS = 0.5


class DecisionExplainer:
    """Generator of sentences that explain one budget decision to users.

    Args:
        groups: groups of devices among which the budgets were distributed.
        shares: result of the decision. It contains the power limit of each group and the budget that
            determines the limit.
        budget_names: names of the budgets in the order of the decision's columns.
        policy: policy by which the budgets were distributed.
    """

    def __init__(
        self,
        groups: PowerGroups,
        shares: PowerShares,
        budget_names: Sequence[str],
        policy: DistributionPolicy,
    ) -> None:
        self._shares, self._names, self._policy = shares, budget_names, policy
        limits = np.where(np.isnan(shares.limit_watts), np.inf, shares.limit_watts)
        self._slowdown_limit = groups.slowdown_limit
        self._needed_watts = group_limits(groups).needed_watts
        self._time_ratio = time_ratios(groups, limits[:, None])[:, 0]
        self._is_lowered = limits < self._needed_watts - _MIN_LOWERED_WATTS

    def job(self, rows: Ints, kinds: Sequence[str]) -> str:
        """Return a sentence that explains the limits of one running job.

        Args:
            rows: indices of the job's groups of devices in the decision.
            kinds: kind of devices of each of these groups, for example a product name.
        """
        parts = list(zip(rows.tolist(), kinds, strict=True))
        lowered = [(row, kind) for row, kind in parts if self._is_lowered[row]]
        if not lowered:
            return self._unlowered([(row, kind) for row, kind in parts if self._shares.binding[row] >= 0])
        changes = " and ".join(
            f"{kind} from {self._needed_watts[row]:.0f} W to {self._shares.limit_watts[row]:.0f} W per device"
            for row, kind in lowered
        )
        budgets, verb = self._budgets([row for row, _ in lowered], "lowers", "lower")
        sentence = f"{budgets} {verb} {changes} ({self._policy.value}), {self._slowdown(rows)}"
        bindings = [self._shares.binding[row] for row, _ in lowered]
        lacking = max((float(self._shares.shortfall_watts[b]) for b in bindings if b >= 0), default=0.0)
        if lacking > 0:
            sentence += f"; it lacks {lacking:.0f} W although all its devices have their floors"
        return sentence

    def _unlowered(self, limited: Sequence[tuple[int, str]]) -> str:
        if not limited:
            return "no budget limits the job"
        budgets, verb = self._budgets([row for row, _ in limited], "leaves", "leave")
        limits = " and ".join(
            f"{kind} {self._shares.limit_watts[row]:.0f} W per device" for row, kind in limited
        )
        return f"{budgets} {verb} the job its expected power (limits: {limits})"

    def _budgets(self, rows: Sequence[int], singular: str, plural: str) -> tuple[str, str]:
        """Return a text with the names of the budgets that limit the given groups of devices, and a verb.

        Returns the verb `singular` if only one budget limits the groups, otherwise the verb `plural`.
        """
        bindings = {int(self._shares.binding[row]) for row in rows}
        names = sorted(self._names[binding] for binding in bindings if binding >= 0)
        listed = " and ".join(f"'{name}'" for name in names)
        return (f"budget {listed}", singular) if len(names) < 2 else (f"budgets {listed}", plural)

    def _slowdown(self, rows: Ints) -> str:
        slowdown = float(np.prod(self._time_ratio[rows])) - 1
        text = f"which slows the job by about {slowdown:.0%}"
        accepted = float(self._slowdown_limit[rows[0]])
        if np.isnan(accepted):
            return text
        if bool(np.all(self._shares.keeps_slowdown[rows])):
            return f"{text}, within its limit of {accepted:.0%}"
        return f"{text}, beyond its limit of {accepted:.0%} because the budget allows no more"
