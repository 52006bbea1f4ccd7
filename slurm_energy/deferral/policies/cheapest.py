"""Deferral policy `cheapest`: it starts each job at the cheapest time within its slack.

The slack of a job is the time by which its start may be delayed.
"""

from __future__ import annotations

from slurm_energy.deferral.planning import windowed_plan
from slurm_energy.deferral.registry import register
from slurm_energy.deferral.tables import DeferralOptions, DeferralPlan, DeferralQueue
from slurm_energy.signals import SignalName


@register("cheapest")
def cheapest(queue: DeferralQueue, options: DeferralOptions) -> DeferralPlan:
    """Defer jobs to the time with the lowest electricity price within their permitted delay (slack)."""
    return windowed_plan(queue, options, SignalName.PRICE)
