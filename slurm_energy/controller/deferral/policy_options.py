"""Parameters of a deferral policy, from the configuration."""

from __future__ import annotations

from slurm_energy.config.deferral_section import DeferralConfig
from slurm_energy.deferral import DeferralOptions


def policy_options(settings: DeferralConfig) -> DeferralOptions:
    """Return the parameters of a deferral policy, from section `deferral` of the configuration."""
    return DeferralOptions(
        slot_s=settings.slot_s,
        uncertainty_weight=settings.uncertainty_weight,
        min_saving=settings.min_saving_percent / 100.0,
        start_margin_s=settings.start_margin_s,
        reserve_weight=settings.reserve_weight,
        margin_weight=settings.margin_weight,
        suspend=settings.suspend,
        max_suspensions=settings.max_suspensions,
        min_run_s=settings.min_run_s,
        min_suspension_s=settings.min_suspension_s,
    )
