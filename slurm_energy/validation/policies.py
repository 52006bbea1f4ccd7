"""Checks of the configuration that concern energy policies.

The module checks the policies, the default policies, the bounds of settings and the `edp` table.
"""

from __future__ import annotations

from collections.abc import Iterator

from slurm_energy.config import SitePolicy
from slurm_energy.config.findings import Finding
from slurm_energy.config.loader import suggest_name, table_label
from slurm_energy.errors import ConfigError
from slurm_energy.policies import catalogue
from slurm_energy.policies.catalogue import BUILT_IN, MONITOR
from slurm_energy.policies.policy_file import policy_file_text
from slurm_energy.validation.check_context import CheckContext

_VALUES = ("cap_watts", "gpu_cap_watts", "max_frequency_mhz", "governor", "epp")
_EDP_VALUES = ("max_frequency_mhz", "package_cap_watts", "gpu_cap_watts", "gpu_clock_mhz")


def check_policies(context: CheckContext) -> Iterator[Finding]:
    """Yield findings about `[policies.NAME]`: unknown base, values without effect, caps out of bounds."""
    for name, site in context.config.policies.items():
        section = f"policies.{name}"
        if site.base not in BUILT_IN:
            advice = suggest_name(site.base, list(BUILT_IN))
            yield context.error(section, "base", f"'{site.base}' is not a built-in policy", advice)
            continue
        values = _values(site)
        if name == site.base == MONITOR and values:
            yield context.error(
                section, values[0], "has no effect: policy 'monitor' changes nothing", "use another name"
            )
        elif name not in BUILT_IN and site.base == MONITOR and not values:
            why = "changes nothing: it has neither a base nor a value"
            yield context.warning(section, "", why, f"give base (one of {', '.join(BUILT_IN)}) or a value")
        yield from _check_bounds(context, section, site)


def _values(site: SitePolicy) -> list[str]:
    return [key for key in _VALUES if getattr(site, key) is not None]


def _check_bounds(context: CheckContext, section: str, site: SitePolicy) -> Iterator[Finding]:
    for key in ("cap_watts", "gpu_cap_watts"):
        value, (low, high) = getattr(site, key), getattr(context.config.accepted_bounds, key)
        if value is not None and not low <= value <= high:
            yield context.warning(
                section,
                key,
                f"{value:g} W is outside bounds.{key}, {low:g} to {high:g} W: no user may ask for it",
                "change one of them",
            )


def check_defaults(context: CheckContext) -> Iterator[Finding]:
    """Yield findings about default policies that do not exist or do not suit a job without energy flags."""
    defaults = context.config.defaults
    named = {"policy": defaults.policy}
    named |= {f"partition.{name}": policy for name, policy in defaults.partition.items()}
    named |= {f"user.{name}": policy for name, policy in defaults.user.items()}
    policies = catalogue(context.config)
    for key, name in named.items():
        policy = policies.get(name)
        if policy is None:
            yield context.error(
                "defaults", key, f"'{name}' is not a policy", suggest_name(name, list(policies))
            )
        elif policy.needs_cap:
            yield context.error(
                "defaults",
                key,
                f"policy '{name}' needs a cap, but a job without flags has none",
                'define a policy with base = "cap" and cap_watts or gpu_cap_watts',
            )
        elif policy.users:
            who = key.removeprefix("user.") if key.startswith("user.") else None
            if who is None or not policy.allows(who):
                others = f"'{who}'" if who else "everybody"
                yield context.warning(
                    "defaults",
                    key,
                    f"policy '{name}' is for {', '.join(policy.users)} alone, but is the default of {others}",
                    f"change policies.{name}.users or the default",
                )


def check_edp(context: CheckContext) -> Iterator[Finding]:
    """Yield findings about entries `[[edp]]` of the configuration that have no effect.

    An entry has no effect if it sets no value, or if an earlier entry has the same CPU, GPU and model.
    """
    first: dict[tuple[str, str, str], str] = {}
    for index, entry in enumerate(context.config.edp):
        section = table_label("edp", index)
        settings = [key for key in _EDP_VALUES if getattr(entry, key) is not None]
        if not settings and not _has_faults(context, section):
            yield context.error(section, "", "sets nothing", f"give one of {', '.join(_EDP_VALUES)}")
        for device, keys in (("cpu", _EDP_VALUES[:2]), ("gpu", _EDP_VALUES[2:])):
            if not any(key in keys for key in settings):
                continue
            identity = (device, f"{entry.cpu}|{entry.gpu}".lower(), entry.model.lower())
            if identity in first:
                yield context.warning(
                    section, "", f"is never used: [[{first[identity]}]] has the same cpu, gpu and model"
                )
            first.setdefault(identity, section)


def _has_faults(context: CheckContext, section: str) -> bool:
    """Return whether the parser has already reported an invalid key in the section.

    If so, the section needs no warning that a value is missing, because the invalid key may be the one
    that sets this value.
    """
    return any(finding.key.startswith(f"{section}.") for finding in context.source.findings)


def check_submission_file(context: CheckContext) -> Iterator[Finding]:
    """Yield an error if energy.so and job_submit.lua could not parse this configuration's policy file."""
    try:
        policy_file_text(context.config)
    except ConfigError as error:
        yield context.error("policies", "", error.why, error.todo)
