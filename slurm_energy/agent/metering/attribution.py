"""Attribution: pure functions that divide a node's energy of one interval among its jobs.

docs/attribution.md states the rule. The arithmetic is exact, in integers. For every component the microjoules
of jobs, idle energy and unattributed energy add up to the measured microjoules.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from slurm_energy.devices.cpu.resctrl import CORE_ENERGY, TRAFFIC

BY_CPU_TIME = ("cpu", "dram")
OTHER = "other"
CPU_TIME = "CPU time"
MONITORED_QUANTITIES = {"cpu": CORE_ENERGY, "dram": TRAFFIC}
"""Quantity that divides the dynamic energy of a component, if the processor counts it by job."""
_NONE = Fraction(0)


@dataclass(frozen=True, slots=True)
class JobResourceTime:
    """Resources allocated to one job in an interval, and the CPU time that the job used.

    Attributes:
        job: unique name of the job.
        held_ns: allocated CPU time in nanoseconds. This time is the number of the job's logical CPUs
            multiplied by the duration of their allocation.
        cpu_time_ns: CPU time used in the interval, in nanoseconds; None if unknown.
        gpus: allocated share of each GPU by index: 1 for a whole GPU, less for a MIG instance or a shard.
        monitored: the job's use of monitored quantities, see `NodeMeasurement.monitored`. A value of None
            means that the use is unknown, but included in the node's total. A quantity is absent if the
            node's total does not include the use of this job.
    """

    job: str
    held_ns: int
    cpu_time_ns: int | None = None
    gpus: Mapping[int, Fraction] = field(default_factory=dict)
    monitored: Mapping[str, int | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DynamicEnergy:
    """Energy above the idle energy, summed over all components, in microjoules.

    Attributes:
        jobs: energy by job name.
        rest: energy that no job caused, for example of system processes.
    """

    jobs: Mapping[str, int] = field(default_factory=dict)
    rest: int = 0


@dataclass(frozen=True, slots=True)
class NodeMeasurement:
    """The measured energy and CPU time of a whole node in one interval.

    Attributes:
        capacity_ns: logical CPUs of the node times the length of the interval, in nanoseconds.
        busy_ns: CPU time of all processes, including the jobs, in nanoseconds; None if unknown.
        energy_uj: microjoules by component: `cpu`, `dram`, `gpu[i]`, `other`; unknown components are absent.
        static_uj: the part of `energy_uj` that the node would have used when idle; 0 for an absent component.
        dynamic: dynamic energy of components that an earlier call of `split_energy` divided. The dynamic
            energy of `other` is divided in proportion to the dynamic energy of all other components.
        gpus: names of the node's GPU components; GPUs with energy in `energy_uj` need not be listed.
        monitored: use of all processes together, by quantity. The processor counts these quantities per job:
            TRAFFIC (memory traffic) in bytes, CORE_ENERGY in microjoules. Unknown quantities are absent.
    """

    capacity_ns: int
    busy_ns: int | None
    energy_uj: Mapping[str, int]
    static_uj: Mapping[str, int] = field(default_factory=dict)
    dynamic: DynamicEnergy = field(default_factory=DynamicEnergy)
    gpus: tuple[str, ...] = ()
    monitored: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EnergySplit:
    """The result of dividing a node's energy, in microjoules by component.

    Attributes:
        jobs: energy by job name and component. Every job has an entry for every component of the interval.
        idle: static energy of resources that are allocated to no job.
        unattributed: dynamic energy that no job caused, for example of system processes.
        dynamic: dynamic energy of all components except `other`, including components that an earlier call of
            `split_energy` divided.
        methods: quantity by which the dynamic energy was divided, by component and job: CPU_TIME, TRAFFIC or
            CORE_ENERGY. Components that are divided by other rules are absent.
    """

    jobs: Mapping[str, Mapping[str, int]]
    idle: Mapping[str, int]
    unattributed: Mapping[str, int]
    dynamic: DynamicEnergy
    methods: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


@dataclass(slots=True)
class _Piece:
    """Energy of one component in microjoules, divided among jobs, idle and unattributed energy.

    The energy may also be only a part of the component's energy: the static part, which does not depend
    on the use of the component, or the dynamic part, which does. The list `jobs` has one entry per job,
    in the order in which `split_energy` sorts the jobs.
    """

    jobs: list[int]
    idle: int = 0
    unattributed: int = 0

    def plus(self, more: _Piece) -> _Piece:
        sums = [mine + its for mine, its in zip(self.jobs, more.jobs, strict=True)]
        return _Piece(sums, self.idle + more.idle, self.unattributed + more.unattributed)


@dataclass(frozen=True, slots=True)
class _Weights:
    """Weights by which energy is divided: one integer per job, and one for the rest of the node."""

    jobs: list[int]
    rest: int


def apportion(total: int, weights: Sequence[int]) -> list[int]:
    """Divide an integer in proportion to weights by the largest-remainder method.

    The parts add up to the integer.

    Args:
        total: the integer to divide, not negative.
        weights: not negative, and not all 0 unless `total` is 0.

    Returns:
        One part per weight. If two weights have equal remainders, the earlier weight gets the remaining unit.

    Raises:
        ValueError: an argument violates these conditions.
    """
    whole = sum(weights)
    if total < 0 or min(weights, default=0) < 0 or (whole == 0 and total > 0):
        raise ValueError("cannot apportion")
    if whole == 0:
        return [0] * len(weights)
    if total == 0 or whole in weights:  # one weight has all
        return [total if weight else 0 for weight in weights]
    parts = [total * weight // whole for weight in weights]
    order = sorted(range(len(weights)), key=lambda i: (-(total * weights[i] % whole), i))
    for index in order[: total - sum(parts)]:
        parts[index] += 1
    return parts


def split_energy(interval: NodeMeasurement, claims: Iterable[JobResourceTime]) -> EnergySplit:
    """Divide a node's energy of one interval among its jobs, idle energy and unattributed energy.

    Args:
        interval: the measured energy and CPU time of the node.
        claims: the resources of each job that was on the node in the interval.
    """
    jobs = sorted(claims, key=lambda claim: claim.job)
    held, used = _cpus_held(interval, jobs), _cpu_time(interval, jobs)
    held_gpus = {index for claim in jobs for index, share in claim.gpus.items() if share}
    pieces: dict[str, _Piece] = {}
    methods: dict[str, dict[str, str]] = {}
    dynamic = _Piece([interval.dynamic.jobs.get(claim.job, 0) for claim in jobs])
    dynamic.unattributed = interval.dynamic.rest + sum(interval.dynamic.jobs.values()) - sum(dynamic.jobs)
    for name, energy_uj in interval.energy_uj.items():
        if name == OTHER:
            continue
        static_uj = min(energy_uj, interval.static_uj.get(name, 0))
        if name in BY_CPU_TIME:
            still = _static(static_uj, held)
            moved, methods[name] = _cpu_dynamic(name, energy_uj - static_uj, interval, jobs, used)
        elif (index := gpu_index(name)) not in held_gpus:
            dynamic.unattributed += energy_uj - static_uj
            pieces[name] = _Piece([0] * len(jobs), static_uj, energy_uj - static_uj)
            continue
        else:
            gpu = _gpu_held(index, jobs)
            still, moved = _static(static_uj, gpu), _dynamic(energy_uj - static_uj, _Weights(gpu.jobs, 0))
        pieces[name] = still.plus(moved)
        dynamic = dynamic.plus(moved)
    if OTHER in interval.energy_uj:
        node_gpus = [gpu_index(name) for name in _gpu_names(interval, jobs)]
        gpus = [_gpu_held(index, jobs) for index in node_gpus if index in held_gpus]
        pieces[OTHER] = _other(interval, _node_held(held, gpus, len(node_gpus)), dynamic)
    rows = zip(*(piece.jobs for piece in pieces.values()), strict=True) if pieces else ((),) * len(jobs)
    return EnergySplit(
        jobs={c.job: dict(zip(pieces, row, strict=True)) for c, row in zip(jobs, rows, strict=True)},
        idle={name: piece.idle for name, piece in pieces.items()},
        unattributed={name: piece.unattributed for name, piece in pieces.items()},
        dynamic=DynamicEnergy(
            dict(zip((c.job for c in jobs), dynamic.jobs, strict=True)), dynamic.unattributed
        ),
        methods=methods,
    )


def rest_of_node(node_uj: int, parts_uj: int, debt_uj: int = 0) -> tuple[int, int]:
    """Return the energy that a node used outside its components with counters.

    The node meter and the counters of the components are not read at the same instant. Over a short interval
    the counters can therefore report more energy than the node meter. This excess is called a debt. It is
    carried over and subtracted from the energy of later intervals.

    Args:
        node_uj: microjoules of the whole node in the interval.
        parts_uj: microjoules of all components that have their own counters.
        debt_uj: debt after the previous interval in microjoules.

    Returns:
        Microjoules of the rest of the node, never negative, and the new debt in microjoules.
    """
    rest = node_uj - parts_uj - debt_uj
    return max(0, rest), max(0, -rest)


def _static(energy_uj: int, held: _Weights) -> _Piece:
    """Divide static energy (in microjoules) in proportion to allocated resources.

    Each job gets energy in proportion to its allocated resources. Resources that are not allocated to any
    job get their part too, which counts as idle energy.
    """
    *jobs, idle = apportion(energy_uj, [*held.jobs, held.rest])
    return _Piece(jobs, idle=idle)


def _dynamic(energy_uj: int, used: _Weights) -> _Piece:
    """Divide dynamic energy (in microjoules) among the jobs in proportion to their resource use.

    Processes that belong to no job take part in the division as if they were one more job. The energy of
    these processes is unattributed.
    """
    if sum(used.jobs) + used.rest == 0:
        return _Piece([0] * len(used.jobs), unattributed=energy_uj)
    *jobs, unattributed = apportion(energy_uj, [*used.jobs, used.rest])
    return _Piece(jobs, unattributed=unattributed)


def _cpu_dynamic(
    name: str, energy_uj: int, interval: NodeMeasurement, jobs: Sequence[JobResourceTime], used: _Weights
) -> tuple[_Piece, dict[str, str]]:
    """Divide the dynamic energy of the component `cpu` or `dram` among jobs.

    Args:
        name: name of the component.
        energy_uj: dynamic energy of the component in microjoules.
        interval: the measurement of the node.
        jobs: allocated resources and CPU time of each job.
        used: CPU time by job.

    Returns:
        Two values. The first is the division of the energy. The second states, by job name, the
        quantity in proportion to which the job got its share: CPU time or a monitored quantity.
    """
    quantity = MONITORED_QUANTITIES[name]
    weights = _monitored_weights(quantity, interval, jobs, used)
    if weights is None:
        return _dynamic(energy_uj, used), {claim.job: CPU_TIME for claim in jobs}
    methods = {c.job: CPU_TIME if c.monitored.get(quantity) is None else quantity for c in jobs}
    if quantity != CORE_ENERGY:
        return _dynamic(energy_uj, weights), methods
    cores_uj = min(energy_uj, interval.monitored[quantity])
    return _dynamic(cores_uj, weights).plus(_dynamic(energy_uj - cores_uj, used)), methods


def _monitored_weights(
    quantity: str, interval: NodeMeasurement, jobs: Sequence[JobResourceTime], used: _Weights
) -> _Weights | None:
    """Return how much each job, and all other processes, used a quantity that the processor counts.

    An example of a quantity is memory traffic. The result is None if the total is unknown, or if no use can
    be determined.

    If the use of some jobs is unknown, their use is estimated. The known use of jobs is subtracted from the
    total. The rest is divided, in proportion to CPU time, among the jobs with unknown use and the processes
    outside jobs. If the total does not include a job, this job is assumed to use as much per second of CPU
    time as the counted processes do on average.
    """
    total = interval.monitored.get(quantity)
    if total is None:
        return None
    known = sum(claim.monitored.get(quantity) or 0 for claim in jobs)
    remaining = max(0, total - known)
    guessed = [
        time if quantity in c.monitored and c.monitored[quantity] is None else 0
        for c, time in zip(jobs, used.jobs, strict=True)
    ]
    shared = [*guessed, used.rest if any(guessed) else 1]
    *guesses, rest = apportion(remaining, shared)
    counted_ns = used.rest + sum(
        time for c, time in zip(jobs, used.jobs, strict=True) if quantity in c.monitored
    )
    if counted_ns == 0 and any(quantity not in c.monitored for c in jobs):
        return None
    weights = [
        (c.monitored[quantity] or guess)
        if quantity in c.monitored
        else (known + remaining) * time // counted_ns
        for c, guess, time in zip(jobs, guesses, used.jobs, strict=True)
    ]
    return _Weights(weights, rest) if sum(weights) + rest > 0 else None


def _cpus_held(interval: NodeMeasurement, jobs: Sequence[JobResourceTime]) -> _Weights:
    """Return the allocated CPU time of each job and the unallocated CPU time, in nanoseconds."""
    held = [claim.held_ns for claim in jobs]
    return _Weights(held, max(0 if any(held) else 1, interval.capacity_ns - sum(held)))


def _cpu_time(interval: NodeMeasurement, jobs: Sequence[JobResourceTime]) -> _Weights:
    """Return the CPU time that each job used, and that all other processes used, in nanoseconds.

    If the CPU time of some jobs is unknown, their CPU time is estimated. The busy time that remains after
    subtracting the known jobs is divided among the jobs with unknown CPU time, in proportion to their
    allocated CPU time. A job gets at most its allocated CPU time.
    """
    known_ns = sum(claim.cpu_time_ns for claim in jobs if claim.cpu_time_ns is not None)
    unknown = [claim.held_ns for claim in jobs if claim.cpu_time_ns is None]
    max_ns = sum(unknown)
    remaining_ns = max_ns if interval.busy_ns is None else max(0, interval.busy_ns - known_ns)
    assumed = iter(apportion(min(max_ns, remaining_ns) if max_ns else 0, unknown))
    weights = [next(assumed) if claim.cpu_time_ns is None else claim.cpu_time_ns for claim in jobs]
    return _Weights(weights, max(0, (interval.busy_ns or 0) - sum(weights)))


def _gpu_names(interval: NodeMeasurement, jobs: Sequence[JobResourceTime]) -> list[str]:
    """Return the names of the node's GPU components: all that are measured, listed or allocated."""
    measured = {name for name in interval.energy_uj if name.startswith("gpu[")}
    held = {f"gpu[{index}]" for claim in jobs for index in claim.gpus}
    return sorted(measured | held | set(interval.gpus))


