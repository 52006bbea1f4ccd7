"""Who used how much of a node's energy in one interval: exact integer arithmetic, no effects.

The rule is in docs/attribution.md. For every component the jobs', the idle and the unattributed
microjoules add up to what was measured. Nothing is read or remembered here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

BY_CPU_TIME = ("cpu", "dram")
OTHER = "other"
_NONE = Fraction(0)


@dataclass(frozen=True, slots=True)
class JobResourceTime:
    """What one job holds of the node in an interval, and what it did.

    Attributes:
        job: unique name of the job.
        held_ns: CPU time allocated: logical CPUs times how long it had them.
        cpu_time_ns: CPU time used in the interval; None if not known.
        gpus: allocated share of each GPU by index: 1 for a whole GPU, less for a MIG instance or shard.
    """

    job: str
    held_ns: int
    cpu_time_ns: int | None = None
    gpus: Mapping[int, Fraction] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DynamicEnergy:
    """Dynamic energy in microjoules that jobs and the rest of the node caused, all components together."""

    jobs: Mapping[str, int] = field(default_factory=dict)
    rest: int = 0


@dataclass(frozen=True, slots=True)
class NodeMeasurement:
    """What was measured of the whole node.

    Attributes:
        capacity_ns: logical CPUs of the node times the length of the interval.
        busy_ns: CPU time of all processes, the jobs' included; None if not known.
        energy_uj: microjoules by component: `cpu`, `dram`, `gpu[i]`, `other`; what is not known is absent.
        static_uj: part of it that the idle node would have used as well; absent means 0.
        moved: dynamic energy of components that were split before, for `other` to follow.
        gpus: components of GPUs that the node has besides.
    """

    capacity_ns: int
    busy_ns: int | None
    energy_uj: Mapping[str, int]
    static_uj: Mapping[str, int] = field(default_factory=dict)
    dynamic: DynamicEnergy = field(default_factory=DynamicEnergy)
    gpus: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EnergySplit:
    """The result, in microjoules by component.

    Attributes:
        jobs: by job and component; every job has every component of the interval.
        idle: static energy of what no job holds.
        unattributed: dynamic energy that no job caused: the system's own processes.
        moved: dynamic energy of all components but `other`, those split before included.
    """

    jobs: Mapping[str, Mapping[str, int]]
    idle: Mapping[str, int]
    unattributed: Mapping[str, int]
    dynamic: DynamicEnergy


@dataclass(slots=True)
class _Piece:
    """Microjoules of one component, or of one part of it."""

    jobs: list[int]
    idle: int = 0
    unattributed: int = 0

    def plus(self, more: _Piece) -> _Piece:
        sums = [mine + its for mine, its in zip(self.jobs, more.jobs, strict=True)]
        return _Piece(sums, self.idle + more.idle, self.unattributed + more.unattributed)


@dataclass(frozen=True, slots=True)
class _Weights:
    """Whole numbers in the proportion of what jobs hold or do, and of the rest."""

    jobs: list[int]
    rest: int

    def shares(self) -> list[Fraction]:
        whole = max(1, sum(self.jobs) + self.rest)
        return [Fraction(weight, whole) for weight in self.jobs]


def apportion(total: int, weights: Sequence[int]) -> list[int]:
    """Split a whole number in proportion to weights, by largest remainder; the parts add up to it.

    Args:
        total: what to split, not negative.
        weights: not negative, not all 0 unless `total` is 0.

    Returns:
        One part per weight; of equal remainders the earlier gets the unit.
    """
    whole = sum(weights)
    if total < 0 or min(weights, default=0) < 0 or (whole == 0 and total > 0):
        raise ValueError("cannot apportion")
    if whole == 0:
        return [0] * len(weights)
    if total == 0 or whole in weights:  # one has all
        return [total if weight else 0 for weight in weights]
    parts = [total * weight // whole for weight in weights]
    order = sorted(range(len(weights)), key=lambda i: (-(total * weights[i] % whole), i))
    for index in order[: total - sum(parts)]:
        parts[index] += 1
    return parts


def split_energy(interval: NodeMeasurement, claims: Iterable[JobResourceTime]) -> EnergySplit:
    """Split an interval's energy among jobs, idle and unattributed.

    Args:
        interval: what was measured.
        claims: the jobs on the node in that interval, one claim each.
    """
    jobs = sorted(claims, key=lambda claim: claim.job)
    held, used = _cpus_held(interval, jobs), _cpu_time(interval, jobs)
    pieces: dict[str, _Piece] = {}
    dynamic = _Piece([interval.dynamic.jobs.get(claim.job, 0) for claim in jobs])
    dynamic.unattributed = interval.dynamic.rest + sum(interval.dynamic.jobs.values()) - sum(dynamic.jobs)
    for name, energy_uj in interval.energy_uj.items():
        if name == OTHER:
            continue
        static_uj = min(energy_uj, interval.static_uj.get(name, 0))
        if name in BY_CPU_TIME:
            still, moved = _static(static_uj, held), _dynamic(energy_uj - static_uj, used)
        else:
            gpu = _gpu_held(gpu_index(name), jobs)
            still, moved = _static(static_uj, gpu), _dynamic(energy_uj - static_uj, _Weights(gpu.jobs, 0))
        pieces[name] = still.plus(moved)
        dynamic = dynamic.plus(moved)
    if OTHER in interval.energy_uj:
        gpus = [_gpu_held(gpu_index(name), jobs) for name in _gpu_names(interval, jobs)]
        pieces[OTHER] = _other(interval, _node_held(held, gpus), dynamic)
    return EnergySplit(
        jobs={c.job: {name: piece.jobs[i] for name, piece in pieces.items()} for i, c in enumerate(jobs)},
        idle={name: piece.idle for name, piece in pieces.items()},
        unattributed={name: piece.unattributed for name, piece in pieces.items()},
        dynamic=DynamicEnergy(
            dict(zip((c.job for c in jobs), dynamic.jobs, strict=True)), dynamic.unattributed
        ),
    )


def rest_of_node(node_uj: int, parts_uj: int, debt_uj: int = 0) -> tuple[int, int]:
    """Return what a node used besides its measured parts, never negative.

    The node's meter and the parts' counters are not read at one instant, so that the parts of a short
    interval can exceed the node. The excess is a debt that later intervals pay.

    Args:
        node_uj: microjoules of the whole node in the interval.
        parts_uj: microjoules of all parts that are measured on their own.
        debt_uj: result of the interval before.

    Returns:
        Microjoules of the rest, and the debt.
    """
    rest = node_uj - parts_uj - debt_uj
    return max(0, rest), max(0, -rest)


def _static(energy_uj: int, held: _Weights) -> _Piece:
    """Give each job the part of what it holds, and the rest to idle."""
    *jobs, idle = apportion(energy_uj, [*held.jobs, held.rest])
    return _Piece(jobs, idle=idle)


def _dynamic(energy_uj: int, used: _Weights) -> _Piece:
    """Give each job the part of what it did; what the rest or nobody caused is unattributed."""
    if sum(used.jobs) + used.rest == 0:
        return _Piece([0] * len(used.jobs), unattributed=energy_uj)
    *jobs, unattributed = apportion(energy_uj, [*used.jobs, used.rest])
    return _Piece(jobs, unattributed=unattributed)


def _cpus_held(interval: NodeMeasurement, jobs: Sequence[JobResourceTime]) -> _Weights:
    """Return allocated CPUs by job, and free ones."""
    held = [claim.held_ns for claim in jobs]
    return _Weights(held, max(0 if any(held) else 1, interval.capacity_ns - sum(held)))


def _cpu_time(interval: NodeMeasurement, jobs: Sequence[JobResourceTime]) -> _Weights:
    """Return CPU time by job, and that of everything else.

    A job whose CPU time is not known gets, with its like and by allocated CPUs, what the others left, at
    most what its CPUs can do.
    """
    known = sum(claim.cpu_time_ns for claim in jobs if claim.cpu_time_ns is not None)
    unknown = [claim.held_ns for claim in jobs if claim.cpu_time_ns is None]
    most = sum(unknown)
    left = most if interval.busy_ns is None else max(0, interval.busy_ns - known)
    assumed = iter(apportion(min(most, left) if most else 0, unknown))
    weights = [next(assumed) if claim.cpu_time_ns is None else claim.cpu_time_ns for claim in jobs]
    return _Weights(weights, max(0, (interval.busy_ns or 0) - sum(weights)))


def _gpu_names(interval: NodeMeasurement, jobs: Sequence[JobResourceTime]) -> list[str]:
    """Return the node's GPUs as far as this interval knows of them: measured, named for it, or held."""
    measured = {name for name in interval.energy_uj if name.startswith("gpu[")}
    held = {f"gpu[{index}]" for claim in jobs for index in claim.gpus}
    return sorted(measured | held | set(interval.gpus))


