"""Catalogue of the available energy policies.

It also states which users may use a policy, and which policy a job gets by default.
"""

from __future__ import annotations

from dataclasses import dataclass

from slurm_energy.config import Config

MONITOR = "monitor"
BUILT_IN = {
    "monitor": "measure, change nothing",
    "performance": "highest CPU frequency at all times",
    "powersave": "lowest CPU frequency at all times",
    "balanced": "CPU frequency follows the load",
    "cap": "keep to the limits that the job's flags name, change nothing else",
    "edp": "tune the running job to the least energy-delay product",
    "ed2p": "tune the running job to the least product of energy and squared time",
    "energy": "tune the running job to the least energy within the slowdown limit",
    "auto": "measure; the next runs get permitted adjustments from the diagnosis",
}
AUTO = "auto"
"""Built-in policy that lets senergyctld adjust programs. It changes no setting of the hardware."""
OBJECTIVES = ("edp", "ed2p", "energy")
"""Built-in policies that name an objective of tuning instead of settings."""


@dataclass(frozen=True, slots=True)
class PolicyInfo:
    """One energy policy that a job may request.

    Attributes:
        name: value of --energy-policy.
        base: name of the built-in policy on which this policy is based; for a built-in policy, the same as
            `name`.
        description: one line of text.
        users: users that may request the policy; empty if every user may.
        cap_watts: power cap of the node in watts if the job gives none; None for no cap.
        gpu_cap_watts: power cap per GPU in watts if the job gives none; None for no cap.
    """

    name: str
    base: str
    description: str
    users: tuple[str, ...] = ()
    cap_watts: float | None = None
    gpu_cap_watts: float | None = None

    def allows(self, user: str | None) -> bool:
        """Return whether a user may request the policy.

        Args:
            user: login name; None if unknown. An unknown user may request only the policies that are open to
                every user.
        """
        return not self.users or user in self.users

    @property
    def changes_nothing(self) -> bool:
        """Whether this is the built-in policy `monitor`. For this policy, a cap has no meaning."""
        return self.name == self.base == MONITOR

    @property
    def objective(self) -> str | None:
        """Objective to which a job with this policy is tuned: `edp`, `ed2p` or `energy`.

        The objective is None if the job is not tuned.
        """
        return self.base if self.base in OBJECTIVES else None

    @property
    def needs_cap(self) -> bool:
        """Whether a job with this policy must state a power limit itself.

        This is the case if the policy enforces a limit, but defines no value for it.
        """
        return self.base == "cap" and not (self.cap_watts or self.gpu_cap_watts)


def catalogue(config: Config) -> dict[str, PolicyInfo]:
    """Return all energy policies by name: first the built-in policies, then those of the site.

    A policy of the site may have the name of a built-in policy, for example in order to restrict its users.
    The policy of the site then replaces the built-in policy. It is based on the built-in policy unless its
    configuration names another base.
    """
    policies = {name: PolicyInfo(name, name, text) for name, text in BUILT_IN.items()}
    for name, site in config.policies.items():
        base = name if name in BUILT_IN and site.base == MONITOR else site.base
        description = site.description or f"{base} with the site's values"
        policies[name] = PolicyInfo(
            name, base, description, tuple(site.users), site.cap_watts, site.gpu_cap_watts
        )
    return policies


def policy_caps(config: Config) -> dict[str, tuple[float | None, float | None]]:
    """Return the power cap per node and per GPU, in watts, of each policy that defines a cap.

    None in place of a cap means that the policy does not define this cap.
    """
    caps = {name: (info.cap_watts, info.gpu_cap_watts) for name, info in catalogue(config).items()}
    return {name: pair for name, pair in caps.items() if pair != (None, None)}


def default_policy(config: Config, user: str | None, partition: str | None) -> str:
    """Return the energy policy of a job that requests no policy: the default of the user, partition or site.

    Args:
        config: configuration with the defaults.
        user: owner of the job; None if unknown.
        partition: partition of the job; None if unknown.
    """
    defaults = config.defaults
    if user is not None and user in defaults.user:
        return defaults.user[user]
    if partition is not None and partition in defaults.partition:
        return defaults.partition[partition]
    return defaults.policy