def _gpu_held(index: int, jobs: Sequence[JobResourceTime]) -> _Weights:
    """Return the weights by which the energy of a GPU is divided: one per job, and one for the rest.

    The weight of a job is proportional to the share of the GPU that is allocated to the job. The weight
    of the rest is proportional to the share that is allocated to no job.
    """
    shares = [claim.gpus.get(index, _NONE) for claim in jobs]
    if all(share is _NONE for share in shares):
        return _Weights([0] * len(shares), 1)
    whole = math.lcm(*(share.denominator for share in shares))
    weights = [share.numerator * (whole // share.denominator) for share in shares]
    return _Weights(weights, max(0, whole - sum(weights)))


def gpu_index(component: str) -> int:
    """Return the GPU index in a component name, for example 3 for `gpu[3]`."""
    return int(component[4:-1])


def _other(interval: NodeMeasurement, held: _Weights, dynamic: _Piece) -> _Piece:
    """Divide the energy of the component `other` (fans, power supply losses) among the jobs.

    Static energy is divided in proportion to the allocated resources. Dynamic energy is divided in
    proportion to the jobs' dynamic energy of the other components.

    Args:
        interval: the measured energy of the node.
        held: fraction of the node that is allocated to each job, see `_node_held`.
        dynamic: dynamic energy of the other components, divided among the jobs.
    """
    energy_uj = interval.energy_uj[OTHER]
    static_uj = min(energy_uj, interval.static_uj.get(OTHER, 0))
    used = _Weights(dynamic.jobs, dynamic.unattributed)
    return _static(static_uj, held).plus(_dynamic(energy_uj - static_uj, used))


def _node_held(cpus: _Weights, gpus: Sequence[_Weights], gpu_count: int) -> _Weights:
    """Return the fraction of the node that each job holds, as integer weights.

    It is the job's fraction of the CPUs. On a node with GPUs, it is the mean of the job's fraction of the
    CPUs and its fraction of the GPUs.

    Args:
        cpus: allocated CPU time.
        gpus: allocated fractions of each GPU that is allocated to at least one job.
        gpu_count: number of all GPUs of the node.
    """
    if not gpu_count:
        return cpus
    wholes = [max(1, sum(gpu.jobs) + gpu.rest) for gpu in gpus]
    cpu_whole = max(1, sum(cpus.jobs) + cpus.rest)
    common = math.lcm(cpu_whole, *wholes)
    factor = gpu_count * (common // cpu_whole)
    weights = [factor * cpu for cpu in cpus.jobs]
    for gpu, whole in zip(gpus, wholes, strict=True):
        weights = [
            weight + share * (common // whole) for weight, share in zip(weights, gpu.jobs, strict=True)
        ]
    return _Weights(weights, 2 * gpu_count * common - sum(weights))
