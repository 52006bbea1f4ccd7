"""Detection of a simulation in which no job makes progress although events continue."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from slurm_energy.simulator.cluster import NodeKind
from slurm_energy.simulator.schedule_settings import ScheduleSettings
from slurm_energy.simulator.workloads.workload import Workload

_MIN_S: Final = 30 * 86_400.0
_RUN_TIMES: Final = 20.0
"""Multiple of the longest run time: power limits slow jobs down, and failures restart them."""


class StallGuard:
    """Limit of the simulated time without progress, for simulations without a horizon.

    Node failures and power saving cause events without end. A simulation in which a job can never start or
    never end would therefore not stop by itself.

    Progress is the arrival, release or end of a job, or work that is kept at an interruption. The limit is
    the longest of three times: 30 days, 20 times the longest run time or node transition, and twice the
    bound on waiting.

    Some changes are known ahead: submissions, latest starts, steps of the budget, and windows of
    reservations that do not recur. The time before the last of these changes is not counted.

    Args:
        work: workload with all jobs.
        kinds: the kinds of nodes.
        settings: settings of the simulation.
    """

    def __init__(self, work: Workload, kinds: Sequence[NodeKind], settings: ScheduleSettings) -> None:
        longest_s = float(np.max(work.time_s, initial=0.0))
        transition_s = max((kind.boot_s + kind.shutdown_s + kind.repair_s for kind in kinds), default=0.0)
        wait_s = settings.options.wait_bound_s
        self._limit_s = max(
            _MIN_S,
            _RUN_TIMES * longest_s,
            _RUN_TIMES * transition_s,
            2 * wait_s if math.isfinite(wait_s) else 0.0,
        )
        self._progress_s = _last_change_s(work, settings)

    def progress(self, now_s: float) -> None:
        """Record progress of a job at the simulated time `now_s`."""
        self._progress_s = max(self._progress_s, now_s)

    def is_over(self, now_s: float) -> bool:
        """Return whether the simulation makes no progress for longer than the limit.

        `now_s` is the time of the next event.
        """
        return now_s > self._progress_s + self._limit_s


def _last_change_s(work: Workload, settings: ScheduleSettings) -> float:
    """Return the time of the last change that is known ahead and may let a waiting job start.

    Such changes are submissions, latest starts, changes of the budget, and ends of reservations. The
    simulator counts the time without progress only after the last change.
    """
    times = [float(np.max(work.submit_s, initial=0.0))]
    times.append(float(np.max(np.nan_to_num(work.latest_start_s(np.arange(work.count))), initial=0.0)))
    if settings.budget_watts is not None:
        times.append(float(settings.budget_watts.times_s[-1]))
    if settings.constraints is not None:
        times += [one.begin_s + one.length_s for one in settings.constraints.reservations]
    return max(times)
