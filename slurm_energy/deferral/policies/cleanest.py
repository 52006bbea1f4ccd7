"""Deferral policy `cleanest`: it defers jobs to the time with the lowest emissions."""

from __future__ import annotations

from slurm_energy.deferral.planning import windowed_plan
from slurm_energy.deferral.registry import register
from slurm_energy.deferral.tables import DeferralOptions, DeferralPlan, DeferralQueue
from slurm_energy.signals import SignalName


@register("cleanest")
def cleanest(queue: DeferralQueue, options: DeferralOptions) -> DeferralPlan:
    """Deferral policy that starts each job when the emissions of its run are lowest.

    The start is delayed at most by the slack, which is the delay that the job permits.
    """
    return windowed_plan(queue, options, SignalName.CARBON)
