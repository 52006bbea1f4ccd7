"""Settings that only the general engine simulates. The compiled engines fall back to it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from slurm_energy.simulator.cluster import NodeKind
from slurm_energy.simulator.constraints.job_constraints import needs_constraints
from slurm_energy.simulator.schedule_settings import ScheduleSettings
from slurm_energy.simulator.workloads.workload import Workload


def needs_general_engine(jobs: Workload, kinds: Sequence[NodeKind], settings: ScheduleSettings) -> bool:
    """Return whether more than free units can change the schedule: power, failures, limits and the like.

    Args:
        jobs: all jobs.
        kinds: kinds of nodes.
        settings: settings of the simulation.
    """
    return (
        settings.budget_watts is not None
        or settings.idle_off_s is not None
        or settings.power_saving is not None
        or settings.deferral is not None
        or any(kind.failures_per_s for kind in kinds)
        or needs_constraints(jobs, kinds, settings.constraints)
        or (settings.kill_at_limit and _outlasts_a_limit(jobs))
    )


def _outlasts_a_limit(jobs: Workload) -> bool:
    """Return whether a job would run longer than its time limit in one of its shapes."""
    limit_s = np.repeat(jobs.time_limit_s, np.diff(jobs.first))
    return bool(np.any(jobs.time_s > limit_s))
