"""Several jobs on one node: which of them a knob concerns, and what holds where they disagree.

The rule is in docs/policies.md, "Jobs that share a node". Pure: nothing is read, written or remembered here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from slurm_energy.devices.hardware import NodeHardware, parse_range

_PER_CPU = ("cpufreq.governor", "cpufreq.epp", "cpufreq.frequency", "cpufreq.setspeed")


@dataclass(frozen=True, slots=True)
class JobAllocation:
    """What one job has of the node.

    Attributes:
        cpus: logical CPUs; None as long as they are not known.
        gpus: indices of its GPUs, of those too that it has a part of only.
    """

    cpus: frozenset[int] | None = None
    gpus: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class KnobDomains:
    """Which part of the node each knob sets.

    Attributes:
        cpus: logical CPUs by knob place (`policy0`, `package-1`); what is not listed is the whole node.
    """

    cpus: Mapping[str, frozenset[int]] = field(default_factory=dict)

    @classmethod
    def of(cls, hardware: NodeHardware) -> KnobDomains:
        """Return the parts of a node; a package whose CPUs are not known counts as the whole node."""
        found = {policy.name: frozenset(policy.cpus) for policy in hardware.policies}
        for package in hardware.packages:
            if package.cpus:
                found |= {place: frozenset(package.cpus) for place in package.limit_domains}
        return cls(found)

    def concerns(self, key: str, tenant: JobAllocation) -> bool:
        """Return whether a knob sets something that a job has.

        A job whose CPUs are not known has some on every package. It counts on no single core, as Slurm gives
        a core to one job only unless the site lets jobs share them.
        """
        kind, _, place = key.rstrip("]").partition("[")
        if place.startswith("gpu"):
            return int(place.removeprefix("gpu")) in tenant.gpus
        if tenant.cpus is None:
            return kind not in _PER_CPU
        own = self.cpus.get(place)
        return bool(tenant.cpus) if own is None else not own.isdisjoint(tenant.cpus)


@dataclass(frozen=True, slots=True)
class Arbiter:
    """The jobs on a node.

    Attributes:
        tenants: what each job that runs has; None where that is not known: then every claim counts and nobody
            else does.
        parts: what each knob sets.
    """

    tenants: Mapping[str, JobAllocation] | None = None
    parts: KnobDomains = field(default_factory=KnobDomains)

    def counts(self, owner: str) -> bool:
        """Return whether what a job asked for still counts: not if it has ended."""
        return self.tenants is None or owner in self.tenants

    def target(self, key: str, original: str, claims: Mapping[str, str | None]) -> str | None:
        """Return what the claims on a knob come to; None if no running job asks for a value of it."""
        asked = {owner: value for owner, value in claims.items() if value is not None and self.counts(owner)}
        if not asked:
            return None
        others = {owner: tenant for owner, tenant in (self.tenants or {}).items() if owner not in asked}
        bystanders = any(self.parts.concerns(key, tenant) for tenant in others.values())
        return merge_claims(key.partition("[")[0], original, list(asked.values()), bystanders)


def merge_claims(kind: str, original: str, asked: Sequence[str], bystanders: bool) -> str:
    """Return the value of a knob that suits all jobs which it concerns.

    Args:
        kind: kind of knob, e.g. `powercap.power_limit`.
        original: value in force before all of them.
        asked: values that jobs ask for, in the knob's unit.
        bystanders: whether it concerns jobs too that ask for nothing: for the original, that is.
    """
    if not asked or bystanders:
        return original
    return _RULES.get(kind, _unanimous)(original, asked)


def _highest_limit(original: str, asked: Sequence[str]) -> str:
    """Return the highest limit, which is never above the original one; 0 means that there is no limit."""
    highest = max(asked, key=int)
    return original if 0 < int(original) <= int(highest) else highest


def _highest(original: str, asked: Sequence[str]) -> str:
    return max(asked, key=int)


def _lowest(original: str, asked: Sequence[str]) -> str:
    return min(asked, key=int)


def _widest_range(original: str, asked: Sequence[str]) -> str:
    if original in asked:
        return original
    ranges = [parse_range(text) for text in asked]
    return f"{min(low for low, _ in ranges)}-{max(high for _, high in ranges)}"


def _unanimous(original: str, asked: Sequence[str]) -> str:
    return asked[0] if len(set(asked)) == 1 else original


_RULES: Mapping[str, Callable[[str, Sequence[str]], str]] = {
    "cpufreq.boost": _highest,  # off only if all want it off
    "powercap.power_limit": _highest_limit,
    "powercap.time_window": _highest,
    "powercap.enabled": _lowest,  # a limit counts only if all want one
    "hsmp.power_limit": _highest_limit,
    "nvml.persistence": _highest,
    "nvml.power_limit": _highest_limit,
    "nvml.locked_clocks": _widest_range,
    "amdsmi.power_limit": _highest_limit,
    "intel_gpu.power_limit": _highest_limit,
}
"""Least restrictive value by kind; where there is no order, all must want the same."""
