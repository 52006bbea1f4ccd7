"""Selection of the jobs that start in a simulation with constraints, and of their nodes.

Constraints are memory, licenses, and the limits of partitions, QOS and reservations.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence

import numpy as np

from slurm_energy.errors import UsageError
from slurm_energy.scheduling.backfill import Candidate, Discipline, reserves
from slurm_energy.scheduling.queue import Bools, Floats, Ints
from slurm_energy.simulator.cluster import Allocation, Cluster, NodePowerState
from slurm_energy.simulator.constraints.constraints import Constraints
from slurm_energy.simulator.constraints.job_constraints import JobConstraints, needs_constraints
from slurm_energy.simulator.constraints.limit_usage import LimitUsage
from slurm_energy.simulator.event_queue import EventQueue
from slurm_energy.simulator.power.node_timeline import FreeResources, NodeRelease, NodeTimeline, UnitRequest
from slurm_energy.simulator.running_jobs import RunningJobs
from slurm_energy.simulator.schedule_settings import ScheduleSettings
from slurm_energy.simulator.workloads.job_demand import JobDemand
from slurm_energy.simulator.workloads.workload import Workload


class ConstrainedSelection:
    """Selection of the jobs that may start now. Nodes are selected for each of these jobs.

    A unit is a GPU, a core or a node. A job gets nodes of its partition and of its reservation that have
    enough free units and memory. No other reservation may claim these nodes before the job's time limit.
    A job waits without delaying other jobs in two cases: its partition or QOS is at a limit, or its
    reservation is not open.

    Args:
        work: all jobs; those without a time limit have the default limit.
        cluster: the nodes of the cluster.
        constraints: constraints of the cluster.
        runs: the running jobs.
        events: event queue, which provides the simulated time.
        demand: resources that jobs need, and resources that are free, including power.
        may_boot: whether nodes may be off. If so, the expected duration of each job includes the time of
            a boot.
    """

    def __init__(
        self,
        work: Workload,
        cluster: Cluster,
        constraints: Constraints,
        *,
        runs: RunningJobs,
        events: EventQueue,
        demand: JobDemand,
        may_boot: bool,
    ) -> None:
        self._work = work
        self._cluster = cluster
        self._runs = runs
        self._events = events
        self._demand = demand
        self._boot_s = [kind.boot_s if may_boot else 0.0 for kind in cluster.kinds]
        self._rules = JobConstraints(work, cluster.kinds, constraints)
        self._possible: Bools = np.ones(len(work.units), np.bool_)
        self._refused: Counter[str] = Counter()

    def accepts(self, job: int) -> bool:
        """Return whether an arriving job can ever run under the constraints.

        The method also determines in which shapes (ways to run it) the job can run. If there is no such
        shape, the method counts the job as refused.
        """
        reasons = []
        for shape in self._work.shapes(job):
            reason = self._rules.refusal(job, shape)
            if (
                not reason
                and self._rules.reservations
                and self._empty().earliest(self._request(job, shape)) is None
            ):
                reason = "reservations leave no time for them"
            self._possible[shape] = not reason
            reasons.append(reason)
        if all(reasons):
            self._refused[reasons[0]] += 1
        return not all(reasons)

    def possible(self, shapes: Ints) -> Bools:
        """Return, for each shape, whether it could start if the cluster were empty.

        A shape is one way to run a job. The jobs of the shapes must have been accepted before.
        """
        return self._possible[shapes]

    def possible_now(self, jobs: Ints, shapes: Ints) -> Bools:
        """Return for each given shape whether it could start now if power were unlimited.

        A shape is a possible choice of resources of a job.

        Args:
            jobs: for each shape, the row of its job.
            shapes: rows of the shapes in the workload.
        """
        timeline, usage, now_s = self._timeline(), self._usage(), self._events.now_s
        pairs = zip(jobs.tolist(), shapes.tolist(), strict=True)
        return np.array(
            [
                self._is_open(job)
                and usage.permits(job, shape)
                and timeline.place(self._request(job, shape), now_s) is not None
                for job, shape in pairs
            ],
            np.bool_,
        )

    def place_now(self, job: int, shape: int, victims: Collection[int] = ()) -> Allocation | None:
        """Return the units that a job gets if it starts now. Return None if the job cannot start.

        A scheduling pass examines the whole queue. This function serves starts between two passes.

        Args:
            job: row of the job in the workload.
            shape: row of the job's set of resources (shape) in the workload.
            victims: rows of the running jobs that are interrupted for this job. The units of these jobs are
                already free.
        """
        if not self._is_open(job) or not self._usage(victims).permits(job, shape):
            return None
        timeline = self._timeline(victims=victims)
        return timeline.place(self._request(job, shape), self._events.now_s)

    def choose(
        self, discipline: Discipline, candidates: Sequence[Candidate]
    ) -> Iterator[tuple[Candidate, Allocation]]:
        """Yield the jobs that start now, in order, each with the units (such as GPUs) that it gets.

        The caller must start each job before it requests the next one.

        Args:
            discipline: scheduling discipline.
            candidates: pending jobs in the order of the policy.
        """
        now_s = self._events.now_s
        timeline, usage, has_reserved = self._timeline(), self._usage(), False
        for candidate in self._by_priority(candidates):
            if not self._is_open(candidate.job) or not usage.permits(candidate.job, candidate.shape):
                continue
            request = self._request(candidate.job, candidate.shape)
            allocation = timeline.place(request, now_s)
            if allocation is not None:
                if has_reserved:
                    timeline.take(now_s, request, allocation)
                else:
                    timeline.take_all(request, allocation)
                yield candidate, allocation
                if candidate.job in self._runs.running:
                    usage.add(candidate.job, candidate.shape)
                continue
            if discipline == Discipline.STRICT:
                return
            if not reserves(discipline, candidate, is_first=not has_reserved):
                continue
            if not has_reserved:
                timeline, has_reserved = self._timeline(timeline.first, self._releases()), True
            planned = timeline.earliest(request)
            if planned is not None:
                timeline.take(planned[0], request, planned[1])
                usage.add(candidate.job, candidate.shape)  # no lower-ranked job may use up the limit

    def expired(self, jobs: Iterable[int]) -> list[int]:
        """Return the jobs that can never start because their reservation is over for good.

        These jobs are counted as refused.
        """
        now_s = self._events.now_s
        passed = [
            job
            for job in jobs
            if (number := self._rules.reservation(job)) >= 0
            and next(self._rules.reservations[number][0].windows(now_s), None) is None
        ]
        if passed:
            self._refused["their reservation ended before they could start"] += len(passed)
        return passed

    def next_change_s(self) -> float:
        """Return the time in seconds of the next begin or end of a reservation; infinity if none follows."""
        return min(
            (one.next_change_s(self._events.now_s) for one, _ in self._rules.reservations), default=np.inf
        )

    def notes(self) -> list[str]:
        """Return remarks for the user on jobs that never ran, and on requests without effect."""
        return self._rules.notes(self._refused)

    def _by_priority(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Sort the jobs that may start: aged jobs first, then the others by priority.

        An aged job has waited longer than the bound on waiting. The other jobs are sorted by the priority of
        their partition, then by the priority of their QOS. Jobs of equal priority keep the order of the
        scheduling policy.
        """

        def place(candidate: Candidate) -> tuple[bool, int, int]:
            partition, qos = self._rules.priority(candidate.job)
            return not candidate.aged, -partition, -qos

        return sorted(candidates, key=place)

    def _request(self, job: int, shape: int) -> UnitRequest:
        boot_s = self._boot_s[int(self._work.hardware[shape])]
        watts = self._demand.need(shape)[-1:]
        return UnitRequest(
            units=int(self._work.units[shape]),
            nodes=self._rules.nodes(job, shape),
            unit_memory_gib=self._rules.unit_memory_gib(job),
            shared=np.concatenate([self._rules.licenses(job), watts]),
            length_s=boot_s + self._runs.expected_s(job, shape),
            reservation=self._rules.reservation(job),
        )

    def _is_open(self, job: int) -> bool:
        """Return whether the reservation of a job has begun; also true if the job has no reservation."""
        number = self._rules.reservation(job)
        if number < 0:
            return True
        now_s = self._events.now_s
        begin_s, _ = next(self._rules.reservations[number][0].windows(now_s), (np.inf, np.inf))
        return begin_s <= now_s

    def _usage(self, victims: Collection[int] = ()) -> LimitUsage:
        running = (run for run in self._runs.running.values() if run.job not in victims)
        return LimitUsage(self._work, self._rules, running)

    def _timeline(
        self,
        free: FreeResources | None = None,
        releases: Sequence[NodeRelease] = (),
        victims: Collection[int] = (),
    ) -> NodeTimeline:
        state = np.array(self._cluster.state)
        if free is None:
            free = self._free(self._cluster.usable_nodes, victims)
        return NodeTimeline(
            self._events.now_s, free, state == NodePowerState.OFF, self._rules.reservations, releases
        )

    def _empty(self) -> NodeTimeline:
        """Return the timeline of free resources of the cluster without any job."""
        rules = self._rules
        shared = np.append(rules.total_licenses, np.inf)
        free = FreeResources(rules.total_units.copy(), rules.memory_gib.copy(), shared)
        is_off = np.zeros(len(rules.total_units), np.bool_)
        return NodeTimeline(self._events.now_s, free, is_off, rules.reservations)

    def _free(self, usable: Bools, victims: Collection[int]) -> FreeResources:
        memory_gib, licenses = self._rules.memory_gib.copy(), self._rules.total_licenses.copy()
        for run in self._runs.running.values():
            if run.job in victims:
                continue
            unit_memory_gib = self._rules.unit_memory_gib(run.job)
            if unit_memory_gib:
                for node, count in run.allocation:
                    memory_gib[node] -= count * unit_memory_gib
            licenses -= self._rules.licenses(run.job)
        units = np.where(usable, np.array(self._cluster.node_free, np.int64), 0)
        watts: Floats = self._demand.free()[-1:]
        return FreeResources(units, memory_gib, np.concatenate([licenses, watts]))

    def _releases(self) -> list[NodeRelease]:
        usable = self._cluster.usable_nodes
        return [
            NodeRelease(
                run.start_s + run.limit_s,
                [(node, count) for node, count in run.allocation if usable[node]],
                self._rules.unit_memory_gib(run.job),
                np.concatenate([self._rules.licenses(run.job), self._demand.taken(run.shape)[-1:]]),
            )
            for run in self._runs.running.values()
        ]


