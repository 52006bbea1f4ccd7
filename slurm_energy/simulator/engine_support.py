"""Detection of simulations that only the general engine supports.

The faster, compiled engines do not support them.
"""

from __future__ import annotations

from collections.abc import Sequence

from slurm_energy.simulator.cluster import NodeKind
from slurm_energy.simulator.constraints.job_constraints import needs_constraints
from slurm_energy.simulator.schedule_settings import ScheduleSettings
from slurm_energy.simulator.workloads.workload import Workload


def needs_general_engine(jobs: Workload, kinds: Sequence[NodeKind], settings: ScheduleSettings) -> bool:
    """Return whether only the general simulation engine can compute the schedule.

    The two faster engines support units, time limits and policies, but no power budgets, power saving,
    deferral, node failures or further constraints.

    Args:
        jobs: workload with all jobs.
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
    )
