"""Checks of policies, defaults, bounds and the table of best settings."""

from __future__ import annotations

from collections.abc import Iterator

from slurm_energy.config import SitePolicy
from slurm_energy.config.findings import Finding
from slurm_energy.config.loader import nearest, numbered
from slurm_energy.errors import ConfigError
from slurm_energy.policies import catalogue
from slurm_energy.policies.catalogue import BUILT_IN, MONITOR
from slurm_energy.policies.policy_file import policy_file_text
from slurm_energy.validation.check_context import Subject

_VALUES = ("cap_watts", "gpu_cap_watts", "max_frequency_mhz", "governor", "epp")
_EDP_VALUES = ("max_frequency_mhz", "package_cap_watts", "gpu_cap_watts", "gpu_clock_mhz")


def check_policies(subject: Subject) -> Iterator[Finding]:
    """Check each [policies.NAME]: base, values without effect, caps beyond the bounds."""
    for name, site in subject.config.policies.items():
        section = f"policies.{name}"
        if site.base not in BUILT_IN:
            advice = nearest(site.base, list(BUILT_IN))
            yield subject.error(section, "base", f"'{site.base}' is not a built-in policy", advice)
            continue
        values = _values(site)
        if name == site.base == MONITOR and values:
            yield subject.error(
                section, values[0], "has no effect: policy 'monitor' changes nothing", "use another name"
            )
        elif name not in BUILT_IN and site.base == MONITOR and not values:
            why = "changes nothing: it has neither a base nor a value"
            yield subject.warning(section, "", why, f"give base (one of {', '.join(BUILT_IN)}) or a value")
        yield from _check_bounds(subject, section, site)


def _values(site: SitePolicy) -> list[str]:
    return [key for key in _VALUES if getattr(site, key) is not None]


def _check_bounds(subject: Subject, section: str, site: SitePolicy) -> Iterator[Finding]:
    for key in ("cap_watts", "gpu_cap_watts"):
        value, (low, high) = getattr(site, key), getattr(subject.config.bounds, key)
        if value is not None and not low <= value <= high:
            yield subject.warning(
                section,
                key,
                f"{value:g} W is outside bounds.{key}, {low:g} to {high:g} W: no user may ask for it",
                "change one of them",
            )


def check_defaults(subject: Subject) -> Iterator[Finding]:
    """Check that each default policy exists and can work without a flag of the job."""
    defaults = subject.config.defaults
    named = {"policy": defaults.policy}
    named |= {f"partition.{name}": policy for name, policy in defaults.partition.items()}
    named |= {f"user.{name}": policy for name, policy in defaults.user.items()}
    policies = catalogue(subject.config)
    for key, name in named.items():
        policy = policies.get(name)
        if policy is None:
            yield subject.error("defaults", key, f"'{name}' is not a policy", nearest(name, list(policies)))
        elif policy.needs_cap:
            yield subject.error(
                "defaults",
                key,
                f"policy '{name}' needs a cap, which a job that asks for nothing does not give",
                'define a policy with base = "cap" and cap_watts or gpu_cap_watts',
            )
        elif policy.users:
            who = key.removeprefix("user.") if key.startswith("user.") else None
            if who is None or not policy.allows(who):
                others = f"'{who}'" if who else "everybody"
                yield subject.warning(
                    "defaults",
                    key,
                    f"policy '{name}' is for {', '.join(policy.users)} alone, but is the default of {others}",
                    f"change policies.{name}.users or the default",
                )


def check_edp(subject: Subject) -> Iterator[Finding]:
    """Check each [[edp]]: it must set something, and not be hidden by an earlier one."""
    first: dict[tuple[str, str, str], str] = {}
    for index, entry in enumerate(subject.config.edp):
        section = numbered("edp", index)
        settings = [key for key in _EDP_VALUES if getattr(entry, key) is not None]
        if not settings and not _has_faults(subject, section):
            yield subject.error(section, "", "sets nothing", f"give one of {', '.join(_EDP_VALUES)}")
        for kind, keys in (("cpu", _EDP_VALUES[:2]), ("gpu", _EDP_VALUES[2:])):
            if not any(key in keys for key in settings):
                continue
            identity = (kind, f"{entry.cpu}|{entry.gpu}".lower(), entry.model.lower())
            if identity in first:
                yield subject.warning(
                    section, "", f"is never used: [[{first[identity]}]] has the same cpu, gpu and model"
                )
            first.setdefault(identity, section)


def _has_faults(subject: Subject, section: str) -> bool:
    """Return whether a key of the section was refused already: it may be the missing value."""
    return any(finding.key.startswith(f"{section}.") for finding in subject.source.findings)


def check_submission_file(subject: Subject) -> Iterator[Finding]:
    """Check that the policy file can be read by energy.so and job_submit.lua."""
    try:
        policy_file_text(subject.config)
    except ConfigError as error:
        yield subject.error("policies", "", error.why, error.todo)
