"""Which policies there are, who may use each, and which one a job gets that asks for none."""

from __future__ import annotations

from dataclasses import dataclass

from slurm_energy.config import Config

MONITOR = "monitor"
BUILT_IN = {
    "monitor": "measure, change nothing",
    "performance": "highest CPU frequency at all times",
    "powersave": "lowest CPU frequency at all times",
    "balanced": "CPU frequency follows the load",
    "cap": "keep to --energy-cap and --energy-gpu-cap, change nothing else",
    "edp": "settings with the best known energy-delay product for this hardware and --energy-model",
}


@dataclass(frozen=True, slots=True)
class PolicyInfo:
    """One policy that a job may name.

    Attributes:
        name: value of --energy-policy.
        base: built-in policy that decides how it works; the name itself for a built-in one.
        description: one line for people.
        users: who may use it; empty means everyone.
        cap_watts: node cap when the job gives none, in watts; None for no cap.
        gpu_cap_watts: cap per GPU when the job gives none, in watts; None for no cap.
    """

    name: str
    base: str
    description: str
    users: tuple[str, ...] = ()
    cap_watts: float | None = None
    gpu_cap_watts: float | None = None

    def allows(self, user: str | None) -> bool:
        """Return whether a user may ask for it; an unknown user only gets what everyone may use."""
        return not self.users or user in self.users

    @property
    def changes_nothing(self) -> bool:
        """Whether it is `monitor` itself, under which no cap has a meaning."""
        return self.name == self.base == MONITOR

    @property
    def needs_cap(self) -> bool:
        """Whether it keeps to a cap but has none of its own, so that the job must give one."""
        return self.base == "cap" and not (self.cap_watts or self.gpu_cap_watts)


def catalogue(config: Config) -> dict[str, PolicyInfo]:
    """Return all policies by name: the built-in ones, then the site's.

    A site policy with the name of a built-in one takes its place, e.g. to restrict its users; its base is
    then that built-in policy unless it names another one.
    """
    found = {name: PolicyInfo(name, name, text) for name, text in BUILT_IN.items()}
    for name, site in config.policies.items():
        base = name if name in BUILT_IN and site.base == MONITOR else site.base
        description = site.description or f"{base} with the site's values"
        found[name] = PolicyInfo(
            name, base, description, tuple(site.users), site.cap_watts, site.gpu_cap_watts
        )
    return found


def policy_caps(config: Config) -> dict[str, tuple[float | None, float | None]]:
    """Return the caps per node and per GPU, in watts, of each policy that has some of its own."""
    caps = {name: (info.cap_watts, info.gpu_cap_watts) for name, info in catalogue(config).items()}
    return {name: pair for name, pair in caps.items() if pair != (None, None)}


def default_policy(config: Config, user: str | None, partition: str | None) -> str:
    """Return the policy of a job that asks for none: its user's, else its partition's, else the site's."""
    defaults = config.defaults
    if user is not None and user in defaults.user:
        return defaults.user[user]
    if partition is not None and partition in defaults.partition:
        return defaults.partition[partition]
    return defaults.policy
