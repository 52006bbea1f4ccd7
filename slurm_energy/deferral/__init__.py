"""Deferral: planning when a deferrable job should start, so that its energy is cheap or clean.

Deferral is independent of the order of the queue. A deferral policy gives each job an earliest start, never
later than the job's latest start. All functions are pure and work on numpy columns; the simulator and
senergyctld call the same code.
"""

from slurm_energy.deferral.registry import OFF, DeferralPolicy, names, plan, policy, register
from slurm_energy.deferral.tables import (
    Capacity,
    DeferralOptions,
    DeferralPlan,
    DeferralQueue,
    DeferralReason,
    deferral_queue,
    latest_start_s,
)

__all__ = [
    "OFF",
    "Capacity",
    "DeferralOptions",
    "DeferralPlan",
    "DeferralPolicy",
    "DeferralQueue",
    "DeferralReason",
    "deferral_queue",
    "latest_start_s",
    "names",
    "plan",
    "policy",
    "register",
]
