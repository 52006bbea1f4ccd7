"""Deferral policy `off`, which defers no job."""

from __future__ import annotations

import numpy as np

from slurm_energy.deferral.registry import register
from slurm_energy.deferral.tables import DeferralOptions, DeferralPlan, DeferralQueue, DeferralReason


@register("off")
def off(queue: DeferralQueue, options: DeferralOptions) -> DeferralPlan:
    """Apply the deferral policy `off`, which lets every job start at once."""
    unknown = np.full(queue.count, np.nan)
    return DeferralPlan(
        job_id=queue.job_id,
        start_s=np.full(queue.count, queue.now_s),
        reason=np.full(queue.count, DeferralReason.URGENT, np.int64),
        cost_now=unknown,
        cost=unknown,
        deviation=unknown,
        rejected=np.zeros(queue.count, np.bool_),
    )
