"""The deferral policy `cleanest`."""

from __future__ import annotations

from slurm_energy.deferral.planning import windowed_plan
from slurm_energy.deferral.registry import register
from slurm_energy.deferral.tables import DeferralOptions, DeferralPlan, DeferralQueue
from slurm_energy.signals import SignalName


@register("cleanest")
def cleanest(queue: DeferralQueue, options: DeferralOptions) -> DeferralPlan:
    """Defer jobs to the window with the lowest emissions in their slack."""
    return windowed_plan(queue, options, SignalName.CARBON)