def constrained_selection(
    work: Workload,
    cluster: Cluster,
    settings: ScheduleSettings,
    runs: RunningJobs,
    events: EventQueue,
    demand: JobDemand,
    *,
    has_budget: bool,
) -> ConstrainedSelection | None:
    """Create the object that selects jobs under constraints, for example reservations and licenses.

    Return None if there are no such constraints. Then only the number of free units (GPUs, cores or
    nodes) and the power restrict the jobs.

    `has_budget` states whether a power budget applies. The other arguments are those of
    `ConstrainedSelection`.

    Raises:
        UsageError: the scenario combines a budget, nodes that are switched off, and constraints that
            choose the nodes of jobs. This combination is not supported.
    """
    if not needs_constraints(work, cluster.kinds, settings.constraints):
        return None
    may_boot = settings.idle_off_s is not None or settings.power_saving is not None
    if has_budget and may_boot:
        # Admission predicts the power of nodes to boot from free units only.
        raise UsageError(
            "a power budget with nodes that are switched off",
            "is not simulated together with memory, licenses, partitions, QOS or reservations",
            "remove one of them",
        )
    constraints = settings.constraints or Constraints()
    return ConstrainedSelection(
        work, cluster, constraints, runs=runs, events=events, demand=demand, may_boot=may_boot
    )
