"""Checks of the section `tuning` of the configuration.

The section must agree with the default policies and with the administrator's bounds for settings.
"""

from __future__ import annotations

from collections.abc import Iterator

from slurm_energy.config.findings import Finding
from slurm_energy.policies import catalogue
from slurm_energy.validation.check_context import CheckContext


def check(context: CheckContext) -> Iterator[Finding]:
    """Check the configuration of tuning. Yield a finding for each fault.

    Faults are a default slowdown limit outside the bounds, and an objective that has no effect.
    """
    config = context.config
    low, high = config.accepted_bounds.slowdown_percent
    limit = config.tuning.slowdown_limit_percent
    if not low <= limit <= high:
        why = f"{limit:g} % is outside bounds.slowdown_percent, {low:g} to {high:g} %: no user may ask for it"
        yield context.warning("tuning", "slowdown_limit_percent", why, "change one of them")
    if config.tuning.mode != "off" or config.edp:
        return
    policies = catalogue(config)
    tuned = {name for name, mode in config.tuning.partition.items() if mode != "off"}
    named = {f"partition.{name}": policy for name, policy in config.defaults.partition.items()}
    named = {key: policy for key, policy in named.items() if key.removeprefix("partition.") not in tuned}
    if not tuned:
        named |= {"policy": config.defaults.policy}
        named |= {f"user.{name}": policy for name, policy in config.defaults.user.items()}
    for key, name in named.items():
        if name in policies and policies[name].objective is not None:
            why = f"policy '{name}' changes nothing: tuning.mode is off, and no [[edp]] entry names a setting"
            yield context.warning("defaults", key, why, 'set tuning.mode = "on" or "advise"')
