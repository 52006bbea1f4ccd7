"""Comparison of jobs that did the same work under different energy policies.

The module only groups jobs and computes figures for the comparison page. It creates no text.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from slurm_energy.reports.acct.fields import requested_cap
from slurm_energy.reports.figure_format import plain
from slurm_energy.reports.usage import JobUsage
from slurm_energy.slurm.hostlist import fold_hostlist

BASELINE_POLICIES = ("monitor", "performance")
_POLICY_COLORS = {"monitor": 0, "performance": 1, "powersave": 2, "balanced": 3, "cap": 4, "edp": 5}
_COLORS = 8


@dataclass(frozen=True, slots=True)
class PolicyVariant:
    """Runs of the same work under one energy policy with the same power caps.

    Attributes:
        name: energy policy and power caps, e.g. `cap 200 W per GPU`.
        color: name of a CSS variable, without the leading dashes.
        jobs: one run, or several repetitions, whose means are shown.
    """

    name: str
    color: str
    jobs: tuple[JobUsage, ...]

    def mean(self, figure: Callable[[JobUsage], float | None]) -> float | None:
        """Return the mean of a figure over the runs for which it is known; None if it is known for no run.

        Args:
            figure: function that returns the value of one run, or None.
        """
        known_values = [value for value in map(figure, self.jobs) if value is not None]
        return math.fsum(known_values) / len(known_values) if known_values else None


@dataclass(frozen=True, slots=True)
class ComparedWork:
    """Runs of the same work on the same nodes under several energy policies.

    Attributes:
        name: name of the work.
        variants: the runs under each policy. The first variant is the baseline of the comparison.
    """

    name: str
    variants: tuple[PolicyVariant, ...]

    @property
    def baseline(self) -> PolicyVariant:
        """Variant with which the other variants are compared.

        It is the first variant of the list. If the list has an untuned variant, this variant is first.
        """
        return self.variants[0]


def work_name(job: JobUsage) -> str:
    """Return a name for the work of a job. Jobs with the same name are compared.

    The name is the value of the job's flag `--energy-model`, or else of `--energy-tag`, or else the job name
    or id.
    """
    return job.first.model or job.first.tag or job.job.name or f"job {job.display_id}"


def variant_name(job: JobUsage) -> str:
    """Return energy policy and power caps as a label, e.g. `edp`, `cap 400 W` or `cap 200 W per GPU`."""
    caps = []
    if (watts := requested_cap(job, "cap_watts")) is not None:
        caps.append(f"{plain(watts)} W")
    if (watts := requested_cap(job, "gpu_cap_watts")) is not None:
        caps.append(f"{plain(watts)} W/GPU")
    return " ".join([job.first.policy, *caps])


def compare(jobs: Iterable[JobUsage]) -> list[ComparedWork]:
    """Group jobs by work and nodes, and each group by energy policy and power caps (variants).

    In each group the untuned variants precede all others. Otherwise the order of the jobs is kept.
    """
    all_jobs = list(jobs)
    colors = _colors(all_jobs)
    groups: dict[tuple[str, str], dict[str, list[JobUsage]]] = {}
    for job in all_jobs:
        variants = groups.setdefault((work_name(job), fold_hostlist(job.nodes)), {})
        variants.setdefault(variant_name(job), []).append(job)
    works = []
    for (name, nodes), variants in groups.items():
        compared = [PolicyVariant(label, colors[label], tuple(runs)) for label, runs in variants.items()]
        compared.sort(key=lambda variant: variant.jobs[0].first.policy not in BASELINE_POLICIES)
        works.append(ComparedWork(f"{name} on {nodes}", tuple(compared)))
    return works


def _colors(jobs: Sequence[JobUsage]) -> dict[str, str]:
    """Return the colour of each variant (energy policy and caps) by the variant's name.

    Built-in energy policies always have the same colour.
    """
    labels = {variant_name(job): job.first.policy for job in jobs}
    numbers: dict[str, int] = {}
    for label, policy in labels.items():
        number = _POLICY_COLORS.get(policy)
        if number is not None and number not in numbers.values():
            numbers[label] = number
    for label in labels:
        if label not in numbers:
            free = [n for n in range(_COLORS - 1, -1, -1) if n not in numbers.values()]
            numbers[label] = free[0] if free else len(numbers) % _COLORS
    return {label: f"v{number}" for label, number in numbers.items()}


def change_percent(value: float | None, base: float | None) -> float | None:
    """Return by how many percent `value` exceeds `base`; None if one of the two is unknown."""
    if value is None or not base:
        return None
    return 100 * (value / base - 1)
