"""Safe power limits: the limits that nodes set by themselves when the controller does not answer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from slurm_energy.budget.ceilings import CeilingBudget
from slurm_energy.scheduling.queue import Floats


def safe_limits(min_watts: Floats, ceiling_watts: Floats, budgets: Sequence[CeilingBudget]) -> Floats:
    """Return power limits that keep every budget even if the controller makes no new decision.

    The limits are the highest ones that keep every budget at its lowest future limit. Each device gets the
    same fraction of its range between minimum and ceiling, as far as its budgets allow. No device gets less
    than its minimum, even if a budget is then exceeded.

    Args:
        min_watts: minimum power limit by row. If a device does not follow decisions, its minimum is its
            ceiling.
        ceiling_watts: current ceiling (upper bound of the power limit) by row.
        budgets: budgets. Their available power is the lowest limit of the next hours minus the power that no
            ceiling controls.

    Returns:
        Safe limit by row. No safe limit is above the ceiling.
    """
    low = np.minimum(min_watts, ceiling_watts)
    part = np.ones(len(low))
    for budget in budgets:
        rows = budget.rows
        low_watts = float(low[rows].sum())
        range_watts = float(ceiling_watts[rows].sum()) - low_watts
        if range_watts > budget.available_watts - low_watts:
            kept = max(0.0, budget.available_watts - low_watts) / range_watts if range_watts > 0 else 0.0
            part[rows] = np.minimum(part[rows], kept)
    safe: Floats = low + part * (ceiling_watts - low)
    return safe
