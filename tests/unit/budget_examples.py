"""Example data for tests of power budgets: groups of devices, and budgets.

The tests check the distribution of power and the admission of jobs.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from slurm_energy.budget.power_groups import BudgetColumns, PowerGroups

LEVELS = 6


def groups(count: int, **columns: Any) -> PowerGroups:
    """Return synthetic groups of devices for tests of power budgets.

    The power limits of a device range from 100 W to 400 W. By default, the speed of a group is the square
    root of the limit divided by the power draw.

    Args:
        count: number of groups.
        **columns: columns of `PowerGroups` that replace the defaults.
    """
    values: dict[str, Any] = {
        "job_id": np.arange(count) + 1,
        "devices": np.ones(count, np.int64),
        "min_watts": np.full(count, 100.0),
        "max_watts": np.full(count, 400.0),
        "draw_watts": np.full(count, 400.0),
        "slowdown_limit": np.full(count, np.nan),
        "weight": np.ones(count),
        "deadline_s": np.full(count, np.inf),
    }
    values.update({name: np.asarray(value) for name, value in columns.items()})
    values.setdefault("floor_watts", values["min_watts"])
    if "level_watts" not in values:
        values["level_watts"] = np.linspace(values["min_watts"], values["max_watts"], LEVELS, axis=1)
    draw_watts = np.maximum(values["draw_watts"], 1.0)[:, None]
    used = np.minimum(values["level_watts"], draw_watts) / draw_watts
    values.setdefault("time_ratio", 1 / np.sqrt(used))
    return PowerGroups(**values)


def budget(*limit_watts: float, members: Any = None, fixed: Any = 0.0, count: int = 2) -> BudgetColumns:
    table = np.ones((len(limit_watts), count), np.int64) if members is None else np.asarray(members, np.int64)
    return BudgetColumns(
        np.asarray(limit_watts, np.float64), np.broadcast_to(np.float64(fixed), (len(limit_watts),)), table
    )
