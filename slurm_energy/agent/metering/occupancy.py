"""Time intervals with the resources of jobs.

Each interval states which resources were allocated to each job, and which of them the job used.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, TypeVar

from slurm_energy.agent.metering.attribution import JobResourceTime
from slurm_energy.known_fields import build_from

GONE = ""
"""Stands for all jobs that ended before the energy of their time was reported."""
_NS = 1_000_000_000
_K = TypeVar("_K")


@dataclass(frozen=True, slots=True)
class Occupant:
    """A job on the node with its allocated resources.

    Attributes:
        job: unique name of the job.
        cpus: allocated logical CPUs; None if Slurm does not report them.
        gpus: allocated share of each GPU by index.
        whole: whether the job has the whole node.
    """

    job: str
    cpus: int | None
    gpus: Mapping[int, Fraction] = field(default_factory=dict)
    whole: bool = False


@dataclass(frozen=True, slots=True)
class CpuTimeDelta:
    """CPU time in nanoseconds used in an interval.

    Attributes:
        busy_ns: CPU time of all processes on the node; None if unknown.
        jobs: CPU time by job name; None or absent if unknown.
        complete: False if CPU time was not read at the end of this interval. The next
            reading then covers this interval too.
    """

    busy_ns: int | None = None
    jobs: Mapping[str, int | None] = field(default_factory=dict)
    complete: bool = True


@dataclass(frozen=True, slots=True)
class MonitoredUse:
    """Use of one quantity by the jobs and by all processes of a node.

    The quantity is, for example, bytes of memory traffic or microjoules of the cores. The processor counts
    it by monitoring group.

    Attributes:
        total: use of all processes, except for the jobs in `uncounted`; None if unknown.
        jobs: use by job; None if the use of a job is unknown.
        uncounted: jobs whose use the processor has not counted. Their use is missing in `total`. All other
            jobs with unknown use are included in `total`.
    """

    total: int | None
    jobs: Mapping[str, int | None]
    uncounted: frozenset[str] = frozenset()

    def joined_with(self, later: MonitoredUse) -> MonitoredUse:
        """Return the jobs' use of a monitored quantity in this interval and in `later` together.

        A job that is listed in only one of the two intervals used nothing in the other interval.
        """
        jobs = {
            job: _plus(self.jobs.get(job, 0), later.jobs.get(job, 0)) for job in {**self.jobs, **later.jobs}
        }
        return MonitoredUse(_plus(self.total, later.total), jobs, self.uncounted | later.uncounted)

    def without(self, job: str) -> MonitoredUse:
        """Return a copy in which the use by `job` is counted under the name GONE (ended jobs)."""
        if job not in self.jobs:
            return self
        jobs = {name: used for name, used in self.jobs.items() if name != job}
        jobs[GONE] = _plus(jobs.get(GONE, 0), self.jobs[job])
        uncounted = self.uncounted - {job} | ({GONE} if job in self.uncounted else set())
        return MonitoredUse(self.total, jobs, uncounted)

    def for_occupants(self, names: Iterable[str], *, complete: bool) -> MonitoredUse:
        """Return a copy of this object that has an entry for each job in `names`, and no other entries.

        For a job without an entry in this object, the value in the copy is None (unknown) if `complete` is
        True, otherwise 0.
        """
        missing = None if complete else 0
        return replace(self, jobs={name: self.jobs.get(name, missing) for name in names})

    def dump(self) -> dict[str, Any]:
        """Return the use as a dict that JSON can hold."""
        return {"total": self.total, "jobs": dict(self.jobs), "uncounted": sorted(self.uncounted)}

    @classmethod
    def load(cls, data: Mapping[str, Any]) -> MonitoredUse:
        """Restore a `MonitoredUse` (use of one quantity by the jobs) from a dict that `dump` has written."""
        return cls(data["total"], dict(data["jobs"]), frozenset(data["uncounted"]))


@dataclass(frozen=True, slots=True)
class MonitoredDelta:
    """Use of quantities that the processor counts by job (resctrl), in an interval.

    Attributes:
        uses: use by quantity; quantities that are not monitored are absent.
        complete: False if the counts were not read at the end of this interval. The next reading then covers
            this interval too.
    """

    uses: Mapping[str, MonitoredUse] = field(default_factory=dict)
    complete: bool = True


NOT_MONITORED = MonitoredDelta()


@dataclass(frozen=True, slots=True)
class OccupancyInterval:
    """A time interval with the resources that Slurm allocated to each job and that each job used.

    Attributes:
        start: start of the interval in seconds since boot.
        length_ns: length of the interval in nanoseconds.
        capacity_ns: length of the interval times the number of logical CPUs of the node.
        busy_ns: CPU time that all processes used; None if unknown.
        sole: name of the job that had the whole node for the whole interval; None if there was no such job.
        since: for each job, the time from which it was on the node, in seconds since boot.
        held_ns: CPU time that was allocated to each job.
        cpu_ns: CPU time that each job used; None if unknown.
        gpu_ns: allocated GPU time by job and GPU index: the duration of the allocation multiplied by the
            fraction of the GPU that the job has.
        monitored: each job's use of other quantities that the node monitors. A quantity that was not
            monitored during the whole interval is absent.
    """

    start: float
    length_ns: int
    capacity_ns: int
    busy_ns: int | None
    sole: str | None
    since: Mapping[str, float]
    held_ns: Mapping[str, int]
    cpu_ns: Mapping[str, int | None]
    gpu_ns: Mapping[str, Mapping[int, int]]
    monitored: Mapping[str, MonitoredUse] = field(default_factory=dict)

    @property
    def length_s(self) -> float:
        """Length of the interval in seconds."""
        return self.length_ns / _NS

    def joined_with(self, later: OccupancyInterval) -> OccupancyInterval:
        """Return one interval that covers this interval and `later`.

        The interval `later` must directly follow this interval.
        """
        if self.sole is not None and self.sole == later.sole:
            length_ns, capacity_ns = self.length_ns + later.length_ns, self.capacity_ns + later.capacity_ns
            return _of_one(self.sole, self.start, length_ns, capacity_ns, self.gpu_ns[self.sole])
        gpus = {job: dict(held) for job, held in self.gpu_ns.items()}
        for job, held in later.gpu_ns.items():
            gpus[job] = _sum(gpus.get(job, {}), held)
        return OccupancyInterval(
            start=self.start,
            length_ns=self.length_ns + later.length_ns,
            capacity_ns=self.capacity_ns + later.capacity_ns,
            busy_ns=_plus(self.busy_ns, later.busy_ns),
            sole=self.sole if self.sole == later.sole else None,
            since={**later.since, **self.since},
            held_ns=_sum(self.held_ns, later.held_ns),
            cpu_ns={
                job: _plus(self.cpu_ns.get(job, 0), later.cpu_ns.get(job, 0))
                for job in {**self.cpu_ns, **later.cpu_ns}
            },
            gpu_ns=gpus,
            monitored={
                quantity: use.joined_with(later.monitored[quantity])
                for quantity, use in self.monitored.items()
                if quantity in later.monitored
            },
        )

    def without(self, job: str) -> OccupancyInterval:
        """Return a copy of this interval that lists the resources of `job` under the name GONE.

        Call this method if the job finishes before the energy of the interval is charged. The name GONE
        stands for all jobs that finish so early. Their share of the energy becomes unattributed energy.
        """
        if job not in self.since:
            return self
        return replace(
            self,
            sole=None,
            since={name: start for name, start in self.since.items() if name != job},
            held_ns=_renamed(self.held_ns, job),
            cpu_ns={
                **{name: used for name, used in self.cpu_ns.items() if name != job},
                GONE: _plus(self.cpu_ns.get(GONE, 0), self.cpu_ns.get(job)),
            },
            gpu_ns={
                **{name: held for name, held in self.gpu_ns.items() if name != job},
                GONE: _sum(self.gpu_ns.get(GONE, {}), self.gpu_ns.get(job, {})),
            },
            monitored={quantity: use.without(job) for quantity, use in self.monitored.items()},
        )

    def resource_times(self) -> list[JobResourceTime]:
        """Return the allocated and the used resources of each job.

        The list has the form of an argument of `split_energy`.
        """
        return [
            JobResourceTime(job, held, self.cpu_ns.get(job), self._gpu_shares(job), self._monitored_use(job))
            for job, held in self.held_ns.items()
        ]

    def monitored_totals(self) -> dict[str, int]:
        """Return the total use of the monitored quantities by all processes; unknown totals are absent."""
        return {quantity: use.total for quantity, use in self.monitored.items() if use.total is not None}

    def _monitored_use(self, job: str) -> dict[str, int | None]:
        """Return the counted use of hardware by a job, by quantity.

        The processor counts each quantity, for example memory traffic, for each job and in total. If the
        count of the job is unknown, there are two cases. If the total includes the job, the value is None.
        If the total does not include the job, the quantity is left out.
        """
        return {
            quantity: use.jobs.get(job)
            for quantity, use in self.monitored.items()
            if job not in use.uncounted
        }

    def holders(self, gpu: int) -> set[str]:
        """Return the names of the jobs that use the GPU with index `gpu`, alone or shared."""
        return {job for job, held in self.gpu_ns.items() if held.get(gpu)}

    def _gpu_shares(self, job: str) -> dict[int, Fraction]:
        held = self.gpu_ns.get(job, {})
        return {gpu: Fraction(ns, self.length_ns) for gpu, ns in held.items()} if self.length_ns else {}

    def dump(self) -> dict[str, Any]:
        """Return the interval as a dict that JSON can hold."""
        data: dict[str, Any] = {name: getattr(self, name) for name in self.__slots__}
        data["gpu_ns"] = {job: list(held.items()) for job, held in self.gpu_ns.items()}
        data["monitored"] = {quantity: use.dump() for quantity, use in self.monitored.items()}
        return data

    @classmethod
    def load(cls, data: Mapping[str, Any]) -> OccupancyInterval:
        """Restore an interval from the data that its method `dump` has returned."""
        gpu_ns = {job: dict(held) for job, held in data["gpu_ns"].items()}
        monitored = {q: MonitoredUse.load(use) for q, use in data.get("monitored", {}).items()}
        return build_from(cls, {**data, "gpu_ns": gpu_ns, "monitored": monitored})


def occupancy_of(
    start: float,
    end: float,
    cpus: int,
    gpus: Iterable[int],
    occupants: Iterable[Occupant],
    used: CpuTimeDelta,
    monitored: MonitoredDelta = NOT_MONITORED,
) -> OccupancyInterval:
    """Return how jobs occupied a node in an interval. The jobs were there for the whole interval.

    The result states how the CPU time and the GPUs of the node are divided among the jobs.

    Args:
        start: start of the interval in seconds since boot.
        end: end of the interval in seconds since boot.
        cpus: number of logical CPUs of the node.
        gpus: indices of the node's GPUs.
        occupants: the jobs on the node, with their allocated resources.
        used: CPU time used in the interval.
        monitored: use of monitored quantities in the interval.
    """
    length_ns = round((end - start) * _NS)
    capacity_ns = cpus * length_ns
    jobs = list(occupants)
    sole = next((occupant.job for occupant in jobs if occupant.whole), None) if len(jobs) == 1 else None
    if sole is not None:
        return _of_one(sole, start, length_ns, capacity_ns, gpus)
    missing: int | None = None if used.complete else 0
    return OccupancyInterval(
        start,
        length_ns,
        capacity_ns,
        used.busy_ns if used.complete else 0,
        None,
        {occupant.job: start for occupant in jobs},
        {occupant.job: (occupant.cpus or 0) * length_ns for occupant in jobs},
        {occupant.job: used.jobs.get(occupant.job, missing) for occupant in jobs},
        {
            occupant.job: {
                index: share.numerator * length_ns // share.denominator
                for index, share in occupant.gpus.items()
            }
            for occupant in jobs
        },
        {
            quantity: use.for_occupants((occupant.job for occupant in jobs), complete=monitored.complete)
            for quantity, use in monitored.uses.items()
        },
    )


def _of_one(
    sole: str, start: float, length_ns: int, capacity_ns: int, gpus: Iterable[int]
) -> OccupancyInterval:
    """Return the occupancy of a node on which a single job has had the whole node for an interval.

    All CPU time of the node counts as CPU time of this job.
    """
    gpu_ns = {sole: dict.fromkeys(gpus, length_ns)}
    held, used = {sole: capacity_ns}, {sole: capacity_ns}
    return OccupancyInterval(
        start, length_ns, capacity_ns, capacity_ns, sole, {sole: start}, held, used, gpu_ns
    )


def _plus(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other


def _sum(one: Mapping[_K, int], other: Mapping[_K, int]) -> dict[_K, int]:
    return {key: one.get(key, 0) + other.get(key, 0) for key in {**one, **other}}


def _renamed(held: Mapping[str, int], job: str) -> dict[str, int]:
    rest = {name: ns for name, ns in held.items() if name != job}
    rest[GONE] = rest.get(GONE, 0) + held.get(job, 0)
    return rest
