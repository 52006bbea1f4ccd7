"""Arbitration between the jobs on one node.

The jobs may request different values for a knob (a hardware setting). The module determines which jobs a
knob affects, and which value results from their requests. The rules are in docs/policies.md, "Jobs that
share a node". All functions are pure: they neither access hardware nor keep state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from slurm_energy.devices.hardware import NodeHardware
from slurm_energy.devices.settings import parse_range

_PER_CPU = ("cpufreq.governor", "cpufreq.epp", "cpufreq.frequency", "cpufreq.setspeed")


@dataclass(frozen=True, slots=True)
class JobAllocation:
    """The CPUs and GPUs of the node that Slurm allocated to a job.

    Attributes:
        cpus: logical CPUs; None until they are known.
        gpus: indices of the GPUs, including GPUs that the job shares with other jobs.
    """

    cpus: frozenset[int] | None = None
    gpus: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class KnobDomains:
    """The logical CPUs that each hardware setting (knob) of a node affects.

    Attributes:
        cpus: logical CPUs by domain of the knob (`policy0`, `package-1`). A domain that is not listed
            affects the whole node.
    """

    cpus: Mapping[str, frozenset[int]] = field(default_factory=dict)

    @classmethod
    def from_hardware(cls, hardware: NodeHardware) -> KnobDomains:
        """Return which logical CPUs each hardware setting (knob) of a node affects.

        If the CPUs of a package are unknown, the settings of the package affect the whole node.
        """
        cpus = {policy.name: frozenset(policy.cpus) for policy in hardware.policies}
        for package in hardware.packages:
            if package.cpus:
                cpus |= {domain: frozenset(package.cpus) for domain in package.limit_domains}
        return cls(cpus)

    def affects(self, key: str, allocation: JobAllocation) -> bool:
        """Return whether a knob (hardware setting) controls a CPU or GPU of a job.

        Often the CPUs of the job are unknown. Then a knob of a whole processor package is assumed to control
        CPUs of the job. A knob of a single core is assumed to control none of them.

        Args:
            key: key of the knob, for example `cpufreq.governor[policy0]`.
            allocation: CPUs and GPUs of the job.
        """
        name, _, domain = key.rstrip("]").partition("[")
        if domain.startswith("gpu"):
            return int(domain.removeprefix("gpu")) in allocation.gpus
        if allocation.cpus is None:
            return name not in _PER_CPU
        domain_cpus = self.cpus.get(domain)
        return bool(allocation.cpus) if domain_cpus is None else not domain_cpus.isdisjoint(allocation.cpus)


@dataclass(frozen=True, slots=True)
class Arbiter:
    """Merger of the settings that the jobs of a node request (claims) into one value per knob.

    A knob is one setting of one device.

    Attributes:
        allocations: allocation of each running job, by job as `JOBID.RESTART`. The value is None if the
            running jobs are unknown. In this case, the claims of all jobs apply, and jobs without claims are
            disregarded.
        domains: the logical CPUs that each knob controls.
    """

    allocations: Mapping[str, JobAllocation] | None = None
    domains: KnobDomains = field(default_factory=KnobDomains)

    def counts(self, owner: str) -> bool:
        """Return whether the settings that the job `owner` requests (its claims) are in effect now.

        They are in effect on shared devices while the job runs.
        """
        return self.allocations is None or owner in self.allocations

    def merged_value(self, key: str, original: str, claims: Mapping[str, str | None]) -> str | None:
        """Return the value of a knob (a hardware setting) that results from the requests of all jobs.

        Return None if no running job requests a value.

        Args:
            key: key of the knob.
            original: value of the knob before the first job changed it.
            claims: value that each job requests; None for a job whose other settings only change the knob as
                a side effect.
        """
        requested = {
            owner: value for owner, value in claims.items() if value is not None and self.counts(owner)
        }
        if not requested:
            return None
        others = {owner: job for owner, job in (self.allocations or {}).items() if owner not in requested}
        affects_others = any(self.domains.affects(key, job) for job in others.values())
        return merge_claims(key.partition("[")[0], original, list(requested.values()), affects_others)


def merge_claims(name: str, original: str, requested: Sequence[str], affects_others: bool) -> str:
    """Merge the values that jobs request for a hardware setting (knob) into one value.

    The result restricts no affected job more than the job itself requests.

    Args:
        name: name of the knob, for example `powercap.power_limit`.
        original: value of the knob before the first job changed it.
        requested: values that jobs request, in the unit of the knob.
        affects_others: whether the knob also affects jobs that request no value. These jobs need the
            original value.
    """
    if not requested or affects_others:
        return original
    return _RULES.get(name, _unanimous)(original, requested)


def _highest_limit(original: str, requested: Sequence[str]) -> str:
    """Return the highest requested limit, but at most the original limit.

    An original limit of `0` means no limit.
    """
    highest = max(requested, key=int)
    return original if 0 < int(original) <= int(highest) else highest


def _highest(original: str, requested: Sequence[str]) -> str:
    return max(requested, key=int)


def _lowest(original: str, requested: Sequence[str]) -> str:
    return min(requested, key=int)


def _widest_range(original: str, requested: Sequence[str]) -> str:
    if original in requested:
        return original
    ranges = [parse_range(text) for text in requested]
    return f"{min(low for low, _ in ranges)}-{max(high for _, high in ranges)}"


def _unanimous(original: str, requested: Sequence[str]) -> str:
    return requested[0] if len(set(requested)) == 1 else original


def bounded_value(key: str, value: str, ceiling: str) -> str:
    """Return the value that a knob (hardware setting) gets under a power budget.

    For a power limit or its averaging window, the ceiling is the highest value that the budget permits. A
    higher value is replaced by the ceiling, and so is 0, which means no limit. Some power limits depend
    on a switch. For such a switch, the ceiling is the required state, which is returned.

    Args:
        key: key of the knob.
        value: value that results from the requests (claims) of the jobs, or the original value.
        ceiling: the ceiling, in the unit of the knob.
    """
    if key.partition("[")[0] in _SWITCHES:
        return ceiling
    # A limit of 0 means that there is none.
    return value if 0 < int(value) <= int(ceiling) else ceiling


_SWITCHES = ("powercap.enabled", "nvml.persistence")
"""Switches without which a power limit has no effect or may be lost."""

_RULES: Mapping[str, Callable[[str, Sequence[str]], str]] = {
    "cpufreq.boost": _highest,  # off only if all jobs request it off
    "powercap.power_limit": _highest_limit,
    "powercap.time_window": _highest,
    "powercap.enabled": _lowest,  # the limit is enabled only if all jobs request it
    "hsmp.power_limit": _highest_limit,
    "nvml.persistence": _highest,
    "nvml.power_limit": _highest_limit,
    "nvml.locked_clocks": _widest_range,
    "amdsmi.power_limit": _highest_limit,
    "intel_gpu.power_limit": _highest_limit,
}
"""Rule that yields the least restrictive value, by name of the knob. The values of other knobs have no
order, so all jobs must request the same value."""