def _gpu_held(index: int, jobs: Sequence[JobResourceTime]) -> _Weights:
    """Return the share of a GPU by job, and what nobody holds."""
    shares = [claim.gpus.get(index, _NONE) for claim in jobs]
    if all(share is _NONE for share in shares):
        return _Weights([0] * len(shares), 1)
    whole = math.lcm(*(share.denominator for share in shares))
    weights = [share.numerator * (whole // share.denominator) for share in shares]
    return _Weights(weights, max(0, whole - sum(weights)))


def gpu_index(component: str) -> int:
    """Return 3 for `gpu[3]`."""
    return int(component[4:-1])


def _other(interval: NodeMeasurement, held: _Weights, dynamic: _Piece) -> _Piece:
    """Split fans, losses and the rest: static by allocation, the excess as other parts' dynamic energy."""
    energy_uj = interval.energy_uj[OTHER]
    static_uj = min(energy_uj, interval.static_uj.get(OTHER, 0))
    used = _Weights(dynamic.jobs, dynamic.unattributed)
    return _static(static_uj, held).plus(_dynamic(energy_uj - static_uj, used))


def _node_held(cpus: _Weights, gpus: Sequence[_Weights]) -> _Weights:
    """Return the share of the node by job: of its CPUs, on a node with GPUs the mean of CPUs' and GPUs'."""
    if not gpus:
        return cpus
    columns = zip(*(gpu.shares() for gpu in gpus), strict=True)
    means = [(cpu + sum(column) / len(gpus)) / 2 for cpu, column in zip(cpus.shares(), columns, strict=True)]
    whole = math.lcm(*(mean.denominator for mean in means))
    weights = [int(mean * whole) for mean in means]
    return _Weights(weights, whole - sum(weights))
